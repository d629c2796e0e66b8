"""The two encodings of Druid, written down as they were proposed, for histories in which both can say what happened.

By sets (#6319): a segment names those that it was made of. By ranges (#7491): it has a range of roots, in the order of
their numbers, and a minor version. In both, what is visible are the complete groups that no complete group overshadows.
They say nothing about what is shown where a group is not complete, so they judge whole publishes.
"""

from collections.abc import Iterable, Sequence

from samza_azure.segments import Partitions, Segment, Timeline
from tests.segments import rule
from tests.segments.histories import Choose, compacted

Group = list[Segment]


def adjacent(choose: Choose, *, roots: int = 8, compactions: int = 6) -> list[Group]:
    """Publishes in their order: appends, and compactions of visible groups that lie side by side. So each cover is a
    range of roots."""
    publishes: list[Group] = []
    visible: list[Group] = []
    number = appended = 0

    def publish(group: Group) -> Group:
        nonlocal number
        number += len(group)
        publishes.append(group)
        return group

    def append() -> None:
        nonlocal appended
        if appended < roots:
            appended += 1
            visible.append(publish([compacted([], 1, number, 0)[0]]))

    for _ in range(1 + choose(5)):
        append()
    for _ in range(choose(compactions + 1)):
        first = choose(len(visible))
        inputs = visible[first : first + 1 + choose(min(len(visible) - first, 3))]
        visible[first : first + len(inputs)] = [publish(compacted(inputs, 1 + choose(3), number, 0))]
        for _ in range(choose(3)):
            append()
    return publishes


def check(choose: Choose) -> None:
    """I22, after each publish of a history, whatever garbage has gone by then."""
    timeline, ever = Timeline(), list[Segment]()
    for group in adjacent(choose):
        ever += group
        for segment in group:
            timeline.add(segment)
        present, visible = list(timeline), set(timeline.visible())
        assert visible == by_sets(present, ever), "I22: another set is visible than sets of segments say"
        assert visible == by_ranges(present, ever), "I22: another set is visible than ranges of roots say"
        assert visible == rule.chunk(present)[0], "I22: another set is visible than the rule says"
        garbage = timeline.fully_overshadowed()
        assert set(garbage) == set(present) - visible, "I22: other garbage"
        for segment in garbage:
            if choose(3) == 0:
                timeline.remove(segment)


def by_sets(present: Sequence[Segment], ever: Iterable[Segment]) -> set[Segment]:
    """#6319: the complete groups that no complete group was made of, directly or not."""
    made_of = {one.partition: set(one.overshadows) for one in ever}
    hidden: set[int] = set()
    waiting = [input_ for one in complete(present) for input_ in made_of[one.partition]]
    while waiting:
        if (number := waiting.pop()) not in hidden:
            hidden.add(number)
            waiting.extend(made_of[number])
    return {one for one in complete(present) if one.partition not in hidden}


def by_ranges(present: Sequence[Segment], ever: Iterable[Segment]) -> set[Segment]:
    """#7491: a range of roots contains another one, and its minor version is higher."""
    order = {root: place for place, root in enumerate(sorted(one.partition for one in ever if one.is_root))}

    def range_of(one: Segment) -> tuple[int, int]:
        places = [order[root] for root in one.covers]
        assert len(places) == max(places) - min(places) + 1, "no range"
        return min(places), max(places) + 1

    def hides(one: Segment, other: Segment) -> bool:
        (start, end), (first, last) = range_of(one), range_of(other)
        return start <= first and last <= end and one.generation > other.generation

    whole = complete(present)
    return {one for one in whole if not any(hides(other, one) for other in whole)}


def complete(present: Sequence[Segment]) -> list[Segment]:
    """Those whose group is there as a whole."""
    there = Partitions(one.partition for one in present)
    return [one for one in present if one.group <= there]
