"""Lines of the log that would be repeated for as long as something lasts, such as an outage."""

from collections.abc import Callable

from samza_azure.machine import boot_time

__all__ = ["EVERY_S", "Seldom"]

#: How often such a line is logged, in seconds.
EVERY_S = 60.0


class Seldom:
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
