"""The clock of a command that waits."""

import time


class WaitLimit:
    """How long a command may wait in all: so many seconds from now, or for ever."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._begun = seconds, time.monotonic()

    @property
    def passed_s(self) -> float:
        """The seconds since the command began."""
        return time.monotonic() - self._begun

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.seconds is not None and self.passed_s > self.seconds
