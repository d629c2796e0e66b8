"""The work of a source: look for new records, decide on the next offset, and read the rows up to it. How much a batch
may have is bounded where it looks (`Poller._scan_all`).

Promised: `latest` never raises, which would kill the query, and answers within about two seconds: within one,
unless a drain's end makes it look twice. After a storage error it returns the old offset, acknowledges the error and
tries again. The rows of a returned offset can be read: small ranges are downloaded before it is returned, larger ones
in a worker, which tries until the permit ends.
"""

import json
import math
import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from samza_azure.errors import ConfigError, CorruptState, SamzaAzureError, StorageUnavailable, TooOld
from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import rest_s
from samza_azure.logs.position import Position
from samza_azure.logs.reading import Part
from samza_azure.logs.source_log import in_words, partitioning_of
from samza_azure.machine.clock import boot_time
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.arrow import event_times, rows_of
from samza_azure.stream_io.columns import laid_out, quoted
from samza_azure.stream_io.log import LogReader
from samza_azure.streams.gate import Gate, is_all_read, read_too_far
from samza_azure.streams.idleness import after_silence, in_question, is_quiet
from samza_azure.streams.offset import Offset, ProducerPosition, ProducerState
from samza_azure.streams.pace import Pace, SourceProgress, is_read_now, next_offset, reread_s, worth_bytes
from samza_azure.tasks.account import blobs
from samza_azure.tasks.gate_files import Acknowledgement, Spec, content, read_gate

#: `latest` waits this long for a round, whatever the storage does.
PATIENCE_S = 0.8
#: At the end of a drain: how long one call waits for the container's answer, and how often it looks.
STEP_PATIENCE_S = 0.1
STEP_LOOK_S = 0.005
#: After a storage error.
BACK_OFF_S = 1.0
TICK_S = 1.0
#: Ranges up to this size are returned with the offset. A worker costs 10 ms, but is faster for larger ranges.
PREFETCH_ROWS = 2_000
PREFETCH_BYTES = 256 << 10


def read_range(
    path: str, schema: pa.Schema, start: Mapping[str, Any], end: Mapping[str, Any], found: str | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows between two offsets, producer by producer. `found` is a file with the parts that the scan has found."""
    spec = Spec.read(Path(path))
    first, last = Offset.from_json(start), Offset.from_json(end)
    known: list[list[Part]] | None = None if found is None else pickle.loads(Path(found).read_bytes())  # noqa: S301
    try:
        for number, (reader, here, there) in enumerate(zip(_readers(spec), first.at, last.at, strict=True)):
            if here.position != there.position:
                parts = None if known is None else known[number]
                for part, data in patiently(reader, here.position, there.position, parts, spec):
                    for batch in rows_of(part, data):
                        yield _as_relied_on(batch, schema, spec)
    except StorageUnavailable:
        raise
    except SamzaAzureError as error:  # Spark would bury it in pages of its own text
        note = Path(spec.files["acknowledgements"]) / f"{os.getpid()}-read"
        Acknowledgement(version=-1, corrupt=str(error), too_old_for=_needs(error)).write(note)
        raise


def _as_relied_on(rows: pa.RecordBatch, schema: pa.Schema, spec: Spec) -> pa.RecordBatch:
    """Rows of a log as the stage expects them. Raise ConfigError if they are not."""
    rows = laid_out(rows, schema, spec.stream)
    for name in spec.not_null:
        column = event_times(rows, name) if name == spec.event_time else rows[name]
        if column.null_count:
            is_there = json.dumps(f"{quoted(name)} IS NOT NULL", ensure_ascii=False)
            raise ConfigError(
                f"Stream {spec.stream!r} has a row in which {name} is null, and this stage was accepted because none "
                "has. It is older than that rule, or another program has written it. Let the stage leave such rows "
                f"out, .where({is_there}) before all else on this input: it then goes on where it stands."
            )
    return rows


def _needs(error: SamzaAzureError) -> int | None:
    """The format of the record, if the error is that a later release wrote it."""
    return error.needs if isinstance(error, TooOld) else None


def _readers(spec: Spec, logs: Blobs | None = None) -> list[LogReader]:
    group_id = None if spec.group_id is None else bytes.fromhex(spec.group_id)
    logs = logs or blobs()
    return [LogReader(logs, prefix, frozenset(parts), group_id=group_id) for prefix, parts, _ in spec.producers]


def patiently(
    reader: LogReader, start: Position, end: Position, parts: list[Part] | None, spec: Spec
) -> Iterator[tuple[Part, bytes]]:
    """The slices of a range, each once. Retry after storage errors while the permit is valid."""
    given = 0
    while True:
        try:
            found = reader.parts(start, end) if parts is None else parts
            for part, data in zip(found[given:], reader.fetch(found[given:]), strict=True):
                given += 1
                yield part, data
            return
        except StorageUnavailable as error:
            if boot_time() >= _permit(spec):
                raise
            time.sleep(rest_s(0.2, error))


def _permit(spec: Spec) -> float:
    return float(content(spec.files["permit"]))


class Poller:
    """Look for records beyond Spark's current offset. One round runs at a time, in a separate thread."""

    def __init__(self, path: str, schema: pa.Schema, logs: Blobs | None = None) -> None:
        self.path, self.spec = path, (spec := Spec.read(Path(path)))
        self.schema = schema
        self.readers = _readers(spec, logs)
        self.pace = Pace(spec.commit_s, TICK_S, spec.has_watermark, spec.keeps_last_rows)
        self.thread = ThreadPoolExecutor(1, "poller")
        self.round: tuple[Gate, Future[Offset]] | None = None
        self.acknowledged: Acknowledgement | None = None
        self.file = Path(spec.files["acknowledgements"]) / f"{os.getpid()}-{id(self)}"
        self._acknowledge(Acknowledgement(version=-1))
        self.hints = HintFile(Path(spec.files["hints"]), [prefix for prefix, _, _ in spec.producers])
        self.based_on: tuple[Offset, Gate] | None = None
        self.heads: list[ProducerPosition] = []
        self.parts: list[list[Part]] = []
        self.due = [0.0] * len(self.readers)
        self.silent_since: list[float | None] = [None] * len(self.readers)
        self.is_checked = [False] * len(self.readers)  # whether it is known to be partitioned as in the job file
        self.resting_until = 0.0
        self.has_more = False  # after what the last round has found
        self.last_rows = self.last_tick = -1e9
        self.at_end_since: float | None = None  # in a drain
        self.new_since: float | None = None  # since when there are known records after Spark's offset
        self.ready: tuple[str, str, list[pa.RecordBatch]] | None = None
        self.found: tuple[str, str, list[list[Part]]] | None = None  # of a range that a worker reads
        self.questioned_at = -1e9

    def initial(self) -> dict[str, Any]:
        """The offset at which a task without a batch begins."""
        places = tuple(ProducerPosition((blob, position)) for blob, position in self.spec.starts)
        return Offset(self.spec.stream, 0, None, places).to_json()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """The next offset, or `start`."""
        try:
            gate = read_gate(Path(self.spec.files["gate"]))
            if gate.shut:
                self._answered(gate, start, at_end=False)
                return start
            if boot_time() >= _permit(self.spec):
                return start
            offset = self._next(start, gate)
            if offset == start and self._awaits_step(gate) and (stepped := self._next_gate(gate)) is not None:
                return self._next(start, stepped)
            return offset
        except StorageUnavailable as error:
            self._failed(trouble=str(error), rest_s=rest_s(BACK_OFF_S, error))
        except SamzaAzureError as error:
            self._failed(corrupt=str(error), too_old_for=_needs(error))
        except Exception as error:  # noqa: BLE001  # raising would kill the query
            self._failed(trouble=f"{type(error).__name__}: {error}")
        return start

    def _next(self, start: dict[str, Any], gate: Gate) -> dict[str, Any]:
        if self.round is None:
            self.round = gate, self.thread.submit(self._look, Offset.from_json(start), gate)
        asked_under, future = self.round
        wait([future], PATIENCE_S)
        if not future.done():
            return start  # the round continues; a later call returns its result
        offset = future.result()
        self.round = None
        if asked_under.version != gate.version:
            return start  # decided under another gate; the next call starts a new round
        result = start if offset.to_json() == start else offset.to_json()
        if result is not start:
            self._given()
        self._answered(gate, result, self._is_at_end(offset.at, gate) or self._has_only_the_end_before_it(start, gate))
        if result is not start and self.has_more:
            self.thread.submit(self._look_ahead, offset, gate)
        return result

    def _awaits_step(self, gate: Gate) -> bool:
        """Whether the container is about to answer our acknowledgement, so that it is worth waiting for."""
        said = self.acknowledged
        return self.spec.keeps_last_rows and not gate.step and said is not None and said.is_at_end

    def _next_gate(self, gate: Gate) -> Gate | None:
        """The next gate, if it is written within STEP_PATIENCE_S and is not shut."""
        until = boot_time() + STEP_PATIENCE_S
        while boot_time() < until:
            if (found := read_gate(Path(self.spec.files["gate"]))).version != gate.version:
                return None if found.shut else found
            time.sleep(STEP_LOOK_S)
        return None

    def _has_only_the_end_before_it(self, start: dict[str, Any], gate: Gate) -> bool:
        """Whether the flush can take all that remains: no rows are before the end, or it may contain these rows."""
        if self.based_on is None or self.based_on[0].to_json() != start:
            return False  # the last round started from another offset
        return (self.spec.keeps_last_rows or not any(self.parts)) and self._is_at_end(self.heads, gate)

    def prefetched(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch] | None:
        """The rows of this range, if they were downloaded, or no worker can. None if a worker must read them."""
        if Offset.from_json(start).positions == Offset.from_json(end).positions:
            return iter(())
        if self.ready is None or self.ready[:2] != (_text(start), _text(end)):
            if not self.spec.is_read_here:
                return None
            return read_range(self.path, self.schema, start, end, self.handed_on(start, end))
        return iter(self.ready[2])

    def handed_on(self, start: dict[str, Any], end: dict[str, Any]) -> str | None:
        """A file with what the last scan has found in this range, so that no worker downloads it again.

        A scan gets small records in full, together with their headers. Each batch replaces the file of the last one.
        """
        if self.found is None or self.found[:2] != (_text(start), _text(end)):
            return None
        path = self.file.parent.parent / f"found-{self.file.name}"
        fresh = path.with_suffix(".new")
        fresh.write_bytes(pickle.dumps(self.found[2]))
        fresh.rename(path)
        return str(path)

    # One round: scan the logs that are due, decide, download small ranges. It runs in the poller's thread.

    def _look(self, start: Offset, gate: Gate) -> Offset:
        """The next offset after `start`. If this takes too long, a later call with the same start gets the result."""
        self._go_on_from(start, gate)
        if gate.frozen and gate.ends is None and self.spec.is_source_stream:
            return start
        now = boot_time()
        if now >= self.resting_until and not start.step:
            self._scan_all(gate, now)
        self._question_the_idle(now)
        is_at_end = bool(start.step) or self._is_at_end(self.heads, gate)
        self.at_end_since = (self.at_end_since or now) if is_at_end else None
        if self.new_since is None and self.heads != list(start.at):
            self.new_since = now
        found = SourceProgress(
            heads=tuple(self.heads),
            rows=sum(part.rows for parts in self.parts for part in parts),
            size=self._size(),
            is_at_end=is_at_end,
            since_end=now - (self.at_end_since or now),
            since_new=now - self.new_since if gate.draining and self.new_since is not None else math.inf,
            since_rows=now - self.last_rows,
            since_tick=now - self.last_tick,
            has_more=self.has_more,
        )
        pace = replace(self.pace, worth_bytes=worth_bytes(self.spec.commit_s, self._most(gate)))
        offset = next_offset(start, found, pace, step=gate.step, draining=gate.draining)
        if offset != start:
            self._prefetch(start, offset, found.rows)
        return offset

    def _look_ahead(self, given: Offset, gate: Gate) -> None:
        """Find the records of the next batch while Spark runs this one, if it could not have all that there are.

        The next round meets errors again, and reports them.
        """
        try:
            self._go_on_from(given, gate)
            if (now := boot_time()) >= self.resting_until:
                self._scan_all(gate, now)
        except Exception:  # noqa: BLE001  # any error, see above
            self.silent_since = [None] * len(self.readers)  # as in `_failed`

    def _go_on_from(self, start: Offset, gate: Gate) -> None:
        """Forget what was found beyond another offset, or under another gate."""
        under = replace(gate, version=0, step=0)  # what was found stays valid in the last step
        if self.based_on == (start, under):
            return
        if self.heads != list(start.at):  # records found beyond `start` must be scanned again
            self.due = [0.0] * len(self.readers)
        self.based_on, self.heads = (start, under), list(start.at)
        self.new_since = None
        self.parts = [[] for _ in self.readers]

    def _question_the_idle(self, now: float) -> None:
        """An idle producer does not hold back the watermark, but only if its log, read again now, is unchanged."""
        questioned = in_question(self.heads)
        is_due = now - self.questioned_at >= TICK_S
        if questioned and is_due:
            self.questioned_at = now
        for number in questioned:
            head = self.heads[number]
            is_idle = is_due and self.readers[number].is_unchanged(head.position)
            self.heads[number] = replace(head, state=ProducerState.IDLE if is_idle else ProducerState.DOUBTED)

    def _scan_all(self, gate: Gate, now: float) -> None:
        """Read on in the logs that are due, until the next batch has its bytes."""
        room = self._most(gate) - self._size()
        hints = self.hints.read()
        due = [number for number in range(len(self.readers)) if self._is_due(number, gate, hints, now)]
        for done, number in enumerate(due):
            if room > 0:
                room -= self._scan(number, gate, max(room // (len(due) - done), 1), hints)
        self.has_more = room <= 0 or any(self.due[number] == 0.0 for number in due)

    def _most(self, gate: Gate) -> int:
        """The bytes that a batch may have. They are lowered after a batch that killed an owner
        (`logs/task_log.py:first_bytes`), and rise again slowly (`StageTask._raised_bytes`)."""
        return gate.batch_bytes or self.spec.batch_bytes

    def _size(self) -> int:
        """The bytes of the rows that were found, in the logs."""
        return sum(part.reference.length for parts in self.parts for part in parts)

    def _is_due(self, number: int, gate: Gate, hints: Sequence[Position | None], now: float) -> bool:
        return is_read_now(
            self.heads[number],
            hints[number],
            self._end(number, gate),
            is_due=now >= self.due[number],
            is_frozen=self.spec.is_source_stream and gate.frozen,
        )

    def _end(self, number: int, gate: Gate) -> Position | None:
        return gate.end_of(self.spec.producers[number][2])

    def _scan(self, number: int, gate: Gate, room: int, hints: Sequence[Position | None]) -> int:
        head = self.heads[number]
        self._check_partitioning(number)
        found = self.readers[number].scan(head.position, room, self._end(number, gate))
        now = boot_time()
        if found.records:
            state = (
                ProducerState.DRAINED if found.drained else ProducerState.IDLE if found.idle else ProducerState.ACTIVE
            )
            frontier = head.frontier_us
            if found.frontier_us is not None:
                frontier = max(found.frontier_us, found.frontier_us if frontier is None else frontier)
            self.heads[number] = ProducerPosition(found.end, frontier, state)
            self.parts[number] += found.parts
            self.silent_since[number] = None
        elif found.end != head.position:
            self.heads[number] = ProducerPosition(found.end, head.frontier_us, head.state)
        if found.at_end:
            self._at_its_end(number, gate, now, hints)
        else:
            self.due[number] = 0.0
        return found.size

    def _check_partitioning(self, number: int) -> None:
        """Raise ConfigError if rows are not partitioned as the job file says: they would reach the wrong task."""
        if not self.spec.key or self.is_checked[number]:
            return
        reader = self.readers[number]
        first = reader.opening(self.heads[number].position[0])  # retention may have deleted earlier blobs
        if first is None:
            return
        theirs, ours = partitioning_of(first.meta), (tuple(self.spec.key), self.spec.partitions)
        if theirs != ours:
            raise ConfigError(
                f"For stream {self.spec.stream} the job file declares {in_words(ours)}, but {reader.prefix} was begun "
                f"with {in_words(theirs)}. Remove streams.{self.spec.stream}.key, so that the rows are routed; or "
                "produce them into another stream."
            )
        self.is_checked[number] = True

    def _at_its_end(self, number: int, gate: Gate, now: float, hints: Sequence[Position | None]) -> None:
        """Handle the end of a log. Silence makes a source partition idle; only a task's owner can declare it idle."""
        hint, head, since = hints[number], self.heads[number], self.silent_since[number]
        is_believed = hint is None or hint <= head.position
        if not is_believed:
            self.hints.doubt(number)
        self.due[number] = now + reread_s(len(self.readers), is_believed=is_believed, is_flushing=gate.ends is not None)
        if self.spec.is_source_stream:
            self.heads[number] = after_silence(head, since, now, self.spec.idle_timeout_s)
        if since is None:
            self.silent_since[number] = now

    def _is_at_end(self, places: Sequence[ProducerPosition], gate: Gate) -> bool:
        """Whether a drain can flush: source streams are read to their ends, and all producing tasks are drained."""
        if gate.ends is None:
            return False
        ends = [self._end(number, gate) for number in range(len(places))]
        if (number := read_too_far(places, ends)) is not None:
            blob, position = places[number].position
            raise CorruptState(
                f"The drain ends this source log at {ends[number]}, but this task has read further, so the next run "
                "would read those rows again. Nothing is drained. If an older control.json was restored, restore the "
                "newest copy and start again",
                blob=blob_name(self.spec.producers[number][0], blob),
                position=position,
            )
        return is_all_read(places, ends)

    def _prefetch(self, start: Offset, offset: Offset, rows: int) -> None:
        self.ready = self.found = None
        if self._size() > PREFETCH_BYTES or rows > PREFETCH_ROWS:
            if any(part.data is not None for parts in self.parts for part in parts):
                self.found = (_text(start.to_json()), _text(offset.to_json()), self.parts)
            return
        batches = [
            _as_relied_on(batch, self.schema, self.spec)
            for reader, parts in zip(self.readers, self.parts, strict=True)
            for batch in reader.rows(parts)
        ]
        self.ready = (_text(start.to_json()), _text(offset.to_json()), batches)

    # Reports to Spark and to the container.

    def _given(self) -> None:
        now = boot_time()
        if any(self.parts):
            self.last_rows = now
        self.last_tick = now

    def _answered(self, gate: Gate, offset: dict[str, Any], at_end: bool) -> None:
        """Acknowledge. The container waits for this after each change of the gate, and in a drain for the end."""
        places = Offset.from_json(offset).at
        self._acknowledge(
            Acknowledgement(
                version=gate.version,
                offset=offset if gate.frozen or gate.shut or is_quiet(places) else None,
                is_at_end=at_end,
                end=Offset(self.spec.stream, 0, None, tuple(self.heads)).to_json() if at_end else None,
                is_quiet=is_quiet(places) and is_quiet(self.heads),
            )
        )

    def _failed(
        self,
        *,
        trouble: str | None = None,
        corrupt: str | None = None,
        too_old_for: int | None = None,
        rest_s: float = BACK_OFF_S,
    ) -> None:
        """Back off and acknowledge the error. Time in which the logs could not be read does not count as silence."""
        self.round, self.resting_until = None, boot_time() + rest_s
        self.silent_since = [None] * len(self.readers)
        self._acknowledge(Acknowledgement(version=-1, trouble=trouble, corrupt=corrupt, too_old_for=too_old_for))

    def _acknowledge(self, said: Acknowledgement) -> None:
        if said != self.acknowledged:
            self.acknowledged = said
            said.write(self.file)


class HintFile:
    """The lengths of the producers' logs, as the container knows them. The file is read only when it has changed."""

    def __init__(self, path: Path, prefixes: Sequence[str]) -> None:
        self.path = path
        self.prefixes = prefixes
        self.stamp = 0
        self.known: list[Position | None] = [None] * len(prefixes)
        self.doubted: list[Position | None] = [None] * len(prefixes)

    def read(self) -> list[Position | None]:
        """The hints by producer. None if there is no hint, or if it was wrong."""
        try:
            stamp = self.path.stat().st_mtime_ns
            if stamp != self.stamp:
                hints: Mapping[str, Sequence[int]] = json.loads(self.path.read_text())
                self.known = [self._position(hints.get(prefix)) for prefix in self.prefixes]
                self.stamp = stamp
        except (OSError, ValueError):
            pass
        return [None if hint == wrong else hint for hint, wrong in zip(self.known, self.doubted, strict=True)]

    def doubt(self, number: int) -> None:
        """Ignore this producer's hint until it changes."""
        self.doubted[number] = self.known[number]

    @staticmethod
    def _position(hint: Sequence[int] | None) -> Position | None:
        return None if hint is None else (hint[0], hint[1])


def _text(offset: dict[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)
