"""The declarative rule of what is visible, written down as simply as it is said. Sets, and no state."""

from collections.abc import Iterable
from itertools import pairwise

from samza_azure.segments import Interval, Segment, Timeline

Cover = frozenset[int]
Groups = dict[Cover, dict[int, list[Segment]]]  # by cover and generation: what is present


def shadows(segment: Segment, other: Segment) -> bool:
    """Whether a segment overshadows another one, if both are present and complete."""
    if segment.datasource != other.datasource or not segment.interval.overlaps(other.interval):
        return False
    if segment.version != other.version:
        return segment.version > other.version
    newer = segment.generation > other.generation
    return segment.interval == other.interval and newer and other.covers <= segment.covers


def is_overshadowed(timeline: Timeline, segment: Segment) -> bool:
    """Whether visible segments hide all of a segment, present or not."""
    parts = timeline.lookup(segment.interval)
    hidden = [part.interval for part in parts if any(shadows(one, segment) for one in part.segments)]
    return sum(each.end - each.start for each in hidden) == segment.interval.end - segment.interval.start


def chunk(segments: Iterable[Segment]) -> tuple[set[Segment], bool]:
    """What is visible of the segments of one interval and version, and whether that is complete."""
    groups: Groups = {}
    segments = list(segments)
    for segment in segments:
        groups.setdefault(frozenset(segment.covers), {}).setdefault(segment.generation, []).append(segment)
    top = maximal(groups)
    shown: set[Segment] = set()
    for cover in top:
        found = full(cover, groups)
        shown |= set(groups[cover][max(groups[cover])]) if found is None else found
    carried = set().union(*(segment.covers for segment in shown)) if shown else set()
    cores = [segment.group for segment in segments if segment.is_root]
    complete = all(full(cover, groups) is not None for cover in top) and all(set(core) <= carried for core in cores)
    return shown, complete and bool(segments)


def maximal(covers: Iterable[Cover]) -> list[Cover]:
    covers = list(covers)
    return [cover for cover in covers if not any(cover < other for other in covers)]


def full(cover: Cover, groups: Groups) -> set[Segment] | None:
    for generation in sorted(groups[cover], reverse=True):
        present = groups[cover][generation]
        if present[0].is_root or {segment.partition for segment in present} == set(present[0].group):
            return set(present)
    parts = maximal(other for other in groups if other < cover)
    if not parts or frozenset().union(*parts) != cover:
        return None
    below = [full(part, groups) for part in parts]
    return None if any(each is None for each in below) else set().union(*below)  # type: ignore[arg-type]


def visible(segments: Iterable[Segment]) -> list[tuple[Interval, int, frozenset[Segment]]]:
    """What a complete reader sees of a table: intervals, versions and segments, in the order of time."""
    chunks: dict[tuple[Interval, int], list[Segment]] = {}
    for segment in segments:
        chunks.setdefault((segment.interval, segment.version), []).append(segment)
    ends = sorted({moment for interval, _ in chunks for moment in (interval.start, interval.end)})
    found: list[tuple[Interval, int, frozenset[Segment], Interval]] = []
    for start, end in pairwise(ends):
        part = Interval(start, end)
        over = [key for key in chunks if key[0].contains(part) and chunk(chunks[key])[1]]
        if not over:
            continue
        interval, version = max(over, key=lambda key: key[1])
        shown = frozenset(chunk(chunks[interval, version])[0])
        if found and found[-1][0].end == start and found[-1][1:] == (version, shown, interval):
            part = Interval(found.pop()[0].start, end)
        found.append((part, version, shown, interval))
    return [each[:3] for each in found]


def garbage(segments: Iterable[Segment]) -> set[Segment]:
    """What is not visible and can never be again: hidden, and not of the newest version that is not complete yet."""
    chunks: dict[tuple[Interval, int], list[Segment]] = {}
    for segment in segments:
        chunks.setdefault((segment.interval, segment.version), []).append(segment)
    ends = sorted({moment for interval, _ in chunks for moment in (interval.start, interval.end)})
    kept = set()
    for start, end in pairwise(ends):
        over = [key for key in chunks if key[0].contains(Interval(start, end))]
        if over:
            kept.add(max(over, key=lambda key: key[1]))
            if complete := [key for key in over if chunk(chunks[key])[1]]:
                kept.add(max(complete, key=lambda key: key[1]))
    found: set[Segment] = set()
    for key, members in chunks.items():
        shown, _ = chunk(members)
        hidden = {one for one in members if any(shadows(other, one) for other in shown)}
        found |= hidden if key in kept else set(members)
    return found
