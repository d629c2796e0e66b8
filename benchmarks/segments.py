"""The timeline of a large table: how long it takes to build, to change and to ask, and how large it is.

A million segments in 10,000 intervals, in memory alone. The same for groups of 1, 10, 100 and 1,000 segments: adding
or removing one of a group must not depend on how large the group is.
"""

import gc
import random
import resource
import time
from collections.abc import Iterator

from common import Claim, main, middle, say

from samza_azure.segments import Interval, Partitions, Segment, Timeline

DAY_US = 86_400_000_000
GROUPS = (1, 10, 100, 1_000)
# The bars of the issue.
BUILD_S, CHANGE_US, LOOKUP_US = 10.0, 20.0, 50.0


def measure(quick: bool) -> list[Claim]:
    """Roots alone, then a compaction of each interval into groups of different sizes."""
    intervals = 100 if quick else 10_000
    claims = []
    roots = [Segment.root("table", interval, 1, partition) for interval in days(intervals) for partition in range(100)]
    before = resident()
    begun = time.perf_counter()
    timeline = Timeline(roots)
    took = time.perf_counter() - begun
    what = f"timeline of {len(roots):,} segments in {intervals:,} intervals: built"
    claims.append(Claim(what, f"{took:.2f} s", "<= 10 s", took <= BUILD_S))
    if (grown := resident() - before) > 0:
        claims.append(Claim("the same: memory of the timeline per segment", f"{grown / len(roots):.0f} bytes"))
    claims += changes(timeline, random.Random(1).sample(roots, 2_000), "roots alone")
    spans = [segment.interval for segment in random.Random(2).sample(roots, 2_000)]
    claims.append(within("lookup of a day with 100 segments", asked(timeline, spans), LOOKUP_US))
    del timeline, roots
    gc.collect()
    for size in GROUPS:
        made = list(compacted(max(1, intervals * 10 // max(size, 100)), size))
        timeline = Timeline(made)
        sample = random.Random(3).sample([one for one in made if not one.is_root], 1_000 if quick else 2_000)
        claims += changes(timeline, sample, f"groups of {size:,}")
    for claim in claims:
        say(f"{claim}")
    return claims


def days(count: int) -> Iterator[Interval]:
    """So many days, one after the other."""
    return (Interval(number * DAY_US, (number + 1) * DAY_US) for number in range(count))


def compacted(intervals: int, size: int) -> Iterator[Segment]:
    """Days of 10 roots each, and groups of a size that cover them: at least 100 segments a day."""
    roots = 10
    covers = Partitions.between(0, roots)
    for interval in days(intervals):
        for partition in range(roots):
            yield Segment.root("table", interval, 1, partition)
        for generation in range(1, 1 + max(1, 100 // size)):
            first = roots + generation * size
            group = Partitions.between(first, first + size)
            for partition in group:
                yield Segment("table", interval, 1, partition, covers, generation, group)


def changes(timeline: Timeline, segments: list[Segment], what: str) -> list[Claim]:
    """Each is removed and added again."""
    removals, additions = [], []
    for segment in segments:
        begun = time.perf_counter()
        timeline.remove(segment)
        between = time.perf_counter()
        timeline.add(segment)
        removals.append(between - begun)
        additions.append(time.perf_counter() - between)
    return [
        within(f"{what}: one segment removed, median", middle(removals), CHANGE_US),
        within(f"{what}: one segment added, median", middle(additions), CHANGE_US),
    ]


def within(what: str, seconds: float, goal_us: float) -> Claim:
    """A figure beside its bar."""
    return Claim(what, f"{seconds * 1e6:.1f} µs", f"<= {goal_us:g} µs", seconds * 1e6 <= goal_us)


def asked(timeline: Timeline, spans: list[Interval]) -> float:
    """The median of lookups that also take the list of segments."""
    took = []
    for span in spans:
        begun = time.perf_counter()
        assert timeline.lookup(span)[0].segments
        took.append(time.perf_counter() - begun)
    return middle(took)


def resident() -> int:
    """The greatest memory of this process until now, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(measure, __doc__)
