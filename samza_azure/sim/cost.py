"""Cost: how often the fleet calls the storage to coordinate itself.

Whatever goes wrong, no processor makes many calls of one kind within a second: a call that is repeated at once after a
refusal would come a hundred times a second. When nothing goes wrong, the rate of calls is about that of `explain`.
"""

from samza_azure.explain import coordination
from samza_azure.group.timing import Timing

#: Of one kind, by one life, within a second. What others wait for is written ten times a second at most, by a leader
#: in two rows. Deletions do not count unless they are refused: who cleans up has as many rows as there were requests.
MOST_PER_S = 40
#: So many times the usual number of calls in calm: beats do not come evenly.
CALM = 1.5


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

    def calm(self, calls: int, seconds: float, timing: Timing, processors: int, reports: float) -> str | None:
        """So many calls were made in this time, in which nothing went wrong. A row is written for what a task reports,
        and that may be so many times in all."""
        group = coordination(timing, processors)
        usual = (group.table + group.read + group.other) * seconds / 3600 + reports
        if calls <= CALM * usual:
            return None
        return f"Cost: {processors} processors made {calls} calls in {seconds:.0f} s of calm, and {usual:.0f} are usual"


__all__ = ["CALM", "MOST_PER_S", "Cost"]
