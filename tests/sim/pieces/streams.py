"""Source logs without a fleet: several producers append to one, and readers read it.

Part of `pieces`. The next actor is drawn at each call, answers get lost, records are larger than a read or an append.
In the end `plain` reads the storage, which must hold what was reported to each producer.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from samza_azure.errors import ConfigError, CorruptState, StateLost, StorageUnavailable, Superseded, Unsettled
from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import Append, Operation, Pause, Rule, fetch
from samza_azure.logs.reading import Scan, fetch_part, opening, scan, tail, unchanged
from samza_azure.logs.record import Kind, Record, Reference, Slice, Writer, encode
from samza_azure.logs.repeating import repeating
from samza_azure.logs.source_log import SharedLog, append_shared, in_words, partitioning_of
from samza_azure.logs.task_log import (
    LogLimits,
)
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.stream_io.driver import always, drive, perform
from simulator.ledger import Violation, demand

from . import plain

STREAM = "streams/flights/0"
GROUP = bytes(range(16))
#: More than one read brings.
LARGE = 300_000
#: No actor needs this many calls, though it may append a dozen times to a log that rolls after each record.
CALLS_MAX = 2_000


class Actor:
    """An actor that follows a rule, one call at a time."""

    def __init__(self, rule: Rule[Any], blobs: Blobs, dice: Random, lost: float) -> None:
        self.rule, self.blobs, self.dice, self.lost = repeating(rule, always), blobs, dice, lost
        self.answer: Any = None
        self.failure: StorageUnavailable | None = None  # instead of the answer
        self.result: Any = None
        self.error: Exception | None = None
        self.over = False
        self.appends = False  # the answer to an append is still to be heard
        self.doubts = False  # it has just heard that the answer to an append was lost
        self.late: Append | None = None  # it was sent, and may still arrive
        self.calls = 0

    def step(self) -> None:
        """One call."""
        self.calls += 1
        demand(self.calls < CALLS_MAX, "Form: an actor goes round in circles")
        try:
            self.doubts = self.appends and isinstance(self.failure, Unsettled)
            operation = self.rule.send(self.answer) if self.failure is None else self.rule.throw(self.failure)
            self.answer = self.failure = None
            try:
                self.answer = self._performed(operation)
            except StorageUnavailable as error:
                self.failure = error
        except StopIteration as stop:
            self.result, self.over = stop.value, True
        except (Superseded, StateLost, ConfigError) as error:
            self.error, self.over = error, True

    def _performed(self, operation: Operation) -> Any:
        self.appends = isinstance(operation, Append)
        if self.late is not None and self.dice.random() < 0.3:
            perform(self.late, self.blobs)
            self.late = None
        if isinstance(operation, Pause) or self.dice.random() >= self.lost:
            return perform(operation, self.blobs)
        match self.dice.randrange(4):
            case 0:
                raise StorageUnavailable("it was not sent")
            case 1 if isinstance(operation, Append):
                self.late = operation
            case _:
                perform(operation, self.blobs)
        raise Unsettled("its answer was lost")

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
    limits = LogLimits(roll_bytes=dice.choice([600, 1500, 4 * LARGE]), roll_records=dice.choice([3, 6, 40]))
    meta = dice.choice([{}, {"key": ["a", "b"], "partitions": 3}])
    logs = [
        SharedLog(STREAM, f"p{number}", dice.randbytes(16), lambda: 0.0, meta, limits)
        for number in range(dice.choice([1, 2, 3]))
    ]
    told: dict[str, list[Any]] = {log.producer: [] for log in logs}
    follower: list[Scan] = []
    for turn in range(dice.choice([2, 4, 8])):
        doing = []
        for log in dice.sample(logs, dice.randrange(1, len(logs) + 1)):
            said = _said(dice, large=large)
            doing.append((log, said, Actor(append_shared(log, Kind.BATCH, **said), blobs, dice, 0.1)))
        interleaved([actor for *_, actor in doing], dice)
        for log, said, actor in doing:
            if actor.error is not None:
                raise actor.error
            told[log.producer].append((said, actor.result))
        if turn == 0 and logs[0].end[0] == 0 and dice.random() < 0.3:  # so that a blob is just full
            limits = replace(limits, roll_bytes=max(log.end[1] for log in logs if log.end[0] == 0))
            for log in logs:
                log.limits = limits
        if dice.random() < 0.5:
            start = follower[-1].end if follower else (0, 0)
            follower.append(drive(scan(STREAM, start, reads_max=dice.choice([1, 2, 32])), blobs))
    found = all_records(storage, STREAM)
    _check_stream(found, told, limits, meta)
    check_readers(dice, storage, STREAM, found, follower)
    _check_stranger(dice, blobs, found)
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
    found: list[dict[str, Any]], told: dict[str, list[Any]], limits: LogLimits, meta: dict[str, Any]
) -> None:
    """Every append that was reported is there once, in its producer's order, and blobs are as long as they may be."""
    groups = {each["group_id"] for each in found}
    demand(len(groups) == 1, "S2: a stream has several group ids")
    check_blobs(found, limits)
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


def check_blobs(found: list[dict[str, Any]], limits: LogLimits) -> None:
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


def _check_stranger(dice: Random, blobs: Blobs, found: list[dict[str, Any]]) -> None:
    """S8: another stream's record at the end of a log is noticed by the producer that was to append there."""
    last = found[-1]
    if last["kind"] == Kind.ROLLED:
        return
    copied = MemoryStorage(lambda: 0.0)
    name = blob_name(STREAM, last["index"])
    content: Any = blobs.read(name, 0)
    copied.create(name)
    copied.append(name, bytes(content.data), 0)
    log = SharedLog(STREAM, "x", GROUP, lambda: 0.0)
    log.group_id, log.end, log.number = last["group_id"], last["end"], last["number"] + 1
    log.is_open, log.is_checked, log.known_s = True, True, 0.0
    group = dice.choice([bytes(16), b"\xff" * 16])
    record = Record(Kind.FRONTIER, group, "y", Writer(0, 0), 0, last["number"] + 1)
    copied.append(name, encode(record), last["end"][1])
    rule = append_shared(log, Kind.FRONTIER)
    fails("another stream's record", lambda: drive(rule, MemoryAccount(copied).blobs()), CorruptState)


def _check_partitioning(dice: Random, blobs: Blobs, meta: dict[str, Any]) -> None:
    """A stream is partitioned as it was begun."""
    others: list[dict[str, Any]] = [{}, {"key": ["a", "b"], "partitions": 3}, {"key": ["a"], "partitions": 3}]
    other = dice.choice([*others, {"partitions": 4}])
    key = tuple(other.get("key", ()))
    wanted = key, other.get("partitions", 0) if key else 0
    demand(partitioning_of(other) == wanted, f"Form: {other} is the partitioning {partitioning_of(other)}")
    said = in_words(wanted)
    demand(said == (f"the key {', '.join(key)} over {wanted[1]} partitions" if key else "no key"), f"Form: {said}")
    late = SharedLog(STREAM, "late", GROUP, lambda: 0.0, other)
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
    expected = [(*part[:5], part[5] if isinstance(part[5], bytes) else bytes_at(blobs, part[5])) for part in parts]
    demand(said == expected, f"S7: a scan from {start} to {until} finds {len(said)} parts of {len(parts)}")
    what = (seen.start, seen.end, seen.records, seen.frontier_us, seen.idle, seen.drained, dict(seen.meta))
    right = (start, end, passed, frontier, idle, drained, meta)
    demand(what == right, f"Form: a scan says {what}, and {right} is right")
    demand((seen.size, seen.rows) == (size, sum(part[2] for part in parts)), "Form: a scan counts otherwise")
    stopped = until is not None and end >= until
    demand(seen.at_end == (end == log_end and not stopped), f"Form: a scan that ends at {end} of {log_end}")
    demand(seen.group_id == group, "Form: whose records a scan has found")


def bytes_at(blobs: Blobs, place: tuple[str, int, int, int]) -> bytes:
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
    """S8: each reader notices a log that is damaged, cut off or gone."""
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
    fails("a damaged log", lambda: drive(scan(prefix, place, reads_max=None), blobs), CorruptState)
    if each["kind"] != Kind.ROLLED:
        blobs = MemoryAccount(storage).blobs()
        inside = (place[0], place[1] + 1)
        if place < inside < each["end"]:
            fails("half a record", lambda: drive(scan(prefix, place, until=inside), blobs), CorruptState)
        stranger = lambda: drive(scan(prefix, place, group_id=b"x" * 16), blobs)  # noqa: E731
        fails("another group's record", stranger, CorruptState)
        beyond = (found[-1]["index"], found[-1]["end"][1] + 7)
        fails("a place behind the end", lambda: drive(scan(prefix, beyond), blobs), CorruptState)
        gone = Reference("runs/gone", 0, 1, 0)
        fails("a large blob that is gone", lambda: drive(fetch(gone), blobs), StateLost)
        fails("a blob that is gone", lambda: drive(scan(prefix, (99, 1)), blobs), StateLost)


def fails(what: str, read: Callable[[], object], *errors: type[Exception]) -> None:
    try:
        read()
    except errors:
        return
    raise Violation(f"S8: {what} is read")
