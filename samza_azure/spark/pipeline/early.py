"""The pipeline's module imported without Spark, and what is wrong with its names: told before a JVM is up.

A module that makes a session, or a column, when it is imported needs one; then only Spark can tell.
"""

import logging
import os
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from samza_azure.config import Config
from samza_azure.errors import ConfigError, PipelineRefused, in_full
from samza_azure.machine import die_with_parent
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.names import check_names
from samza_azure.spark.pipeline.places import is_ours

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What is known without Spark."""

    stages: str  # how many there are, in words
    warnings: tuple[str, ...] = ()
    needs_session: str = ""  # why the rest is not known


#: What is wrong with a module however often it is imported.
CERTAIN = (SyntaxError, NameError, ImportError)


class SessionWanted(PySparkRuntimeError):
    """The module makes a session when it is imported."""


def check_early(config: Config) -> Found:
    """Import the module and check its names. `PipelineRefused` for what is wrong, as with Spark."""
    try:
        with _no_session():
            application = load(config)
    except PipelineRefused as error:
        if _wants_session(error):
            return Found("the job file", needs_session="The module makes a session or a column when it is imported.")
        raise
    warnings = check_names(application, config)
    number = len(application.stages)
    return Found(f"{number} stage" + ("" if number == 1 else "s"), tuple(warnings))


def check_beside(config: Config, refused: Callable[[str], None]) -> Callable[[], None]:
    """Do the same in a child process, which is forked now: there must be no threads yet.

    What is imported here would else be imported twice by this process, once without the session's settings. Calling
    the result starts to wait for it; `refused` gets the message, on a thread of its own, if there is a mistake.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _say_and_exit(config, reading, writing)
    os.close(writing)

    def wait() -> None:
        with os.fdopen(reading, "rb") as said:
            data = said.read()
        os.waitpid(child, 0)
        if data:  # pickled by our own child
            refused(pickle.loads(data))  # noqa: S301

    return lambda: threading.Thread(target=wait, name="early", daemon=True).start()


def _say_and_exit(config: Config, reading: int, writing: int) -> None:
    try:
        die_with_parent()
        os.close(reading)
        check_early(config)
    except ConfigError as error:
        # Whatever else happens at an import may be only because it happens twice: a port that is taken, a lock.
        if error.__cause__ is None or isinstance(error.__cause__, CERTAIN):
            with os.fdopen(writing, "wb") as said:
                said.write(pickle.dumps(in_full(error)))
    except Exception as error:  # noqa: BLE001  # whatever it is, Spark will find it again
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
    """Nobody starts a JVM in here."""
    before = SparkContext._ensure_initialized

    def refuse(*arguments: Any, **options: Any) -> None:
        raise SessionWanted(errorClass="SESSION_OR_CONTEXT_NOT_EXISTS", messageParameters={})

    SparkContext._ensure_initialized = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        SparkContext._ensure_initialized = before  # type: ignore[method-assign]
