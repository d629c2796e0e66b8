"""Legal histories of one chunk, drawn at random, and what must hold of a timeline whatever comes in whatever order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samza_azure.segments import Partitions, Segment, Timeline
from tests.segments import rule
from tests.segments.script import CHUNK, days, shown

Choose = Callable[[int], int]  # a number from 0 to just below the given one

ROOTS_MAX = 8
COMPACTIONS_MAX = 6
DEPTH_MAX = 4


@dataclass(frozen=True)
class History:
    """The segments in the order of their publishes. `cut`: the covers that were visible in the end, which is what the
    history itself says, without any rule."""

    segments: list[Segment]
    cut: frozenset[Partitions]


def history(choose: Choose, version: int = 0) -> History:
    """Appends, and compactions of any visible groups into one to three segments, also of groups with gaps between."""
    segments: list[Segment] = []
    visible: list[list[Segment]] = []
    core = Partitions.between(0, 1 + choose(3)) if choose(2) else None

    def append() -> None:
        if sum(one.is_root for one in segments) < ROOTS_MAX:
            number = len(segments)
            group = core if core is not None and number in core else None
            segments.append(Segment.root("d", CHUNK, version, number, group=group))
            visible.append([segments[-1]])

    for _ in range(max(len(core or ()), 1 + choose(5))):
        append()
    for _ in range(choose(COMPACTIONS_MAX + 1)):
        inputs = [visible.pop(choose(len(visible))) for _ in range(1 + choose(min(len(visible), 4)))]
        if max(group[0].generation for group in inputs) >= DEPTH_MAX:
            visible.extend(inputs)
            continue
        visible.append(compacted(inputs, 1 + choose(3), len(segments), version))
        segments += visible[-1]
        for _ in range(choose(3)):
            append()
    return History(segments, frozenset(group[0].covers for group in visible))


def compacted(inputs: Sequence[Sequence[Segment]], count: int, number: int, version: int) -> list[Segment]:
    """So many segments of the rows of others; of none, a root."""
    if not inputs:
        return [Segment.root("d", CHUNK, version, number)]
    covers = Partitions.union_of(group[0].covers for group in inputs)
    generation = 1 + max(group[0].generation for group in inputs)
    group = Partitions.between(number, number + count)
    there = Partitions(one.partition for each in inputs for one in each)
    return [Segment("d", CHUNK, version, one, covers, generation, group, there) for one in group]


def across(choose: Choose) -> list[Segment]:
    """Histories of several versions, of which all but the first are of other intervals."""
    found: list[Segment] = []
    for version in range(1 + choose(3)):
        where = days(*[(1, 2), (1, 3), (0, 2), (1, 2)][choose(4)]) if version else CHUNK
        found += [_moved(one, where) for one in history(choose, version).segments]
    return found


def _moved(segment: Segment, where: object) -> Segment:
    from dataclasses import replace

    return replace(segment, interval=where)  # type: ignore[arg-type]


def shuffled(items: Sequence[Segment], choose: Choose) -> list[Segment]:
    """The items in another order."""
    left = list(items)
    return [left.pop(choose(len(left))) for _ in items]


def check(timeline: Timeline) -> None:
    """I14, I15, I19, I21 and I22, of whatever is present."""
    entries = timeline.lookup()
    for entry in entries:
        visible = entry.segments
        present = set(entry.chunk.segments.values())
        assert not any(rule.shadows(one, other) for one in visible for other in visible), "I14: visible ones overshadow"
        covers = {one.covers for one in visible}
        assert sum(map(len, covers)) == len(Partitions.union_of(covers)), "I14: visible groups share roots"
        for one in visible:
            if not one.is_root:
                members = {other.partition for other in visible if other.covers == one.covers}
                assert members == set(one.group), "I15: half a group is visible"
        assert set(visible) <= present
    assert shown(timeline) == shown(timeline.copy()), "I19: another timeline of the same segments shows others"
    for chunk in timeline.chunks:
        top, complete = rule.chunk(chunk.segments.values())
        assert complete == chunk.is_complete, "I21: complete, or not, against the rule"
        assert set(chunk.visible()) == top, "I22: another set is visible than the rule says"
    assert shown(timeline) == rule.visible(timeline), "I22: another lookup than the rule's"
    assert set(timeline.fully_overshadowed()) == rule.garbage(timeline), "I22: other garbage than the rule's"


def add(timeline: Timeline, segment: Segment) -> None:
    """Add one, and look: I18 and I20."""
    before = shown(timeline)
    timeline.add(segment)
    check(timeline)
    after = shown(timeline)
    timeline.remove(segment)
    assert shown(timeline) == before, "I20: adding and removing one changes what is shown"
    timeline.add(segment)
    assert shown(timeline) == after, "I18: the same segments show something else"


def remove(timeline: Timeline, segment: Segment) -> None:
    """Remove one, and look: I20. Of a chunk that is complete: in another one the last root of a core set may be hidden
    and missed all the same, and what is left is complete without it."""
    chunk = timeline.chunk(segment.interval, segment.version)
    assert chunk is not None
    before, hidden = shown(timeline), chunk.is_complete and segment in timeline.fully_overshadowed()
    timeline.remove(segment)
    check(timeline)
    assert not hidden or shown(timeline) == before, "I20: removing an overshadowed segment changes what is shown"
