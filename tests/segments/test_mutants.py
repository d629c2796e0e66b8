"""Each rule dropped is noticed, and by the invariant that is about it. A mutant that lives would show a blind spot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from samza_azure.segments import (
    Blocked,
    Chunk,
    Granted,
    LockBox,
    Segment,
    SequenceNumber,
    TableLock,
    Timeline,
)
from samza_azure.segments import chunk as chunk_module
from samza_azure.segments import timeline as timeline_module
from samza_azure.segments.locks import LockDecision
from tests.segments import encodings, histories
from tests.segments.memory_table import MemoryLocks, MemoryTable
from tests.segments.table_users import TableUsers

SEEDS = 150

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """`mistake` is made; the message of what must notice begins with `killed_by`."""

    name: str
    killed_by: str
    mistake: Callable[[Patch], None]
    kind: str = "users"


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
    def held(box: LockBox, task: str) -> list[TableLock]:
        for number, lock in box.locks.items():
            box.locks[number] = replace(lock, revoked=False)
        return true(box, task)

    true = LockBox.held
    patch.setattr(LockBox, "held", held)


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


def locks_are_not_stored(patch: Patch) -> None:
    def sync(box: MemoryLocks, stored: Any, tasks: Any, granted: int = 0) -> set[str]:
        return true(box, list(stored)[1:], tasks, granted)

    true = MemoryLocks.sync
    patch.setattr(MemoryLocks, "sync", sync)


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
    patch.setattr(MemoryLocks, "remove", lambda box, task: None)


def numbers_are_used_again(patch: Patch) -> None:
    def next_partition(table: MemoryTable, interval: Any, version: int) -> int:
        chunk = table.timeline.chunk(interval, version)
        return 0 if chunk is None else max(chunk.segments) + 1

    patch.setattr(MemoryTable, "next_partition", next_partition)


def ids_are_not_remembered(patch: Patch) -> None:
    class Nothing(dict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            return default

    true = MemoryTable.allocate

    def allocate(table: MemoryTable, *how: Any, **more: Any) -> Any:
        table.pending = Nothing(table.pending)
        return true(table, *how, **more)

    patch.setattr(MemoryTable, "allocate", allocate)


def positions_are_not_looked_at(patch: Patch) -> None:
    def publish(table: MemoryTable, task: str, outputs: Any, **more: Any) -> Any:
        if (advance := more.get("advance")) is not None:
            more["advance"] = advance._replace(start=table.positions.get(advance.stream))
        return true(table, task, outputs, **more)

    true = MemoryTable.publish
    patch.setattr(MemoryTable, "publish", publish)


def the_position_is_written_later(patch: Patch) -> None:
    def publish(table: MemoryTable, task: str, outputs: Any, **more: Any) -> Any:
        return true(table, task, outputs, **(more | {"advance": None}))

    true = MemoryTable.publish
    patch.setattr(MemoryTable, "publish", publish)


def revoked_locks_do(patch: Patch) -> None:
    patch.setattr(TableLock, "covers", TableLock.was_for)


def the_dead_keep_their_locks(patch: Patch) -> None:
    patch.setattr(MemoryLocks, "end", lambda box, owner: [])


def nothing_is_carried(patch: Patch) -> None:
    patch.setattr(MemoryTable, "_carried", lambda *how: [])


def nobody_catches_up(patch: Patch) -> None:
    patch.setattr(MemoryTable, "_caught_up", lambda *how: [])


def an_append_is_carried_twice(patch: Patch) -> None:
    def caught_up(table: MemoryTable, segment: Any) -> Any:
        return [*true(table, segment), *(replace_number(one) for one in true(table, segment))]

    def replace_number(one: Any) -> Any:
        return Segment.root("d", one.interval, one.version, one.partition + 1, file=one.file, published=one.published)

    true = MemoryTable._caught_up
    patch.setattr(MemoryTable, "_caught_up", caught_up)


def what_was_read_is_carried_too(patch: Patch) -> None:
    def carried(table: MemoryTable, lock: TableLock, made: Any, inputs: Any) -> Any:
        return true(table, replace(lock, read=SequenceNumber(0)), made, ())

    true = MemoryTable._carried
    patch.setattr(MemoryTable, "_carried", carried)


def a_publish_twice_is_two(patch: Patch) -> None:
    def publish(table: MemoryTable, task: str, outputs: Any, **more: Any) -> Any:
        answer = true(table, task, outputs, **more)
        return replace(answer, again=False) if hasattr(answer, "again") else answer

    true = MemoryTable.publish
    patch.setattr(MemoryTable, "publish", publish)


def garbage_is_what_is_old(patch: Patch) -> None:
    patch.setattr(
        Timeline,
        "fully_overshadowed",
        lambda timeline: [one for one in timeline if any(other.version > one.version for other in timeline)],
    )


def the_highest_version_wins(patch: Patch) -> None:
    patch.setattr(timeline_module, "_winner", lambda stack: stack[0] if stack else None)


def half_groups_are_complete(patch: Patch) -> None:
    true = Chunk._join

    def join(chunk: Chunk, node: Any, segment: Any) -> None:
        true(chunk, node, segment)
        node.complete = max(node.complete, segment.generation)

    patch.setattr(Chunk, "_join", join)


def the_first_outcome_stays(patch: Patch) -> None:
    """Of a group that is compacted again, which has the same cover then."""
    true = Chunk._join

    def join(chunk: Chunk, node: Any, segment: Any) -> None:
        before = node.complete
        true(chunk, node, segment)
        node.complete = before if before >= 0 else node.complete

    patch.setattr(Chunk, "_join", join)


def children_never_make_up_a_cover(patch: Patch) -> None:
    patch.setattr(chunk_module._Node, "is_full", property(lambda node: node.complete >= 0))


def nothing_falls_back(patch: Patch) -> None:
    patch.setattr(Chunk, "_newest_complete", staticmethod(lambda node: -1))


def ancestors_are_not_updated(patch: Patch) -> None:
    patch.setattr(Chunk, "_settle", lambda chunk, node, was_full: None)


def core_sets_do_not_count(patch: Patch) -> None:
    patch.setattr(Chunk, "_want", lambda chunk, core: None)
    patch.setattr(Chunk, "_want_no_more", lambda chunk, core: None)


def standbys_are_garbage(patch: Patch) -> None:
    patch.setattr(Chunk, "overshadowed", lambda chunk: [one for one, _ in chunk._hidden()])


MUTANTS = [
    Mutant("everything is compatible", "I1", everything_is_compatible),
    Mutant("equals are revoked", "I2", equals_are_revoked),
    Mutant("revoked locks come back", "I3", revoked_locks_come_back),
    Mutant("who waits revokes", "I4", who_waits_revokes),
    Mutant("asking again grants another lock", "I5", asking_again_grants_another),
    Mutant("a lock is not stored", "I6", locks_are_not_stored),
    Mutant("versions do not rise", "I7", versions_do_not_rise),
    Mutant("a removed task keeps its locks", "I8", a_removed_task_keeps_its_locks),
    Mutant("numbers are used again", "I9", numbers_are_used_again),
    Mutant("ids are not remembered", "I9", ids_are_not_remembered),
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
    Mutant("the highest version wins", "I22", the_highest_version_wins, "history"),
    Mutant("half groups are complete", "I15", half_groups_are_complete, "history"),
    Mutant("children never make up a cover", "I22", children_never_make_up_a_cover, "history"),
    Mutant("nothing falls back", "I19", nothing_falls_back, "history"),
    Mutant("ancestors are not updated", "I19", ancestors_are_not_updated, "history"),
    Mutant("core sets do not count", "I21", core_sets_do_not_count, "history"),
    Mutant("the first outcome stays", "I22", the_first_outcome_stays, "encodings"),
    Mutant("standbys are garbage", "I22", standbys_are_garbage, "history"),
]


def play(kind: str, seed: int) -> str:
    """What a seed finds, or nothing."""
    choose = Random(seed).randrange
    try:
        if kind == "users":
            users = TableUsers(choose)
            for _ in range(80):
                users.step()
            return ""
        if kind == "encodings":
            encodings.check(choose)
            return ""
        timeline, made = Timeline(), histories.across(choose)
        for segment in histories.shuffled(made, choose):
            histories.add(timeline, segment)
        for segment in histories.shuffled(made, choose):
            histories.remove(timeline, segment)
    except AssertionError as error:
        return str(error)
    except (ValueError, KeyError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def findings(mutant: Mutant) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        mutant.mistake(patch)
        for seed in range(SEEDS):
            yield play(mutant.kind, seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed(mutant: Mutant) -> None:
    seen: dict[str, int] = {}
    for found in findings(mutant):
        if found.startswith(f"{mutant.killed_by}:"):
            return
        seen[found[:60]] = seen.get(found[:60], 0) + 1
    pytest.fail(f"{mutant.name}: {mutant.killed_by} never notices; seen were {seen}")
