"""A low-level task: the messages of its inputs go to a handler of the user's, one by one. Spark has no part in it.

It is a task like any other, with another query: the same sources find new rows, the same gate holds them, and one
record takes rows, positions and state in one append. So ownership, drains, idleness and event time are those of `Task`.

A batch is what the sources return at once. A long batch is committed in parts: each record then holds where the batch
ends, and how many of its messages are done. The messages of a batch and their order depend only on the logs, so the
next owner continues after those that are done.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from samza_azure.application import Envelope
from samza_azure.errors import SamzaAzureError
from samza_azure.logs.names import stream_and_partition
from samza_azure.logs.reading import Part
from samza_azure.logs.record import Buffer
from samza_azure.machine import boot_time
from samza_azure.messages import StartTask
from samza_azure.spark.pipeline.destination import COLUMN
from samza_azure.spark.pipeline.pipeline import Producer, TaskInput
from samza_azure.spark.pipeline.schema import arrow_schema, laid_out
from samza_azure.spark.source.poller import Poller, patiently
from samza_azure.spark.task.checkpoint import Planned
from samza_azure.spark.task.context import ContainerContext
from samza_azure.spark.task.failure import drop_frames
from samza_azure.spark.task.figures import Counted
from samza_azure.spark.task.handler import CLOSE_S, HandlerCalls, TimeLimits
from samza_azure.spark.task.task import Task
from samza_azure.storage.arrow import rows_of
from samza_azure.storage.source_stream import partition_numbers
from samza_azure.streams.offset import Offset

#: Input of a batch: messages are processed one by one, and a drain waits for all that were read.
BATCH_BYTES = 4 << 20
#: A task commits at once after this many rows of output, or this many bytes: they are in memory until then.
ROWS_MAX, OUT_BYTES_MAX = 100_000, 8 << 20
#: How many messages are converted to Python values at once.
PYTHON_ROWS = 1_000
#: The interval between two calls of the sources.
TRIGGER_S = 0.1
#: Files of the record: a batch that is not done, empty if there is none, and the handler's own state.
UNFINISHED = "unfinished"
STATE = "handler"


@dataclass(frozen=True, slots=True)
class Packed:
    """One slice of a record, as in the log."""

    input: TaskInput
    producer: Producer
    part: Part
    data: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a slice."""

    slice: Packed
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
                yield Envelope(self.slice.input.stream, partition, f"{log}:{blob}:{position}:{number}", row)

    def _as_python(self, rows: pa.RecordBatch) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = rows.to_pylist()
        except (OverflowError, ValueError) as error:
            raise SamzaAzureError(
                f"A message of {self.slice.input.stream}, in {self.slice.producer.prefix} at "
                f"{self.slice.part.position}, holds a date or a time that Python's types cannot hold: {error}. Let a "
                "stage before this task leave it out, or write it as a number."
            ) from error
        return found


class HandlerTask(Task):
    """One low-level task under one writer."""

    def __init__(self, context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> None:
        super().__init__(context, start, tried_bytes)
        self._most_bytes = min(self._most_bytes, BATCH_BYTES)
        config, stage = context.config.task, self.stage
        self._calls = HandlerCalls(
            self.name,
            stage.stage.function,
            arrow_schema(stage.analysis.schema),
            stage.plan.at_once,
            TimeLimits(config.callback_timeout_s, config.callback_drain_timeout_s),
        )
        self._pollers: list[Poller] = []
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._saved: bytes | None = None  # the handler's state, as the log has it
        self._done = Counted(-1)

    # What `Task` asks of a query.

    @property
    def isActive(self) -> bool:
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
        self._pollers, self._saved = [], None
        drop_frames(self._error)

    def _start_query(self, checkpoint: Path) -> None:
        """Start the loop. It is no query of Spark's, so it waits for none."""
        self._pollers = [
            Poller(str(self._spec(number, each)), each.schema, self._context.blobs)
            for number, each in enumerate(self.inputs)
        ]
        with self._query_lock:
            if self._is_ending:
                return
            self._query = self
            self._thread = threading.Thread(target=self._live, args=[checkpoint], name=self.name, daemon=True)
            self._thread.start()
        self._is_running()

    def _counted(self) -> Counted:
        with self._lock:
            done, self._done = self._done, Counted(-1)
        return replace(done, through=self.report.batch)

    # The loop, in a thread of its own.

    def _live(self, checkpoint: Path) -> None:
        try:
            state = checkpoint / STATE
            self._saved = state.read_bytes() if state.exists() else None
            self._calls.begin(self._saved)
            self._go_on(_file(checkpoint / UNFINISHED))
            # A release in mid-batch leaves our position before messages that are done, and may come before the gate
            # shuts: no further turn then.
            while not (self._closing.is_set() or self._releasing):
                if not self._turn():
                    self._closing.wait(TRIGGER_S)
        except BaseException as error:  # noqa: BLE001  # the handler's own code runs in there
            self._error = error
        finally:
            for poller in self._pollers:
                poller.thread.shutdown(wait=False)
            self._calls.close()

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
        messages = _behind(_pieces(self._slices(starts, ends, parts)), done)
        with batches.batch():
            while not (self.is_over or self._closing.is_set()):
                began = boot_time()
                until = began + self._context.config.task.commit_ms / 1000
                new = self._calls.process(messages, partial(self._is_enough, until))
                done += new
                if done < total:
                    unfinished = json.dumps({"ends": [each.to_json() for each in ends], "done": done}).encode()
                    self._commit(starts, unfinished)
                else:
                    self._commit(ends, b"")
                with self._lock:
                    before = self._done
                    seconds = before.seconds + boot_time() - began
                    self._done = Counted(-1, before.batches + 1, before.rows + new, seconds=seconds)
                if done == total or self._releasing:
                    return

    def _is_enough(self, until: float) -> bool:
        is_much = self._calls.rows >= ROWS_MAX or self._calls.size >= OUT_BYTES_MAX
        return is_much or self._releasing or self._closing.is_set() or boot_time() >= until

    def _slices(self, starts: list[Offset], ends: list[Offset], parts: list[list[list[Part]]]) -> list[Packed]:
        """Read all rows of a range, packed as in the logs: input by input, log by log, each log in its order.

        All are read before the first message is processed, so that no timed call waits for the storage.
        """
        found = []
        for each, poller, start, end, logs in zip(self.inputs, self._pollers, starts, ends, parts, strict=True):
            for producer, reader, first, last, slices in zip(
                each.producers, poller.readers, start.positions, end.positions, logs, strict=False
            ):
                read = patiently(reader, first, last, slices, poller.spec)
                found += [Packed(each, producer, part, data) for part, data in read]
        return found

    def _commit(self, offsets: Iterable[Offset], unfinished: bytes) -> None:
        """Append one record: the output rows, the task's position, and the handler's state if it has changed."""
        assert self._batches is not None
        state = self._calls.snapshot()
        files: dict[str, Buffer] = {UNFINISHED: unfinished}
        if state is not None and state != self._saved:
            files[STATE] = state
        self._batches.append(Planned(0, tuple(offsets)), self._rows(), files)
        self._saved = state

    def _last_rows(self) -> Iterable[pa.RecordBatch]:
        """The output of `on_drain`. Nothing is in flight; everything that was read is committed."""
        self._calls.on_drain()
        return self._rows()

    def _rows(self) -> list[pa.RecordBatch]:
        """The output rows since the last call, with the partition of each row."""
        rows, partitions = self._calls.take(), self.stage.partitions
        if partitions is not None and partitions > 1 and rows.num_rows:
            rows = rows.append_column(COLUMN, partition_numbers(rows, self.stage.stage.partition_by, partitions))
        batches: list[pa.RecordBatch] = rows.to_batches()
        return batches


def _pieces(slices: Iterable[Packed]) -> Iterator[Piece]:
    """The rows of slices. Later slices stay packed until reached: they may unpack to a hundred times the size."""
    record, number = None, 0
    for each in slices:
        # A large record has several slices for one partition: its messages are numbered through.
        this = each.producer.prefix, each.part.position, each.part.destination
        if this != record:
            record, number = this, 0
        for rows in rows_of(each.part, each.data):
            yield Piece(each, laid_out(rows, arrow_schema(each.input.schema), each.input.stream), number)
            number += rows.num_rows


def _behind(pieces: Iterable[Piece], done: int) -> Iterator[Envelope]:
    """The messages after the first `done`."""
    for piece in pieces:
        yield from piece.envelopes(min(done, piece.rows.num_rows))
        done = max(done - piece.rows.num_rows, 0)


def _file(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
