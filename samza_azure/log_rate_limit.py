"""Lines of the log that would be repeated for as long as something lasts, such as an outage.

`LogRateLimit` is for a line that is known to repeat, where it is logged. `RepeatFilter` is for all lines of a log,
whoever logs them: the SDK, asyncio, and our own lines whose values differ each time.
"""

import logging
from collections.abc import Callable

from samza_azure.machine.clock import boot_time

__all__ = ["EVERY_S", "KIND_MOST", "LogRateLimit", "RepeatFilter"]

#: How often such a line is logged, in seconds.
EVERY_S = 60.0
#: How many lines of one kind `RepeatFilter` passes in this time.
KIND_MOST = 3

_Key = tuple[str, str]  # a logger, and a message or a kind of messages


class LogRateLimit:
    """Which of these lines are due: for each name one every `EVERY_S` seconds, however often its call fails."""

    def __init__(self, now: Callable[[], float] = boot_time) -> None:
        self._now = now
        self._until: dict[str, float] = {}  # name -> when its next line is due

    def is_due(self, name: str) -> bool:
        """Whether to log it now. If so, it counts as logged."""
        now = self._now()
        if now < self._until.get(name, now):
            return False
        self._until = {other: until for other, until in self._until.items() if until > now} | {name: now + EVERY_S}
        return True


class RepeatFilter(logging.Filter):
    """Passes each warning once in `EVERY_S`, and of one kind, which is a logger and its text before the values are put
    in, `KIND_MOST` of them. The next one that passes says how many were held back.

    Lines of a lower level are held back only if they tell an error. Each line of `events` counts as another message.
    Lines that name a task pass: there are many tasks, and what happens to one says nothing about the others.
    """

    def __init__(self, events: str = "") -> None:
        super().__init__()
        self._events = events
        self._passed: dict[_Key, list[float]] = {}  # when, most recent last
        self._held: dict[_Key, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "task", None) or not _is_trouble(record):
            return True
        message, now = record.getMessage(), record.created
        kind = (record.name, f"kind {record.msg}")
        keys = [(kind, KIND_MOST)] if record.name == self._events else [((record.name, message), 1), (kind, KIND_MOST)]
        recent = {key: [at for at in times if now - at < EVERY_S] for key, times in self._passed.items()}
        self._passed = {key: times for key, times in recent.items() if times}
        if any(len(self._passed.get(key, ())) >= most for key, most in keys):
            self._held[kind] = self._held.get(kind, 0) + 1
            return False
        for key, _ in keys:
            self._passed.setdefault(key, []).append(now)
        if held := self._held.pop(kind, 0):
            record.msg, record.args = f"{message} ({held} more like this before)", None
        return True


def _is_trouble(record: logging.LogRecord) -> bool:
    arguments = record.args if isinstance(record.args, tuple) else ()
    return record.levelno >= logging.WARNING or any(isinstance(each, BaseException) for each in arguments)
