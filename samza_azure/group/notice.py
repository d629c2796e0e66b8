"""Notices that a processor will go, and what it says of itself meanwhile: values only.

A notice is withdrawn by whoever gave it, so each has a source, and several may hold at once. None of them is needed for
safety: a machine may go without one, or later than it was told, or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: Sources of notices: a request in the control blob, and the processor's own port. Others name an event of the cloud.
ASKED, PORT = "request", "port"
#: That of a request to an earlier incarnation of this process.
ASKED_BEFORE = "request to an earlier incarnation"
#: In characters: the longest reason of a notice, and the longest reason why a task was not handed over.
WHY_LIMIT = 200
#: How many tasks that are not handed over a row names.
LEFT_LIMIT = 20


class Availability(StrEnum):
    """Whether a processor gets tasks. The words are those of Spark's decommissioning."""

    SCHEDULABLE = "SCHEDULABLE"
    DECOMMISSIONING = "DECOMMISSIONING"  # gets no new tasks, and hands over those that it has
    DECOMMISSIONED = "DECOMMISSIONED"  # has handed over all of them


@dataclass(frozen=True, slots=True)
class Notice:
    """That this processor will go: why, and when, if that is known, by its own clock and by a wall clock."""

    why: str
    by: float | None = None  # seconds; its tasks are to be handed over before that
    by_ms: int = 0  # the same in milliseconds since 1970, for people; 0: unknown


@dataclass(frozen=True, slots=True)
class Going:
    """What a processor that will go says of it."""

    state: Availability
    why: str
    by_ms: int = 0
    tasks: int = 0  # it had so many when it was told, or got them since
    handed_over: int = 0  # others have so many of these, or they have ended for good
    left: Mapping[str, str] = field(default_factory=dict)  # those that are not handed over, and why; not of many
    repeated: int = 0  # input rows of batches that were given up: the next owners repeat them
    stays: bool = False  # until its machine ends: so it keeps a task that nobody else can take
    asked: bool = False  # only by a request in the control blob

    @property
    def so_far(self) -> str:
        """How much is handed over, in words."""
        return f"{self.handed_over} of {self.tasks} tasks handed over"


__all__ = ["ASKED", "ASKED_BEFORE", "LEFT_LIMIT", "PORT", "WHY_LIMIT", "Availability", "Going", "Notice"]
