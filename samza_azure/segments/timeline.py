"""What is visible in a table, across intervals and versions.

A higher version hides a lower one on their overlap once it is complete; lower ones fill the gaps, cut to them. Equal
versions on unequal overlapping intervals are an error. Of the incomplete versions the newest is kept; those between it
and the visible one are garbage.

The state is a function of the segments that are present, whatever the order in which they were added. Time is divided
where an interval begins or ends; each part has a list of the chunks over it, newest first. So adding a segment to an
existing chunk, or removing one, changes that chunk alone.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from samza_azure.segments.chunk import Chunk
from samza_azure.segments.interval import ETERNITY, Interval
from samza_azure.segments.segment import Segment, SegmentId
from samza_azure.segments.sequence import SequenceNumber


class TimelineEntry(NamedTuple):
    """One result of a lookup: these segments, of which only the rows in `interval` count."""

    interval: Interval
    chunk: Chunk

    @property
    def version(self) -> int:
        """The version of the segments."""
        return self.chunk.version

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The visible segments. Their interval may be longer than that of the entry."""
        return self.chunk.visible()


class Timeline:
    """The segments of one table that are present, and which of them are visible."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._chunks: dict[tuple[Interval, int], Chunk] = {}
        self._starts: list[int] = []  # where a part begins; it ends where the next one does
        self._stacks: list[list[Chunk]] = []  # by part: what lies over it, the highest version first
        self._size = 0
        self._build(segments)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Segment]:
        for chunk in self._chunks.values():
            yield from chunk.segments.values()

    def __contains__(self, segment: Segment | SegmentId) -> bool:
        return self.get(segment.id if isinstance(segment, Segment) else segment) is not None

    @property
    def chunks(self) -> Iterable[Chunk]:
        """One per interval and version."""
        return self._chunks.values()

    def chunk(self, interval: Interval, version: int) -> Chunk | None:
        """The chunk of an interval and version."""
        return self._chunks.get((interval, version))

    def get(self, name: SegmentId) -> Segment | None:
        """A segment that is present."""
        chunk = self._chunks.get((name.interval, name.version))
        return None if chunk is None else chunk.segments.get(name.partition)

    def add(self, segment: Segment) -> bool:
        """Add a segment. Return False if it is present. Raise ValueError if no legal history has it and the others."""
        chunk = self._chunks.get((segment.interval, segment.version))
        if chunk is not None:
            added = chunk.add(segment)
            self._size += added
            return added
        chunk = Chunk(segment.interval, segment.version)
        self._lay(chunk)
        chunk.add(segment)
        self._chunks[segment.interval, segment.version] = chunk
        self._size += 1
        return True

    def remove(self, segment: Segment | SegmentId) -> Segment | None:
        """Remove a segment and return it. Return None if it is not present."""
        name = segment.id if isinstance(segment, Segment) else segment
        chunk = self._chunks.get((name.interval, name.version))
        if chunk is None or (removed := chunk.remove(name.partition)) is None:
            return None
        self._size -= 1
        if not chunk.segments:
            del self._chunks[chunk.interval, chunk.version]
            self._lift(chunk)
        return removed

    def lookup(self, interval: Interval = ETERNITY, *, incomplete: bool = False) -> list[TimelineEntry]:
        """What is visible in an interval, in time order. Adjacent parts of one chunk are one entry.

        With `incomplete`, include what is present where nothing is complete.
        """
        if interval.is_empty:
            return []
        found: list[TimelineEntry] = []
        starts, stacks = self._starts, self._stacks
        for part in range(max(bisect_right(starts, interval.start) - 1, 0), len(starts)):
            start = starts[part]
            if start >= interval.end:
                break
            chunk = _winner(stacks[part])
            if chunk is None and incomplete and stacks[part]:
                chunk = stacks[part][0]
            if chunk is None:
                continue
            # A part that has chunks is never the last one.
            start, end = max(start, interval.start), min(starts[part + 1], interval.end)
            if found and found[-1].chunk is chunk and found[-1].interval.end == start:
                start = found.pop().interval.start
            found.append(TimelineEntry(Interval(start, end), chunk))
        return found

    def visible(self, interval: Interval = ETERNITY) -> list[Segment]:
        """The segments that a lookup shows, each once."""
        chunks = {id(entry.chunk): entry.chunk for entry in self.lookup(interval)}
        return [segment for chunk in chunks.values() for segment in chunk.visible()]

    def is_visible(self, segment: Segment) -> bool:
        """Whether a lookup of the segment's interval shows it."""
        chunk = self._chunks.get((segment.interval, segment.version))
        if chunk is None or segment not in chunk.visible():
            return False
        return any(_winner(stack) is chunk for _, stack in self._parts(segment.interval))

    def fully_overshadowed(self) -> list[Segment]:
        """The garbage: segments that are not visible, and that no later segment can make visible."""
        kept = set()
        for stack in self._stacks:
            if stack:
                kept.add(id(_winner(stack)))
                kept.add(id(stack[0]))
        found: list[Segment] = []
        for chunk in self._chunks.values():
            found += chunk.overshadowed() if id(chunk) in kept else chunk.segments.values()
        return found

    def is_drop(self, chunk: Chunk) -> bool:
        """Whether nothing of a chunk's version has rows, as of a drop. A REPLACE has one version wherever it wrote."""
        return not chunk.has_rows and not any(one.has_rows for one in self.chunks if one.version == chunk.version)

    def below(self, chunk: Chunk) -> list[Chunk]:
        """The chunks of lower versions over whose intervals a chunk lies, if only in part."""
        return [one for one in self._beside(chunk) if one.version < chunk.version]

    def above(self, chunk: Chunk) -> list[Chunk]:
        """The chunks of higher versions that lie over a chunk, if only in part."""
        return [one for one in self._beside(chunk) if one.version > chunk.version]

    def _beside(self, chunk: Chunk) -> Iterable[Chunk]:
        return {id(one): one for _, stack in self._parts(chunk.interval) for one in stack}.values()

    def at(self, sequence: SequenceNumber) -> "Timeline":
        """The timeline of what had been published at a sequence number."""
        return Timeline(segment for segment in self if sequence.includes(segment))

    def with_added(self, segments: Iterable[Segment]) -> "Timeline":
        """A new timeline with these segments added. It shares unchanged parts with this one, so neither may be changed
        by `add` or `remove` afterwards."""
        segments = list(segments)
        other = Timeline()
        other._chunks, other._size = dict(self._chunks), self._size
        other._starts, other._stacks = list(self._starts), [list(stack) for stack in self._stacks]
        for key in {(segment.interval, segment.version) for segment in segments} & self._chunks.keys():
            before = self._chunks[key]
            other._chunks[key] = chunk = Chunk(*key)
            for segment in before.segments.values():
                chunk.add(segment)
            for _, stack in other._parts(before.interval):
                stack[stack.index(before)] = chunk
        for segment in segments:
            other.add(segment)
        return other

    def copy(self) -> "Timeline":
        """A new timeline of the same segments."""
        return Timeline(self)

    def _build(self, segments: Iterable[Segment]) -> None:
        """Add many segments. Chunks are added in the order of their intervals, so that each goes to the end."""
        by_chunk: dict[tuple[Interval, int], list[Segment]] = {}
        for segment in segments:
            key = segment.interval, segment.version
            if (known := by_chunk.get(key)) is None:
                by_chunk[key] = [segment]
            else:
                known.append(segment)
        for key in sorted(by_chunk):
            chunk = Chunk(*key)
            self._lay(chunk)
            for segment in by_chunk[key]:
                self._size += chunk.add(segment)
            self._chunks[key] = chunk

    def _parts(self, interval: Interval) -> Iterator[tuple[int, list[Chunk]]]:
        """The parts of an interval and the chunks over them. Where there was never a segment, the list is empty."""
        first = bisect_right(self._starts, interval.start) - 1
        if first < 0:
            yield interval.start, []
        for part in range(max(first, 0), len(self._starts)):
            if self._starts[part] >= interval.end:
                return
            yield self._starts[part], self._stacks[part]

    def _lay(self, chunk: Chunk) -> None:
        """Add a new chunk over its interval. Raise ValueError if an unequal interval there has the same version."""
        for _, stack in self._parts(chunk.interval):
            for other in stack:
                if other.version == chunk.version:
                    raise ValueError(
                        f"Version {chunk.version} of {chunk.interval} overlaps the same version of {other.interval}. "
                        "A version belongs to equal or disjoint intervals."
                    )
        first, end = self._divide(chunk.interval.start), self._divide(chunk.interval.end)
        for stack in self._stacks[first:end]:
            stack.insert(bisect_left(stack, -chunk.version, key=_newest_first), chunk)

    def _lift(self, chunk: Chunk) -> None:
        """Remove a chunk, and join the parts that nothing divides now."""
        first = bisect_left(self._starts, chunk.interval.start)
        end = bisect_left(self._starts, chunk.interval.end)
        for stack in self._stacks[first:end]:
            stack.remove(chunk)
        for part in (end, first):
            if self._stacks[part] == (self._stacks[part - 1] if part else []):
                del self._starts[part], self._stacks[part]

    def _divide(self, at: int) -> int:
        """The part that begins at this moment."""
        part = bisect_left(self._starts, at)
        if part == len(self._starts) or self._starts[part] != at:
            self._starts.insert(part, at)
            self._stacks.insert(part, list(self._stacks[part - 1]) if part else [])
        return part


def _winner(stack: list[Chunk]) -> Chunk | None:
    for chunk in stack:
        if chunk.is_complete:
            return chunk
    return None


def _newest_first(chunk: Chunk) -> int:
    return -chunk.version
