"""Which steps of the protocol are under way, and which faults happened during them.

A green simulation shows little unless each kind of fault has happened during each step of the protocol. A step begins
and ends with an accepted write, so the storage determines it, not what a processor believes. A fault affects the steps
that are under way when it happens, and those that begin while it lasts.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from simulator.scenario import FAULTS

STEPS = (
    "joining",
    "campaign",
    "leaderless",
    "barrier",
    "death",
    "leaving",
    "task moves",
    "log rolls",
    "FREEZE",
    "FLUSH",
    "clean-up",
    "run begins",
    "stopping",
)
#: Steps that are rare or short, so that more faults wait for them.
RARE = ("campaign", "death", "log rolls", "stopping")
#: The faults of the table: an outage is one of four, and faults of single calls come last.
MET_FAULTS = (
    *(kind for kind in FAULTS if kind not in ("crash, other id", "outage")),
    *(f"outage of {what}" for what in ("blob", "table", "writes", "all")),
    *("slow release", "slow batch", "call refused", "answer lost", "call late", "call slow"),
)
#: How often each fault should have met each step in a long run.
ENOUGH = 20
#: Pairs of a fault and a step that cannot meet, and why.
IMPOSSIBLE: dict[str, str] = {}


class Steps:
    """The steps under way and the lasting faults. `begun` is called with each step that begins and who began it."""

    def __init__(self, instant: Callable[[], float], seen: Counter[str]) -> None:
        self._instant, self._seen = instant, seen
        self._under_way: dict[str, set[object]] = {}
        self._lasting: dict[str, float] = {}
        self.begun: Callable[[str, str], None] = lambda step, who: None

    def begin(self, step: str, what: object = None, who: str = "") -> None:
        """Note the beginning of a step, of a task, a processor or the group."""
        keys = self._under_way.setdefault(step, set())
        if what in keys:
            return
        keys.add(what)
        now = self._instant()
        self._lasting = {fault: until for fault, until in self._lasting.items() if until > now}
        for fault in self._lasting:
            self._seen[f"met {fault}/{step}"] += 1
        self.begun(step, who)

    def count(self, what: str) -> None:
        """Count an event."""
        self._seen[what] += 1

    def end(self, step: str, what: object = None) -> None:
        """Note the end of a step: it is over, or nobody continues it."""
        keys = self._under_way.get(step)
        if keys is not None:
            keys.discard(what)
            if not keys:
                del self._under_way[step]

    def set(self, step: str, under_way: bool, who: str = "") -> None:
        """Begin or end a step of the group, as its state shows."""
        if under_way:
            self.begin(step, who=who)
        else:
            self.end(step)

    def set_for(self, step: str, what: str, under_way: bool) -> None:
        """Begin or end a step of one processor, as its row shows."""
        if under_way:
            self.begin(step, what, what)
        else:
            self.end(step, what)

    def calm(self) -> None:
        """End the lasting faults."""
        self._lasting.clear()

    def meet(self, fault: str, *, lasts: float = 0.0) -> None:
        """Note a fault that happens now."""
        for step in self._under_way:
            self._seen[f"met {fault}/{step}"] += 1
        if lasts:
            now = self._instant()
            self._lasting[fault] = max(now + lasts, self._lasting.get(fault, now))


def table(seen: Mapping[str, int]) -> list[str]:
    """How often each fault has met each step, as lines."""
    width = max(map(len, MET_FAULTS))
    lines = [" " * width + "".join(f"{step:>12}" for step in STEPS)]
    lines += [
        f"{fault:{width}}" + "".join(f"{seen.get(f'met {fault}/{step}', 0):12}" for step in STEPS)
        for fault in MET_FAULTS
    ]
    return lines


def pairs(seen: Mapping[str, int]) -> dict[str, int]:
    """How often each possible pair of fault and step has met."""
    return {
        f"{fault} / {step}": seen.get(f"met {fault}/{step}", 0)
        for fault in MET_FAULTS
        for step in STEPS
        if f"{fault} / {step}" not in IMPOSSIBLE
    }


def missing(seen: Mapping[str, int], enough: int = ENOUGH) -> dict[str, list[str]]:
    """The pairs that have not met often enough: by fault, the steps with how often."""
    found: dict[str, list[str]] = {}
    for pair, times in pairs(seen).items():
        if times < enough:
            fault, _, step = pair.partition(" / ")
            found.setdefault(fault, []).append(f"{step} {times}")
    return found


__all__ = ["ENOUGH", "IMPOSSIBLE", "MET_FAULTS", "RARE", "STEPS", "Steps", "missing", "pairs", "table"]
