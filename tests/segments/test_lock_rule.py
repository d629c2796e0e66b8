"""The lock box against its rule, over drawn histories: requests of all kinds, unlocks, revocations, deaths."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_azure.segments import (
    Blocked,
    Granted,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    Partitions,
    Revoked,
    Segment,
    TableLock,
)
from tests.segments import lock_rule
from tests.segments.histories import Choose
from tests.segments.lock_box import Box
from tests.segments.lock_rule import Said
from tests.segments.script import days

INTERVALS = [days(1, 2), days(2, 3), days(1, 3), days(2, 4), days(0, 5)]
TASKS = [
    LockTask(f"{group}{number}", group, priority, LockOwner(group, str(number)))
    for group, priority in (("a", 5), ("b", 5), ("c", 7), ("d", 3))
    for number in (1, 2)
] + [LockTask("odd", "a", 9, LockOwner("odd"))]


def said(box: Box, request: LockRequest) -> Said:
    """What the box answers, and what it does then."""
    before = dict(box.locks)
    try:
        answer = box.acquire(request)
    except ValueError:
        assert box.locks == before, "I4"
        return Said("error")
    if isinstance(answer, Blocked | Revoked):
        assert box.locks == before, "I4"
        return Said("wait") if isinstance(answer, Blocked) else Said("revoked", answer.lock.id)
    for number in before.keys() - {answer.lock.id}:
        lock, now = before[number], box.locks.get(number)
        if now is None or now.holders != lock.holders:
            # L51: an APPEND lock that the new one contains goes with the grant, or its share in one.
            assert lock.type is request.type is LockType.APPEND, "only such locks are superseded"
            assert (lock.holders - (now.holders if now else set()), lock.revoked) == ({request.task}, False)
            assert request.interval.contains(lock.interval)
    revoked = frozenset(number for number, lock in before.items() if number in box.locks and is_lost(box, lock))
    if answer.lock.id in before:
        return Said("same", answer.lock.id, revoked)
    assert all(answer.lock.id > number for number in before), "I7"
    return Said("grant", revoked=revoked)


def is_lost(box: Box, before: TableLock) -> bool:
    return box.locks[before.id].revoked and not before.revoked


def play(choose: Choose, steps: int) -> set[str]:
    """A history; the answers that there were."""
    box, seen = Box(), set[str]()
    for task in TASKS:
        box.add(task)
    for _ in range(steps):
        task = TASKS[choose(len(TASKS))]
        held = box.held(task.id)
        match choose(10):
            case 0 if held:
                box.release(task.id, held[choose(len(held))].id)
            case 1 if box.locks:
                box.revoke(list(box.locks)[choose(len(box.locks))])
            case 2 if choose(4) == 0:
                box.end(task.owner)
                assert all(lock.revoked for lock in box.locks.values() if lock.holders == {task.id}), "I13"
            case 3 if choose(4) == 0:
                box.remove(task.id)
                assert not box.held(task.id), "I8"
                box.add(task)
            case 4 if held:
                # What a publish does: its numbers are locked no longer.
                one = held[choose(len(held))]
                if one.partitions is not None:
                    made = [Segment.root("d", one.interval, one.version, number) for number in one.partitions][:1]
                    box.locks[one.id] = one.after(made)
            case _:
                request = drawn(choose, task)
                expected = lock_rule.decide(box.locks.values(), task, request)
                assert said(box, request) == expected, f"{task} {request}"
                seen.add(expected.answer + (" revoking" if expected.revoked else ""))
                if expected.answer in ("same", "grant"):
                    assert isinstance(box.decide(request).answer, Granted), "I5"
    return seen


def drawn(choose: Choose, task: LockTask) -> LockRequest:
    """A request for an interval or for segments."""
    interval, type = INTERVALS[choose(len(INTERVALS))], list(LockType)[choose(4)]  # noqa: A001
    if choose(2):
        return LockRequest(task.id, "d", interval, type)
    first = choose(3)
    return LockRequest(task.id, "d", interval, type, Partitions.between(first, first + 1 + choose(2)), choose(2))


def play_all() -> set[str]:
    return set[str]().union(*(play(Random(seed).randrange, 80) for seed in range(60)))


@settings(max_examples=50)
@given(st.data())
def test_the_box_decides_as_the_rule_says(data: st.DataObject) -> None:
    play(lambda below: data.draw(st.integers(0, below - 1)), 15)


def test_long_histories() -> None:
    assert play_all() == {"grant", "grant revoking", "same", "revoked", "wait", "error"}


@pytest.mark.parametrize("mistake", ["compatible", "conflicts", "is_for"])
def test_another_rule_is_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_rule, mistake, lambda lock, request: mistake != "is_for")
    with pytest.raises(AssertionError):
        play_all()
