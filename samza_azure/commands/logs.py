"""The log of a processor: on stderr or in a file, as text or JSON lines, with the time, the processor's id and its run.

Messages that repeat within a minute are folded into one line with a count, and tracebacks are cut, so that an outage
does not bury what came before it. A closed pipe or a full disk does not end the processor.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated

import typer

from samza_azure.commands.terminal import printable
from samza_azure.errors import ConfigError
from samza_azure.log_rate_limit import RepeatFilter

#: The size at which a log file is rotated, and how many old files are kept.
FILE_BYTES, FILES = 16 << 20, 4
#: How many lines of a traceback are logged.
TRACE_LINES = 60
#: The logger whose messages are events even if they are the same, such as a container that was killed.
EVENTS = "samza_azure.host.supervisor"
#: The extra fields that a record may have.
FIELDS = ("run", "task")
_ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z ")


class LogFormat(StrEnum):
    """The format of the log."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


FormatOption = Annotated[LogFormat, typer.Option(help="Lines of text, or one JSON object per line.")]
LevelOption = Annotated[LogLevel, typer.Option(help="The least severe level that is logged.")]
FileOption = Annotated[
    Path | None, typer.Option(help="Log to this file instead of stderr; it is rotated at 16 MiB.", dir_okay=False)
]


def configure(processor: str, app: str, *, as_json: bool, level: str, file: Path | None) -> None:
    """Set up the logging of this process. Raise `ConfigError` if the file cannot be written, since that error could
    not be logged later."""
    logging.raiseExceptions = False  # a full disk
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            file.open("a").close()
        except OSError as error:
            raise ConfigError(f"--log-file {file} cannot be written: {error.strerror}. Choose another path.") from error
        handler = RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8", delay=True)
    handler.setFormatter(_Json(processor, app) if as_json else _Text(processor))
    handler.addFilter(RepeatFilter(EVENTS))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("samza_azure").setLevel(level.upper())


def last_entry(file: Path, processor: str) -> str:
    """The last entry of a processor's text log, with all its lines: an error may have many."""
    lines = file.read_text(errors="replace").rstrip().splitlines() if file.exists() else []
    starts = [number for number, line in enumerate(lines) if _ENTRY.match(line)]
    if not starts:
        return "\n".join(lines[-8:]) or "it said nothing"
    first, *more = lines[starts[-1] :]
    found = re.search(rf" {re.escape(processor)}(?: \S+)?  (.*)", first)
    return "\n".join([found[1] if found else first, *(line.removeprefix("    ") for line in more)])


def name_the_run(run: Callable[[], str]) -> None:
    """Let each later line name the run that this function returns, if it returns any."""

    def add(record: logging.LogRecord) -> bool:
        record.run = run()
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(add)


class _Text(logging.Formatter):
    """2026-01-31 05:00:00.123Z INFO    one the-run  the message; its further lines are set in."""

    def __init__(self, processor: str) -> None:
        super().__init__(datefmt="%Y-%m-%d %H:%M:%S")
        self._processor = processor

    def format(self, record: logging.LogRecord) -> str:
        text = _message(self, record).replace("\n", "\n    ")
        who = f"{self._processor} {run}" if (run := getattr(record, "run", "")) else self._processor
        return f"{self.formatTime(record)}.{record.msecs:03.0f}Z {record.levelname:7} {who}  {text}"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        return time.strftime(datefmt or "%Y-%m-%d %H:%M:%S", time.gmtime(record.created))


class _Json(logging.Formatter):
    """One object per line: time, level, app, processor, logger, message, and run and task if they are known."""

    def __init__(self, processor: str, app: str) -> None:
        super().__init__()
        self._who = {"app": app, "processor": processor}

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z"
        more = {name: value for name in FIELDS if (value := getattr(record, name, None))}
        fields = {"time": at, "level": record.levelname, **self._who, "logger": record.name, **more}
        return json.dumps({**fields, "message": _message(self, record)}, ensure_ascii=False)


def _cut(trace: str) -> str:
    """A traceback, at most `TRACE_LINES` long: where it begins, and what was raised."""
    lines = trace.splitlines()
    if len(lines) <= TRACE_LINES:
        return trace
    half = TRACE_LINES // 2
    return "\n".join([*lines[:half], f"  ({len(lines) - 2 * half} lines are left out)", *lines[-half:]])


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + _cut(formatter.formatException(record.exc_info))
    return printable(text)
