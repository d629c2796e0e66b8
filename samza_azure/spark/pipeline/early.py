"""Import the pipeline's module without Spark and report mistakes in its names before a JVM is up.

A module that creates a session or a column at import needs the JVM; its mistakes are found when Spark is up.
"""

import logging
import os
import pickle
import select
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from samza_azure.config import Config
from samza_azure.errors import ConfigError, PipelineRefused, in_full
from samza_azure.machine import die_with_parent
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.names import check_names
from samza_azure.spark.user_code import is_ours

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What is known without Spark."""

    stages: str  # their number, as text
    warnings: tuple[str, ...] = ()
    needs_session: str = ""  # why the rest is not known


#: Errors that do not depend on how often a module is imported.
CERTAIN = (SyntaxError, NameError, ImportError)


class SessionWanted(PySparkRuntimeError):
    """The module creates a session when it is imported."""


def check_early(config: Config) -> Found:
    """Import the module and check its names. Raise the same `PipelineRefused` as the check with Spark."""
    try:
        with _no_session():
            application = load(config)
    except PipelineRefused as error:
        if _wants_session(error):
            return Found("the job file", needs_session="The module creates a session or a column at import.")
        raise
    warnings = check_names(application, config)
    number = len(application.stages)
    return Found(f"{number} stage" + ("" if number == 1 else "s"), tuple(warnings))


class CheckBeside:
    """`check_early` in a child process, which is forked now, so there must be no threads yet.

    In this process the module would be imported twice, once without the session's settings.
    """

    def __init__(self, config: Config) -> None:
        self.refused = ""  # the message, once the check has ended with one
        reading, writing = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            _say_and_exit(config, reading, writing)
        os.close(writing)
        self._pipe: BinaryIO | None = os.fdopen(reading, "rb")

    def ended(self, within_s: float | None) -> bool:
        """Wait for the check, for at most that long. Whether it has ended."""
        if self._pipe is None:
            return True
        if not select.select([self._pipe], [], [], within_s)[0]:
            return False
        with self._pipe as pipe:
            data = pipe.read()
        self._pipe = None
        os.waitpid(self._child, 0)
        if data:
            self.refused = pickle.loads(data)  # noqa: S301  # by our own child
        return True

    def then(self, refuse: Callable[[str], None]) -> None:
        """If the check has not ended, wait for it in a thread, which calls `refuse` if there is a mistake."""

        def wait() -> None:
            self.ended(None)
            if self.refused:
                refuse(self.refused)

        if self._pipe is not None:
            threading.Thread(target=wait, name="early", daemon=True).start()


def _say_and_exit(config: Config, reading: int, writing: int) -> None:
    try:
        die_with_parent()
        os.close(reading)
        check_early(config)
    except ConfigError as error:
        # Other errors may occur only because the module is imported a second time: a port or a lock is taken.
        if error.__cause__ is None or isinstance(error.__cause__, CERTAIN):
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(in_full(error)))
    except Exception as error:  # noqa: BLE001  # the check with Spark will find it again
        log.info("The pipeline was not checked before Spark is up: %s", error)
    finally:
        os._exit(0)


def _wants_session(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        # pyspark asserts that there is a session before it makes a column.
        asserted = isinstance(cause, AssertionError) and not is_ours(
            traceback.extract_tb(cause.__traceback__)[-1].filename
        )
        if asserted or isinstance(cause, SessionWanted) or "SESSION_OR_CONTEXT_NOT_EXISTS" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


@contextmanager
def _no_session() -> Iterator[None]:
    """Raise `SessionWanted` if anything in this block starts a JVM."""
    before = SparkContext._ensure_initialized

    def refuse(*arguments: Any, **options: Any) -> None:
        raise SessionWanted(errorClass="SESSION_OR_CONTEXT_NOT_EXISTS", messageParameters={})

    SparkContext._ensure_initialized = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        SparkContext._ensure_initialized = before  # type: ignore[method-assign]
