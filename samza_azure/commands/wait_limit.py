"""The time limit of a command that waits."""

import time


class WaitLimit:
    """The deadline of a command, `seconds` from now. None: no deadline."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._begun = seconds, time.monotonic()

    @property
    def passed_s(self) -> float:
        """The seconds since this object was created."""
        return time.monotonic() - self._begun

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.seconds is not None and self.passed_s > self.seconds
