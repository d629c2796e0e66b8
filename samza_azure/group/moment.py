"""What time it is, and when to ask again.

Every comparison of a decision with the time goes through `reached`. What is not yet due says when it will be: the
moment of the turn keeps the earliest, and `decide` returns it. Nothing of that is written into what is known, so a
question that is asked twice has the same answer twice.
"""

from typing import Self


class Moment(float):
    """The time of one turn. `wake_at` is when deciding may come to another answer although nothing was learned."""

    __slots__ = ("wake_at",)
    wake_at: float

    def __new__(cls, now: float, wake_at: float) -> Self:
        moment = super().__new__(cls, now)
        moment.wake_at = wake_at
        return moment


def reached(at: float, now: float) -> bool:
    """Is it time? If not, the next turn comes then at the latest. A plain number for `now` only asks."""
    if now >= at:
        return True
    if isinstance(now, Moment):
        now.wake_at = min(now.wake_at, at)
    return False
