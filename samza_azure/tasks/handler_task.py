"""A low-level task: the messages of its inputs go to a handler of the user's, one by one. Spark has no part in it.

It is a task like any other, with another query: the same sources find new rows, the same gate holds them, and one
record takes rows, positions and state in one append. So ownership, drains, idleness and event time are the same.

A batch is what the sources return at once. A long batch is committed in parts: each record then holds where the batch
ends, and how many of its messages are done. The messages of a batch and their order depend only on the logs, so the
next owner continues after those that are done.
"""

import json
import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from samza_azure.application import Envelope
from samza_azure.config import Stream
from samza_azure.errors import SamzaAzureError
from samza_azure.logs.names import stream_and_partition
from samza_azure.logs.reading import Part
from samza_azure.logs.record import SHUT_DOWN
from samza_azure.machine.clock import boot_time
from samza_azure.messages import StartTask
from samza_azure.pipeline.analysed import Producer, TaskInput
from samza_azure.stream_io.arrow import DESTINATION, rows_of
from samza_azure.stream_io.columns import laid_out, strict_schema
from samza_azure.stream_io.source_stream import partition_numbers
from samza_azure.streams.offset import INFINITY_MS, LAST_STEP, Offset
from samza_azure.systems.dead_letters import SCHEMA_DDL
from samza_azure.tasks.checkpoint import Planned
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.failure import drop_frames
from samza_azure.tasks.figures import Counted
from samza_azure.tasks.handler import CLOSE_S, HandlerCalls, TimeLimits
from samza_azure.tasks.poller import Poller, patiently
from samza_azure.tasks.records import RecordWriter
from samza_azure.tasks.stage_task import StageTask

#: Input of a batch: messages are processed one by one, and a drain waits for all that were read.
BATCH_BYTES = 4 << 20
#: A task commits at once after this many rows of output, or this many bytes: they are in memory until then.
ROWS_MAX, OUT_BYTES_MAX = 100_000, 8 << 20
#: How many messages are converted to Python values at once.
PYTHON_ROWS = 1_000
#: The interval between two calls of the sources.
TRIGGER_S = 0.1
#: Files of the record: a batch that is not done, empty if there is none; the handler's own state; its timers.
UNFINISHED = "unfinished"
STATE = "handler"
WISHES = "wishes"
#: The content of a file that no record has.
NOTHING = {STATE: None, WISHES: b""}


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """One slice of a record, as in the log."""

    input: TaskInput
    producer: Producer
    part: Part
    data: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a slice."""

    slice: StoredSlice
    rows: pa.RecordBatch
    first: int  # the number of the first of them among those of its record for the same partition

    def envelopes(self, skip: int) -> Iterator[Envelope]:
        """The messages, without the first `skip`."""
        producer, part = self.slice.producer, self.slice.part
        partition = part.destination if producer.source is None else stream_and_partition(producer.source)[1]
        log, (blob, position) = producer.prefix.rpartition("/")[2], part.position
        for begin in range(skip, self.rows.num_rows, PYTHON_ROWS):
            rows = self.rows.slice(begin, PYTHON_ROWS)
            for number, row in enumerate(self._as_python(rows), self.first + begin):
                yield Envelope(self.slice.input.named, partition, f"{log}:{blob}:{position}:{number}", row)

    def _as_python(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = rows.to_pylist()
        except (OverflowError, ValueError) as error:
            raise SamzaAzureError(
                f"A message of {self.slice.input.named}, in {self.slice.producer.prefix} at "
                f"{self.slice.part.position}, holds a date or a time that Python's types cannot hold: {error}. Let a "
                "stage before this task leave it out, or write it as a number."
            ) from error
        return found


class HandlerTask(StageTask):
    """One low-level task under one writer."""

    outlives_release = True  # the handler's `close`

    def __init__(self, context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> None:
        super().__init__(context, start, tried_bytes)
        self._most_bytes = min(self._most_bytes, BATCH_BYTES)
        config, stage = context.config.task, self.stage
        declared = (
            SCHEMA_DDL if stage.analysis.reads_dead else context.config.streams.get(stage.plan.output, Stream()).schema
        )
        self._calls = HandlerCalls(
            self.name,
            stage.stage.function,
            strict_schema(declared, stage.event_time),
            stage.plan.at_once,
            TimeLimits(config.callback_timeout_s, config.callback_drain_timeout_s),
        )
        self._pollers: list[Poller] = []
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._saved: dict[str, bytes] = {}  # the handler's state and its timers, as the log has them
        self._committed_at = 0.0
        self._done = Counted(-1)
        self._under_way = 0  # input rows of the running batch that no record has yet

    def _records(self, checkpoint: Path, *arguments: Any) -> RecordWriter:
        return RecordWriter(*arguments)

    # What `StageTask` asks of a query.

    @property
    def isActive(self) -> bool:  # noqa: N802  # as Spark calls it
        return self._error is None and self._thread is not None and self._thread.is_alive()

    def exception(self) -> BaseException | None:
        return self._error

    def stop(self) -> None:
        self._closing.set()
        self._calls.give_up()
        if self._thread is not None:  # the next handler of this task and the end of this process wait for `close`
            self._thread.join(CLOSE_S + 1)

    def _drop(self) -> None:
        super()._drop()
        self._pollers, self._saved = [], {}
        drop_frames(self._error)

    def _start_query(self, checkpoint: Path) -> None:
        """Start the loop. It is no query of Spark's, so it waits for none."""
        self._pollers = [
            Poller(str(self._spec(number, each)), each.columns.arrow, self._context.blobs)
            for number, each in enumerate(self.inputs)
        ]
        with self._query_lock:
            if self._is_ending:
                return
            self._query = self
            self._thread = threading.Thread(target=self._live, args=[checkpoint], name=self.name, daemon=True)
            self._thread.start()
        self._runs()

    def _counted(self) -> Counted:
        with self._lock:
            done, self._done = self._done, Counted(-1)
        return replace(done, through=self.report.batch)

    # The loop, in a thread of its own.

    def _live(self, checkpoint: Path) -> None:
        try:
            paths = [checkpoint / name for name in (STATE, WISHES)]
            self._saved = {path.name: path.read_bytes() for path in paths if path.exists()}
            self._calls.begin(self._saved.get(STATE), self._saved.get(WISHES, b""))
            self._go_on(_file(checkpoint / UNFINISHED))
            # A release in mid-batch leaves our position before messages that are done, and may come before the gate
            # shuts: no further turn then.
            while not (self._closing.is_set() or self._releasing):
                if self._calls.asks_shutdown:
                    return self._end_alone()
                if not (self._turn() or self._fire()):
                    self._closing.wait(TRIGGER_S)
        except BaseException as error:  # noqa: BLE001  # the handler's own code runs in there
            self._error = error
        finally:
            for poller in self._pollers:
                poller.thread.shutdown(wait=False)
            self._calls.close()

    def _rows_under_way(self) -> int:
        return self._under_way

    def _where(self) -> list[Offset]:
        """The position of the task in each input."""
        return list(self.inputs.stands_at) or [Offset.from_json(poller.initial()) for poller in self._pollers]

    def _turn(self) -> bool:
        """A batch, if there is reason for one."""
        starts = self._where()
        ends = [
            Offset.from_json(poller.latest(start.to_json()))
            for poller, start in zip(self._pollers, starts, strict=True)
        ]
        if ends == starts:
            return False
        given = zip(self._pollers, starts, ends, strict=True)
        self._batch(starts, ends, [poller.parts if start != end else [] for poller, start, end in given])
        return True

    def _fire(self) -> bool:
        """Call the handler for timers that are due while no message comes. As for messages, at most once in
        `task.commit.ms`, since it costs an append.
        """
        batches, now = self._batches, boot_time()
        is_early = now < self._committed_at + self._context.config.task.commit_ms / 1000
        if batches is None or is_early or not (self._calls.is_due and self._context.may_append()):
            return False
        with batches.batch():
            if self.is_over or self._closing.is_set() or self._releasing:
                return False
            self._calls.process(self._calls.with_timers(()), partial(self._is_enough, math.inf))
            self._commit(self._where(), b"")
            self._count_calls(0, boot_time() - now)
        return True

    def _end_alone(self) -> None:
        """End the log with DRAINED, as the handler has asked. What was read is processed and committed."""
        batches = self._batches
        assert batches is not None
        with batches.batch():
            if not (self.is_over or self._closing.is_set() or self._releasing):
                ends = tuple(replace(each, step=LAST_STEP) for each in self._where())
                batches.append(Planned(INFINITY_MS, ends), self._last_rows(), {}, meta={SHUT_DOWN: True})

    def _go_on(self, unfinished: bytes) -> None:
        """Finish the batch that an earlier owner has begun, before anything else is read."""
        if not unfinished:
            return
        known: dict[str, Any] = json.loads(unfinished)  # of a record that `lay_out` has checked
        starts, ends = self._where(), [Offset.from_json(each) for each in known["ends"]]
        parts = []
        for poller, start, end in zip(self._pollers, starts, ends, strict=True):
            between = zip(poller.readers, start.positions, end.positions, strict=True)
            parts.append([[part for each in reader.scans(a, b) for part in each.parts] for reader, a, b in between])
        self._batch(starts, ends, parts, known["done"])

    def _batch(self, starts: list[Offset], ends: list[Offset], parts: list[list[list[Part]]], done: int = 0) -> None:
        """Process the messages of a range without the first `done`, and commit at intervals."""
        batches = self._batches
        assert batches is not None
        total = sum(part.rows for found in parts for slices in found for part in slices)
        messages = self._calls.with_timers(_behind(_pieces(self._slices(starts, ends, parts)), done))
        with batches.batch():
            while not (self.is_over or self._closing.is_set()):
                began = boot_time()
                until = began + self._context.config.task.commit_ms / 1000
                self._under_way = total - done
                new = self._calls.process(messages, partial(self._is_enough, until))
                done += new
                if done < total:
                    unfinished = json.dumps({"ends": [each.to_json() for each in ends], "done": done}).encode()
                    self._commit(starts, unfinished)
                else:
                    self._commit(ends, b"")
                self._under_way = total - done
                self._count_calls(new, boot_time() - began)
                if done == total or self._releasing:
                    return

    def _count_calls(self, rows: int, seconds: float) -> None:
        with self._lock:
            before = self._done
            self._done = Counted(-1, before.batches + 1, before.rows + rows, seconds=before.seconds + seconds)

    def _is_enough(self, until: float) -> bool:
        calls = self._calls
        is_much = calls.rows >= ROWS_MAX or calls.size >= OUT_BYTES_MAX or calls.asks_commit
        return is_much or self._releasing or self._closing.is_set() or boot_time() >= until

    def _slices(self, starts: list[Offset], ends: list[Offset], parts: list[list[list[Part]]]) -> list[StoredSlice]:
        """Read all rows of a range, packed as in the logs: input by input, log by log, each log in its order.

        All are read before the first message is processed, so that no timed call waits for the storage.
        """
        found = []
        for each, poller, start, end, logs in zip(self.inputs, self._pollers, starts, ends, parts, strict=True):
            for producer, reader, first, last, slices in zip(
                each.producers, poller.readers, start.positions, end.positions, logs, strict=False
            ):
                read = patiently(reader, first, last, slices, poller.spec)
                found += [StoredSlice(each, producer, part, data) for part, data in read]
        return found

    def _commit(self, offsets: Iterable[Offset], unfinished: bytes) -> None:
        """Append one record: the output rows, the task's position, and of state and timers what has changed."""
        assert self._batches is not None
        state = self._calls.snapshot()
        kept = {WISHES: self._calls.wishes()} | ({} if state is None else {STATE: state})
        changed = {name: content for name, content in kept.items() if content != self._saved.get(name, NOTHING[name])}
        self._batches.append(Planned(0, tuple(offsets)), self._rows(), {UNFINISHED: unfinished, **changed})
        self._saved = kept
        self._committed_at = boot_time()

    def _last_rows(self) -> Iterable[pa.RecordBatch]:
        """The output of all timers and of `on_drain`. Nothing is in flight; everything that was read is committed."""
        self._calls.end()
        return self._rows()

    def _rows(self) -> list[pa.RecordBatch]:
        """The output rows since the last call, with the partition of each row."""
        rows, partitions = self._calls.take().cast(self.stage.analysis.columns.arrow), self.stage.partitions
        if partitions is not None and partitions > 1 and rows.num_rows:
            rows = rows.append_column(DESTINATION, partition_numbers(rows, self.stage.stage.partition_by, partitions))
        batches: list[pa.RecordBatch] = rows.to_batches()
        return batches


def _pieces(slices: Iterable[StoredSlice]) -> Iterator[Piece]:
    """The rows of slices. Later slices stay packed until reached: they may unpack to a hundred times the size."""
    record, number = None, 0
    for each in slices:
        # A large record has several slices for one partition: its messages are numbered through.
        this = each.producer.prefix, each.part.position, each.part.destination
        if this != record:
            record, number = this, 0
        for rows in rows_of(each.part, each.data):
            yield Piece(each, laid_out(rows, each.input.columns.arrow, each.input.stream), number)
            number += rows.num_rows


def _behind(pieces: Iterable[Piece], done: int) -> Iterator[Envelope]:
    """The messages after the first `done`."""
    for piece in pieces:
        yield from piece.envelopes(min(done, piece.rows.num_rows))
        done = max(done - piece.rows.num_rows, 0)


def _file(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
