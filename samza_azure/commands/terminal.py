"""What a person sees while a command works: lines and counts on stderr."""

import sys
import time
from contextlib import suppress
from datetime import datetime


class Progress:
    """Counts rows on stderr: in place on a terminal, a plain line every five seconds elsewhere."""

    EVERY_S = 5.0

    def __init__(self, what: str) -> None:
        self._what, self._begun, self._shown = what, time.monotonic(), time.monotonic()

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


def clock(wall_ms: int) -> str:
    """The time of day on this machine; with the date, if it is another day's."""
    at, now = datetime.fromtimestamp(wall_ms / 1000).astimezone(), datetime.now().astimezone()
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def say(text: str) -> None:
    """A line of progress. That nobody reads it, or that the disk with it is full, ends no processor."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
