"""What time it is, and when to ask again.

Whatever becomes due at a time is compared with it by `reached`. If it is not due yet, the moment of the turn notes when
it will be and keeps the earliest such time, which `decide` returns. The view is not changed by that, so a question that
is asked twice has the same answer twice. What ends at a time, such as a permit, is compared directly: the next turn, a
heartbeat later at most, is soon enough. So it is for a leader that has become blind (`election.is_blind`).
"""

from typing import Self


class Moment(float):
    """The time of one turn. `wake_at` is when the decisions may differ although nothing was learned."""

    __slots__ = ("wake_at",)
    wake_at: float

    def __new__(cls, now: float, wake_at: float) -> Self:
        moment = super().__new__(cls, now)
        moment.wake_at = wake_at
        return moment


def reached(at: float, now: float) -> bool:
    """Whether a time has come. If not, and `now` is a `Moment`, the next turn comes at that time at the latest."""
    if now >= at:
        return True
    if isinstance(now, Moment):
        now.wake_at = min(now.wake_at, at)
    return False
