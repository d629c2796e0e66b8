"""The progress of a command: lines and counts on stderr.

Foreign texts, such as a task's error or the path of a file, are never shown as markup, and control characters in them
are written out.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class ProgressLine:
    """Counts rows on stderr: in place on a terminal, a plain line every five seconds elsewhere."""

    EVERY_S = 5.0

    def __init__(self, what: str) -> None:
        self._what, self._begun, self._shown = printable(what), time.monotonic(), time.monotonic()

    def __call__(self, rows: int, total: int | None = None) -> None:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if now < self._shown + (0.2 if terminal else self.EVERY_S) and rows != total:
            return
        self._shown = now
        of = f" of {total}" if total else ""
        text = f"{self._what}: {rows}{of} rows, {rows / max(now - self._begun, 1e-3):,.0f} rows/s"
        with suppress(OSError):  # as in `say`
            print(f"\r{text}  " if terminal else text, end="" if terminal and rows != total else "\n", file=sys.stderr)


#: The latest time that is shown; a foreign row may hold a later one.
LAST_MS = 253_370_764_800_000  # the last that `datetime` can hold, less a margin for any time zone


def clock(wall_ms: int) -> str:
    """The time of day on this machine; with the date, if it is another day's."""
    at, now = datetime.fromtimestamp(min(wall_ms, LAST_MS) / 1000).astimezone(), datetime.now().astimezone()
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def say(text: str) -> None:
    """Print a line of progress. A closed pipe or a full disk does not end the process."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Print a line of the result."""
    print(printable(text))


def counted(number: int, what: str) -> str:
    """A number with its noun: "1 processor", "3 processors"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def if_interrupted(text: str) -> Iterator[None]:
    """On Ctrl-C, print what the command leaves behind."""
    try:
        yield
    except KeyboardInterrupt:
        say(text)
        raise


def printable(text: str) -> str:
    r"""The text without control characters, which are written out: `\x1b`. Line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def console(stream: TextIO) -> "Console":
    """A console that interprets no markup, since most of what it shows is foreign."""
    from rich.console import Console  # not at the top: `run` does not need it, and must start fast

    return Console(file=stream, markup=False, highlight=False, emoji=False)


def error_lines(message: str, most: int = 8) -> str:
    """The beginning of a long error: the message comes first, and Spark's plan after it."""
    lines = [line.rstrip() for line in message.strip().splitlines() if line.strip()]
    left = len(lines) - most
    return "\n".join(lines[:most] + ([f"… {left} more lines: status --json"] if left > 0 else []))
