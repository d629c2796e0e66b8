"""The actors of `schedules`, the tables that they begin with, and which actors meet."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from samza_azure.errors import ConfigError
from samza_azure.segments import (
    Advance,
    File,
    Granted,
    Granularity,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Partitions,
    Published,
    Segment,
)
from samza_azure.tables.store.segments import SegmentStore
from tests.storage.schedules import DAY, MOMENT, MONTH, Actor, Life, Play, Scene, rows_of, shown

# The actors. Each returns the answer that it got.


def _task(me: Actor, priority: int) -> LockTask:
    kind, _, life = me.name.partition("@")
    return LockTask(me.name, me.name, priority, LockOwner(kind, life))


def append(count: int = 1, parts: int = 1, *, stream: str = "") -> Life:
    """Rows in `count` publishes under one lock, of one stream or without; with more than one part it is staged."""

    def life(store: SegmentStore, me: Actor) -> object:
        who, told = _task(me, 5), list[Segment]()
        mine = stream or me.name
        start = store.position(mine)
        answer = store.allocate(who, DAY.start, Granularity.DAY, count * parts)
        if not isinstance(answer, Granted) or answer.lock.partitions is None:
            return answer
        lock = answer.lock
        numbers = list(answer.lock.partitions)
        for part in range(parts):
            made = []
            for place, number in enumerate(numbers[part * count :][:count]):
                name = store.file_name(lock.id, f"{me.name}.{part * count + place}")
                store.upload(name, b"rows")
                made.append(Segment.root("t", lock.interval, lock.version, number, file=File(name, 1, 1)))
            advance = Advance(mine, start, part)
            done = store.publish(who.id, made, advance=advance, under=[lock.id])
            if isinstance(done, LostRace):
                store.release_all(who.id)
                return done if not told else Published(tuple(told))
            told, start = [*told, *made], part
        store.release_all(who.id)
        return Published(tuple(told))

    return life


def compact(outputs: int = 1) -> Life:
    """Merge what is visible of the first interval into `outputs` files."""

    def life(store: SegmentStore, me: Actor) -> object:
        who, visible = _task(me, 0), store.latest().timeline.visible(MONTH)
        inputs = [one for one in visible if (one.interval, one.version) == (visible[0].interval, visible[0].version)]
        if len(inputs) < 2:
            return None
        one, there = inputs[0], Partitions(each.partition for each in inputs)
        request = LockRequest(who.id, "t", one.interval, LockType.EXCLUSIVE, there, one.version)
        answer = store.acquire_anew(who, request)
        if not isinstance(answer, Granted):
            return answer
        try:
            if not all(map(store.latest().timeline.is_visible, inputs)):
                return None
            numbers = store.allocate_outputs(who, one.interval, one.version, outputs)
            if not isinstance(numbers, Granted) or numbers.lock.partitions is None:
                return numbers
            group, names = numbers.lock.partitions, [name for each in inputs for name in rows_of(each)]
            covers = Partitions.union_of(each.covers for each in inputs)
            generation = 1 + max(each.generation for each in inputs)
            made = []
            for place, number in enumerate(group):
                file = _file(store, answer.lock.id, names[place::outputs])
                made.append(Segment("t", one.interval, one.version, number, covers, generation, group, there, file))
            under = (answer.lock.id, numbers.lock.id)
            done = store.publish(who.id, made, inputs=inputs, under=under)
            return None if isinstance(done, Published) else done
        finally:
            store.release_all(who.id)

    return life


def rewrite(interval: Interval = MONTH, *, hours: bool = False) -> Life:
    """A REPLACE: a month, or a day in two halves, of which the second one is empty."""

    def life(store: SegmentStore, me: Actor) -> object:
        who = _task(me, 5)
        answer = store.acquire_anew(who, LockRequest(who.id, "t", interval, LockType.REPLACE))
        if not isinstance(answer, Granted):
            return answer
        try:
            lock = answer.lock
            timeline = store.snapshot(lock.read).timeline
            inputs = timeline.visible(interval)
            if not all(interval.contains(one.interval) for one in inputs):
                return None
            names = [row for one in timeline.visible(MOMENT) for row in rows_of(one)]
            middle = (interval.start + interval.end) // 2
            halves = [Interval(interval.start, middle), Interval(middle, interval.end)] if hours else [interval]
            numbers = store.numbers_of(dict.fromkeys(halves, 1), lock.version)
            files = [_file(store, lock.id, names), None][: len(halves)]
            made = [Segment.root("t", *numbers[half][0], file=file) for half, file in zip(halves, files, strict=True)]
            done = store.publish(who.id, made, inputs=inputs, under=[lock.id])
            return None if isinstance(done, Published) else done
        finally:
            store.release_all(who.id)

    return life


def _file(store: SegmentStore, lock: int, names: Sequence[str]) -> File:
    name = store.file_name(lock, "+".join(names))
    store.upload(name, b"rows")
    return File(name, len(names), 2)


def drop(store: SegmentStore, me: Actor) -> object:
    """Hide the day."""
    return None if isinstance(done := store.drop(_task(me, 9), DAY), Published) else done


def restore(store: SegmentStore, me: Actor) -> object:
    """Take a drop of the day back, if that is possible."""
    with suppress(ConfigError):
        store.restore(DAY)
    return None


def collect(store: SegmentStore, me: Actor) -> object:
    """Collect what was garbage when the scene began."""
    store.collect(me.scene.clock + 1_000, 100)
    return None


def collects(store: SegmentStore, me: Actor) -> object:
    """Collect what is garbage at the first of three looks, or the second."""
    for later in (0, 1_000, 2_000):
        store.collect(me.scene.clock + later, 100)
    return None


def checkpoint(store: SegmentStore, me: Actor) -> object:
    """Write all segments into one blob."""
    store.checkpoint()
    return None


def end(name: str) -> Life:
    """Another actor is considered dead."""

    def life(store: SegmentStore, me: Actor) -> object:
        store.end(LockOwner(*name.split("@")))
        return None

    return life


def follow(name: str, then: Life) -> Life:
    """The same, and go on in its place."""

    def life(store: SegmentStore, me: Actor) -> object:
        store.end(LockOwner(*name.split("@")))
        return then(store, me)

    return life


def preempt(store: SegmentStore, me: Actor) -> object:
    """Take the day from its holder, and release it."""
    who = _task(me, 9)
    answer = store.acquire(who, LockRequest(who.id, "t", DAY))
    store.release_all(who.id)
    return answer


def read(store: SegmentStore, me: Actor) -> object:
    """All rows, read anew."""
    return shown(store.snapshot())


def look(store: SegmentStore, me: Actor) -> object:
    """What has changed since the table was seen."""
    return shown(store.latest())


def read_first(store: SegmentStore, me: Actor) -> object:
    """What was shown before anything was merged, or nothing; never a part."""
    with suppress(ConfigError):
        seen = shown(store.snapshot(me.scene.first.sequence))
        assert seen == shown(me.scene.first), f"{seen} at an earlier sequence number"
    return None


def pinned(store: SegmentStore, me: Actor) -> object:
    """The same, pinned: from then on it is there."""
    first = me.scene.first
    with suppress(ConfigError):
        store.pin("p", first, until_us=1 << 40)
        try:
            seen = shown(store.snapshot(first.sequence))
        except ConfigError as error:
            raise AssertionError(f"what was pinned is gone: {error}") from error
        there = {name for name, _ in store.blobs.list(store.prefix)}
        assert seen == shown(first), f"{seen} of what was pinned"
        assert {one.file.name for one in first.timeline if one.file} <= there, "files of what was pinned are gone"
    return None


# What there is at the beginning.


def rows(
    *names: str, compacted: bool = False, dropped: bool = False, garbage: bool = False, gone: bool = False
) -> Callable[[Scene], object]:
    """A table of these rows, each a segment; some merged, hidden, or with garbage that a collection may delete; `gone`:
    with a drop and all below it."""

    def begin(scene: Scene) -> None:
        store, me = scene.setup.store, scene.setup
        for name in names:
            me.name = f"{name}@0"
            assert isinstance(append()(store, me), Published)
        me.name, scene.first = "setup@0", scene.judge.snapshot()
        if compacted:
            assert compact()(store, me) is None
        if garbage:
            store.collect(scene.clock, 100)
        if dropped:
            assert drop(store, me) is None
        if gone:
            store.collect(scene.clock, 100)
        me.name = "setup@1"
        for actor in scene.actors:
            actor.store.latest()

    return begin


def last(store: SegmentStore, me: Actor) -> object:
    """Append, and merge what is there."""
    if not isinstance(published := append()(store, me), Published):
        return published
    compact()(store, me)
    return None


def play(name: str, begin: Callable[[Scene], object], **actors: Life) -> Play:
    """Those whose life is called `read...` or `look...` read in two answers."""
    named = {f"{actor}@1": life for actor, life in actors.items()}
    return Play(name, begin, named, last, tuple(f"{one}@1" for one in actors if one.startswith(("read", "look"))))


HOURS = rewrite(DAY, hours=True)
XY, TWICE = rows("x", "y"), rows("x", "y", compacted=True, garbage=True)
DROPPED = rows("x", "y", dropped=True, garbage=True)
GONE = rows("x", "y", dropped=True, gone=True)
#: Short enough for every order.
SHORT = [
    play("two appends", rows("x"), a=append(), b=append()),
    play("an append and a compaction", XY, a=append(), c=compact()),
    play("two compactions", XY, c=compact(), d=compact(2)),
    play("an append and a REPLACE", rows("x"), a=append(), r=rewrite()),
    play("a zombie and its successor", rows("x"), a=append(stream="s"), b=follow("a@1", append(stream="s"))),
    play("a staged zombie and its end", rows("x"), a=append(9), e=end("a@1")),
    play("a drop and its end", XY, d=drop, e=restore),
    play("a restore and an append", DROPPED, e=restore, a=append()),
    play("a restore and a collection", DROPPED, e=restore, g=collect),
    play("a drop and an append", XY, d=drop, a=append()),
    play("a drop and a compaction", XY, d=drop, c=compact()),
    play("a drop and a REPLACE", XY, d=drop, r=rewrite()),
    play("a collection and an append", TWICE, g=collect, a=append()),
    play("a collection and a reader", TWICE, g=collect, read=read),
    play("a collection and one who had it open", TWICE, g=collect, look=look),
    play("a compaction and one who had it open", XY, c=compact(2), look=look),
    play("a REPLACE and one who had it open", XY, r=HOURS, look=look),
    play("a REPLACE and its end", XY, r=HOURS, e=end("r@1")),
    play("a collection and a pin", TWICE, g=collect, p=pinned),
    play("a collection and an earlier sequence number", TWICE, g=collect, read=read_first),
    play("two collections", TWICE, g=collect, h=collect),
    play("the end of a drop and a reader", GONE, g=collect, read=read),
    play("the end of a drop and one who had it open", GONE, g=collect, look=look),
    play("the end of a drop and an append", GONE, g=collect, a=append()),
    play("the end of a drop and a restore", GONE, g=collect, e=restore),
    play("the end of a drop and another drop", GONE, g=collect, d=drop),
    play("the end of a drop and a REPLACE", GONE, g=collect, r=HOURS),
    play("two ends of a drop", GONE, g=collect, h=collect),
]
#: For orders at random.
LONG = [
    play("two appends", rows("x"), a=append(2), b=append(), p=preempt),
    play("compactions", XY, a=append(1, 2), c=compact(), d=compact(2)),
    play("a REPLACE", rows("x"), a=append(1, 3), r=rewrite(), b=append()),
    play("hours", rows("x"), a=append(1, 3), r=HOURS, b=append()),
    play("a REPLACE that is revoked", XY, a=append(1, 2), r=rewrite(), p=preempt, c=compact()),
    play("two REPLACEs", XY, r=rewrite(), t=HOURS, a=append(1, 2), q=end("t@1")),
    play("a large REPLACE", XY, r=HOURS, a=append(7), b=append(1, 2), p=preempt),
    play("large appends", rows("x"), a=append(9), read=read, look=look, c=compact()),
    play("a large zombie", rows("x"), a=append(9, stream="s"), b=follow("a@1", append(stream="s"))),
    play("a zombie", rows("x"), a=append(1, 2, stream="s"), b=follow("a@1", append(2, stream="s")), r=rewrite()),
    play("a life that is ended twice", rows("x"), a=append(9), p=end("a@1"), q=end("a@1"), r=rewrite()),
    play("drops", TWICE, d=drop, e=restore, a=append(), g=collect),
    play("drops and REPLACEs", XY, d=drop, e=restore, r=rewrite(), a=append()),
    play("drops and hours", XY, d=drop, e=restore, r=HOURS, a=append(), c=compact()),
    play("restores", DROPPED, e=restore, a=append(), g=collect, read=read),
    play("compactions over a drop", rows("x", "y", dropped=True), e=restore, a=append(1, 2), c=compact(), g=collect),
    play("two collections and a restore", DROPPED, g=collect, h=collect, e=restore, a=append()),
    play("pins", TWICE, g=collect, h=collects, p=pinned, read=read_first, a=append()),
    play("readers of garbage", TWICE, g=collect, read=read, look=look, a=append(), k=checkpoint),
    play("readers, garbage and a REPLACE", TWICE, g=collect, h=collect, look=look, a=append(1, 2), r=rewrite()),
    play("readers and a REPLACE", XY, read=read, look=look, a=append(1, 2), r=rewrite(), q=end("r@1")),
    play("readers and hours", XY, read=read, look=look, a=append(1, 2), r=HOURS, c=compact()),
    play("the end of a drop", GONE, g=collects, a=append(1, 2), b=append(), read=read, look=look),
    play("the end of a drop and REPLACEs", GONE, g=collects, a=append(1, 2), r=rewrite(), t=HOURS, q=end("r@1")),
    play("ends of drops", DROPPED, g=collects, h=collects, d=drop, a=append(1, 2), read=read),
    play("garbage that comes", XY, a=append(), c=compact(), d=compact(), g=collects, read=read, look=look),
]
