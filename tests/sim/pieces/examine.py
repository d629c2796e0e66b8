"""What the fleet is made of, each piece by itself: what is written down, logs without a fleet, pure functions.

A fleet writes small records, short rows and few kinds of files, so a mistake in the rare ones would not be seen in it.
Here each seed draws them: what production writes is read by production and by `plain`, which shares no code with it;
what is damaged or foreign must be refused; what a pure function says is compared with what the plain one says.
"""

import datetime as dt
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from samza_azure.errors import CorruptState, TooOld
from samza_azure.group.age import observed
from samza_azure.group.assign import assign
from samza_azure.group.timing import BackOff
from samza_azure.logs.names import (
    run_of,
    source_partition,
    stage_and_number,
    stage_of,
    stream_and_partition,
    task_log,
    task_name,
)
from samza_azure.logs.partition import Key, key_bytes, partition_of
from samza_azure.logs.position import bytes_between
from samza_azure.logs.record import (
    PREFIX_LENGTH,
    TRAILER_LENGTH,
    Kind,
    Record,
    Reference,
    Slice,
    Writer,
    check_trailer,
    decode,
    decode_files,
    decode_header,
    encode,
    header_size,
    last_length,
)
from samza_azure.logs.restart_files import is_lasting, needed, snapshot_parts, state_kind
from samza_azure.logs.retention import Keeps, Listed, LogBlob, past, pieces
from samza_azure.sim.ledger import Violation, demand

from . import plain
from .acting import check_actions
from .decisions import check_decisions
from .event_time import check_event_time
from .learning import check_learning
from .performing import check_performing
from .producers import check_producers
from .rows import check_controls, check_notifications, check_requests, check_rows
from .streams import check_streams
from .task_logs import check_task_logs

#: As the description of the format says.
RAW_BYTES = 16 << 10


def examine(seed: int) -> None:
    """Each piece once, with the dice of this seed. Raises `Violation`."""
    for name, check in CHECKS.items():
        try:
            check(Random(f"alone {name} {seed}"))
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"Form: {name} alone, seed {seed}: {type(error).__name__}: {error}") from error


def refused(what: str, read: Callable[[], object], error: type[Exception] = CorruptState) -> None:
    """This must not be read."""
    try:
        read()
    except error:
        return
    raise Violation(f"Form: {what} is read")


# Records.


def drawn_reference(dice: Random) -> Reference:
    """To somewhere else."""
    name = f"runs/r/large/clean-0/{dice.randrange(3):08d}/x"
    return Reference(name, dice.randrange(1 << 40), dice.randrange(1 << 30), dice.getrandbits(32))


def drawn_record(dice: Random) -> Record:
    """Any record that production could be asked to write."""

    def moment() -> int | None:
        return dice.choice([None, 0, -1, dice.randrange(-(1 << 62), 1 << 62)])

    def content(path: str) -> bytes | Reference:
        if dice.random() < 0.2:
            return drawn_reference(dice)
        large = [RAW_BYTES - 1, RAW_BYTES, RAW_BYTES + 1] if dice.random() < 0.3 else [0, 1, 70, 300]
        return dice.randbytes(dice.choice(large))

    paths = ["metadata", "offsets/7", "state/0/0/8.delta", "state/0/0/7.zip", "state/0/0/SSTs/ü.sst", "sources/0/1"]
    slices = [
        Slice(
            dice.randrange(1 << 32),
            drawn_reference(dice) if dice.random() < 0.3 else dice.randbytes(dice.choice([0, 1, 50])),
            dice.randrange(1 << 32),
            moment(),
            moment(),
        )
        for _ in range(dice.choice([0, 0, 1, 2, 5]))
    ]
    return Record(
        dice.choice(list(Kind)),
        dice.randbytes(16),
        dice.choice(["clean-0", "é-1", ""]),
        Writer(dice.randrange(1 << 60), dice.randrange(1 << 32)),
        dice.randrange(-1, 1 << 60),
        dice.randrange(50_000),
        moment(),
        dice.random() < 0.5,
        moment(),
        tuple(slices),
        {path: content(path) for path in dice.sample(paths, dice.choice([0, 1, 2, 6]))},
        dice.choice([{}, {"needs": {"a": 1}}, {"x": [1, None, "é"]}]),
    )


def _plainly(content: Any) -> Any:
    return (content.blob, content.offset, content.length, content.crc) if isinstance(content, Reference) else content


def check_records(dice: Random) -> None:
    """Form: a record is read as it was written, at any place; no byte of it can change, none can be missing."""
    written, at = drawn_record(dice), dice.choice([0, dice.randrange(1 << 30)])
    data = encode(written)
    said = plain.record(data)
    raw = {
        path
        for path, content in written.files.items()
        if not isinstance(content, Reference) and len(content) >= RAW_BYTES and not path.endswith(".zip")
    }
    wanted: dict[str, Any] = {name: getattr(written, name) for name in ("group_id", "task", "batch", "number", "idle")}
    wanted |= {name: getattr(written, name) for name in ("frontier_us", "watermark_us", "meta")}
    wanted |= {
        "kind": int(written.kind),
        "format": 2 if raw else 1,
        "length": len(data),
        "writer": (written.writer.generation, written.writer.attempt),
        "files": {path: _plainly(content) for path, content in written.files.items()},
        "slices": [
            (part.destination, part.rows, part.least_us, part.greatest_us, _plainly(part.data))
            for part in written.slices
        ],
    }
    differs = [name for name, value in wanted.items() if said[name] != value]
    demand(not differs and set(said["raw"]) == raw, f"Form: {differs or 'raw'} of a record is not as it was meant")
    _check_reading(dice, written, data, said, at)
    demand(decode(data, blob="b", position=at) == written, "Form: a record is read otherwise than it was written")
    _check_damage(dice, data, said["size"])


def _check_reading(dice: Random, written: Record, data: bytes, said: dict[str, Any], at: int) -> None:
    """What readers of a part of it find."""
    size = said["size"]
    ahead = dice.choice([0, 1, len(data)])
    header = decode_header(data[: size + ahead], blob="b", position=at)
    demand((header.size, header.length) == (size, len(data)), "Form: the lengths of a record differ")
    demand(header_size(data[:PREFIX_LENGTH], blob="b", position=at) == size, "Form: the length of a header differs")
    demand(header.raw == set(said["raw"]), "Form: other files are raw")
    for path, place in header.references.items():
        is_raw = path in header.raw and place.blob == "b"
        found = data[place.offset - at :][: place.length] if is_raw else _plainly(place)
        demand(found == said["files"][path], f"Form: the place of {path} is wrong")
    small = decode_files(data[size : size + header.files_length], header, blob="b", position=at)
    inline = {path: each for path, each in said["files"].items() if path not in header.references}
    demand(small == inline, "Form: the small files of a record differ")
    for entry, (*_, content) in zip(header.entries, said["slices"], strict=True):
        if entry.blob is None:
            held = data[entry.offset :][: entry.length]
            demand(held == content and zlib.crc32(held) == entry.crc, "Form: the place of a slice is wrong")
        else:
            elsewhere = (entry.blob, entry.offset, entry.length, entry.crc)
            demand(elsewhere == content, "Form: the place of a slice is wrong")
    end = at + len(data)
    demand(last_length(data[-TRAILER_LENGTH:], blob="b", position=end) == len(data), "Form: not found from the end")
    check_trailer(data[-TRAILER_LENGTH:], header, blob="b", position=at)
    refused("a record that begins before its blob", lambda: last_length(data[-16:], blob="b", position=len(data) - 1))
    demand(written.writer < Writer(written.writer.generation + 1, 0), "Form: writers are not in order")


def _check_damage(dice: Random, data: bytes, size: int) -> None:
    """Form: every byte is covered, of the header as of the rest."""

    def sealed(changed: bytes) -> bytes:
        """With a header that has the right CRC."""
        return changed[: size - 4] + zlib.crc32(changed[: size - 4]).to_bytes(4, "little") + changed[size:]

    for place in (dice.randrange(size), dice.randrange(len(data)), len(data) - 1 - dice.randrange(TRAILER_LENGTH)):
        changed = bytearray(data)
        changed[place] ^= 1 << dice.randrange(8)
        refused("a damaged record", partial(decode, bytes(changed), blob="b", position=0))
        if place < size:
            refused("a damaged header", partial(decode_header, bytes(changed), blob="b", position=0))
    for length in (0, PREFIX_LENGTH - 1, PREFIX_LENGTH, size - 1, size, len(data) - 1, dice.randrange(len(data))):
        refused("a record that is cut short", partial(decode, data[:length], blob="b", position=0))
    later = sealed(data[:4] + (3).to_bytes(2, "little") + data[6:])
    refused("a later format", partial(decode_header, later, blob="b", position=0), TooOld)
    none = sealed(data[:4] + bytes(2) + data[6:])
    refused("the format 0", partial(decode_header, none, blob="b", position=0))
    for length in (len(data) + 1, size - 1, (100 << 20) + 1, len(data) + dice.randrange(1, 1000)):
        other = sealed(data[:12] + length.to_bytes(8, "little") + data[20:])
        refused("a record of another length", partial(decode_header, other, blob="b", position=0))
    trailer = data[-TRAILER_LENGTH:]
    for magic in (b"KAZS", b"MAZS"):
        refused("another end", partial(last_length, trailer[:-4] + magic, blob="b", position=1 << 40))
    for length in (PREFIX_LENGTH - 1, (100 << 20) + 1):
        other = length.to_bytes(8, "little") + trailer[8:]
        refused("such an end", partial(last_length, other, blob="b", position=1 << 40))
    for length in (PREFIX_LENGTH, 100 << 20):
        other = length.to_bytes(8, "little") + trailer[8:]
        demand(last_length(other, blob="b", position=1 << 40) == length, "Form: a possible length is refused")
    refused("the header of nothing", lambda: encode(replace(_EMPTY, group_id=bytes(dice.choice([15, 17])))), ValueError)


_EMPTY = Record(Kind.EPOCH, bytes(16), "clean-0", Writer(1, 1))


# Files of a checkpoint.


def check_files(dice: Random) -> None:
    """Plain: of a checkpoint's files those are kept that a restart needs."""
    files: dict[str, Any] = {}
    for _ in range(dice.choice([3, 12, 30])):
        version, store = dice.randrange(8), f"state/0/{dice.randrange(2)}{dice.choice(['', '/left'])}"
        sizes = {f"{dice.randrange(4)}.sst": dice.choice([3, 3, 4]) for _ in range(dice.randrange(3))}
        logs = {f"{dice.randrange(2)}.log": 3 for _ in range(dice.choice([0, 0, 1]))}
        path = dice.choice(
            [
                f"offsets/{version}",
                f"commits/{version}",
                f"{store}/{version}.delta",
                f"{store}/{version}.snapshot",
                f"{store}/{version}.changelog",
                f"{store}/{version}.zip",
                f"{store}/{version}.zip",
                f"{store}/SSTs/{dice.randrange(4)}.sst",
                f"{store}/SSTs/{dice.randrange(4)}.sst",
                f"{store}/logs/{dice.randrange(2)}.log",
                f"sources/{dice.randrange(2)}/{version}{dice.choice(['', '', '.compact'])}",
                "metadata",
                "samza/added-later",
            ]
        )
        content = dice.choice([b"123", b"123", b"1234", Reference("x", 0, 3, 0)])
        if path.endswith(".zip") and dice.random() < 0.8:
            content = plain.zip_of(sizes, logs, broken=dice.random() < 0.1)
            store = path.rpartition("/")[0]
            parts = {f"{store}/SSTs/{name}": size for name, size in sizes.items()}
            parts |= {f"{store}/logs/{name}": size for name, size in logs.items()}
            demand(snapshot_parts(path, content) in ({}, parts), "Plain: a snapshot is made of other files")
        files[path] = content
    batch = dice.randrange(-1, 8)
    kept = needed(files, batch)
    wanted = plain.needed(files, batch)
    demand(
        list(kept.items()) == list(wanted.items()), f"Plain: kept {sorted(kept)}, {sorted(wanted)} of {sorted(files)}"
    )
    for path in files:
        demand(is_lasting(path) == (path.rpartition(".")[2] in ("snapshot", "sst", "log")), f"Plain: {path} lasts")
    kinds = {"delta": "memory", "snapshot": "memory", "changelog": "rocksdb", "zip": "rocksdb"}
    first = next((path for path in files if path.startswith("state/") and path.rpartition(".")[2] in kinds), "")
    demand(state_kind(files) == kinds.get(first.rpartition(".")[2]), "Plain: whose state it is")


# Pure functions.


def check_retention(dice: Random) -> None:
    """Plain: which blobs of a log are past the retention of its stream."""
    kept = [
        LogBlob("log", index, dice.randrange(1, 4), float(dice.randrange(5)), ())
        for index in range(dice.randrange(3), dice.randrange(3, 9))
    ]
    keeps = Keeps(dice.choice([None, 1.0, 2.0]), dice.choice([None, 2, 4, 6]))
    read = dice.randrange(9)
    gone = 0
    for at, each in enumerate(kept):
        newer = sum(other.size for other in kept[at + 1 :])
        is_old = keeps.seconds is not None and each.age_s > keeps.seconds
        if gone == at and each.index < read and (is_old or (keeps.bytes is not None and newer >= keeps.bytes)):
            gone += 1
    found = past(kept, {"log": read}, keeps)
    _check_pieces(dice)
    demand(
        found == kept[:gone], f"Plain: {len(found)} blobs of {kept} are past {keeps}, and {gone} are; {read} is read"
    )


def _check_pieces(dice: Random) -> None:
    """Plain: which blobs of a listing are a log's; the large ones that a blob refers to go with it, behind it."""
    log, large = "runs/r/clean-0", "runs/r/large/clean-0"
    names = [f"{log}/{number:08d}" for number in range(3)]
    names += [f"{large}/{number:08d}/{leaf}" for number in (1, 2, 3) for leaf in ("a", "z")]
    strange = ["runs/r/clean-01/00000000", f"{log}/1", f"{log}/000000001", f"{log}/0000000x", f"{large}/00000001"]
    listed = [
        Listed(name, dice.randrange(9), float(dice.randrange(9)), 9.0)
        for name in dice.sample([*names, *strange], dice.randrange(len(names)))
    ]
    wanted = []
    for index in range(4):
        own = [each for each in listed if each.name == f"{log}/{index:08d}"]
        beside = sorted(
            (each for each in listed if each.name.startswith(f"{large}/{index:08d}/")), key=lambda each: each.name
        )
        of = own + beside
        if of:
            least = min(each.age_s for each in of)
            wanted.append(LogBlob(log, index, sum(each.size for each in of), least, tuple(each.name for each in of)))
    demand(pieces(log, listed) == wanted, f"Plain: the blobs of a log among {listed}")
    run, stage, number = dice.choice(["r1", "2024-x"]), dice.choice(["clean", "a-b"]), dice.randrange(12)
    task = task_name(stage, number)
    demand(stage_and_number(task) == (stage, number) and stage_of(task) == stage, f"Plain: the parts of {task}")
    demand(run_of(task_log(run, task)) == run, f"Plain: the run of {task_log(run, task)}")
    demand(stream_and_partition(source_partition("flights", number)) == ("flights", number), "Plain: a partition")


def check_assignment(dice: Random) -> None:
    """Plain: the assignment."""
    members = [f"p{number}" for number in range(dice.choice([0, 1, 2, 3, 5]))]
    tasks = [f"{stage}-{number}" for stage in "ts" for number in range(dice.randrange(9))]
    everybody = [*members, "gone"]
    current = {task: dice.choice(everybody) for task in tasks if dice.random() < 0.8}
    given_up = {task: dice.choice(everybody) for task in tasks if dice.random() < dice.choice([0.0, 0.0, 0.2])}
    asked = dice.sample(members, len(members))
    balance = dice.random() < 0.7
    found = assign(tasks, asked, current, balance=balance, given_up=given_up)
    wanted = plain.assign(tasks, members, current, balance=balance, given_up=given_up)
    demand(found == wanted, f"Plain: {members} get {found}, and {wanted} is right, after {current}, {given_up}")


def check_numbers(dice: Random) -> None:
    """Plain: distances in logs, partitions of keys, ages of rows, waits after failures."""
    begin, end = ((dice.randrange(4), dice.randrange(12)) for _ in range(2))
    roll = dice.choice([5, 10])
    wanted = plain.bytes_between(begin, end, roll)
    demand(bytes_between(begin, end, roll) == wanted, f"Plain: bytes between {begin} and {end}")
    values: list[Key] = ["", "é", "1:a", 7, -7, True, False, b"\x00", None, dt.date(2013, 1, 31)]
    refused(
        "a key of floats",
        lambda: partition_of([dice.choice([1.5, dt.datetime(2013, 1, 31, tzinfo=dt.UTC)])], 3),
        TypeError,
    )
    key = [dice.choice(values) for _ in range(dice.choice([1, 1, 2, 3]))]
    data, count = plain.key_bytes(key), dice.randrange(1, 9)
    demand(key_bytes(key) == data, f"Plain: the bytes of {key}")
    wanted = 0 if data is None else zlib.crc32(data) % count
    demand(partition_of(key, count) == wanted, f"Plain: the partition of {key}")
    age, looks, now, interval = None, [], 0.0, dice.choice([1.0, 2.0])
    for _ in range(dice.randrange(1, 8)):
        now += dice.choice([0.0, 0.5, 1.0, 2.0, 2.5, 5.0])
        etag = dice.choice(["a", "a", "a", "b"])
        looks.append((now, etag))
        age = observed(age, etag, now, interval)
    for timeout in (0.0, 1.0, 2.0, 3.0, 4.0, 6.0):
        said = age is not None and age.silent(timeout)
        demand(said == plain.silent(looks, interval, timeout), f"Plain: silent for {timeout} s after {looks}")
    first, most, failures = dice.choice([0.25, 1.0]), dice.choice([0.25, 1.0, 4.0, 300.0]), dice.randrange(1, 2000)
    usual, luck = min(first * 2.0 ** min(failures - 1, 40), most), dice.random()
    waits = BackOff(first, most).after(failures, luck)
    demand(0.75 * usual <= waits <= 1.25 * usual, f"Plain: a wait of {waits} s after {failures} failures")
    demand(BackOff(first, most).after(failures, 0.0) == 0.75 * usual, "Plain: the shortest wait")


CHECKS: dict[str, Callable[[Random], None]] = {
    "records": check_records,
    "files": check_files,
    "assignment": check_assignment,
    "retention": check_retention,
    "numbers": check_numbers,
    "rows": check_rows,
    "requests": check_requests,
    "controls": check_controls,
    "notifications": check_notifications,
    "decisions": check_decisions,
    "actions": check_actions,
    "learning": check_learning,
    "event time": check_event_time,
    "streams": check_streams,
    "producers": check_producers,
    "task logs": check_task_logs,
    "calls": check_performing,
}
