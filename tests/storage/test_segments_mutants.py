"""Each fence of a table in storage, taken away, is missed by a test that names what goes wrong."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from samza_azure import tables
from samza_azure.errors import StorageUnavailable
from samza_azure.outcomes import Refused
from samza_azure.segments import LockBox, SequenceNumber, TableLock, Timeline
from samza_azure.storage.interface import Row
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.transactions import Act, MemoryTransactions, Transactions, Write
from samza_azure.tables.store import allocation, garbage, locks, publishing
from samza_azure.tables.store.segments import SegmentStore
from tests.storage import test_drops as drops
from tests.storage import test_segments as stories

Patch = pytest.MonkeyPatch


def stores() -> Callable[[], SegmentStore]:
    account, rows = MemoryAccount(), MemoryTransactions()

    def another() -> SegmentStore:
        return SegmentStore(rows, account.blobs(), "t", wait=lambda pause: None)

    another().create()
    return another


def table_by_day() -> Callable[[], SegmentStore]:
    """Clients of a table with columns."""
    make = stores()
    make().rows.transact([Write(Act.DELETE, "head")])
    tables.create(make(), drops.SCHEMA, time="at")
    return make


def _writing(patch: Patch, change: Callable[[Write], Write | None]) -> None:
    """Transactions of which each write is changed, or left out."""
    true = MemoryTransactions.transact

    def transact(rows: MemoryTransactions, writes: Any) -> Any:
        sent = [change(write) for write in writes]
        answer = true(rows, [write for write in sent if write is not None])
        if isinstance(answer, list):
            etags = iter(answer)
            return ["" if write is None else next(etags) for write in sent]
        return answer

    patch.setattr(MemoryTransactions, "transact", transact)


def a_publish_without_its_lock(patch: Patch) -> None:
    """The row is written whatever became of it, so nothing refuses a zombie."""

    def change(write: Write) -> Write | None:
        counts = write.key.startswith("lock.") and write.act is Act.MERGE and "count" in write.values
        return None if counts else write

    _writing(patch, change)
    patch.setattr(SequenceNumber, "count", lambda sequence, lock: None)


def a_lock_without_an_etag(patch: Patch) -> None:
    def change(write: Write) -> Write:
        is_lock = write.key.startswith("lock.") and write.act is Act.MERGE
        return Write(write.act, write.key, write.values) if is_lock else write

    _writing(patch, change)


def a_head_without_an_etag(patch: Patch) -> None:
    _writing(patch, lambda write: Write(write.act, write.key, write.values) if write.key == "head" else write)


def a_position_of_its_own(patch: Patch) -> None:
    """Written after the publish, not with it."""
    true = SegmentStore.publish

    def publish(store: SegmentStore, task: str, outputs: Any, *, inputs: Any = (), advance: Any = None) -> Any:
        answer = true(store, task, outputs, inputs=inputs)
        if advance is not None:
            values = {"position": json.dumps(advance.end)}
            store.rows.transact([Write(Act.INSERT, f"position.{advance.stream}", values)])
        return answer

    patch.setattr(SegmentStore, "publish", publish)


def staged_rows_count(patch: Patch) -> None:
    patch.setattr(SequenceNumber, "includes", lambda sequence, segment: True)


def what_was_staged_stays(patch: Patch) -> None:
    patch.setattr(locks, "clean", lambda table, lock: None)
    patch.setattr(locks, "_has_leftovers", lambda lock: False)


def numbers_are_given_twice(patch: Patch) -> None:
    true = allocation._numbers
    patch.setattr(
        allocation,
        "_numbers",
        lambda table, counts: {place: (0, write) for place, (_, write) in true(table, counts).items()},
    )


def a_lost_answer_is_a_refusal(patch: Patch) -> None:
    patch.setattr(publishing, "_settled", lambda table, outputs: None)


def nothing_is_carried(patch: Patch) -> None:
    patch.setattr(publishing, "_copies", lambda table, locks, lead, made, inputs: [])


def an_announcement_is_never_taken_back(patch: Patch) -> None:
    what_was_staged_stays(patch)


def garbage_without_readers(patch: Patch) -> None:
    patch.setattr(garbage, "_pinned", lambda table, now_us: [])


def garbage_without_grace(patch: Patch) -> None:
    true = SegmentStore.collect
    patch.setattr(SegmentStore, "collect", lambda store, now_us, grace_us: true(store, now_us, 0))


def a_mark_that_takes_locks_for_gone(patch: Patch) -> None:
    """It says that all which the locks that it does not list will ever publish was there."""
    patch.setattr(SequenceNumber, "of_oldest", lambda sequence, locks: SequenceNumber(sequence.granted))


def files_of_the_living_are_orphans(patch: Patch) -> None:
    patch.setattr(garbage, "_may_still_publish", lambda table, name, state: False)


def a_copy_is_not_a_reference(patch: Patch) -> None:
    true = SegmentStore.collect

    def collect(store: SegmentStore, now_us: int, grace_us: int) -> Any:
        there = [one for one in store.snapshot().timeline if one.file]
        before = {one.file.name for one in there if one.file and one.version == min(each.version for each in there)}
        collected = true(store, now_us, grace_us)
        if collected.segments:
            store.blobs.delete_many(sorted(before))
        return collected

    patch.setattr(SegmentStore, "collect", collect)


def an_old_place_is_good_enough(patch: Patch) -> None:
    """It knows nothing of what is visible now."""
    true = allocation._places
    patch.setattr(allocation, "_places", lambda box, chosen, _, *how: true(box, chosen, Timeline(), *how))


def a_sweep_that_readers_do_not_notice(patch: Patch) -> None:
    """A reader that has seen rows does not see the drop that hid them."""

    def change(write: Write) -> Write:
        values = {name: value for name, value in write.values.items() if name != "restored"}
        return Write(write.act, write.key, values, write.etag)

    _writing(patch, change)


def numbers_in_use_are_not_counted(patch: Patch) -> None:
    """Of an interval and version in which nothing is published yet."""
    patch.setattr(garbage, "_in_use", lambda state: set())


def what_others_are_about_to_append_is_hidden(patch: Patch) -> None:
    """Two begin a version each, and the higher one hides what the lower one publishes later."""
    true = allocation._places
    patch.setattr(allocation, "_places", lambda box, *how: true(LockBox(), *how))


def what_is_published_stays_locked(patch: Patch) -> None:
    patch.setattr(TableLock, "after", lambda lock, published: lock)


def granularities_may_cross(patch: Patch) -> None:
    patch.setattr(
        allocation,
        "_places",
        lambda box, chosen, timeline, moment, granularity: [(granularity.bucket(moment), None)],
    )


#: The mistake, the story that shows it, and how what it says then begins: with an invariant, where one is about it.
MUTANTS: list[tuple[Callable[[Patch], None], Callable[[], None], str]] = [
    (a_publish_without_its_lock, lambda: stories.test_a_task_whose_owner_was_ended_is_refused(stores()), "I13"),
    (
        a_lock_without_an_etag,
        lambda: stories.test_a_publisher_learns_at_its_next_publish_that_its_lock_was_revoked(stores()),
        "I13",
    ),
    (a_head_without_an_etag, lambda: two_at_once(stores()), "I9"),
    (a_position_of_its_own, lambda: stories.test_a_publish_and_its_position_are_one(stores()()), "I12"),
    (
        staged_rows_count,
        lambda: stories.test_a_large_publish_is_all_or_nothing_under_a_crash(stores(), 2, "crash after"),
        "I12",
    ),
    (
        what_was_staged_stays,
        lambda: stories.test_a_large_publish_is_all_or_nothing_under_a_crash(stores(), 2, "crash after"),
        "I12",
    ),
    (
        what_was_staged_stays,
        lambda: stories.test_a_publish_that_is_given_up_is_cleaned_by_the_next_one(stores()),
        "Publishing to t: others wrote first",
    ),
    (numbers_are_given_twice, lambda: one_after_the_other(stores()), "I9"),
    (a_lost_answer_is_a_refusal, lambda: stories.test_a_lost_answer_is_settled_by_reading(stores(), 2, 1), "I12"),
    (nothing_is_carried, lambda: stories.test_replace_carries_appends_forward(stores()), "I24"),
    (an_announcement_is_never_taken_back, lambda: stories.test_a_replace_that_gives_up_leaves_nothing(stores()), "I12"),
    (garbage_without_readers, lambda: stories.test_segments_that_a_reader_pins_are_kept(stores()()), "snapshot"),
    (
        garbage_without_grace,
        lambda: stories.test_garbage_goes_after_its_grace_and_files_with_it(stores()()),
        "snapshot",
    ),
    (
        a_mark_that_takes_locks_for_gone,
        lambda: stories.test_a_segment_published_after_a_mark_waits_for_its_grace(stores()(), 0),
        "snapshot",
    ),
    (
        files_of_the_living_are_orphans,
        lambda: stories.test_uploads_of_dead_tasks_are_deleted_and_those_of_live_ones_are_not(stores()()),
        "file",
    ),
    (a_copy_is_not_a_reference, lambda: stories.test_a_file_with_a_copy_stays(stores()), "file"),
    (
        an_old_place_is_good_enough,
        lambda: stories.test_an_allocation_goes_where_something_is_visible(stores()()),
        "I16",
    ),
    (
        what_is_published_stays_locked,
        lambda: stories.test_a_compaction_and_an_appender_that_goes_on_do_not_wait_for_each_other(stores()),
        "an appender and a compaction wait",
    ),
    (
        a_sweep_that_readers_do_not_notice,
        lambda: drops.test_a_reader_sees_no_dropped_row_when_its_drop_goes(table_by_day(), earlier=False),
        "I23",
    ),
    (
        numbers_in_use_are_not_counted,
        lambda: drops.test_two_that_begin_a_day_at_once_go_to_one_place(table_by_day()),
        "I9",
    ),
    (
        what_others_are_about_to_append_is_hidden,
        lambda: drops.test_two_that_begin_a_day_at_once_go_to_one_place(table_by_day()),
        "I9",
    ),
    (granularities_may_cross, lambda: stories.test_two_granularities_do_not_cross(stores()()), "I9"),
]


def two_at_once(make: Callable[[], SegmentStore]) -> None:
    """Another client takes numbers between the reading and the writing of this one."""
    one, other = make(), make()
    one.numbers(stories.DAY, 0, 1)
    late = Late(one.rows, lambda: other.numbers(stories.DAY, 0, 2))
    one.rows = late
    mine = one.numbers(stories.DAY, 0, 2)
    assert [name.partition for name in mine] == [3, 4], "I9: numbers are given twice"


def one_after_the_other(make: Callable[[], SegmentStore]) -> None:
    """A lock is released with unused numbers, and they are not used again."""
    given = []
    for name in ("a", "b"):
        store, who = make(), stories.task(name)
        lock = stories.allocated(store, who, 2)
        assert lock.partitions is not None
        given += [(lock.interval, lock.version, number) for number in lock.partitions]
        store.publish(who.id, stories.rooted(store, lock, files=[name]))
        store.release(who.id, lock.id)
    assert given == [(stories.DAY, 1, number) for number in range(4)], "I9: numbers are given twice"


@dataclass
class Late:
    """Rows that are read just before another client writes."""

    rows: Transactions
    other: Callable[[], object]
    reads: int = 0

    def query(self, first: str, end: str) -> list[Row]:
        found = self.rows.query(first, end)
        self.reads += 1
        if self.reads == 2:
            self.other()
        return found

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        return self.rows.transact(writes)


def test_two_at_once() -> None:
    two_at_once(stores())
    one_after_the_other(stores())


@pytest.mark.parametrize(("mistake", "story", "killed_by"), MUTANTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_fence_that_is_missing_is_missed(
    mistake: Callable[[Patch], None], story: Callable[[], None], killed_by: str
) -> None:
    story()
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        with pytest.raises((AssertionError, StorageUnavailable), match=f"^{killed_by}"):
            story()
