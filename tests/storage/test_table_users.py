"""I1 to I24 while several append, compact, replace, preempt each other and die (`table_users`); and each rule that is
dropped is noticed by the invariant that is about it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from samza_azure.errors import StorageUnavailable
from samza_azure.segments import Blocked, Granted, LockBox, LockType, Segment, SequenceNumber, TableLock, Timeline
from samza_azure.segments.locks import LockDecision
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.transactions import MemoryTransactions
from samza_azure.tables.store import publishing
from samza_azure.tables.store.segments import SegmentStore
from tests.storage.conftest import Stores
from tests.storage.table_users import TableUsers
from tests.storage.test_segments_mutants import Patch, numbers_are_given_twice

SEEDS = 150


def in_memory() -> Stores:
    """Makes clients of one table."""
    account, rows = MemoryAccount(), MemoryTransactions()
    return lambda: SegmentStore(rows, account.blobs(), "d", wait=lambda pause: None)


def played(stores: Stores, seed: int, acts: int) -> TableUsers:
    users = TableUsers(Random(seed).randrange, stores)
    for _ in range(acts):
        users.step()
    return users


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(15, 40))])
def test_the_invariants_hold(segment_stores: Stores, seed: int) -> None:
    assert played(segment_stores, seed, 100).table.box.granted


@pytest.mark.parametrize("segment_stores", ["azurite"], indirect=True)
def test_the_invariants_hold_on_azurite(segment_stores: Stores) -> None:
    assert played(segment_stores, 1, 25).rows


def test_histories_are_not_idle() -> None:
    """What no history does is shown by none."""
    seen: set[str] = set()
    for seed in range(4):
        users = TableUsers(Random(seed).randrange, in_memory())
        for _ in range(100):
            users.step()
            locks, timeline = users.table.box.locks.values(), users.table.timeline
            seen |= {f"{lock.type} lock" for lock in locks} | {"revoked" for lock in locks if lock.revoked}
            seen |= {f"generation {one.generation}" for one in timeline.visible()}
            files = [one.file for one in timeline]
            seen |= {"copy" for file in files if files.count(file) > 1}
            seen |= {"versions" for entry in timeline.lookup() if entry.version}
    expected = {"append lock", "exclusive lock", "replace lock", "revoked", "copy", "versions"}
    assert expected | {f"generation {generation}" for generation in range(3)} <= seen


@dataclass(frozen=True)
class Mutant:
    """`mistake` is made; the message of what must notice begins with `killed_by`."""

    name: str
    killed_by: str
    mistake: Callable[[Patch], None]


def everything_is_compatible(patch: Patch) -> None:
    patch.setattr(TableLock, "is_compatible", lambda lock, request: True)


def equals_are_revoked(patch: Patch) -> None:
    def decide(box: LockBox, request: Any) -> LockDecision:
        task = box.tasks[request.task]
        box.tasks[request.task] = replace(task, priority=task.priority + 4)
        decision = true(box, request)
        box.tasks[request.task] = task
        changed = tuple(
            replace(lock, priority=task.priority) if lock.group == task.group else lock for lock in decision.changed
        )
        if isinstance(decision.answer, Granted):
            return LockDecision(Granted(replace(decision.answer.lock, priority=task.priority)), changed, decision.gone)
        return decision

    true = LockBox.decide
    patch.setattr(LockBox, "decide", decide)
    patch.setattr(LockBox, "_again", lambda box, lock, task: LockDecision(Granted(lock)))


def revoked_locks_come_back(patch: Patch) -> None:
    """With the next grant."""

    def decide(box: LockBox, request: Any) -> LockDecision:
        decision = true(box, request)
        if not isinstance(decision.answer, Granted):
            return decision
        back = tuple(replace(lock, revoked=False) for lock in box.locks.values() if lock.revoked)
        return replace(decision, changed=(*decision.changed, *back))

    true = LockBox.decide
    patch.setattr(LockBox, "decide", decide)


def who_waits_revokes(patch: Patch) -> None:
    def decide(box: LockBox, request: Any) -> LockDecision:
        decision = true(box, request)
        if isinstance(decision.answer, Blocked):
            return LockDecision(
                decision.answer, changed=tuple(replace(one, revoked=True) for one in decision.answer.behind)
            )
        return decision

    true = LockBox.decide
    patch.setattr(LockBox, "decide", decide)


def asking_again_grants_another(patch: Patch) -> None:
    patch.setattr(TableLock, "serves", lambda lock, request, group: False)


def versions_do_not_rise(patch: Patch) -> None:
    def decide(box: LockBox, request: Any) -> LockDecision:
        decision = true(box, request)
        changed = tuple(
            one if one.id in box.locks or one.partitions else replace(one, version=1) for one in decision.changed
        )
        if isinstance(decision.answer, Granted) and decision.answer.lock.id > box.granted:
            return LockDecision(Granted(changed[0]), changed, decision.gone)
        return decision

    true = LockBox.decide
    patch.setattr(LockBox, "decide", decide)


def a_removed_task_keeps_its_locks(patch: Patch) -> None:
    patch.setattr(SegmentStore, "release_all", lambda store, task: None)


def _publishing(patch: Patch, change: Callable[[SegmentStore, dict[str, Any]], dict[str, Any]]) -> None:
    """Publishes with other arguments."""
    true = SegmentStore.publish
    patch.setattr(
        SegmentStore, "publish", lambda store, task, outputs, **more: true(store, task, outputs, **change(store, more))
    )


def positions_are_not_looked_at(patch: Patch) -> None:
    def change(store: SegmentStore, more: dict[str, Any]) -> dict[str, Any]:
        advance = more["advance"]
        return more | {"advance": advance and advance._replace(start=store.position(advance.stream))}

    _publishing(patch, change)


def the_position_is_written_later(patch: Patch) -> None:
    _publishing(patch, lambda store, more: more | {"advance": None})


def a_publish_twice_is_two(patch: Patch) -> None:
    patch.setattr(publishing, "_settled", lambda table, outputs: None)


def revoked_locks_do(patch: Patch) -> None:
    patch.setattr(TableLock, "covers", TableLock.was_for)


def the_dead_keep_their_locks(patch: Patch) -> None:
    patch.setattr(SegmentStore, "end", lambda store, owner: [])


def nothing_is_carried(patch: Patch) -> None:
    patch.setattr(publishing, "_carried", lambda *how: [])


def nobody_catches_up(patch: Patch) -> None:
    true = publishing._copies
    patch.setattr(
        publishing,
        "_copies",
        lambda table, locks, lead, *how: true(table, locks, lead, *how) if lead.type is LockType.REPLACE else [],
    )


def an_append_is_carried_twice(patch: Patch) -> None:
    true = publishing._copies
    patch.setattr(publishing, "_copies", lambda *how: [*true(*how), *true(*how)])


def what_was_read_is_carried_too(patch: Patch) -> None:
    true = publishing._carried
    patch.setattr(
        publishing,
        "_carried",
        lambda table, lead, made, inputs: true(table, replace(lead, read=SequenceNumber()), made, ()),
    )


def garbage_is_what_is_old(patch: Patch) -> None:
    true = SegmentStore.collect

    def below_the_newest(timeline: Timeline) -> list[Segment]:
        return [one for one in timeline if any(other.version > one.version for other in timeline)]

    def collect(store: SegmentStore, *how: int) -> object:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Timeline, "fully_overshadowed", below_the_newest)
            return true(store, *how)

    patch.setattr(SegmentStore, "collect", collect)


MUTANTS = [
    Mutant("everything is compatible", "I1", everything_is_compatible),
    Mutant("equals are revoked", "I2", equals_are_revoked),
    Mutant("revoked locks come back", "I3", revoked_locks_come_back),
    Mutant("who waits revokes", "I4", who_waits_revokes),
    Mutant("asking again grants another lock", "I5", asking_again_grants_another),
    Mutant("versions do not rise", "I7", versions_do_not_rise),
    Mutant("a removed task keeps its locks", "I8", a_removed_task_keeps_its_locks),
    Mutant("numbers are used again", "I9", numbers_are_given_twice),
    Mutant("positions are not looked at", "I12", positions_are_not_looked_at),
    Mutant("the position is written later", "I12", the_position_is_written_later),
    Mutant("a publish twice is two", "I12", a_publish_twice_is_two),
    Mutant("the dead keep their locks", "I13", the_dead_keep_their_locks),
    Mutant("revoked locks do", "I13", revoked_locks_do),
    Mutant("nothing is carried", "I24", nothing_is_carried),
    Mutant("nobody catches up", "I16", nobody_catches_up),
    Mutant("what was read is carried, too", "I24", what_was_read_is_carried_too),
    Mutant("an append is carried twice", "I17", an_append_is_carried_twice),
    Mutant("garbage is what is old", "I20", garbage_is_what_is_old),
]


#: Those that take longest to be noticed.
SLOW = {"nobody catches up", "an append is carried twice", "garbage is what is old", "nothing is carried"}


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=[pytest.mark.long] * (each.name in SLOW)) for each in MUTANTS],
    ids=lambda mutant: mutant.name,
)
def test_a_mistake_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.mistake(monkeypatch)
    seen: dict[str, int] = {}
    for seed in range(SEEDS):
        try:
            played(in_memory(), seed, 80)
        except (AssertionError, ValueError, KeyError, StorageUnavailable) as error:
            found = str(error)
            if found.startswith(f"{mutant.killed_by}:"):
                return
            seen[found[:60]] = seen.get(found[:60], 0) + 1
    pytest.fail(f"{mutant.name}: {mutant.killed_by} never notices; seen were {seen}")
