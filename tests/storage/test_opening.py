"""A reader that has opened a table before reads only what has changed, and sees what a reader of all its rows sees."""

import itertools
import json
import uuid
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_azure.outcomes import Missing
from samza_azure.segments import (
    Advance,
    File,
    Granted,
    Granularity,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Published,
    Segment,
)
from samza_azure.storage.interface import Row
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.transactions import Act, MemoryTransactions, Write
from samza_azure.tables.store import reading as segment_reading
from samza_azure.tables.store.publishing import announce
from samza_azure.tables.store.segments import SegmentStore
from tests.storage.conftest import Stores
from tests.storage.test_segments import (
    DAY,
    MONTH,
    acquired,
    allocated,
    appended,
    compaction,
    rooted,
    rows,
    store,
    stores,
    task,
)

__all__ = ["store", "stores"]  # fixtures


class Counted:
    """The rows of a table, and how many of them were read."""

    def __init__(self, store: SegmentStore) -> None:
        self._rows, self.read, self.calls = store.rows, 0, 0

    def transact(self, writes: list[Write]) -> object:
        return self._rows.transact(writes)

    def query(self, first: str, end: str) -> list[Row]:
        found = self._rows.query(first, end)
        self.read += len(found)
        self.calls += 1
        return found


def counted(stores: Stores) -> tuple[SegmentStore, Counted]:
    store = stores()
    store.rows = seen = Counted(store)  # type: ignore[assignment]
    return store, seen


def test_only_what_has_changed_is_read(stores: Stores) -> None:
    writer, (reader, seen) = stores(), counted(stores)
    for number in range(8):
        appended(writer, f"{number:02}")
    assert len(rows(reader.latest())) == 8
    before, seen.read, seen.calls = reader.latest(), 0, 0
    assert reader.latest().timeline is before.timeline
    assert (seen.read, seen.calls) == (1, 1), "the head"
    appended(writer, "8", "9")
    seen.calls = 0
    assert rows(reader.latest()) == rows(writer.snapshot())
    assert seen.read <= 5
    assert seen.calls == 1, "the publish, the head and the locks in one answer"
    assert len(rows(before)) == 8, "a snapshot does not move"


class InParts(Counted):
    """Each row comes in an answer of its own, so more may have been published in between."""

    def __init__(self, store: SegmentStore, between: Callable[[], object]) -> None:
        super().__init__(store)
        self._between = between

    def query(self, first: str, end: str) -> list[Row]:
        found = list(super().query(first, end))
        if first.startswith("change."):
            self._between()
            self._between = lambda: None
            there = {row.key for row in found if row.key.startswith("change.")}
            found = [row for row in super().query(first, end) if row.key in there or not row.key.startswith("change.")]
        return found


@pytest.mark.parametrize("is_given_back", [False, True])
def test_a_publish_between_two_answers(stores: Stores, is_given_back: bool) -> None:
    """The locks say that it counts, and its row was not read with them."""
    writer, reader = stores(), stores()
    appended(writer, "a")
    who = task("append")
    lock = allocated(writer, who, 2)
    first, second = rooted(writer, lock, files=["b", "c"])
    writer.publish(who.id, [first])
    assert rows(reader.latest()) == ["a", "b"]

    def between() -> None:
        writer.publish(who.id, [second])
        if is_given_back:
            writer.release(who.id, lock.id)

    reader.rows = InParts(reader, between)  # type: ignore[assignment]
    assert rows(reader.latest()) == ["a", "b", "c"]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_publishes_that_are_known_are_not_read_again_and_again(stores: Stores) -> None:
    """An old lock that is still held lies before all that others have published since."""
    writer, (reader, seen) = stores(), counted(stores)
    allocated(writer, task("idle"))
    for number in range(101):
        appended(writer, f"{number:03}")
    for _ in range(3):
        appended(writer, "more")
        reader.latest()
    seen.read = 0
    appended(writer, "z")
    assert len(rows(reader.latest())) == 105
    assert seen.read <= 5


def test_a_checkpoint_saves_reading_the_rows(stores: Stores) -> None:
    writer = stores()
    for number in range(8):
        appended(writer, f"{number:02}")
    name = writer.checkpoint()
    appended(writer, "8")
    reader, seen = counted(stores)
    assert rows(reader.latest()) == rows(writer.snapshot())
    assert seen.read <= 5
    assert writer.checkpoint() != name
    assert [found for found, _ in writer.blobs.list(writer.prefix) if "checkpoint" in found] != [name]


def test_a_reader_without_a_checkpoint_reads_the_rows(stores: Stores) -> None:
    """It is deleted, or damaged, or of another release, or from before garbage was collected."""
    writer = stores()
    appended(writer, "a")
    writer.blobs.delete(writer.checkpoint())
    assert rows(stores().latest()) == ["a"]
    name = writer.checkpoint()
    whole = writer.blobs.read(name, 0)
    assert not isinstance(whole, Missing)
    for damaged in (b"", whole.data[:-9], whole.data[:50] + bytes(100) + whole.data[150:]):
        writer.blobs.delete(name)
        writer.blobs.put(name, damaged)
        assert rows(stores().latest()) == ["a"]
    writer.blobs.delete(name)
    writer.blobs.put(name, whole.data)
    old = stores()
    old.rows.transact([Write(Act.MERGE, "head", {"restored": 7})])
    assert rows(old.latest()) == ["a"]
    made = compaction(writer, task("compact"), writer.snapshot().timeline.visible())
    assert made is not None
    writer.publish("compact.1", made, inputs=writer.snapshot().timeline.visible())
    writer.collect(1_000, 10)
    writer.collect(2_000, 10)
    writer.rows.transact([Write(Act.MERGE, "head", {"checkpoint": name})])
    assert rows(stores().latest()) == ["a"]


def test_a_checkpoint_that_is_too_large_is_neither_written_nor_read_whole(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write into the container may put a blob of any size in its place."""
    writer = stores()
    appended(writer, "a")
    whole = writer.blobs.read(writer.checkpoint(), 0)
    assert not isinstance(whole, Missing)
    size = whole.size
    monkeypatch.setattr(segment_reading, "CHECKPOINT_BYTES_MAX", size - 1)
    asked: list[int | None] = []
    reader = stores()
    read = reader.blobs.read
    monkeypatch.setattr(
        reader.blobs, "read", lambda name, start, length=None: asked.append(length) or read(name, start, length)
    )
    assert rows(reader.latest()) == ["a"]
    assert asked == [size - 1]
    before = writer.blobs.list(writer.prefix)
    assert writer.checkpoint() == ""
    assert writer.blobs.list(writer.prefix) == before


def test_a_publish_that_is_too_large_to_be_repeated(stores: Stores) -> None:
    writer, reader = stores(), stores()
    appended(writer, "a")
    assert rows(reader.latest()) == ["a"]
    who = task("append")
    lock = allocated(writer, who, 150)
    assert isinstance(writer.publish(who.id, rooted(writer, lock)), Published)
    assert rows(reader.latest()) == rows(writer.snapshot())


def test_garbage_of_a_checkpoint_that_a_collector_left(stores: Stores) -> None:
    """The writer died between the blob and the head. The next one deletes the blob and keeps the one that counts."""
    writer = stores()
    appended(writer, "a")
    kept = writer.checkpoint()
    writer.blobs.put(f"{writer.prefix}checkpoint-000000000001-{uuid.uuid4().hex}", b"half")
    writer.collect(1_000, 10)
    assert [name for name, _ in writer.blobs.list(writer.prefix)] == [kept]


def test_a_copy_of_a_replace_that_gave_up_is_not_there(stores: Stores) -> None:
    """Found by seed 34 of `datasource`: its publish repeats it, its row is gone, and so is the lock that it waits for.
    Whoever took it for visible would append beside it, at a version that hides all that there is."""
    writer, reader, late = stores(), stores(), stores()
    appended(writer, "a")
    assert rows(reader.latest()) == ["a"]
    writer.checkpoint()
    held = acquired(writer, task("replace", 5), MONTH, LockType.REPLACE)
    (name,) = writer.numbers(MONTH, held.version, 1)
    announce(writer, held, [Segment.root(writer.name, *name)])
    appended(writer, "b")
    assert rows(reader.latest()) == ["a", "b"]
    writer.release("replace.1", held.id)
    for each in (reader, late):
        assert rows(each.latest()) == ["a", "b"]
        assert {one.interval for one in each.latest().timeline} == {DAY}


def test_the_collected_sequence_number_never_goes_back(store: SegmentStore) -> None:
    """Found by seed 16: two collectors at once leave their marks in the wrong order. Whoever had the table open from
    between the two would have missed that publishes are repeated no longer."""
    sequences = []
    for number in range(2):
        appended(store, f"{number}")
        sequences.append(str(store.snapshot().sequence))
    marks = json.dumps([(200, sequences[1]), (100, sequences[0])])
    store.rows.transact([Write(Act.MERGE, "head", {"marks": marks, "collected": sequences[1]})])
    store.collect(1_000, 10)
    assert store.state().head.values["collected"] == sequences[1]


@pytest.mark.parametrize(
    ("segment_stores", "seed", "steps"),
    [
        *(("memory", seed, 40) for seed in range(12)),
        ("azurite", 1, 12),
        *(pytest.param("azurite", seed, 60, marks=pytest.mark.long) for seed in range(2, 6)),
    ],
    indirect=["segment_stores"],
)
def test_every_reader_of_a_drawn_history_sees_the_same(stores: Stores, seed: int, steps: int) -> None:
    History(stores, Random(seed)).play(steps)


@settings(max_examples=15)
@given(dice=st.randoms(use_true_random=False))
def test_drawn_histories_on_storage(dice: Random) -> None:
    """The same, as hypothesis draws and shrinks it."""
    account, partition = MemoryAccount(), MemoryTransactions()

    def another() -> SegmentStore:
        return SegmentStore(partition, account.blobs(), "t", wait=lambda pause: None)

    another().create()
    History(another, dice).play(15)


class History:
    """Appends, compactions, REPLACEs that go on or are given up, drops restored, zombies, garbage, checkpoints.

    After each act the rows are those that were published and not dropped (I12, I13, I16, I17, I23, I24), to who reads
    all of the table and to who had it open at some time before. A position moves with its rows, or not at all.
    """

    def __init__(self, stores: Stores, dice: Random) -> None:
        self.stores, self.dice, self.clock, self.names = stores, dice, itertools.count(1_000, 100), itertools.count()
        self.writers, self.readers = [stores() for _ in range(3)], [stores() for _ in range(4)]
        self.open_locks: list[tuple[str, int]] = []
        self.published: list[str] = []
        self.position: int | None = None

    def play(self, steps: int) -> None:
        for step in range(steps):
            self.act(self.dice.choice(self.writers), str(step))
            self.look(self.dice.sample(self.readers, 2))
        self.look(self.readers)

    def look(self, readers: Sequence[SegmentStore]) -> None:
        expected = sorted(self.published)
        assert rows(self.writers[0].snapshot()) == expected, "I23: other rows than were published and not dropped"
        for reader in readers:
            assert rows(reader.latest()) == expected, "I23: other rows to one who had it open"
        assert self.writers[0].position("s") == self.position, "I12: a position without its rows, or the reverse"

    def act(self, store: SegmentStore, life: str) -> None:
        dice = self.dice
        match dice.randrange(13):
            case 0 | 1 | 2 | 3:
                self.append(store, task("append", 5, life))
            case 4 | 5:
                self.compact(store, task("compact", 1, life))
            case 6:
                who = task("replace", 9, life)
                answer = store.acquire(
                    who, LockRequest(who.id, store.name, dice.choice((DAY, MONTH)), LockType.REPLACE)
                )
                if isinstance(answer, Granted):
                    replaced(store, who.id, answer, dice)
            case 7:
                dropped = store.drop(task("drop", 20, life), DAY)
                assert isinstance(dropped, Published)
                if dice.random() < 0.7:
                    there = len(store.snapshot().timeline.visible(DAY))
                    assert self.stores().restore(DAY) > 0 or not self.published, f"{there} are there, and none below"
                else:
                    self.published = []
            case 8:
                store.collect(next(self.clock), dice.choice((10, 150)))
            case 9:
                store.checkpoint()
            case 10 if self.open_locks:
                store.release(*self.open_locks.pop(dice.randrange(len(self.open_locks))))
            case 11:
                self.append(store, task("zombie", 5, life), is_dead=True)
            case _:
                self.readers[dice.randrange(4)] = self.stores()

    def append(self, store: SegmentStore, who: LockTask, *, is_dead: bool = False) -> None:
        """One publish under a new lock, with a position that may be another one by now."""
        answer = store.allocate(who, DAY.start, Granularity.DAY, self.dice.choice((1, 3, 120)))
        if not isinstance(answer, Granted):
            return
        if is_dead:
            self.stores().end(who.owner)
        name, start = f"r{next(self.names)}", self.dice.choice((self.position, self.position, 7_000))
        made = rooted(store, answer.lock, files=[name])
        under, end = [answer.lock.id], (self.position or 0) + 1
        published = store.publish(who.id, made, advance=Advance("s", start, end), under=under)
        assert isinstance(published, LostRace) == (is_dead or start != self.position), "I13: who is dead has published"
        if isinstance(published, Published):
            self.published.append(name)
            self.position = end
        if not is_dead:
            self.open_locks.append((who.id, answer.lock.id))

    def compact(self, store: SegmentStore, who: LockTask) -> None:
        """Two groups of the first version that is shown."""
        visible = store.latest().timeline.visible(DAY)
        inputs = [one for one in visible if one.version == visible[0].version and one.interval == DAY]
        each = sorted({one.covers for one in inputs}, key=str)
        covers = self.dice.sample(each, min(2, len(each)))
        chosen = [one for one in inputs if one.covers in covers]
        if chosen and (made := compaction(store, who, chosen)):
            store.publish(who.id, made, inputs=chosen)
        for lock in store.state().box.held(who.id):
            store.release(who.id, lock.id)


def replaced(store: SegmentStore, who: str, answer: Granted, dice: Random) -> None:
    """What was visible at the grant is written anew; sometimes the writer gives up when it has announced it."""
    lock = answer.lock
    before = store.snapshot(lock.read)
    seen, content = before.timeline.visible(lock.interval), "+".join(rows(before))
    if content and all(lock.interval.contains(one.interval) for one in seen):
        (name,) = store.numbers(lock.interval, lock.version, 1)
        made = [Segment.root(store.name, *name, file=File(content, 1))]
        if dice.random() < 0.3:
            announce(store, store.state().box.locks[lock.id], made)
        else:
            store.publish(who, made, inputs=seen)
    store.release(who, lock.id)
