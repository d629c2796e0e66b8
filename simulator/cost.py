"""Cost: how often the fleet calls the storage to coordinate itself.

Whatever goes wrong, no processor makes many calls of one kind within a second: a call that is repeated at once after a
refusal would be made a hundred times a second. In a calm group, and in an outage, the rate of calls is at most about
the one that `explain` states.
"""

from samza_azure.explain import coordination
from samza_azure.group.timing import Timing

#: The most calls of one kind by one life within a second. A write that others wait for is sent at most ten times a
#: second, by a leader to two rows. Only refused deletions count: a cleanup deletes a row for each request.
MOST_PER_S = 40
#: The most calls in relation to the usual number, which varies because heartbeats are not evenly spaced.
MOST = 1.5


class Cost:
    """The calls of one world."""

    def __init__(self) -> None:
        self.calls = 0
        self._seconds: dict[tuple[str, int, str], tuple[int, int, int]] = {}

    def sent(self, name: str, life: int, operation: str, now: float, requests: int = 0) -> str | None:
        """Count a call that was sent. Return what is wrong, if anything. The answer to each request in the table may be
        one more call."""
        if not operation.startswith(("control.", "rows.")):
            return None
        self.calls += 1
        return None if operation == "rows.delete" else self.counted(name, life, operation, now, requests)

    def counted(self, name: str, life: int, operation: str, now: float, more: int = 0) -> str | None:
        """Count one more call of a kind. Return what is wrong if these are too many within a second.

        Of `more` the highest of that second counts: a request that has been answered may be deleted at once.
        """
        second, which = int(now), (name, life, operation)
        known, count, most = self._seconds.get(which, (second, 0, 0))
        count, more = (count + 1, max(most, more)) if known == second else (1, more)
        self._seconds[which] = second, count, more
        too_many = count > MOST_PER_S + more
        return f"Cost: {name} has made {count} calls of {operation} within a second" if too_many else None

    def usual(self, calls: int, seconds: float, timing: Timing, processors: int, more: float) -> str | None:
        """Return what is wrong if these calls are far more than `explain` states for a calm group. `more` is the number
        of other calls that the members may have had to make."""
        group = coordination(timing, max(processors, 1))
        usual = (group.table + group.read + group.other) * seconds / 3600 + more
        if calls <= MOST * usual:
            return None
        return f"Cost: {processors} processors made {calls} calls in {seconds:.0f} s, and {usual:.0f} are usual"


__all__ = ["MOST", "MOST_PER_S", "Cost"]
