"""The conformance cases of the core (`tests/segments/test_publish_cases.py`) on storage: the same tests, by name.

`Stored` asks a `SegmentStore` where `Datasource` keeps a table in memory. What only the core has is left out, by name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from samza_azure.segments import (
    Advance,
    Granted,
    Granularity,
    Interval,
    Published,
    Refused,
    Request,
    Revoked,
    Segment,
    SegmentId,
    Task,
    Timeline,
    Wait,
)
from samza_azure.segments.locks import Lock
from samza_azure.storage.segments import SegmentStore
from tests.segments import test_publish_cases as cases
from tests.segments.script import agrees
from tests.storage.conftest import Stores

#: Cases of the core that storage does not have, and why.
NOT_HERE = {
    "test_s1": "the cover check is one function, which storage calls",
    "test_s2": "the same",
    "test_s4": "the same",
    "test_s5": "half of it: storage locks each number, never a whole interval, for an append",
    "test_s7": "sequences of ids: an appender of storage holds its numbers by its lock",
    "test_s10": "rollup: storage has no query granularity",
    "test_c15": "single segments are not dropped; test_segments.py has numbers after a collection",
    "test_a_number_is_not_used_again_after_all_is_gone": "the same",
    "test_a_compaction_under_a_replace_carries_nothing": "a compaction in storage is a task of its own",
}

globals().update(
    {name: case for name, case in vars(cases).items() if name.startswith("test_") and name not in NOT_HERE}
)


class Locks:
    """The lock box of a table in storage."""

    def __init__(self, table: "Stored") -> None:
        self._table = table

    def acquire(self, request: Request) -> Granted | Revoked | Wait:
        table = self._table
        return table.store.acquire(table.tasks[request.task], replace(request, datasource=table.store.name))

    def release(self, task: str, lock: int) -> None:
        self._table.store.release(task, lock)

    def active(self) -> list[Lock]:
        return list(self._table.store.state().box.active())

    def held(self, task: str) -> list[Lock]:
        return list(self._table.store.state().box.held(task))


class Stored(cases.Both):
    """A table in storage, asked like one in memory."""

    def __init__(self, store: SegmentStore) -> None:
        store.create()
        self.name, self.store, self.tasks = store.name, store, dict[str, Task]()

    @property
    def box(self) -> Any:  # type: ignore[override]
        return Locks(self)

    @property
    def timeline(self) -> Timeline:  # type: ignore[override]
        return self.store.snapshot().timeline

    @property
    def positions(self) -> dict[str, Any]:  # type: ignore[override]
        return self.store.positions()

    def add(self, task: Task) -> None:
        self.tasks[task.id] = task

    def remove(self, task: str) -> None:
        self.store.release_all(task)

    def allocate(
        self, task: str, sequence: str, moment: int, granularity: Granularity, **more: object
    ) -> SegmentId | Revoked | Wait | None:
        answer = self.store.allocate(self.tasks[task], moment, granularity)
        if not isinstance(answer, Granted):
            return answer
        assert answer.lock.partitions is not None
        (number,) = answer.lock.partitions
        return SegmentId(answer.lock.interval, answer.lock.version, number)

    def allocate_outputs(
        self, task: str, interval: Interval, version: int, count: int
    ) -> list[SegmentId] | Revoked | Wait:
        answer = self.store.allocate_outputs(self.tasks[task], interval, version, count)
        if not isinstance(answer, Granted):
            return answer
        assert answer.lock.partitions is not None
        return [SegmentId(interval, version, number) for number in answer.lock.partitions]

    def publish(  # type: ignore[override]
        self,
        task: str,
        outputs: Sequence[Segment],
        *,
        inputs: Iterable[Segment] = (),
        advance: Advance | None = None,
    ) -> Published | Refused:
        before = set(self.timeline)
        self._take_numbers(outputs)
        mine = [[replace(one, datasource=self.store.name) for one in segments] for segments in (outputs, inputs)]
        answer = self.store.publish(task, mine[0], inputs=mine[1], advance=advance)
        if isinstance(answer, Refused):
            assert set(self.timeline) == before
        agrees(self.timeline)
        return answer

    def _take_numbers(self, outputs: Sequence[Segment]) -> None:
        """Have the numbers of roots under an interval lock given out, as compactions do before they publish."""
        for place in {(one.interval, one.version) for one in outputs if one.is_root and one.version}:
            wanted = max(one.partition for one in outputs if (one.interval, one.version) == place)
            while not any(
                one.partition >= wanted for one in self.timeline.visible(place[0]) if one.version == place[1]
            ):
                (name,) = self.store.numbers(*place, 1)
                if name.partition >= wanted:
                    break


@pytest.fixture
def table(segment_stores: Stores) -> cases.Make:
    """Makes a table with these tasks. A test makes one."""
    return lambda *tasks: cases.with_tasks(Stored(segment_stores()), *tasks)


@pytest.fixture
def both(segment_stores: Stores) -> cases.Table:
    return cases.with_tasks(Stored(segment_stores()), "R", "P")


def test_c10(both: cases.Both) -> None:
    cases.test_c10(both, committed=False)


def test_c10_committed(both: cases.Both) -> None:
    """A published number is not locked any more, so a day of the month may be replaced; the other days stay."""
    both.appends(both.allocates(cases.MONTH, Granularity.MONTH))
    held = both.replacing(cases.DAY)
    both.commit(held, cases.DAY)
    shown = [
        (entry.interval, [one.file and one.file.name for one in entry.segments]) for entry in both.timeline.lookup()
    ]
    rest = Interval(cases.DAY.end, cases.MONTH.end)
    assert shown == [(cases.DAY, [f"R {cases.DAY}"]), (rest, ["P 0"])]


def test_what_is_left_out_is_there() -> None:
    assert NOT_HERE.keys() <= vars(cases).keys()
