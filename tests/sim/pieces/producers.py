"""A source log from which retention deletes, and producers with idempotence keys, of which any may die in mid-call.

Part of `pieces`, as `streams` is. Every row has a text of its own. In the end a row that was reported as stored is in
the log, or was deleted from it by retention, once; so is every row of a key that was produced to its end.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any

from samza_azure.errors import ConfigError, CorruptState, StateLost
from samza_azure.logs.names import blob_index, blob_name
from samza_azure.logs.operations import Append, Rule
from samza_azure.logs.position import Position
from samza_azure.logs.reading import tail
from samza_azure.logs.record import Kind, Record, Slice, Writer, encode
from samza_azure.logs.retention import Keeps
from samza_azure.logs.source_log import SPARED_S, TRUSTED_S, SharedLog, append_shared, is_in_line, resume
from samza_azure.logs.task_log import LogLimits
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.stream_io.driver import drive, perform
from samza_azure.stream_io.retention import Retention
from simulator.ledger import demand

from . import plain
from .streams import GROUP, STREAM, Actor

#: So many rows has each key.
ROWS = 6


class World:
    """One log, everything that was ever in it, and what was reported to its producers."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.time_s = 0.0
        self.storage = MemoryStorage(lambda: self.time_s)
        self.account = MemoryAccount(self.storage)
        self.blobs = self.account.blobs()
        self.limits = LogLimits(roll_bytes=1 << 20, roll_records=dice.choice([1, 2, 3, 6, 9]))
        self.keeps = Keeps(bytes=dice.choice([0, 1_000, 4_000]))
        self.deletes = dice.choice([0.0, 0.02, 0.2])
        self.unanswered = dice.choice([0.0, 0.1])  # of the answers to appends
        self.deleted: dict[int, bytes] = {}  # blobs that retention has deleted, as they were
        self.told: list[str] = []  # rows that were reported to their producers as stored
        self.begun: dict[str, Position] = {}  # where the log ended when a key was begun
        self.finished: set[str] = set()
        self.lost: set[str] = set()  # keys of which it can no longer be known what is stored
        self.late: list[Append] = []  # sent by producers that died
        self.names = 0

    def contents(self) -> dict[int, bytes]:
        """The blobs of the log, by number."""
        found: dict[int, bytes] = {}
        for name, _ in self.storage.list(f"{STREAM}/"):
            read: Any = self.storage.read(name, 0)
            index = blob_index(STREAM, name)
            assert index is not None
            found[index] = bytes(read.data)
        return found

    def began_s(self) -> dict[int | None, float]:
        """When each blob was created."""
        listed = self.storage.list_with_ages(f"{STREAM}/")
        return {blob_index(STREAM, each.name): self.time_s - each.since_s for each in listed}

    def retain(self) -> None:
        """Retention: the oldest blobs go, as long as newer ones hold enough, and one of those that have been there for
        long has records; first of all one that was created again."""
        if self.dice.random() < 0.7:
            self.pass_time()
        before, began = self.contents(), self.began_s()
        Retention(self.blobs, self.account.readers(), "flights", self.keeps).delete_of_source(STREAM, GROUP, ())
        gone, wanted = before.keys() - self.contents().keys(), set[int]()
        old = {index for index in before if began[index] <= self.time_s - SPARED_S}
        last = max((index for index in old if before[index]), default=0)
        oldest = min(before, default=0)
        if oldest in old and any(before[index] and began[index] < began[oldest] - 60 for index in before):
            wanted.add(oldest)
        for index in () if wanted else sorted(before):
            newer = sum(len(content) for other, content in before.items() if other > index)
            if index >= last or newer < (self.keeps.bytes or 0):
                break
            wanted.add(index)
        demand(gone == wanted, f"S7: retention deletes {gone} of {sorted(before)}, and {wanted} is right")
        for index in gone:
            self.deleted.setdefault(index, before[index])

    def shared(self, key: str = "") -> SharedLog:
        """A new producer."""
        self.names += 1
        return SharedLog(STREAM, f"p{self.names}", GROUP, self.now, {"partitions": 1}, self.limits, once=key)

    def now(self) -> float:
        """Any producer's clock."""
        return self.time_s

    def pass_time(self) -> None:
        """Let some time pass: a second, or about what producers and retention count."""
        self.time_s += self.dice.choice([1.0, TRUSTED_S - 1, TRUSTED_S + 1, SPARED_S + 1])

    def appended(self, log: SharedLog, text: str) -> Rule[None]:
        """Append one row, and note that its producer was told so."""
        yield from append_shared(log, Kind.BATCH, slices=(Slice(0, text.encode(), 1),))
        self.told.append(text)

    def produced(self, log: SharedLog) -> Rule[None]:
        """Produce all rows of a key that are not stored yet."""
        stored = yield from resume(log, self.begun[log.once])
        for row in range(stored, ROWS):
            log.row = row + 1
            yield from self.appended(log, f"<{log.once} {row}>")
        self.finished.add(log.once)

    def some_rows(self, log: SharedLog, mark: str) -> Rule[None]:
        """Append a few rows, without a key."""
        for number in range(self.dice.choice([1, 1, 4, 12])):
            yield from self.appended(log, f"<{mark} {number}>")

    def ended(self, name: str, actor: Actor) -> None:
        """Whether it may end so."""
        key, error = name.partition(" ")[0], actor.error
        if actor.late is not None:
            self.late.append(actor.late)
        demand(error is None or bool(self.deleted) or key != "other", f"S7: a producer fails: {error}")
        if isinstance(error, ConfigError):
            demand(key != "other", f"S7: a producer without a key fails: {error}")
        elif isinstance(error, StateLost) and str(error).startswith("It is unknown which rows"):
            self.lost.add(key)

    def play(self, doing: Mapping[str, Actor]) -> None:
        """All on, in a drawn order, while retention deletes and late appends arrive. Some die."""
        dice, steps = (
            self.dice,
            {name: self.dice.choice([1 << 20, 1 << 20, self.dice.randrange(1, 12)]) for name in doing},
        )
        sleeper = dice.choice([None, *doing])  # it goes on when all others are done
        wakes = steps.get(sleeper or "", 0) - dice.randrange(9)
        while left := [name for name, actor in doing.items() if steps[name] and not actor.over]:
            if dice.random() < self.deletes:
                self.retain()
            elif dice.random() < self.deletes / 2:
                self.pass_time()
            if self.late and dice.random() < 0.1:
                perform(self.late.pop(), self.blobs)
            awake = [name for name in left if name != sleeper or steps[name] > wakes]
            name = dice.choice(awake or left)
            steps[name] -= 1
            try:
                doing[name].step()
            except CorruptState as error:  # its blob was deleted, and another late producer has created it again
                demand(int(error.blob[-8:]) in self.deleted, f"S8: a producer finds damage: {error}")
                doing[name].over, doing[name].error = True, error

    def check(self) -> None:
        """Rows that were reported as stored are there once; rows that were deleted out of line were not reported."""
        there = {**self.contents(), **self.deleted}
        records = {index: plain.records(content) for index, content in there.items()}
        newest = max((index for index, found in records.items() if found), default=0)
        demand(set(records) >= set(range(newest)), f"S2: a log has the blobs {sorted(records)}")
        in_line = [index for index, found in records.items() if index >= newest or found[-1]["kind"] == Kind.ROLLED]
        rows = Counter(part[4].decode() for index in in_line for each in records[index] for part in each["slices"])
        demand(all(count == 1 for count in rows.values()), f"S7: rows are stored twice: {rows.most_common(3)}")
        missing = [text for text in self.told if text not in rows]
        missing += [f"<{key} {row}>" for key in self.finished for row in range(ROWS) if f"<{key} {row}>" not in rows]
        demand(not missing, f"S7: {missing} were told to be stored and are not")
        for key in self.lost:
            demand(any(index >= self.begun[key][0] for index in self.deleted), f"S7: {key} is lost, and all is there")


def check_resume(dice: Random) -> None:
    """S7: a producer that continues a key finds all that is stored of it, or is refused because that is unknown."""
    storage = MemoryStorage(lambda: 0.0)
    blobs, limits = MemoryAccount(storage).blobs(), LogLimits(roll_records=dice.choice([1, 2, 4]))
    other, own = (
        SharedLog(STREAM, "other", GROUP, lambda: 0.0, limits=limits),
        SharedLog(STREAM, "own", GROUP, lambda: 0.0, limits=limits, once="k"),
    )
    begun, last = (0, 0), dice.randrange(12)
    for number in range(dice.randrange(14)):
        writes = dice.random() < 0.5 and number <= last
        if own.row == 0:
            found = drive(tail(STREAM), blobs)
            begun = (0, 0) if found is None else found.end
        own.row += writes
        log = own if writes else other
        log.is_open = False
        drive(append_shared(log, Kind.FRONTIER), blobs)
    again = SharedLog(STREAM, "again", GROUP, lambda: 0.0, limits=limits, once="k")
    actor, deletes, deleted = Actor(resume(again, begun), blobs, dice, 0.0), dice.choice([0.0, 0.1, 0.3]), 0
    made = dice.random() < 0.3
    while not actor.over:
        names = [name for name, _ in storage.list(f"{STREAM}/")]
        if dice.random() < deletes and len(names) > 1:
            storage.delete(names[0])
            deleted += 1
            if made and dice.random() < 0.5:  # by a producer that slept, and dies before it checks its blob
                late = Record(Kind.FRONTIER, GROUP, "late", Writer(0, 0), 0, 0, meta={"once": ("k", own.row + 1)})
                storage.create(names[0])
                storage.append(names[0], encode(late), 0)
                made = False
        with suppress(CorruptState):  # of a blob that was created again since it was read
            actor.step()
            continue
        demand(deleted > 0, "S8: a log that is whole is damaged")
        return
    if isinstance(actor.error, StateLost):
        demand(deleted > 0, f"S7: {actor.error}, and all is there")
        return
    demand(actor.error is None, f"S7: one that goes on with a key fails: {actor.error}")
    demand(actor.result == own.row, f"S7: {own.row} rows of a key are stored, and {actor.result} are found")


def check_overtaken(dice: Random) -> None:
    """S7: a producer whose blob retention has deleted goes on behind it; with a key it is refused, since it cannot know
    what was stored meanwhile."""
    time_s = 0.0
    storage = MemoryStorage(lambda: time_s)
    blobs, limits, key = (
        MemoryAccount(storage).blobs(),
        LogLimits(roll_records=dice.choice([2, 3])),
        dice.choice(["", "k"]),
    )
    slow_s = 0.0  # what the slow one has seen of the time
    slow = SharedLog(STREAM, "s", GROUP, lambda: slow_s, limits=limits, once=key)
    fast = SharedLog(STREAM, "f", GROUP, lambda: time_s, limits=limits)
    slow.row = 1 if key else 0
    drive(append_shared(slow, Kind.FRONTIER), blobs)
    for _ in range(dice.choice([4, 9])):
        drive(append_shared(fast, Kind.FRONTIER), blobs)
    demand(drive(is_in_line(STREAM, 0), blobs), "S7: the oldest blob is out of line")
    *old, _ = [name for name, _ in storage.list(f"{STREAM}/")]
    time_s += SPARED_S
    actor = Actor(append_shared(slow, Kind.FRONTIER), blobs, dice, 0.0)
    known: Any = storage.read(old[0], 0, slow.end[1])
    if dice.random() < 0.4:  # it sleeps in the append, or in another call
        slow.is_checked, is_again = True, dice.random() < 0.6
        in_append = not key or dice.random() < 0.5
        if not in_append:
            slow_s = time_s
            actor.step()
        for name in old:
            storage.delete(name)
        if is_again:
            storage.create(old[0])
            storage.append(old[0], known.data, 0)
        if in_append:
            actor.step()
            slow_s = time_s
        while not actor.over:
            actor.step()
        lost = isinstance(actor.error, StateLost)
        demand(lost == bool(key or is_again), f"S7: a producer of {key!r} that slept in a call ends with {actor.error}")
        return
    slow_s = time_s
    for name in old:
        storage.delete(name)
    demand(not drive(is_in_line(STREAM, 0), blobs), "S7: a blob that is gone is in line")
    if dice.random() < 0.5:
        storage.create(blob_name(STREAM, 0))
        demand(not drive(is_in_line(STREAM, 0), blobs), "S7: a blob that was created again is in line")
        storage.delete(blob_name(STREAM, 0))
    while not actor.over:
        actor.step()
    lost = isinstance(actor.error, StateLost)
    demand(
        lost if key else actor.error is None, f"S7: a producer of {key!r} that was overtaken ends with {actor.error}"
    )


def check_producers(dice: Random) -> None:
    """S2, S7: with retention, and with keys."""
    world, keys = World(dice), [f"k{number}" for number in range(dice.randrange(3))]
    others = {f"other {number}": world.shared() for number in range(dice.choice([1, 2, 3]))}
    for turn in range(dice.choice([4, 10, 25])):
        doing: dict[str, Actor] = {}
        for name in dice.sample(sorted(others), dice.randrange(len(others) + 1)):
            doing[name] = Actor(world.some_rows(others[name], f"{turn} {name}"), world.blobs, dice, world.unanswered)
        for key in sorted({*keys} - world.finished - world.lost):
            if dice.random() < 0.5:
                continue
            if key not in world.begun:
                last = drive(tail(STREAM), world.blobs)
                world.begun[key] = (0, 0) if last is None else last.end
            for number in range(dice.choice([1, 1, 1, 2])):
                doing[f"{key} {number}"] = Actor(world.produced(world.shared(key)), world.blobs, dice, world.unanswered)
        world.play(doing)
        for name, actor in doing.items():
            world.ended(name, actor)
            if name in others and (not actor.over or actor.error is not None):
                others[name] = world.shared()
    world.check()
    check_resume(dice)
    check_overtaken(dice)


__all__ = ["check_producers"]
