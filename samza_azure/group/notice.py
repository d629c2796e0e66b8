"""Notices that a processor will go, and what it says of itself meanwhile: values only.

A notice is withdrawn by whoever gave it, so each has a source, and several may hold at once. None of them is needed for
safety: a machine may go without one, or later than it was told, or not at all.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import islice
from typing import Any

#: Sources of notices: a request in the control blob, and the processor's own port. Others name an event of the cloud.
ASKED, PORT = "request", "port"
#: That of a request to an earlier incarnation of this process.
ASKED_BEFORE = "request to an earlier incarnation"
#: In characters: the longest reason of a notice, and the longest reason why a task was not handed over.
WHY_LIMIT = 200
#: How many tasks that are not handed over a row names.
LEFT_LIMIT = 20
#: How many of them a text names for each reason, unless it has more room or less.
NAMED = 5


class Availability(StrEnum):
    """Whether a processor gets tasks. The words are those of Spark's decommissioning."""

    SCHEDULABLE = "SCHEDULABLE"
    DECOMMISSIONING = "DECOMMISSIONING"  # gets no new tasks, and hands over those that it has
    DECOMMISSIONED = "DECOMMISSIONED"  # has handed over all of them


class Left(StrEnum):
    """Why a task is not handed over."""

    RUNS = "its batch has not ended yet"
    NOT_TAKEN = "no other processor has got it yet"
    NOBODY = "no other processor can take it"


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

    def in_words(self, named: int = NAMED) -> str:
        """How much is handed over, what is not and why, and what is repeated. Of each reason so many are named."""
        unnamed = self.tasks - self.handed_over - len(self.left)
        more = f"; {unnamed} more" if unnamed > 0 else ""
        left = f" ({what_is_left(self.left, named)}{more})" if self.left else ""
        repeats = f"; {self.repeated} input rows are repeated" if self.repeated else ""
        return f"{self.so_far}{left}{repeats}"


def what_is_left(left: Mapping[str, str], named: int = NAMED) -> str:
    """The tasks that are not handed over, by reason. Of each reason so many are named."""
    reasons: dict[str, list[str]] = {}
    for task, why in left.items():
        reasons.setdefault(why, []).append(task)
    return "; ".join(f"{names_of(tasks, named)}: {why}" for why, tasks in reasons.items())


def names_of(tasks: Collection[str], named: int = NAMED) -> str:
    """The first of these tasks, in their order, and how many more there are."""
    more = f" and {len(tasks) - named} more" if len(tasks) > named else ""
    return f"{', '.join(islice(tasks, named))}{more}"


def going_again(shown: Mapping[str, Any]) -> Going | None:
    """What a processor says of its going, from what documents make of it; None if it says nothing of that."""
    if shown.get("tasks") is None:
        return None
    known = {each.name: shown[each.name] for each in fields(Going) if shown.get(each.name) is not None}
    return Going(**{**known, "state": Availability(shown["state"])})


__all__ = [
    "ASKED",
    "ASKED_BEFORE",
    "LEFT_LIMIT",
    "NAMED",
    "PORT",
    "WHY_LIMIT",
    "Availability",
    "Going",
    "Left",
    "Notice",
    "going_again",
    "names_of",
    "what_is_left",
]
