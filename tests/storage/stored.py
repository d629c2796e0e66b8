"""A table in storage, asked for one thing after the other, with a look at what it shows after each publish."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from samza_azure.segments import (
    Advance,
    Blocked,
    Granted,
    Granularity,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LostRace,
    Published,
    Revoked,
    Segment,
    SegmentId,
    Timeline,
)
from samza_azure.segments.locks import LockBox, LockDecision, TableLock
from samza_azure.tables.store.rows import next_key
from samza_azure.tables.store.segments import SegmentStore
from tests.segments.script import agrees


class Locks:
    """The locks of a table in storage."""

    def __init__(self, table: "Stored") -> None:
        self._table = table

    @property
    def _box(self) -> LockBox:
        box = self._table.store.state().box
        box.tasks.update(self._table.tasks)
        return box

    @property
    def locks(self) -> Mapping[int, TableLock]:
        return self._box.locks

    @property
    def granted(self) -> int:
        return self._box.granted

    def decide(self, request: LockRequest) -> LockDecision:
        return self._box.decide(replace(request, datasource=self._table.name))

    def acquire(self, request: LockRequest) -> Granted | Revoked | Blocked:
        table = self._table
        return table.store.acquire(table.tasks[request.task], replace(request, datasource=table.name))

    def release(self, task: str, lock: int) -> None:
        self._table.store.release(task, lock)

    def end(self, owner: LockOwner) -> list[TableLock]:
        there = dict(self.locks)
        return [there[number] for number in self._table.store.end(owner)]

    def active(self) -> list[TableLock]:
        return list(self._box.active())

    def held(self, task: str) -> list[TableLock]:
        return list(self._box.held(task))


class Stored:
    """A table in storage, and the ids that its appenders remember. Each has a segment lock of its own number."""

    def __init__(self, store: SegmentStore) -> None:
        store.create()
        self.name, self.store, self.tasks = store.name, store, dict[str, LockTask]()
        self.pending: dict[tuple[str, SegmentId | None], SegmentId] = {}
        self._pending_of: dict[tuple[str, SegmentId | None], str] = {}

    @property
    def box(self) -> Locks:
        return Locks(self)

    @property
    def timeline(self) -> Timeline:
        return self.store.snapshot().timeline

    @property
    def positions(self) -> dict[str, Any]:
        return self.store.positions()

    def add(self, task: LockTask) -> None:
        self.tasks[task.id] = task

    def remove(self, task: str) -> None:
        self.store.release_all(task)
        for key in [key for key, whose in self._pending_of.items() if whose == task]:
            del self.pending[key], self._pending_of[key]

    def allocate(
        self,
        task: str,
        sequence: str,
        moment: int,
        granularity: Granularity,
        *,
        previous: SegmentId | None = None,
    ) -> SegmentId | Revoked | Blocked | None:
        """An id for rows of a moment; the same one again if `sequence` asks again after the same `previous` id."""
        key = sequence, previous
        if key in self.pending:
            return self.pending[key]
        answer = self.store.allocate(self.tasks[task], moment, granularity)
        if not isinstance(answer, Granted):
            return answer
        assert answer.lock.partitions is not None
        (number,) = answer.lock.partitions
        self.pending[key], self._pending_of[key] = SegmentId(answer.lock.interval, answer.lock.version, number), task
        return self.pending[key]

    def next_partition(self, interval: Interval, version: int) -> int:
        key = next_key(interval, version)
        numbers = [row.values["next"] for row in self.store.rows.query(key, key + ".")]
        return numbers[0] if numbers else 0  # type: ignore[return-value]

    def allocate_outputs(
        self, task: str, interval: Interval, version: int, count: int
    ) -> list[SegmentId] | Revoked | Blocked:
        answer = self.store.allocate_outputs(self.tasks[task], interval, version, count)
        if not isinstance(answer, Granted):
            return answer
        assert answer.lock.partitions is not None
        return [SegmentId(interval, version, number) for number in answer.lock.partitions]

    def inputs(self, task: str, interval: Interval) -> list[Segment]:
        """What is visible. For the holder of a REPLACE over it: of that what was visible at its grant."""
        visible = self.timeline.visible(interval)
        for lock in self.box.held(task):
            if lock.read is not None and lock.interval.overlaps(interval):
                return [segment for segment in visible if lock.read.includes(segment)]
        return visible

    def publish(
        self,
        task: str,
        outputs: Sequence[Segment],
        *,
        inputs: Iterable[Segment] = (),
        advance: Advance | None = None,
    ) -> Published | LostRace:
        before = set(self.timeline)
        self._take_numbers(outputs)
        mine = [[replace(one, datasource=self.store.name) for one in segments] for segments in (outputs, inputs)]
        answer = self.store.publish(task, mine[0], inputs=mine[1], advance=advance)
        if isinstance(answer, LostRace):
            assert set(self.timeline) == before
        agrees(self.timeline)
        return answer

    def _take_numbers(self, outputs: Sequence[Segment]) -> None:
        """Have the numbers of roots under an interval lock given out, as compactions do before they publish."""
        for place in {(one.interval, one.version) for one in outputs if one.is_root and one.version}:
            wanted = max(one.partition for one in outputs if (one.interval, one.version) == place)
            if (missing := wanted + 1 - self.next_partition(*place)) > 0:
                self.store.numbers(*place, missing)
