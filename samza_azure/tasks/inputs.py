"""What a task reads: the logs of its inputs, its position in each of them, and how much is left."""

from collections.abc import Iterable, Iterator, Sequence

from samza_azure.logs.names import STREAMS, run_folder
from samza_azure.logs.position import Ends, Position, bytes_between
from samza_azure.messages import StartTask
from samza_azure.pipeline.analysed import Producer, TaskInput
from samza_azure.stream_io.listing import log_indexes
from samza_azure.stream_io.log import LogReader
from samza_azure.streams.offset import Offset
from samza_azure.tasks.backlog import furthest, of_sources, roll_bytes, share, unread
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.gate_files import Acknowledgement


class Inputs:
    """The inputs of one task, and its position in each of them according to its log."""

    def __init__(self, context: ContainerContext, start: StartTask) -> None:
        self.stands_at: Sequence[Offset] = ()  # of each source, as the last record has it
        self._all: tuple[TaskInput, ...] = context.pipeline.inputs_of(start.task, start.run_id)
        self._context = context
        self._start = start
        self._first: dict[str, int] = {}  # blobs that source logs begin with

    def __iter__(self) -> Iterator[TaskInput]:
        return iter(self._all)

    def _of(self, offset: Offset) -> TaskInput:
        return next(each for each in self._all if each.stream == offset.of)

    def starts(self, producer: Producer) -> Position:
        """Where a task without a batch begins to read: at the end of the last run, or at what retention has left."""
        start = self._start.positions.get(producer.source or "", (0, 0))
        if producer.source is None or start != (0, 0):
            return start
        if producer.prefix not in self._first:
            found = log_indexes(self._context.blobs, f"{producer.prefix}/").get(producer.prefix, [0])
            self._first[producer.prefix] = found[0]
        return self._first[producer.prefix], 0

    def positions(self) -> dict[str, Position]:
        """The position in each log that the task reads, according to its last record."""
        stands: dict[str, Position] = {}
        for offset in self.stands_at:
            producers = self._of(offset).producers
            for producer, place in zip(producers, offset.at, strict=True):
                stands[producer.prefix] = min(place.position, stands.get(producer.prefix, place.position))
        return stands

    def needs(self) -> dict[str, int]:
        """The first blob that later batches still read, for each log of a source or of this run."""
        read = run_folder(self._start.run_id), STREAMS
        return {log: blob for log, (blob, _) in self.positions().items() if blob > 0 and log.startswith(read)}

    def read_to(self, offsets: Iterable[Offset]) -> Ends:
        """How far each source partition has been read, over all sources of the task."""
        ends: Ends = {}
        for offset in offsets:
            producers = self._of(offset).producers
            for producer, place in zip(producers, offset.at, strict=True):
                if producer.source is not None:
                    ends[producer.source] = max(place.position, ends.get(producer.source, (0, 0)))
        return ends

    def stands(self, offsets: Iterable[Offset]) -> Ends:
        """How far each log with rows from outside has been read, by all sources of the task."""
        ends: Ends = {}
        for offset in offsets:
            each = self._of(offset)
            if each.is_outside:
                for producer, place in zip(each.producers, offset.at, strict=True):
                    ends[producer.prefix] = min(place.position, ends.get(producer.prefix, place.position))
        return ends

    def behind(self) -> dict[str, int]:
        """Estimate how many bytes of each stream are unread, from the ends in the hints."""
        left: dict[str, int] = {}
        for each, positions, ends in self._to_read():
            left[each.stream] = max(left.get(each.stream, 0), unread(each, positions, ends))
        return left

    def behind_sources(self) -> dict[str, int]:
        """The same of each source partition, if its end is known; of many, those that are furthest behind."""
        left: dict[str, int] = {}
        for each, positions, ends in self._to_read():
            for partition, size in of_sources(each, positions, ends).items():
                left[partition] = max(left.get(partition, 0), size)
        return furthest(left)

    def _to_read(self) -> Iterator[tuple[TaskInput, Sequence[Position], Sequence[Position | None]]]:
        """Each input, the positions in its logs, and the ends of these as the hints have them."""
        stands = [(self._of(offset), offset.positions) for offset in self.stands_at]
        if not stands:  # no batch yet
            stands = [(each, [self.starts(producer) for producer in each.producers]) for each in self]
        for each, positions in stands:
            yield each, positions, [self._context.hints.end_of(producer.prefix) for producer in each.producers]

    def bytes_between(self, offsets: Sequence[Offset], most: int) -> int:
        """Our share of the bytes between the task's position and these offsets, as `unread` counts it. Across blobs
        this is an estimate, and at most as large as a batch can be."""
        size = 0.0
        for number, after in enumerate(offsets):
            each = self._of(after)
            stands = self.stands_at[number].positions if self.stands_at else map(self.starts, each.producers)
            for producer, begin, end in zip(each.producers, stands, after.positions, strict=False):
                part = share(each, producer)
                between = bytes_between(begin, end, roll_bytes(producer)) * part
                size += between if end[0] == begin[0] else max(min(between, most), end[1] * part)
        return int(size)

    def has_appended(self, said: Sequence[Acknowledgement]) -> bool:
        """Whether all that the sources have returned is in the log."""
        given = _returned(said)
        return bool(given) and _places(given) == _places(self.stands_at)

    def has_put_out(self, said: Sequence[Acknowledgement]) -> bool:
        """Whether all rows that the sources have returned are in the log; true also if they have returned none."""
        if self.has_appended(said):
            return True
        given = _returned(said)
        return not self.stands_at and bool(given) and all(self._is_where_it_begins(each) for each in given)

    def _is_where_it_begins(self, offset: Offset) -> bool:
        producers = self._of(offset).producers
        return offset.positions == [self.starts(producer) for producer in producers]

    def rows_and_bytes(self, offsets: Iterable[Offset]) -> tuple[int, int]:
        """The rows between the task's position and these offsets, and their bytes in the logs."""
        rows = size = 0
        before = {(offset.of, number): offset for number, offset in enumerate(self.stands_at)}
        for number, offset in enumerate(offsets):
            each = self._of(offset)
            first = before.get((offset.of, number))
            starts = first.positions if first else [self.starts(producer) for producer in each.producers]
            for producer, start, end in zip(each.producers, starts, offset.positions, strict=True):
                reader = LogReader(self._context.blobs, producer.prefix, frozenset(producer.destinations))
                for found in reader.scans(start, end):
                    rows, size = rows + found.rows, size + found.size
        return rows, size


def _places(offsets: Iterable[Offset]) -> set[tuple[str, tuple[Position, ...]]]:
    """The positions of the sources, as a set: Spark records a source twice that is used twice in a query."""
    return {(offset.of, tuple(offset.positions)) for offset in offsets}


def _returned(said: Sequence[Acknowledgement]) -> list[Offset]:
    return [Offset.from_json(each.offset) for each in said if each.offset is not None]
