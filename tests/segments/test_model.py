"""Two appenders, one compactor and one program that takes locks away, in every order of their steps, each life ended
anywhere.

Each program is a few steps, and each step is one call that storage makes atomic. All interleavings are tried; states
that are equal are tried once.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from samza_azure.segments import (
    File,
    Granted,
    Granularity,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    Partitions,
    Published,
    Segment,
    SegmentId,
    TableLock,
)
from tests.segments.memory_table import MemoryLocks, MemoryTable

DAY = Interval.of("2024-01-01", "2024-01-02")
NAMES = ("a1", "a2", "compact", "high")


@dataclass
class State:
    """The table, and what each of the four has in mind."""

    table: MemoryTable = field(default_factory=lambda: MemoryTable("d"))
    at: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    mind: dict[str, Any] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)  # published
    died: bool = False

    def copy(self) -> "State":
        """Another one. What is in the dictionaries never changes."""
        table = self.table
        box = MemoryLocks(dict(table.box.tasks), dict(table.box.locks), table.box.granted, True)
        again = MemoryTable(
            "d", box, table.timeline.copy(), {}, dict(table.allocated), dict(table.pending), dict(table._pending_of)
        )
        return State(again, dict(self.at), dict(self.mind), set(self.rows), self.died)

    def key(self) -> str:
        """Equal for states from which the same can follow."""
        segments = sorted(
            (one.id, str(one.covers), one.generation, one.file and one.file.name) for one in self.table.timeline
        )
        locks = [(*lock_of(lock),) for _, lock in sorted(self.table.box.locks.items())]
        minds = {name: repr(mind) for name, mind in sorted(self.mind.items())}
        return repr((segments, locks, self.at, minds, sorted(self.rows), self.died, self.table.box.granted))


def lock_of(lock: TableLock) -> tuple[Any, ...]:
    return lock.id, lock.type, lock.group, lock.version, str(lock.partitions), lock.revoked, lock.count, str(lock.read)


def start() -> State:
    """One row is there already."""
    state = State()
    for name in NAMES:
        state.table.add(LockTask(name, name, 9 if name == "high" else 1, LockOwner(name, "1")))
    state.table.box.acquire(LockRequest("a1", "d", DAY, LockType.APPEND))
    state.table.publish("a1", [Segment.root("d", DAY, 0, 0, file=File("old"))])
    state.table.box.release("a1", 1)
    state.rows.add("old")
    return state


# Steps. Each returns whether it was possible; a step that has to wait is not, and is tried again later.


def allocates(name: str, by_segment: bool) -> Callable[[State], bool]:
    def step(state: State) -> bool:
        found = state.table.allocate(
            name, name, DAY.start, Granularity.DAY, type=LockType.APPEND, by_segment=by_segment
        )
        state.mind[name] = found
        return isinstance(found, SegmentId)

    return step


def appends(name: str) -> Callable[[State], bool]:
    def step(state: State) -> bool:
        publish(state, name, [Segment.root("d", *state.mind[name], file=File(name))], new={name})
        return True

    return step


def locks_inputs(state: State) -> bool:
    chunk = next((one.chunk for one in state.table.timeline.lookup(DAY)), None)
    assert chunk is not None
    inputs = list(chunk.visible())
    there = Partitions(one.partition for one in inputs)
    answer = state.table.box.acquire(LockRequest("compact", "d", DAY, partitions=there, version=chunk.version))
    state.mind["compact"] = inputs
    return isinstance(answer, Granted)


def compacts(state: State) -> bool:
    inputs = state.mind["compact"]
    names = state.table.allocate_outputs("compact", DAY, inputs[0].version, 2)
    if not isinstance(names, list):
        return True  # it has lost its locks, and gives up
    group = Partitions(name.partition for name in names)
    covers = Partitions.union_of(one.covers for one in inputs)
    rows = sorted(row for one in inputs for row in one.file.name.split("+"))
    outputs = [
        Segment("d", *name, covers, 1 + max(one.generation for one in inputs), group, file=File(part))
        for name, part in zip(names, ["+".join(rows[:1]), "+".join(rows[1:])], strict=True)
    ]
    publish(state, "compact", outputs, inputs=inputs)
    return True


def takes(type: LockType) -> Callable[[State], bool]:  # noqa: A002
    def step(state: State) -> bool:
        answer = state.table.box.acquire(LockRequest("high", "d", DAY, type))
        if isinstance(answer, Granted):
            inputs = state.table.inputs("high", DAY)
            state.mind["high"] = (answer.lock.version, inputs)
        return isinstance(answer, Granted)

    return step


def rewrites(state: State) -> bool:
    version, inputs = state.mind["high"]
    rows = sorted(row for one in inputs for row in one.file.name.split("+") if row)
    publish(state, "high", [Segment.root("d", DAY, version, 0, file=File("+".join(rows)))], inputs=inputs)
    return True


def releases(name: str) -> Callable[[State], bool]:
    def step(state: State) -> bool:
        for lock in state.table.box.held(name):
            state.table.box.release(name, lock.id)
        return True

    return step


def publish(state: State, name: str, outputs: list[Segment], *, inputs: Any = (), new: Any = ()) -> None:
    with suppress(ValueError):  # it no longer has a lock
        if isinstance(state.table.publish(name, outputs, inputs=inputs), Published):
            state.rows |= set(new)


def programs(type: LockType) -> dict[str, list[Callable[[State], bool]]]:  # noqa: A002
    return {
        "a1": [allocates("a1", by_segment=False), appends("a1"), releases("a1")],
        "a2": [allocates("a2", by_segment=True), appends("a2"), releases("a2")],
        "compact": [locks_inputs, compacts, releases("compact")],
        "high": [takes(type), rewrites, releases("high")],
    }


def following(state: State, steps: dict[str, list[Callable[[State], bool]]]) -> Iterator[State]:
    """All that can happen next: a step of any program, or the death of one that is in the middle of its steps."""
    for name in NAMES:
        at = state.at[name]
        if at == len(steps[name]):
            continue
        after = state.copy()
        if steps[name][at](after):
            after.at[name] += 1
            yield after
        if at and not state.died:
            dead = state.copy()
            dead.died = True
            dead.table.box.end(LockOwner(name, "1"))
            yield dead


def look(state: State) -> None:
    visible = [
        row for one in state.table.timeline.visible() for row in (one.file.name if one.file else "").split("+") if row
    ]
    assert len(visible) == len(set(visible)), f"I17: a row is shown twice: {visible}"
    assert set(visible) == state.rows, f"I23: {sorted(state.rows)} were published, and shown are {sorted(visible)}"
    for one in state.table.box.active():
        for other in state.table.box.active():
            if one.id < other.id and one.group != other.group and not other.is_used_up:
                asked = LockRequest("", "d", other.interval, other.type, other.partitions, other.version)
                assert not one.looks_at(asked) or one.is_compatible(asked), "I1: both are active"


def explore(type: LockType) -> tuple[int, int]:  # noqa: A002
    """Look at every state that can be reached; how many there are, and how many of them are ends."""
    steps, first = programs(type), start()
    seen, waiting, ends = {first.key()}, [first], 0
    while waiting:
        state = waiting.pop()
        ends += all(state.at[name] == len(steps[name]) for name in NAMES)
        for after in following(state, steps):
            if (key := after.key()) not in seen:
                look(after)
                seen.add(key)
                waiting.append(after)
    return len(seen), ends


@pytest.mark.long  # `table_users` plays the same at random
@pytest.mark.parametrize("type", [LockType.EXCLUSIVE, LockType.REPLACE])
def test_every_order_of_steps(type: LockType) -> None:  # noqa: A002
    states, ends = explore(type)
    assert states > 1000
    assert ends > 0


@pytest.mark.parametrize("broken", ["a revoked lock is enough", "nothing is carried"])
def test_the_model_can_fail(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "nothing is carried":
        monkeypatch.setattr(MemoryTable, "_carried", lambda *how: [])
    else:
        monkeypatch.setattr(
            MemoryLocks, "held", lambda box, task: [replace(one, revoked=False) for one in box.locks.values()]
        )
    with pytest.raises((AssertionError, KeyError)):
        explore(LockType.REPLACE if broken == "nothing is carried" else LockType.EXCLUSIVE)
