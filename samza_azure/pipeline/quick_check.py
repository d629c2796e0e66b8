"""What is known of a pipeline once its module is imported and its names are checked: before a JVM is up, and whether it
needs one.
"""

import logging
import os
import pickle
import re
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import BinaryIO

from samza_azure.application import Application
from samza_azure.config import Config
from samza_azure.errors import ConfigError, PipelineRefused, in_full
from samza_azure.extras import SPARK, to_install
from samza_azure.machine.processes import die_with_parent
from samza_azure.pipeline.local_modules import local_modules
from samza_azure.pipeline.names import check_names, queries_of

log = logging.getLogger(__name__)

#: What a query is made with, in the text of a module.
_SPARK = re.compile(rb"pyspark|\.stage\b")
#: Errors that do not depend on how often a module is imported.
CERTAIN = (SyntaxError, NameError, ImportError)


@dataclass(frozen=True, slots=True)
class Found:
    """What is known without Spark."""

    stages: str  # their number, as text
    warnings: tuple[str, ...] = ()
    needs_session: str = ""  # why the rest is not known
    has_query: bool = True  # whether a stage has one, as far as is known
    written: frozenset[str] = frozenset()  # the streams that stages write, as far as they are known


def found_in(application: Application, config: Config) -> Found:
    """Check the names of a pipeline. Raise the same `PipelineRefused` as the check with Spark."""
    (_, warnings), number = check_names(application, config), len(application.stages)
    stages = f"{number} stage" + ("" if number == 1 else "s")
    written = frozenset(stage.output for stage in application.stages)
    return Found(stages, tuple(warnings), has_query=bool(queries_of(application)), written=written)


def no_spark(what: str) -> PipelineRefused:
    """Refuse what needs pyspark where it is not installed."""
    return PipelineRefused(f"pyspark is not installed, and {what} needs it. Run: {to_install(SPARK)}.")


def has_spark() -> bool:
    """Whether pyspark is installed."""
    return find_spec("pyspark") is not None


def mentions_spark(config: Config) -> bool:
    """Whether the text of the main module, or of one beside it that it imports, has pyspark or a decorator of stages in
    it; true, too, if the main module cannot be found there.
    """
    try:
        texts = list(local_modules(config.path.absolute().parent, config.app.main.partition(":")[0]))
    except OSError:
        return True
    return not texts or any(_SPARK.search(text) for text in texts)


class CheckBeside:
    """A check in a child process, which is forked now, so there must be no threads yet.

    In this process the module would be imported twice, once without the session's settings.
    """

    def __init__(self, config: Config, check: Callable[[Config], Found]) -> None:
        self.refused = ""  # the message, once the check has ended with one
        self.has_query = True  # as far as is known
        reading, writing = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            _say_and_exit(config, check, reading, writing)
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
            self.refused, self.has_query = pickle.loads(data)  # noqa: S301  # by our own child
        return True

    def then(self, refuse: Callable[[str], None]) -> None:
        """If the check has not ended, wait for it in a thread, which calls `refuse` if there is a mistake."""

        def wait() -> None:
            self.ended(None)
            if self.refused:
                refuse(self.refused)

        if self._pipe is not None:
            threading.Thread(target=wait, name="quick check", daemon=True).start()


def _say_and_exit(config: Config, check: Callable[[Config], Found], reading: int, writing: int) -> None:
    try:
        die_with_parent()
        os.close(reading)
        _tell(writing, "", check(config).has_query)
    except ConfigError as error:
        # Other errors may occur only because the module is imported a second time: a port or a lock is taken.
        if error.__cause__ is None or isinstance(error.__cause__, CERTAIN):
            _tell(writing, in_full(error), True)
    except Exception as error:  # noqa: BLE001  # the check with Spark will find it again
        log.info("The pipeline was not checked before Spark is up: %s", error)
    finally:
        os._exit(0)


def _tell(writing: int, refused: str, has_query: bool) -> None:
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(pickle.dumps((refused, has_query)))
