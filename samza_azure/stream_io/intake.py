"""Rows of logs in memory, until they are written elsewhere: the first part of all tasks without a query.

Promised: what lies between two positions of a log is the same rows in the same order, however it was read. Nothing is
read while there are as many rows as one flush is to have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from samza_azure.logs.position import Position
from samza_azure.logs.reading import Scan
from samza_azure.logs.record import Kind
from samza_azure.stream_io.log import LogReader
from samza_azure.streams.offset import ProducerPosition, ProducerState

#: The most bytes of a log in one scan.
SCAN_BYTES = 4 << 20


class Intake:
    """The logs of one task, and what was read of them. For one thread.

    It is full when it holds `rows` rows, or `size` bytes in memory. `widened` brings rows into one schema.
    """

    def __init__(
        self,
        readers: Sequence[LogReader],
        *,
        rows: int,
        size: int,
        widened: Callable[[pa.Table], pa.Table],
    ) -> None:
        self._readers = {reader.prefix: reader for reader in readers}
        self._rows_max, self._size_max = rows, size
        self._widened = widened
        self.positions: dict[str, ProducerPosition] = {}  # up to where rows are in memory
        self.read_bytes = 0  # of our rows, since `begin`
        self._held: dict[str, list[pa.RecordBatch]] = {prefix: [] for prefix in self._readers}
        self._drained: set[str] = set()
        self.rows = self.size = 0  # that are held

    @property
    def is_full(self) -> bool:
        """Whether there are enough rows for a flush."""
        return self.rows >= self._rows_max or self.size >= self._size_max

    @property
    def is_at_end(self) -> bool:
        """Whether nothing more comes: all logs have ended for good, and are read."""
        return self._drained >= self._readers.keys()

    @property
    def at(self) -> dict[str, Position]:
        """The positions alone."""
        return {prefix: each.position for prefix, each in self.positions.items()}

    def begin(self, at: Mapping[str, Position]) -> None:
        """Read on from these positions; a log that is not among them from its start."""
        self.positions = {prefix: ProducerPosition(at.get(prefix, (0, 0))) for prefix in self._readers}

    def read(self, prefix: str, *, ends: bool = False) -> None:
        """Take in what is new in a log, as far as there is room. With `ends` it is asked whether it has ended."""
        reader = self._readers[prefix]
        while not self.is_full and prefix not in self._drained:
            found = reader.scan(self.positions[prefix].position, SCAN_BYTES)
            self._take(prefix, found)
            if found.drained:
                self._drained.add(prefix)
            if found.at_end:
                break
        if ends and prefix not in self._drained and not self.is_full:
            # Its last record may have been read by an owner before us.
            last = reader.tail()
            if last is not None and last.header.kind is Kind.DRAINED and last.end == self.positions[prefix].position:
                self._drained.add(prefix)

    def read_again(self, until: Mapping[str, Position]) -> None:
        """Take in what an owner before us had read up to these positions."""
        for prefix, end in until.items():
            for found in self._readers[prefix].scans(self.positions[prefix].position, end):
                self._take(prefix, found)
            self.positions[prefix] = replace(self.positions[prefix], position=end)

    def take(self) -> pa.Table | None:
        """The rows that are held, log by log, which are given up then; None if there are none."""
        held = [batch for batches in self._held.values() for batch in batches]
        for batches in self._held.values():
            batches.clear()
        self.rows = self.size = 0
        if not held:
            return None
        rows = [self._widened(pa.Table.from_batches([batch])) for batch in held]
        return pa.concat_tables(rows, promote_options="permissive")

    def is_in_later_blob(self, at: Mapping[str, Position]) -> bool:
        """Whether a log is read up to a later blob than that of its position there."""
        return any(now[0] > at.get(log, (0, 0))[0] for log, now in self.at.items())

    def _take(self, prefix: str, found: Scan) -> None:
        """Take in the rows of a scan, and what the log says with them of event time."""
        # All of them are fetched before the first is kept: after an error the scan is repeated as a whole.
        batches = list(self._readers[prefix].rows(found.parts))
        self._held[prefix] += batches
        self.rows += sum(batch.num_rows for batch in batches)
        self.size += sum(batch.nbytes for batch in batches)
        self.read_bytes += found.size
        if found.end != found.start:
            state = ProducerState.IDLE if found.idle else ProducerState.ACTIVE
            frontier_us = self.positions[prefix].frontier_us if found.frontier_us is None else found.frontier_us
            self.positions[prefix] = ProducerPosition(
                found.end, frontier_us, ProducerState.DRAINED if found.drained else state
            )


class Follower(ABC):
    """What follows logs and writes their rows elsewhere. It reads nothing while a flush of its own is under way."""

    _intake: Intake

    @property
    @abstractmethod
    def _flushes(self) -> bool:
        """Whether rows that were taken from the intake are yet to be written."""

    @property
    def is_full(self) -> bool:
        """Whether there are enough rows for a flush. No more are read then."""
        return self._flushes or self._intake.is_full

    @property
    def has_rows(self) -> bool:
        """Whether a flush would write anything."""
        return self._flushes or self._intake.rows > 0

    @property
    def is_at_end(self) -> bool:
        """Whether nothing more comes: all logs have ended for good, and are read."""
        return self._intake.is_at_end

    def read_to(self, prefix: str) -> Position:
        """The position up to which a log is read."""
        return self._intake.positions[prefix].position

    @property
    def positions(self) -> Mapping[str, ProducerPosition]:
        """The same of all logs, with what they say of event time."""
        return dict(self._intake.positions)

    @property
    def read_bytes(self) -> int:
        """How many bytes of rows were read under this writer."""
        return self._intake.read_bytes

    def read(self, prefix: str, *, ends: bool = False) -> None:
        """Take in what is new in a log, as far as there is room. With `ends` it is asked whether it has ended."""
        if not self._flushes:
            self._intake.read(prefix, ends=ends)
