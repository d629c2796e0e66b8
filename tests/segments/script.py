"""The language in which the cases of the timeline are written.

    + TOKEN         add; followed by `again` if it is there already, by `ERR` if no legal history has it
    - TOKEN         remove; followed by `null` if it is not there
    V = ... | S = ... | O = ... | ok     what the chunk shows, keeps ready and hides, and whether it is complete
    ? [1,20) = [1,5)1:a [5,15)2:b        a lookup
    garbage = ...                        what is fully overshadowed
    hidden = ... | shown = ...           what would be overshadowed, and what not

A token is `[1,10)2:x`, a segment of these days, version and value (`#3`: of partition 3; `@k/n`: the k-th of a core set
of n); `r3`, a root; `m2[0,4)1/3`, the first of three segments of generation 2 that cover the roots 0 to 3. The last
two are of one day; `v1.` before them is their version, 0 without it. After each step the timeline is compared with
the rule, and with one that is made afresh.
"""

import re

from samza_azure.segments import Chunk, File, Interval, Partitions, Segment, Timeline
from tests.segments import rule

DAY_US = 86_400_000_000
CHUNK = Interval.of("2011-01-01", "2011-01-02")
_LONG = re.compile(r"\[(-?\d+),(-?\d+)\)(\d+):(\w+)(?:#(\d+))?(?:@(\d+)/(\d+))?")
_ROOT = re.compile(r"(?:v(\d+)\.)?r(\d+)(?:@(\d+))?")
_MADE = re.compile(r"(?:v(\d+)\.)?m(\d+)\[(\d+),(\d+)\)(\d+)/(\d+)(?:#(\d+))?")
_SPAN = re.compile(r"\[(-?\d+),(-?\d+)\)")


def days(first: int, last: int) -> Interval:
    """Days of January 2011, which go on into other months."""
    start = Interval.of("2010-12-31", "2010-12-31").start
    return Interval(start + first * DAY_US, start + last * DAY_US)


def segment(token: str) -> Segment:
    """The segment that a token stands for."""
    if found := _LONG.fullmatch(token):
        first, last, version, value, partition, k, n = found.groups()
        number = int(k) - 1 if k else int(partition or 0)
        group = Partitions.between(0, int(n)) if n else None
        return Segment.root("d", days(int(first), int(last)), int(version), number, group=group, file=File(value))
    if found := _ROOT.fullmatch(token):
        version, root, core = found.groups()
        group = Partitions.between(0, int(core)) if core else None
        return Segment.root("d", CHUNK, int(version or 0), int(root), group=group, file=File(token))
    found = _MADE.fullmatch(token)
    assert found is not None, token
    version, generation, first, last, k, n, odd = found.groups()
    # Any unused numbers will do.
    start = 1000 * int(generation) + 100_000 * int(first) + 10_000_000 * int(last)
    group, number = Partitions.between(start, start + int(n)), start + int(k) - 1
    if odd or int(k) > int(n):
        number = start + 500 + int(odd or k)
        group = Partitions.of(number)
    return Segment(
        "d",
        CHUNK,
        int(version or 0),
        number,
        Partitions.between(int(first), int(last)),
        int(generation),
        group,
        file=File(token),
    )


def play(script: str) -> None:
    """Play a case."""
    timeline = Timeline()
    for line in filter(None, (line.partition("--")[0].strip() for line in script.splitlines())):
        step(timeline, line)
        agrees(timeline)


def step(timeline: Timeline, line: str) -> None:
    """One line of a script."""
    match line.split():
        case ["+", token, "ERR"]:
            before = set(timeline)
            try:
                timeline.add(segment(token))
            except ValueError:
                assert set(timeline) == before
            else:
                raise AssertionError(f"{line}: it was added")
        case ["+", token, "again"]:
            assert timeline.add(segment(token)) is False, line
        case ["+", *tokens]:
            for token in tokens:
                assert timeline.add(segment(token)) is True, line
        case ["-", token, "null"]:
            assert timeline.remove(segment(token)) is None, line
        case ["-", *tokens]:
            for token in tokens:
                assert timeline.remove(segment(token)) == segment(token), line
        case ["?", span, "=", *entries]:
            assert looked_up(timeline, span) == entries, line
        case ["garbage", "=", *tokens]:
            assert names(timeline.fully_overshadowed()) == sorted(tokens), line
        case _:
            state(timeline, line)


def state(timeline: Timeline, line: str) -> None:
    """A line that says what is there."""
    for part in line.split("|"):
        name, _, tokens = part.strip().partition("=")
        chunks = [chunk for chunk in timeline.chunks if chunk.interval == CHUNK]
        newest = max(chunks, key=lambda chunk: chunk.version, default=None)
        match name.strip():
            case "V":
                assert names(newest.visible() if newest else []) == sorted(tokens.split()), line
            case "S":
                assert names(standby(newest) if newest else []) == sorted(tokens.split()), line
            case "O":
                assert names(newest.overshadowed() if newest else []) == sorted(tokens.split()), line
            case "ok":
                assert newest is not None and newest.is_complete, line
            case "not ok":
                assert newest is None or not newest.is_complete, line
            case "hidden":
                assert [one for one in tokens.split() if not rule.is_overshadowed(timeline, segment(one))] == [], line
            case "shown":
                assert [one for one in tokens.split() if rule.is_overshadowed(timeline, segment(one))] == [], line
            case other:
                raise AssertionError(f"{other}: no such word, in {line}")


def standby(chunk: Chunk) -> list[Segment]:
    """The segments that are neither visible nor overshadowed. They become visible when their group is complete."""
    return [one for one, is_hidden in chunk._hidden() if not is_hidden]


def names(segments: object) -> list[str]:
    """The tokens of segments, sorted."""
    assert isinstance(segments, list | tuple)
    return sorted(one.file.name for one in segments)


def looked_up(timeline: Timeline, span: str) -> list[str]:
    """A lookup, as a script has it."""
    if span == "eternity":
        entries = timeline.lookup()
    else:
        found = _SPAN.fullmatch(span)
        assert found is not None, span
        entries = timeline.lookup(days(int(found[1]), int(found[2])))
    zero = days(0, 0).start
    return [
        f"[{(entry.interval.start - zero) // DAY_US},{(entry.interval.end - zero) // DAY_US})"
        f"{entry.version}:{','.join(names(entry.segments))}"
        for entry in entries
    ]


def agrees(timeline: Timeline) -> None:
    """The timeline is what the rule says, and what one made afresh of the same segments is."""
    expected = rule.visible(timeline)
    assert shown(timeline) == expected
    assert shown(timeline.copy()) == expected
    assert set(timeline.fully_overshadowed()) == rule.garbage(timeline)
    for chunk in timeline.chunks:
        visible, complete = rule.chunk(chunk.segments.values())
        assert (set(chunk.visible()), chunk.is_complete) == (visible, complete)
        assert len(chunk.visible()) == len(visible)
        parts = [*chunk.visible(), *standby(chunk), *chunk.overshadowed()]
        assert sorted(one.partition for one in parts) == sorted(chunk.segments)


def shown(timeline: Timeline) -> list[tuple[Interval, int, frozenset[Segment]]]:
    """A lookup of all time, as the rule says it."""
    return [(entry.interval, entry.version, frozenset(entry.segments)) for entry in timeline.lookup()]
