"""Logs without a fleet: source logs with several producers, task logs whose owners change in mid-call, their readers.

Part of `pieces`. Who goes on next is drawn at each call, answers get lost, records are larger than a read or an append.
What is in the storage in the end is read by `plain`, and must be what everybody was told.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from samza_azure.errors import ConfigError, CorruptState, StateLost, Superseded
from samza_azure.logs.forget import kept, outdated
from samza_azure.logs.operations import (
    Append,
    Denied,
    Operation,
    Rule,
    Sent,
    blob_index,
    blob_name,
    indexes,
    large_prefix,
)
from samza_azure.logs.reading import Scan, fetch_part, opening, scan, tail, unchanged
from samza_azure.logs.record import Kind, Record, Reference, Slice, Writer, encode
from samza_azure.logs.source_log import SharedLog, append_shared, in_words, partitioning_of
from samza_azure.logs.task_log import (
    INTERMEDIATE,
    Limits,
    TaskLog,
    append,
    log_record,
    look,
    restored_files,
    send,
    set_aside,
    take_over,
)
from samza_azure.sim.ledger import Violation, demand
from samza_azure.storage.driver import drive, perform
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount, MemoryStorage

from . import plain

STREAM = "streams/flights/0"
GROUP = bytes(range(16))
#: More than one read brings.
LARGE = 300_000
#: Nobody needs so many calls for one append.
CALLS_MAX = 400


class Actor:
    """Somebody who follows a rule, one call at a time."""

    def __init__(self, rule: Rule[Any], blobs: Blobs, dice: Random, lost: float) -> None:
        self.rule, self.blobs, self.dice, self.lost = rule, blobs, dice, lost
        self.answer: Any = None
        self.result: Any = None
        self.error: Exception | None = None
        self.over = False
        self.appends = False  # the answer to an append is still to be heard
        self.calls = 0

    def step(self) -> None:
        """One call."""
        self.calls += 1
        demand(self.calls < CALLS_MAX, "Form: one append takes more than 400 calls")
        try:
            operation = self.rule.send(self.answer)
            self.answer = self._performed(operation)
        except StopIteration as stop:
            self.result, self.over = stop.value, True
        except (Superseded, StateLost, ConfigError) as error:
            self.error, self.over = error, True

    def _performed(self, operation: Operation) -> Any:
        self.appends = isinstance(operation, Append)
        if isinstance(operation, Append) and self.dice.random() < self.lost:
            if self.dice.random() < 0.5:
                perform(operation, self.blobs)
                return Sent.UNKNOWN
            return self.dice.choice([Sent.NOT, Sent.UNKNOWN])
        return perform(operation, self.blobs)

    def run(self) -> Any:
        """To the end; what comes of it."""
        while not self.over:
            self.step()
        if self.error is not None:
            raise self.error
        return self.result


def interleaved(actors: Sequence[Actor], dice: Random) -> None:
    """All to their ends, in a drawn order."""
    while waiting := [actor for actor in actors if not actor.over]:
        dice.choice(waiting).step()


def all_records(storage: MemoryStorage, prefix: str) -> list[dict[str, Any]]:
    """All of a log, each with its blob and place."""
    found = []
    for name, _ in storage.list(f"{prefix}/"):
        content: Any = storage.read(name, 0)
        index = int(name.rpartition("/")[2])
        found += [
            {"index": index, "end": (index, each["at"] + each["length"]), **each}
            for each in plain.records(content.data)
        ]
    return found


def check_streams(dice: Random) -> None:
    """S2, S7, Form: what producers append to one log is there once, and is found by readers from anywhere."""
    storage = MemoryStorage(lambda: 0.0)
    blobs = MemoryAccount(storage).blobs()
    large = dice.random() < 0.25
    limits = Limits(roll_bytes=dice.choice([600, 1500, 4 * LARGE]), roll_records=dice.choice([3, 6, 40]))
    meta = dice.choice([{}, {"key": ["a", "b"], "partitions": 3}])
    logs = [
        SharedLog(STREAM, f"p{number}", dice.randbytes(16), meta, limits) for number in range(dice.choice([1, 2, 3]))
    ]
    told: dict[str, list[Any]] = {log.producer: [] for log in logs}
    follower: list[Scan] = []
    for _ in range(dice.choice([2, 4, 8])):
        doing = []
        for log in dice.sample(logs, dice.randrange(1, len(logs) + 1)):
            said = _said(dice, large=large)
            doing.append((log, said, Actor(append_shared(log, Kind.BATCH, **said), blobs, dice, 0.1)))
        interleaved([actor for *_, actor in doing], dice)
        for log, said, actor in doing:
            if actor.error is not None:
                raise actor.error
            told[log.producer].append((said, actor.result))
        if dice.random() < 0.5:
            start = follower[-1].end if follower else (0, 0)
            follower.append(drive(scan(STREAM, start, reads_max=dice.choice([1, 2, 32])), blobs))
    found = all_records(storage, STREAM)
    _check_stream(found, told, limits, meta)
    check_readers(dice, storage, STREAM, found, follower)
    _check_partitioning(dice, blobs, meta)


def _said(dice: Random, *, large: bool) -> dict[str, Any]:
    slices = [
        Slice(
            number,
            dice.randbytes(dice.choice([1, 40, LARGE if large else 90])),
            dice.randrange(1, 9),
            dice.choice([None, 3]),
        )
        for number in dice.sample(range(3), dice.randrange(3))
    ]
    return {
        "frontier_us": dice.choice([None, dice.randrange(99)]),
        "idle": dice.random() < 0.3,
        "slices": tuple(slices),
    }


def _check_stream(
    found: list[dict[str, Any]], told: dict[str, list[Any]], limits: Limits, meta: dict[str, Any]
) -> None:
    """Every append that was reported is there once, in its producer's order, and blobs are as long as they may be."""
    groups = {each["group_id"] for each in found}
    demand(len(groups) == 1, "S2: a stream has several group ids")
    _check_blobs(found, limits)
    for each in found:
        demand(each["meta"] == (meta if each["number"] == 0 else {}), "Form: the meta of a stream's record")
        demand(each["writer"] == (0, 0) and not each["files"], "Form: a stream's record has a writer or files")
    for producer, appended in told.items():
        theirs = [each for each in found if each["task"] == producer and each["kind"] != Kind.ROLLED]
        demand(
            len(theirs) == len(appended), f"S7: {producer} appended {len(appended)} records, {len(theirs)} are there"
        )
        for sequence, (each, (said, end)) in enumerate(zip(theirs, appended, strict=True)):
            demand(each["batch"] == sequence, f"S2: record {sequence} of {producer} has the number {each['batch']}")
            slices = [(part.destination, part.rows, part.least_us, None, part.data) for part in said["slices"]]
            demand(each["slices"] == slices and each["end"] == end, f"S7: rows of {producer} are others, or elsewhere")
            same = (each["frontier_us"], each["idle"]) == (said["frontier_us"], said["idle"])
            demand(same, "Form: the frontier of a stream's record")


def _check_blobs(found: list[dict[str, Any]], limits: Limits) -> None:
    """Records are counted in their blob, and only a full blob is followed by another."""
    since, number, index = 0, 0, 0
    for each in found:
        if each["index"] != index:
            number, since, index = 0, 0, index + 1
        demand((each["index"], each["number"]) == (index, number), "S2: the records of a blob are not counted")
        full = each["number"] >= limits.roll_records or each["at"] - since >= limits.roll_bytes
        is_right = full == (each["kind"] == Kind.ROLLED) or (full and each["kind"] == Kind.EPOCH)  # a new owner's
        demand(is_right, f"Form: a blob rolls at {each['at']}, record {each['number']}")
        if each["kind"] == Kind.SNAPSHOT:
            since = each["at"] + each["length"]
        number += 1


def _check_partitioning(dice: Random, blobs: Blobs, meta: dict[str, Any]) -> None:
    """A stream is partitioned as it was begun."""
    others: list[dict[str, Any]] = [{}, {"key": ["a", "b"], "partitions": 3}, {"key": ["a"], "partitions": 3}]
    other = dice.choice([*others, {"partitions": 4}])
    key = tuple(other.get("key", ()))
    wanted = key, other.get("partitions", 0) if key else 0
    demand(partitioning_of(other) == wanted, f"Form: {other} is the partitioning {partitioning_of(other)}")
    said = in_words(wanted)
    demand(said == (f"the key {', '.join(key)} over {wanted[1]} partitions" if key else "no key"), f"Form: {said}")
    late = SharedLog(STREAM, "late", GROUP, other)
    try:
        drive(append_shared(late, Kind.FRONTIER), blobs)
    except ConfigError:
        demand(partitioning_of(meta) != wanted, "Form: a producer that partitions alike is refused")
        return
    demand(partitioning_of(meta) == wanted, "Form: a stream is written with two partitionings")


# Readers.


def check_readers(
    dice: Random, storage: MemoryStorage, prefix: str, found: list[dict[str, Any]], follower: Sequence[Scan] = ()
) -> None:
    """S7, Form: from wherever one reads, one finds what is there."""
    blobs = MemoryAccount(storage).blobs()
    places = [(each["index"], each["at"]) for each in found]
    last = found[-1]
    end = (last["index"] + 1, 0) if last["kind"] == Kind.ROLLED else last["end"]
    for _ in range(3):
        start = dice.choice([*places, end, (0, 0)])
        wanted = frozenset(dice.sample(range(3), dice.choice([0, 1, 2]))) if dice.random() < 0.7 else None
        until = dice.choice([None, None, dice.choice([*places, end])])
        most = dice.choice([None, None, 1, 100, LARGE + 50])
        seen = drive(scan(prefix, start, destinations=wanted, until=until, max_bytes=most, reads_max=None), blobs)
        _check_scan(seen, found, blobs, start, wanted, until, most, end)
    parts, position, looks = [], (0, 0), 0
    while position != end:
        seen = drive(scan(prefix, position, reads_max=1), blobs)
        demand(seen.end > position, f"Form: a reader of {prefix} stands still at {position}")
        parts += [drive(fetch_part(part), blobs) for part in seen.parts]
        position, looks = seen.end, looks + 1
    rows = [content for each in found for *_, content in each["slices"] if isinstance(content, bytes)]
    demand([part for part in parts if part in rows] == rows, f"S7: a reader of {prefix} misses rows")
    begun = [drive(fetch_part(part), blobs) for each in follower for part in each.parts]
    demand(begun == rows[: len(begun)], "S7: who reads along finds other rows")
    _check_ends(dice, blobs, prefix, found, end)
    _check_damage(dice, storage, prefix, found)


def _check_scan(
    seen: Scan,
    found: list[dict[str, Any]],
    blobs: Blobs,
    start: tuple[int, int],
    wanted: frozenset[int] | None,
    until: tuple[int, int] | None,
    most: int | None,
    log_end: tuple[int, int],
) -> None:
    """A scan against the same, record by record."""
    parts: list[tuple[Any, ...]] = []
    end, size, passed, frontier, idle, drained, group = start, 0, 0, None, False, False, None
    meta: dict[str, Any] = {}
    for each in found:
        place = (each["index"], each["at"])
        if place < start:
            continue
        if until is not None and place >= until:
            break
        ours = [part for part in each["slices"] if wanted is None or part[0] in wanted]
        length = sum(len(part[4]) if isinstance(part[4], bytes) else part[4][2] for part in ours)
        group = group or each["group_id"]
        if most is not None and parts and size + length > most:
            break
        parts += [(place, *part) for part in ours]
        size, passed = size + length, passed + 1
        if each["frontier_us"] is not None:
            frontier = max(each["frontier_us"], each["frontier_us"] if frontier is None else frontier)
        idle, drained = each["idle"], drained or each["kind"] == Kind.DRAINED
        meta = each["meta"] if each["number"] == 0 else meta
        end = (each["index"] + 1, 0) if each["kind"] == Kind.ROLLED else each["end"]
    contents = [drive(fetch_part(part), blobs) for part in seen.parts]
    said = [
        (part.position, part.destination, part.rows, part.least_us, part.greatest_us, content)
        for part, content in zip(seen.parts, contents, strict=True)
    ]
    expected = [(*part[:5], part[5] if isinstance(part[5], bytes) else _at(blobs, part[5])) for part in parts]
    demand(said == expected, f"S7: a scan from {start} to {until} finds {len(said)} parts of {len(parts)}")
    what = (seen.start, seen.end, seen.records, seen.frontier_us, seen.idle, seen.drained, dict(seen.meta))
    right = (start, end, passed, frontier, idle, drained, meta)
    demand(what == right, f"Form: a scan says {what}, and {right} is right")
    demand((seen.size, seen.rows) == (size, sum(part[2] for part in parts)), "Form: a scan counts otherwise")
    stopped = until is not None and end >= until
    demand(seen.at_end == (end == log_end and not stopped), f"Form: a scan that ends at {end} of {log_end}")
    demand(seen.group_id == group, "Form: whose records a scan has found")


def _at(blobs: Blobs, place: tuple[str, int, int, int]) -> bytes:
    chunk: Any = blobs.read(place[0], place[1], place[2])
    return bytes(chunk.data)


def _check_ends(dice: Random, blobs: Blobs, prefix: str, found: list[dict[str, Any]], end: tuple[int, int]) -> None:
    """The last record, the first of a blob, and whether nothing was added."""
    known = dice.choice([None, dice.choice(found)["index"]])
    last = drive(tail(prefix, known), blobs)
    if known is not None and found[-1]["index"] > known + 1 and last is not None:
        last = drive(tail(prefix), blobs)
    same = last is not None and (last.end, last.header.batch, last.header.number) == (
        end,
        found[-1]["batch"],
        found[-1]["number"],
    )
    demand(same, f"Form: the last record of {prefix} is not found from blob {known}")
    index = dice.choice([0, found[-1]["index"], found[-1]["index"] + 5])
    first = drive(opening(prefix, index), blobs)
    metas = [each["meta"] for each in found if each["index"] == index and each["number"] == 0]
    demand(([first.meta] if first is not None else []) == metas, f"Form: blob {index} of {prefix} opens otherwise")
    for position in (end, (found[-1]["index"], found[-1]["at"])):
        demand(drive(unchanged(prefix, position), blobs) == (position == end), f"Form: {prefix} ends at {position}")
    demand(drive(tail("streams/none/0"), blobs) is None, "Form: there is a last record of nothing")
    demand(drive(unchanged("streams/none/0", (0, 0)), blobs), "Form: nothing has changed")
    demand(not drive(unchanged("streams/none/0", (0, 9)), blobs), "Form: a log that is gone has not changed")
    stood = dice.choice([end, (found[-1]["index"], found[-1]["at"])])
    idle = Record(Kind.FRONTIER, GROUP, "daily-0", Writer(1, 1), idle=True, meta={"stood_at": {prefix: list(stood)}})
    data, name = encode(idle), blob_name("runs/idle/daily-0", 0)
    blobs.create(name)
    blobs.append(name, data, 0)
    said = drive(unchanged("runs/idle/daily-0", (0, len(data))), blobs)
    demand(said == (stood == end), "Form: one that is idle has seen all that there is")


def _check_damage(dice: Random, storage: MemoryStorage, prefix: str, found: list[dict[str, Any]]) -> None:
    """S8: what is damaged, cut off or gone is noticed by whoever reads it."""
    each = dice.choice(found)
    name = blob_name(prefix, each["index"])
    copy = MemoryStorage(lambda: 0.0)
    for other, _ in storage.list(""):
        content: Any = storage.read(other, 0)
        data = bytearray(content.data)
        if other == name and dice.random() < 0.5:
            trailer = each["length"] - 1 - dice.randrange(16)  # that of a large record is passed over
            place = dice.choice([dice.randrange(each["size"]), trailer if each["length"] < LARGE // 2 else 0])
            data[each["at"] + place] ^= 1 << dice.randrange(8)
        elif other == name:
            del data[each["at"] + dice.randrange(1, each["length"]) :]
        copy.put(other, bytes(data))
    place = (each["index"], each["at"])
    blobs = MemoryAccount(copy).blobs()
    _fails("a damaged log", lambda: drive(scan(prefix, place, reads_max=None), blobs), CorruptState)
    if each["kind"] != Kind.ROLLED:
        blobs = MemoryAccount(storage).blobs()
        inside = (place[0], place[1] + 1)
        if place < inside < each["end"]:
            _fails("half a record", lambda: drive(scan(prefix, place, until=inside), blobs), CorruptState)
        stranger = lambda: drive(scan(prefix, place, group_id=b"x" * 16), blobs)  # noqa: E731
        _fails("another group's record", stranger, CorruptState)
        beyond = (found[-1]["index"], found[-1]["end"][1] + 7)
        _fails("a place behind the end", lambda: drive(scan(prefix, beyond), blobs), CorruptState)
        _fails("a blob that is gone", lambda: drive(scan(prefix, (99, 1)), blobs), StateLost)


def _fails(what: str, read: Callable[[], object], *errors: type[Exception]) -> None:
    try:
        read()
    except errors:
        return
    raise Violation(f"S8: {what} is read")


# Task logs.


def check_task_logs(dice: Random) -> None:
    """S2, S8, S9: owners follow each other, each may be overtaken in mid-call, and nothing that was told is lost."""
    storage = MemoryStorage(lambda: 0.0)
    blobs = MemoryAccount(storage).blobs()
    limits = Limits(
        roll_bytes=dice.choice([1_200, 3_000, 1 << 20]),
        roll_records=dice.choice([4, 9, 100]),
        record_bytes=dice.choice([200, 3_000, 1 << 20]),
        large_bytes=dice.choice([300, 1 << 20]),
    )
    drawn = TaskWorld(dice, storage, blobs, limits)
    missing = drawn.owner(1)
    _fails(
        "a log that must be there",
        lambda: Actor(take_over(missing, first=False, meta={}), blobs, dice, 0).run(),
        StateLost,
    )
    log = drawn.owner(1)
    drawn.take(log)
    generation = 1
    for _ in range(dice.choice([3, 6, 10])):
        luck = dice.random()
        if luck < 0.25:
            generation += 1
            log = drawn.hand_over(log, drawn.owner(generation))
        else:
            drawn.batch(log, final=False)
        if dice.random() < 0.3:
            drawn.check_restore()
        if dice.random() < 0.2:
            drawn.forget(log)
    if dice.random() < 0.3:
        drawn.batch(log, final=True)
    drawn.check()
    drawn.check_mistakes(log)
    drawn.check_strange()
    found = all_records(storage, drawn.prefix)
    if found[0]["index"] == 0:
        check_readers(dice, storage, drawn.prefix, found)


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    """The same blobs again."""
    copy = MemoryStorage(lambda: 0.0)
    for name, size in storage.list(""):
        content: Any = storage.read(name, 0)
        copy.create(name)
        if size:
            copy.append(name, bytes(content.data), 0)
    return copy


class TaskWorld:
    """One task's log, what its owners were told, and what the log must therefore hold."""

    def __init__(self, dice: Random, storage: MemoryStorage, blobs: Blobs, limits: Limits) -> None:
        self.dice, self.storage, self.blobs, self.limits = dice, storage, blobs, limits
        self.prefix, self.task = "runs/r/clean-0", "clean-0"
        self.meta = {INTERMEDIATE: True} if dice.random() < 0.7 else {}
        self.files: dict[str, bytes] = {}  # all that were ever appended
        self.rows: dict[int, list[tuple[int, bytes]]] = {}  # by batch
        self.last, self.frontier, self.watermark = -1, None, None
        self.drained = self.forgot = False
        self.input_bytes = 0

    def owner(self, generation: int) -> TaskLog:
        """The next one."""
        return TaskLog(self.prefix, GROUP, self.task, Writer(generation, self.dice.randrange(1, 3)), limits=self.limits)

    def take(self, log: TaskLog) -> None:
        """It takes the log over, and finds what was told before."""
        most, tried = self.dice.choice([0, 1 << 20, 50_000]), self.dice.choice([None, None, 1 << 19])
        known = all_records(self.storage, self.prefix)
        rule = take_over(log, first=not known, meta=self.meta, batch_bytes=most, tried_bytes=tried)
        Actor(rule, self.blobs, self.dice, 0.1).run()
        if self.drained:
            return
        wanted = self._batch_bytes(known, most, tried)
        demand(log.batch_bytes == wanted, f"Form: a batch may have {log.batch_bytes} bytes, and {wanted} is right")
        same = (log.last_batch, log.frontier_us, log.watermark_us) == (self.last, self.frontier, self.watermark)
        demand(same and not log.idle, f"S2: an owner finds batch {log.last_batch}, where {self.last} was the last one")

    def _batch_bytes(self, known: list[dict[str, Any]], most: int, tried: int | None) -> int:
        least = min(64 << 10, most)
        if tried is not None:
            return max(min(tried // 2, most), least)
        said = known[-1]["meta"].get("batch_bytes", 0) if known else 0
        so_far = min(said or most, most)
        fruitless, writer = False, None
        for each in known:
            if each["kind"] == Kind.EPOCH and each["writer"] != writer:
                fruitless = True
            if each["kind"] in (Kind.BATCH, Kind.DRAINED, Kind.FRONTIER):
                fruitless = False
            writer = each["writer"]
        return max(so_far // 4, least) if fruitless else so_far

    def _record(self, log: TaskLog, *, final: bool) -> tuple[Callable[[], Record], dict[str, bytes], list[Slice], Any]:
        dice, batch = self.dice, self.last + dice_step(self.dice)
        store = f"state/0/{dice.randrange(2)}"
        names = [f"offsets/{batch}", f"{store}/{batch + 1}.delta", f"{store}/{batch + 1}.snapshot", "metadata"]
        names += [
            f"{store}/{batch + 1}.zip",
            f"{store}/SSTs/{batch}.sst",
            f"commits/{batch}",
            f"sources/0/{batch}",
            f"sources/0/{batch}.compact",
        ]
        sizes = [5, 60, 400, 20_000, 70_000] if dice.random() < 0.3 else [5, 60, 400]
        files = {name: dice.randbytes(dice.choice(sizes)) for name in dice.sample(names, dice.randrange(1, 5))}
        if dice.random() < 0.05:
            files[f"{store}/{batch + 1}.zip"] = dice.randbytes(LARGE)  # it is packed, and more than one read brings
        slices = [
            Slice(number, dice.randbytes(dice.choice([3, 90, 500])), 1)
            for number in sorted(dice.sample(range(3), dice.randrange(3)))
        ]
        frontier, watermark = (dice.choice([None, dice.randrange(99)]) for _ in range(2))
        needs = {"runs/r/other-0": dice.randrange(3)} if dice.random() < 0.5 else None
        held = slices
        if slices and dice.random() < 0.3:
            held = Actor(set_aside(log, batch, slices), self.blobs, dice, 0.05).run()
            demand(all(isinstance(part.data, Reference) for part in held), "Form: rows that are set aside stay")

        def make() -> Record:
            return log_record(
                log,
                Kind.DRAINED if final else Kind.BATCH,
                batch=batch,
                frontier_us=frontier,
                watermark_us=watermark,
                slices=held,
                files=files,
                needs=needs,
                idle=False,
            )

        return make, files, slices, (batch, frontier, watermark, final)

    def batch(self, log: TaskLog, *, final: bool) -> None:
        """One more, whatever happens to its answers; or only word that time goes on."""
        if not final and self.dice.random() < 0.15:
            idle = self.dice.random() < 0.5
            Actor(append(log, lambda: log_record(log, Kind.FRONTIER, idle=idle)), self.blobs, self.dice, 0.1).run()
            demand(log.idle == idle, "Form: an owner does not know that it is idle")
            return
        make, files, slices, said = self._record(log, final=final)
        rule = append(log, make)
        actor = Actor(rule, self.blobs, self.dice, 0.15)
        for _ in range(self.dice.choice([1 << 20, 1 << 20, self.dice.randrange(1, 7)])):  # or it gives up in mid-call
            actor.step()
            if actor.over:
                break
        if not actor.over:
            before = log.unsettled
            settled = drive(look(log), self.blobs)
            there = before is None or self._is_there(log, before.data)
            demand(settled == there == (log.unsettled is None), "Form: what is unsettled is not what was looked for")
            again = Actor(append(log, make), self.blobs, self.dice, 0.1) if log.last_batch < said[0] else None
            if again is not None:
                again.run()
        elif actor.error is not None:
            raise actor.error
        self._told(files, slices, said)
        end = all_records(self.storage, self.prefix)[-1]["end"]
        demand(log.end == end and log.last_batch == said[0], f"S2: an owner takes {log.end} for the end, not {end}")

    def _is_there(self, log: TaskLog, data: bytes) -> bool:
        """Whether these bytes lie somewhere in the log."""
        contents: list[Any] = [self.storage.read(name, 0) for name, _ in self.storage.list(f"{log.prefix}/")]
        return any(data in bytes(each.data) for each in contents)

    def check_mistakes(self, log: TaskLog) -> None:
        """What no caller may ask for, and what a service that takes nothing leads to."""
        blobs = MemoryAccount(copy_of(self.storage)).blobs()

        def ask(kind: Kind, batch: int) -> Callable[[], object]:
            return lambda: drive(append(log, lambda: log_record(log, kind, batch=batch)), blobs)

        _fails("an EPOCH by hand", ask(Kind.EPOCH, log.last_batch), ValueError)
        _fails("the same batch again", ask(Kind.BATCH, log.last_batch), ValueError)
        if log.drained:
            _fails("a batch after DRAINED", ask(Kind.BATCH, log.last_batch + 1), ValueError)
        name, data = "runs/r/x-0/00000000", b"some bytes"
        blobs.create(name)
        blobs.append(name, b"1234", 0)

        def insisted(position: int, answer: Any, added: bytes = b"") -> tuple[Any, int]:
            """What comes of a send when each append is answered so; how often it was sent."""
            rule, said, sent = send(name, data, position), None, 0
            while True:
                try:
                    operation = rule.send(said)
                except StopIteration as stop:
                    return stop.value, sent
                except (CorruptState, StateLost) as error:
                    return type(error), sent
                said = answer if isinstance(operation, Append) else perform(operation, blobs)
                sent += isinstance(operation, Append)
                demand(sent < 9, "Form: an append is sent for ever")
                if added and sent == 2:
                    blobs.append(name, added, position)
                    added = b""

        demand(insisted(4, Denied("x")) == (CorruptState, 3), "Form: who is refused three times goes on")
        demand(insisted(5, Sent.UNKNOWN) == (CorruptState, 1), "S8: a log that became shorter is not noticed")
        more = self.dice.choice([data, data + b"x", b"other bytes, and more", b"some"])
        demand(insisted(4, Sent.UNKNOWN, more) == (more.startswith(data), 2), f"S2: {more!r} is taken for ours, or not")

    def check_strange(self) -> None:
        """S8: a log that no owner of ours can have written is not taken over."""
        found = all_records(self.storage, self.prefix)
        last, dice = found[-1], self.dice
        if last["kind"] == Kind.ROLLED:
            return
        writer = Writer(*last["writer"])
        good = Record(Kind.FRONTIER, GROUP, self.task, writer, last["batch"], last["number"] + 1)
        opens = last["number"] == 0 and last["index"] > 0
        up = Writer(writer.generation, writer.attempt + 1)
        strange = [
            replace(good, group_id=b"x" * 16),
            replace(good, task="clean-1"),
            replace(good, number=last["number"] + dice.choice([0, 2])),
            replace(good, kind=Kind.SNAPSHOT),
            replace(good, kind=Kind.EPOCH),
            replace(good, kind=Kind.EPOCH, writer=Writer(0, 9)),
            replace(good, writer=up),
            replace(good, batch=last["batch"] + dice.choice([1, 5])),
            replace(good, kind=Kind.BATCH),
            replace(good, kind=Kind.BATCH, batch=last["batch"] - 1),
        ]
        fine = [
            good,
            replace(good, kind=Kind.EPOCH, writer=up),
            replace(good, kind=Kind.BATCH, batch=last["batch"] + 1),
        ]
        if self.drained or opens:
            strange, fine = [*fine, *strange], []
        for each in (dice.choice(strange), *(dice.sample(fine, 1) if fine else ())):
            copy = copy_of(self.storage)
            copy.append(blob_name(self.prefix, last["index"]), encode(each), last["end"][1])
            log = TaskLog(self.prefix, GROUP, self.task, Writer(1 << 40, 1), limits=self.limits)
            rule = take_over(log, first=False, meta=self.meta)
            blobs = MemoryAccount(copy).blobs()
            if each in fine:
                Actor(rule, blobs, dice, 0).run()
            else:
                _fails(f"{each.kind.name} of {each.writer}", partial(drive, rule, blobs), CorruptState)
        empty = copy_of(self.storage)
        index = last["index"] + dice.choice([1, 2])
        empty.create(blob_name(self.prefix, index))
        log = TaskLog(self.prefix, GROUP, self.task, Writer(1 << 40, 1), limits=self.limits)
        gone = drive(indexes(self.prefix), MemoryAccount(empty).blobs())
        demand((index, 0) in gone and len(gone) > 1, "Form: a blob is not listed")
        rule = take_over(log, first=False, meta=self.meta)
        if index > last["index"] + 1:
            _fails("a log with a gap", lambda: drive(rule, MemoryAccount(empty).blobs()), StateLost)

    def _told(self, files: dict[str, bytes], slices: list[Slice], said: Any) -> None:
        batch, frontier, watermark, final = said
        for path, content in files.items():  # in the order in which they came last
            self.files.pop(path, None)
            self.files[path] = content
        self.rows[batch] = [(part.destination, bytes(part.data)) for part in slices if isinstance(part.data, bytes)]
        self.last, self.drained = batch, final
        self.frontier = max(frontier, self.frontier or 0) if frontier is not None else self.frontier
        self.watermark = max(watermark, self.watermark or 0) if watermark is not None else self.watermark

    def hand_over(self, old: TaskLog, new: TaskLog) -> TaskLog:
        """The next owner comes while the former one is in mid-call. What of it was told stays, and it is refused."""
        make, files, slices, said = self._record(old, final=False)
        before = all_records(self.storage, self.prefix)
        late = Actor(append(old, make), self.blobs, self.dice, 0.1)
        rule = take_over(new, first=False, meta=self.meta)
        gains = Actor(rule, self.blobs, self.dice, 0.1)
        if self.dice.random() < 0.5:
            interleaved([late, gains], self.dice)
        else:  # the former one gives up in mid-call, and looks what became of it
            for _ in range(self.dice.randrange(1, 6)):
                if not late.over:
                    late.step()
            while late.appends and not late.over:  # what became of an append is always told
                late.step()
            interleaved([gains], self.dice)
        demand(gains.error is None, f"S2: the later writer is refused: {gains.error}")
        found = all_records(self.storage, self.prefix)
        landed = any(each["batch"] == said[0] and each["kind"] == Kind.BATCH for each in found[len(before) :])
        told = late.over and late.error is None
        demand(landed or not told, "S7: a batch was told to be appended, and is not there")
        if not late.over:
            drive(look(old), self.blobs)
            demand(landed or old.last_batch < said[0], "S2: who looks takes the bytes of another for its own")
        if landed:
            self._told(files, slices, said)
        times = (new.frontier_us, new.watermark_us)
        demand(times == (self.frontier, self.watermark), f"S7: the new owner takes up at {times}")
        demand(new.last_batch == self.last, f"S2: the new owner knows batch {new.last_batch}, and {self.last} was told")
        with suppress(Superseded, StateLost):
            Actor(
                append(old, lambda: log_record(old, Kind.BATCH, batch=old.last_batch + 1)), self.blobs, self.dice, 0
            ).run()
            raise Violation("S2: a former owner appends after the next one has come")
        older = TaskLog(self.prefix, GROUP, self.task, old.owner, limits=self.limits)
        with suppress(Superseded, StateLost):
            Actor(take_over(older, first=False, meta={}), self.blobs, self.dice, 0).run()
            raise Violation("S2: an older writer takes the log over")
        return new

    def check_restore(self) -> None:
        """Whoever restores finds the files that a restart needs, each as it was written last."""
        log = TaskLog(self.prefix, GROUP, self.task, Writer(1 << 40, 1), limits=self.limits)
        blobs = MemoryAccount(copy_of(self.storage)).blobs()
        Actor(take_over(log, first=False, meta=self.meta), blobs, self.dice, 0).run()
        files = drive(restored_files(log), blobs)
        wanted = plain.needed(self.files, self.last)
        demand(files == wanted, f"S9: {sorted(files)} are restored, and {sorted(wanted)} are needed")
        demand(log.last_batch == self.last, "S2: a restore finds another batch")

    def forget(self, log: TaskLog) -> None:
        """Delete what nobody needs: just that, and the next owner restores the same."""
        reader, needs = "runs/r/daily-0", self.dice.randrange(4)
        copy: Any = {"needs": {self.prefix: needs}} if self.dice.random() < 0.7 else {}
        blobs = MemoryAccount(copy_of(self.storage)).blobs()
        group = self.dice.choice([GROUP, GROUP, b"x" * 16])
        data = encode(Record(Kind.BATCH, group, "daily-0", Writer(1, 1), 0, meta=copy))
        if self.dice.random() < 0.8:
            blobs.create(blob_name(reader, 0))
            blobs.append(blob_name(reader, 0), data, 0)
            needs = copy.get("needs", {}).get(self.prefix, 0) if group == GROUP else 0
        else:
            needs = 0
        readers = [reader] if self.dice.random() < 0.8 else []
        named = drive(outdated(kept(log), readers), blobs)
        held = {content.blob for content in log.files.values() if isinstance(content, Reference)}
        found = all_records(self.storage, self.prefix)
        newest = found[-1]["index"]
        first = min([newest, *(index for name in held if (index := blob_index(self.prefix, name)) is not None)])
        first = min(first, needs) if readers else first
        wanted = {blob_name(self.prefix, index) for index in range(first)} & {name for name, _ in self.storage.list("")}
        large = large_prefix(self.prefix)
        for name, _ in self.storage.list(f"{large}/"):
            if int(name.removeprefix(f"{large}/")[:8]) < first and name not in held:
                wanted.add(name)
        demand(set(named) == wanted, f"S9: {sorted(set(named) ^ wanted)} are deleted, or kept, wrongly")
        if not readers and not self.rows_needed():
            for name in named:
                self.storage.delete(name)
            self.forgot = self.forgot or bool(named)

    def rows_needed(self) -> bool:
        """In half of all worlds the log is kept whole, so that all rows can be looked for in the end."""
        return bool(self.meta)

    def check(self) -> None:
        """The whole log, by `plain`."""
        self.check_restore()
        found = all_records(self.storage, self.prefix)
        if self.forgot:
            return
        _check_blobs(found, self.limits)
        writer, batch, needs = (0, 0), -1, None
        for number, each in enumerate(found):
            kind = Kind(each["kind"])
            opens = each["number"] == 0
            demand(not opens or kind is Kind.EPOCH, "S2: a blob does not begin with EPOCH")
            second = each["number"] == 1 and each["index"] > 0
            demand(second == (kind is Kind.SNAPSHOT), "S2: a SNAPSHOT is not the second record of its blob")
            demand(each["writer"] >= writer, "S2: writers fall")
            demand(each["writer"] == writer or kind is Kind.EPOCH, "S2: a writer without EPOCH")
            if kind in (Kind.BATCH, Kind.DRAINED):
                demand(each["batch"] > batch, "S2: batches do not rise")
                batch = each["batch"]
                self._check_rows(each)
            demand(each["batch"] == batch, f"S2: a record says batch {each['batch']} was the last one, not {batch}")
            demand(each["group_id"] == GROUP and each["task"] == self.task, "S2: a record of another task")
            told = {name: value for name, value in each["meta"].items() if name not in ("needs", "batch_bytes")}
            demand(kind is not Kind.EPOCH or told == self.meta, f"Form: an EPOCH says {told}")
            demand(kind is not Kind.SNAPSHOT or number > 0, "S2: a log begins with a SNAPSHOT")
            if kind in (Kind.EPOCH, Kind.SNAPSHOT, Kind.ROLLED, Kind.FRONTIER):
                demand(each["meta"].get("needs") == needs, "S9: a record does not repeat what its owner needs")
            needs = each["meta"].get("needs")
            writer = each["writer"]
        demand(
            set(self.rows) == {each["batch"] for each in found if each["kind"] in (2, 5)}, "S7: a batch is not there"
        )
        demand((found[-1]["kind"] == Kind.DRAINED) == self.drained, "S2: a log ends otherwise than it was told")

    def _check_rows(self, each: dict[str, Any]) -> None:
        rows = [
            (part[0], part[4] if isinstance(part[4], bytes) else _at(self.blobs, part[4])) for part in each["slices"]
        ]
        demand(rows == self.rows.get(each["batch"]), f"S7: batch {each['batch']} holds other rows than it was given")
        inside = sum(len(part[4]) for part in each["slices"] if isinstance(part[4], bytes))
        inside += sum(len(content) for content in each["files"].values() if isinstance(content, bytes))
        demand(inside <= self.limits.record_bytes, f"Form: a record holds {inside} bytes, more than it may")
        for name, size in self.storage.list(f"{large_prefix(self.prefix)}/"):
            most = max(self.limits.large_bytes, LARGE)
            demand(size <= most, f"Form: {name} has {size} bytes, more than it may")


def dice_step(dice: Random) -> int:
    """Batch ids rise, mostly by one."""
    return dice.choice([1, 1, 1, 2])
