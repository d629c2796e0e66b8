"""Every order of the storage calls of a few actors of one table, with a crash or a lost or late answer at each call.

An actor is a thread that waits before each call to the storage until its turn. `explore` plays a scene again and again,
each time in another order, until no state is left that it has not been in. A state is the content of the storage and
all answers to each actor so far: nothing else decides how the scene continues, so two orders that lead to the same
state are tried once from there. ETags are made of what was written, not counted, so that such states are found to be
equal. `draw` plays orders at random, for scenes that have too many.

After each accepted write all rows are looked at: what was published is visible, once, and nothing else is, and the
files are there. When all actors are through, the lives of dead actors are ended, and another actor continues: no lock,
no staged row and no orphan is left.
"""

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from samza_azure.errors import StorageUnavailable, Unsettled
from samza_azure.outcomes import Refused
from samza_azure.segments import (
    Blocked,
    Interval,
    LockOwner,
    LostRace,
    Published,
    Segment,
)
from samza_azure.storage.interface import Row
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.transactions import Act, AtOnce, MemoryTransactions, Write
from samza_azure.tables.store import allocation as segment_allocation
from samza_azure.tables.store import locks as segment_locks
from samza_azure.tables.store import publishing as segment_publishing
from samza_azure.tables.store import reading as segment_reading
from samza_azure.tables.store import table as segment_table
from samza_azure.tables.store.rows import NEXT, next_place, past
from samza_azure.tables.store.segments import SegmentStore, Snapshot

DAY = Interval.of("2024-01-01", "2024-01-02")
MOMENT = Interval(DAY.start, DAY.start + 1)
MONTH = Interval.of("2024-01-01", "2024-02-01")
#: So many operations a transaction of a scene has: more than a few rows are staged.
OPERATIONS = 8


class Violation(AssertionError):
    """What a schedule has found; the schedule is named."""


class Dead(BaseException):
    """The actor's process is gone; nothing of it goes on."""


class Chained(MemoryTransactions):
    """A partition whose ETags say what was written to a row, in which order: equal histories have equal ones."""

    def __init__(self) -> None:
        super().__init__()
        self._chains: dict[str, int] = {}
        self.digest = 0

    def _do(self, write: Write) -> str:
        before = self._chains.get(write.key, 0)
        values = tuple(sorted(write.values.items()))
        self._chains[write.key] = chain = hash((before, write.act, values))
        self.digest ^= hash((write.key, before)) ^ hash((write.key, chain))
        if write.act is Act.DELETE:
            del self._rows[write.key]
            return ""
        row = self._rows.get(write.key)
        merged = {**(row.values if row else {}), **write.values}
        self._rows[write.key] = Row(write.key, f'"{chain}"', MappingProxyType(merged))
        return self._rows[write.key].etag


def rows_of(segment: Segment) -> list[str]:
    """The rows of a file, which its name says: those of an append are one each."""
    if segment.file is None:
        return []
    names = segment.file.name.rpartition("/")[2].partition("-")[2].removesuffix(".parquet")
    return names.split("+") if names else []


def shown(snapshot: Snapshot) -> list[str]:
    """What a reader sees. All rows are of the moment at which the day begins."""
    return sorted(row for one in snapshot.timeline.visible(MOMENT) for row in rows_of(one))


@dataclass(frozen=True, slots=True)
class Truth:
    """What must be visible, by the publishes and drops that were accepted so far."""

    ever: frozenset[str] = frozenset()
    visible: frozenset[str] = frozenset()
    drops: Mapping[tuple[Interval, int], frozenset[str]] = field(default_factory=dict, hash=False)
    hiding: frozenset[tuple[Interval, int]] = frozenset()  # of `drops` those that were visible

    def after(self, snapshot: Snapshot) -> "Truth":
        """What must be visible once a write was accepted."""
        visible, drops = set(self.visible), dict(self.drops)
        appended = [
            one
            for one in (*snapshot.timeline, *snapshot.staged)
            if one.file is not None and one.file.bytes == 1 and snapshot.sequence.has(*one.published[0])
        ]
        ever = self.ever | {row for one in appended for row in rows_of(one)}
        visible |= ever - self.ever
        there = {(one.interval, one.version) for one in snapshot.timeline if _is_empty(one)}
        for name in drops.keys() - there:  # restored, unless something lies over it, or nothing was left below it
            rows = drops.pop(name)
            is_left = any(one.version < name[1] and one.interval.overlaps(name[0]) for one in snapshot.timeline)
            visible |= rows if name in self.hiding and is_left else frozenset()
        for name in there - drops.keys():
            drops[name], visible = frozenset(visible), set()
        hiding = {(one.interval, one.version) for one in snapshot.timeline.visible(MOMENT) if _is_empty(one)}
        return Truth(ever, frozenset(visible), drops, frozenset(hiding))


def _is_empty(segment: Segment) -> bool:
    return segment.file is None and segment.interval.overlaps(MOMENT)


class Actor:
    """A client of the table. Before each call it waits until the schedule decides how that goes."""

    def __init__(self, scene: "Scene", name: str, life: "Life", *, pages: bool = False) -> None:
        self.name, self.scene, self._life, self._pages = name, scene, life, pages
        self.store = SegmentStore(self, _Files(self), "t", wait=lambda pause: None)  # type: ignore[arg-type]
        self.answers = 0  # what it was answered so far, as one number
        self.calls = 0
        self.result: object = None
        self.window: set[frozenset[str]] | None = None  # what was visible since its first call
        self.is_over = self.is_dead = self.next_writes = False
        self._how = ""
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)

    def start(self) -> None:
        """Run to the first call."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()
        self._stands.acquire()

    def go_on(self, how: str) -> None:
        """Let the next call go like this, and come to stand before the one after it."""
        self._how = how
        if how == "dies":
            self.is_dead = True
        self._go.release()
        self._stands.acquire()

    def _run(self) -> None:
        try:
            self.result = self._life(self.store, self)
        except Dead:
            pass
        except StorageUnavailable as error:
            self.result = error
        except BaseException as error:  # noqa: BLE001 - the scene raises it
            self.scene.trouble = self.scene.trouble or error
        self.is_over = True
        self._stands.release()

    def _stand(self, *, writes: bool) -> str:
        if self.scene.is_setting_up:
            return "goes"
        self.next_writes = writes
        self._stands.release()
        self._go.acquire()
        if self.is_dead:
            raise Dead
        self.calls += 1
        if self.window is None:
            self.window = {self.scene.truth.visible}
        return self._how

    def _answered(self, *what: object) -> None:
        self.answers = hash((self.answers, *what))

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        how = self._stand(writes=True)
        if how == "is late":
            self.scene.late.append(list(writes))
            self._answered(how)
            raise Unsettled("no answer; it is on its way")
        answer = self.scene.accept(writes, self.name)
        if how == "loses its answer":
            self._answered(how)
            raise Unsettled("the answer is lost")
        self._answered(tuple(answer) if isinstance(answer, list) else answer.code)
        return answer

    def query(self, first: str, end: str) -> list[Row]:
        """In two pages, if it is to read so: what was written between them is in the second one."""
        self._stand(writes=False)
        found = self.scene.partition.query(first, end)
        if self._pages and len(found) > 1 and not self.scene.is_setting_up:
            self._answered("page", *((row.key, row.etag) for row in found))
            half = found[: len(found) // 2]
            self._stand(writes=False)
            found = [*half, *self.scene.partition.query(found[len(half)].key, end)]
        self._answered(isinstance(found, AtOnce), *((row.key, row.etag) for row in found))
        return found


Life = Callable[[SegmentStore, Actor], object]


class _Files:
    """The blobs, which take a turn, too."""

    def __init__(self, actor: Actor) -> None:
        self._actor, self._blobs = actor, actor.scene.account.blobs()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._actor._stand(writes=False)
            answer = getattr(self._blobs, name)(*arguments)
            self._actor._answered(name, repr(answer)[:2000])
            return answer

        return call


@dataclass(frozen=True, slots=True)
class Play:
    """A scene: the table at the beginning, and the actors that come then. `pages`: these read in two answers."""

    name: str
    begin: Callable[["Scene"], object]
    actors: Mapping[str, Life]
    last: Life  # when all are through: what it says is wrong
    pages: tuple[str, ...] = ()


class Scene:
    """A play from its beginning, up to the state that was reached."""

    #: The truth after a write, and what was found wrong with it: the same states come again and again.
    _judged: dict[tuple[Truth, int], tuple[Truth, str]]

    def __init__(self, play: Play, judged: dict[tuple[Truth, int], tuple[Truth, str]], faults: int) -> None:
        self._play, self.account, self.partition = play, MemoryAccount(), Chained()
        self.trouble: BaseException | None = None
        self.truth, self.late, self.faults = Truth(), list[list[Write]](), faults
        self.history: list[str] = []
        self._judged = judged
        self.clock = 10_000
        self.is_setting_up = True
        self.judge = SegmentStore(self.partition, self.account.blobs(), "t", wait=lambda pause: None)
        self.judge.create()
        self.actors = [Actor(self, name, life, pages=name in play.pages) for name, life in play.actors.items()]
        self.setup = Actor(self, "setup", lambda store, me: None)
        self.first = self.judge.snapshot()
        play.begin(self)
        self.is_setting_up = False
        for actor in self.actors:
            actor.start()

    @property
    def key(self) -> object:
        """All that decides how it goes on."""
        return (
            self.partition.digest,
            frozenset(name for name, _ in self.account.blobs().list("")),
            tuple((one.answers, one.is_over, one.is_dead, frozenset(one.window or ())) for one in self.actors),
            self.truth,
            self.faults,
            len(self.late),
        )

    def choices(self, kinds: Sequence[str]) -> list[tuple[int, str]]:
        """Whose call may come next, and how it may go."""
        live = [number for number, actor in enumerate(self.actors) if not actor.is_over]
        found = [(number, "goes") for number in live]
        found += [(-1, "arrives")] if self.late else []
        if self.faults:
            for kind in kinds:
                may = [
                    one for one in live if (self.actors[one].calls if kind == "dies" else self.actors[one].next_writes)
                ]
                found += [(number, kind) for number in may]
        return found

    def named(self, choice: tuple[int, str]) -> str:
        """A choice in words."""
        number, how = choice
        return f"{'the late call' if number < 0 else self.actors[number].name} {how}"

    def do(self, choice: tuple[int, str]) -> None:
        """One call."""
        number, how = choice
        actor = self.actors[number]
        self.history.append(self.named(choice))
        if number < 0:
            self.accept(self.late.pop(0), "the late call")
        else:
            self.faults -= how != "goes"
            actor.go_on(how)
        if self.trouble is not None:
            self.fail(f"{type(self.trouble).__name__}: {self.trouble}")

    def accept(self, writes: Sequence[Write], who: str) -> list[str] | Refused:
        """What the storage does; then all rows are looked at."""
        answer = self.partition.transact(writes)
        if isinstance(answer, list):
            place = self.truth, self.partition.digest
            if place not in self._judged:
                self._judged[place] = self._look()
            self.truth, wrong = self._judged[place]
            if wrong and self.trouble is None:
                self.trouble = Violation(f"after a write of {who}: {wrong}")
            for actor in self.actors:
                if actor.window is not None and not actor.is_over:
                    actor.window.add(self.truth.visible)
        return answer

    def _look(self) -> tuple[Truth, str]:
        try:
            snapshot = self.judge.snapshot()
            truth = self.truth.after(snapshot)
            return truth, self._wrong(snapshot, truth)
        except (ValueError, AssertionError) as error:
            return self.truth, f"the table cannot be read: {error}"

    def _wrong(self, snapshot: Snapshot, truth: Truth) -> str:
        found = Counter(shown(snapshot))
        if twice := sorted(row for row, count in found.items() if count > 1):
            return f"I17: {twice[:3]} are there twice"
        if missing := sorted(truth.visible - found.keys()):
            return f"I23: {missing[:3]} are missing"
        if never := sorted(found.keys() - truth.visible):
            return f"I12: {never[:3]} are there, which nobody has published"
        there = {name for name, _ in self.account.blobs().list("")}
        files = {one.file.name for one in snapshot.timeline.visible(MONTH) if one.file is not None}
        return f"files of {sorted(files - there)[:3]} are gone" if files - there else ""

    def fail(self, what: str) -> None:
        raise Violation("\n  ".join([what, *_folded(self.history)]))

    def close(self) -> None:
        """Let all threads end."""
        for actor in self.actors:
            while not actor.is_over:
                actor.go_on("dies")

    def finish(self) -> None:
        """All actors are through: were their answers true, and can another one continue?"""
        for actor in self.actors:
            self._check_result(actor)
        for _ in range(3):  # an actor that was ended while it lived may have been granted something since
            for lock in self.judge.state().box.locks.values():
                for task in sorted(lock.holders):
                    self.judge.end(LockOwner(*task.split("@")))
        self.is_setting_up = True
        self._expect("ends the lives")
        self.setup.store.etags.clear()
        self.setup.name = "last@0"
        if (told := self._play.last(self.setup.store, self.setup)) is not None:
            self.fail(f"nobody can go on: {told}")
        for _ in range(3):
            self.clock += 1_000
            self.judge.collect(self.clock, 100)
            self._expect("collects")
        snapshot, state = self.judge.snapshot(), self.judge.state()
        if state.box.locks or snapshot.staged:
            self.fail(f"in the end: locks {list(state.box.locks)}, {len(snapshot.staged)} rows are staged")
        timeline = snapshot.timeline
        if empty := [one for one in timeline.chunks if timeline.is_drop(one) and not timeline.below(one)]:
            self.fail(f"in the end: {empty} are empty and hide nothing")
        counted = {next_place(row.key) for row in self.partition.query(NEXT, past(NEXT))}
        if gone := counted - {(one.interval, one.version) for one in timeline.chunks}:
            self.fail(f"in the end: the numbers of {gone} are counted, which are gone")
        files = {one.file.name for one in snapshot.timeline if one.file} | {
            str(state.head.values.get("checkpoint", ""))
        }
        if orphans := {name for name, _ in self.account.blobs().list("")} - files:
            self.fail(f"in the end: {sorted(orphans)[:3]} are orphans")

    def _expect(self, doing: str) -> None:
        snapshot = self.judge.snapshot()
        self.truth = self.truth.after(snapshot)
        if wrong := self._wrong(snapshot, self.truth):
            self.fail(f"when somebody else {doing}: {wrong}")

    def _check_result(self, actor: Actor) -> None:
        if isinstance(actor.result, Published):
            mine = {row for one in actor.result.segments for row in rows_of(one)}
            if lost := mine - self.truth.ever:
                self.fail(f"{actor.name} was told that {sorted(lost)} are published, and they never were")
        if isinstance(actor.result, LostRace | Blocked) and (there := {f"{actor.name}.0"} & self.truth.ever):
            self.fail(f"{actor.name} was told that nothing was published, and {sorted(there)} were")
        if isinstance(actor.result, list) and frozenset(actor.result) not in (actor.window or ()):
            self.fail(f"{actor.name} saw {actor.result}, which was never there while it read: {actor.window}")
        if isinstance(actor.result, list) and len(set(actor.result)) < len(actor.result):
            self.fail(f"{actor.name} saw rows twice: {actor.result}")


def _folded(history: Sequence[str]) -> list[str]:
    """Calls of the same actor one after the other as one line."""
    lines: list[list[Any]] = []
    for each in history:
        if lines and lines[-1][0] == each:
            lines[-1][1] += 1
        else:
            lines.append([each, 1])
    return [f"{each} ({count} calls)" if count > 1 else each for each, count in lines]


FAULTS = ("dies", "loses its answer", "is late")


@dataclass(frozen=True, slots=True)
class Explored:
    """How much was played. `changes`: all orders in which fewer than so many times another actor goes on, or something
    fails, were; None: all orders."""

    schedules: int
    states: int
    changes: int | None


_Path = tuple[tuple[int, str], ...]


def explore(play: Play, *, faults: int = 0, kinds: Sequence[str] = FAULTS, limit: int = 1 << 40) -> Explored:
    """Every order of the calls, with at most this many faults; if there are more than `limit`, those with few
    changes."""
    dice, seen, judged = Random(limit), set[int](), dict[tuple[Truth, int], tuple[Truth, str]]()
    todo: list[tuple[int, float, _Path]] = [(0, 0.0, ())]
    schedules = 0
    with _small_transactions():
        while todo and schedules < limit:
            changes, _, path = heapq.heappop(todo)
            schedules += 1
            scene = Scene(play, judged, faults)
            try:
                for choice in path:
                    scene.do(choice)
                while (key := hash(scene.key)) not in seen:
                    seen.add(key)
                    choices = scene.choices(kinds)
                    if not choices:
                        scene.finish()
                        break
                    same = (path[-1][0], "goes") if path else None
                    first = same if same in choices else choices[0]
                    for other in choices:
                        if other != first:
                            heapq.heappush(todo, (changes + 1, dice.random(), (*path, other)))
                    path = (*path, first)
                    scene.do(first)
            finally:
                scene.close()
    return Explored(schedules, len(seen), todo[0][0] if todo else None)


def draw(play: Play, seed: int, *, faults: int = 2, kinds: Sequence[str] = FAULTS) -> int:
    """One order at random; how many calls it had."""
    dice = Random(seed)
    stays = dice.choice((0.3, 0.8, 0.95))  # most of what goes wrong needs few changes from one actor to another
    with _small_transactions():
        scene = Scene(play, {}, faults)
        try:
            while choices := scene.choices(kinds):
                plain = [one for one in choices if one[1] in ("goes", "arrives")]
                last = [one for one in plain if scene.history and scene.history[-1] == scene.named(one)]
                often = last if last and dice.random() < stays else plain
                scene.do(dice.choice(choices if dice.random() < 0.1 else often or choices))
            scene.finish()
        except Violation as error:
            raise Violation(f"seed {seed}: {error}") from error
        finally:
            scene.close()
    return len(scene.history)


@contextmanager
def _small_transactions() -> Iterator[None]:
    """As if the service took few operations at once; and names of checkpoints that are the same each time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (segment_allocation, segment_locks, segment_publishing, segment_table):
            patch.setattr(module, "OPERATIONS_MAX", OPERATIONS)
        patch.setattr(segment_locks, "LOCKS_MAX", OPERATIONS - 2)
        patch.setattr(segment_reading, "uuid", _Names)
        yield


class _Names:
    """Instead of random numbers: one checkpoint has the name of its writer."""

    @staticmethod
    def uuid4() -> Any:
        class Name:
            hex = threading.current_thread().name

        return Name()
