"""Cost: how often the fleet calls the storage to coordinate itself.

Whatever goes wrong, no processor makes many calls of one kind within a second: a call that is repeated at once after a
refusal would come a hundred times a second. When nothing goes wrong, and when nothing answers, the rate of calls is at
most about that of `explain`.
"""

from samza_azure.explain import coordination
from samza_azure.group.timing import Timing

#: Of one kind, by one life, within a second. What others wait for is written ten times a second at most, by a leader
#: in two rows. Deletions do not count unless they are refused: who cleans up has as many rows as there were requests.
MOST_PER_S = 40
#: So many times the usual number of calls: beats do not come evenly.
MOST = 1.5


class Cost:
    """The calls of one world."""

    def __init__(self) -> None:
        self.calls = 0
        self._seconds: dict[tuple[str, int, str], tuple[int, int]] = {}

    def sent(self, name: str, life: int, operation: str, now: float, requests: int = 0) -> str | None:
        """A call was sent; what is wrong with that, if anything is. Each of the requests in the table may be answered
        by one more."""
        if not operation.startswith(("control.", "rows.")):
            return None
        self.calls += 1
        return None if operation == "rows.delete" else self.counted(name, life, operation, now, requests)

    def counted(self, name: str, life: int, operation: str, now: float, more: int = 0) -> str | None:
        """One more of what may be made so often within a second."""
        second, which = int(now), (name, life, operation)
        known, count = self._seconds.get(which, (second, 0))
        count = count + 1 if known == second else 1
        self._seconds[which] = second, count
        too_many = count > MOST_PER_S + more
        return f"Cost: {name} has made {count} calls of {operation} within a second" if too_many else None

    def usual(self, calls: int, seconds: float, timing: Timing, processors: int, more: float) -> str | None:
        """Whether so many calls in this time are those of a group in which nothing happens. What else each of them may
        have had to say is `more`."""
        group = coordination(timing, max(processors, 1))
        usual = (group.table + group.read + group.other) * seconds / 3600 + more
        if calls <= MOST * usual:
            return None
        return f"Cost: {processors} processors made {calls} calls in {seconds:.0f} s, and {usual:.0f} are usual"


__all__ = ["MOST", "MOST_PER_S", "Cost"]
