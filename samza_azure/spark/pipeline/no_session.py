"""Import the pipeline's module without Spark and report mistakes in its names before a JVM is up.

A module that creates a session or a column at import needs the JVM; its mistakes are found when Spark is up.
"""

import traceback
from functools import partial

from pyspark.errors import PySparkException, PySparkRuntimeError

from samza_azure.config import Config
from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.quick_check import Found, found_in
from samza_azure.spark.jvm.guard import no_session
from samza_azure.spark.pipeline.module import load
from samza_azure.user_code import is_ours

#: What pyspark calls its errors without a session.
NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"


class SessionWanted(PySparkRuntimeError):
    """The module creates a session when it is imported."""


def quick_check(config: Config) -> Found:
    """Import the module and check its names. Raise the same `PipelineRefused` as the check with Spark."""
    try:
        with no_session(partial(SessionWanted, errorClass=NO_SESSION, messageParameters={})):
            application = load(config)
    except PipelineRefused as error:
        if _wants_session(error):
            return Found("the job file", needs_session="The module creates a session or a column at import.")
        raise
    return found_in(application, config)


def _wants_session(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        # pyspark asserts that there is a session before it makes a column.
        asserted = isinstance(cause, AssertionError) and not is_ours(
            traceback.extract_tb(cause.__traceback__)[-1].filename
        )
        if asserted or (isinstance(cause, PySparkException) and cause.getCondition() == NO_SESSION):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
