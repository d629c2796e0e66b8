"""Hostile contents in valid frames: what whoever may write blobs and rows can write, drawn from a seed.

Lengths and checksums are right, or nothing behind them would be reached. Each `play_…` draws one case, lets the code
read it, and judges: an error is a SamzaAzureError and says where; what is accepted has only what it may have.
"""

import base64
import copy
import functools
import gzip
import io
import json
import math
import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure import tables
from samza_azure.commands.export import AT_ONCE, KINDS, By, Target, export
from samza_azure.commands.kept_rows import KeptRows
from samza_azure.commands.recover import recover
from samza_azure.config import Config
from samza_azure.errors import ConfigError, CorruptState, SamzaAzureError, TooOld
from samza_azure.foreign import GZIP
from samza_azure.group import control as control_blob
from samza_azure.group.control import RunPhase
from samza_azure.group.rows import LEADER
from samza_azure.logs.names import blob_name, copy_name, task_log
from samza_azure.logs.record import _ENTRY, _FIXED, _PREFIX, Buffer, Kind, Record, Reference, Slice, Writer, header_size
from samza_azure.logs.record import decode as decode_record
from samza_azure.logs.record import encode as encode_record
from samza_azure.logs.source_log import NOBODY
from samza_azure.messages import DrainPhase, LastBatch, Machine, Progress, TaskError, TaskReport, Use
from samza_azure.pipeline.state import PROVIDERS
from samza_azure.segments import Granularity, LockOwner, LockTask
from samza_azure.storage.binding import Names, _half, _half_of, refuse_others
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Content
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.transactions import MemoryTransactions
from samza_azure.stream_io.arrow import UNPACKED_MAX
from samza_azure.stream_io.arrow import encode as encode_rows
from samza_azure.stream_io.log import LogReader, take_over
from samza_azure.stream_io.reader import Reader
from samza_azure.stream_io.values.json_lines import as_lines
from samza_azure.tables.store.segments import SegmentStore
from samza_azure.tasks.checkpoint import lay_out
from tests.group.situation import CONTROL, ROWS

GROUP = bytes(range(16))
PREFIX = task_log("run", "count-0")
BLOB = blob_name(PREFIX, 0)
OLD, NEW = Writer(3, 1), Writer(5, 1)

NAMES = (
    "",
    ".",
    "..",
    "../x",
    "../" * 30 + "{target}",
    "{target}",
    "a/../../x",
    "a\\..\\x",
    "a/b",
    "a\0b",
    "x" * 5_000,
    "\u202e\x1b[2J",
    "\u0661\u0662",
    "000008.sst/../../x",
    "file:///etc/passwd",
    "http://127.0.0.1/x",
    "metadata",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 63,
    1 << 64,
    10**30,
    1.5,
    math.inf,
    math.nan,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    {"": None},
    "java.lang.Runtime",
    *NAMES[:8],
)
DEEP = "[" * 200_000


class Wrong(AssertionError):
    """What must never happen has happened."""


@dataclass(frozen=True)
class Verdict:
    """How a case ended."""

    play: str
    is_accepted: bool
    said: str


def changed(value: Any, random: Random) -> Any:
    """A JSON value with one hostile change somewhere inside."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict | list):
            inside = list(each.items()) if isinstance(each, dict) else list(enumerate(each))
            places += [(each, key) for key, _ in inside]
            pending += [inner for _, inner in inside]
    if not places:
        return random.choice(VALUES)
    holder, key = random.choice(places)
    match random.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(NAMES)] = holder.pop(key)
        case 2 if isinstance(holder, list):
            holder += holder * 3
        case _:
            holder[key] = random.choice(VALUES)
    return value


def text_of(value: Any, random: Random) -> str:
    """The value as JSON, at times with two values of one name, too deep, or followed by something."""
    text = json.dumps(value)
    match random.randrange(12):
        case 0:
            return DEEP
        case 1 if text.startswith("{") and len(text) > 2:
            return text[:-1] + "," + text[1:]
        case 2:
            return text + random.choice(("x", "{}", "\0", "\n{}"))
        case 3:
            return text[: random.randrange(len(text) + 1)]
        case 4:
            return '{"a":' * 100_000
    return text


def flipped(data: bytes, random: Random, flips: int = 0) -> bytes:
    """The bytes with a few others in between."""
    found = bytearray(data)
    for _ in range(flips or random.choice((1, 2, 8))):
        if found:
            found[random.randrange(len(found))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return bytes(found)


@functools.cache
def zeros() -> bytes:
    """260 MiB of zeros, deflated."""
    packing = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    block = bytes(1 << 20)
    return b"".join([*(packing.compress(block) for _ in range(260)), packing.flush()])


@functools.cache
def _zeros_of_zlib() -> bytes:
    """104 MiB of zeros, packed."""
    packing = zlib.compressobj(1)
    return b"".join([*(packing.compress(bytes(1 << 20)) for _ in range(104)), packing.flush()])


# Restoring a checkpoint.


@functools.cache
def samples() -> Mapping[str, Mapping[str, bytes]]:
    """Checkpoints that Spark 4.3 has written, by name; the name ends with the last batch."""
    found: dict[str, dict[str, bytes]] = {}
    with zipfile.ZipFile(Path(__file__).with_name("checkpoints.zip")) as archive:
        for name in archive.namelist():
            sample, _, path = name.partition("/")
            found.setdefault(sample, {})[path] = archive.read(name)
    return found


def play_restore(random: Random, directory: Path) -> Verdict:
    """A task is restored from a log that holds a checkpoint of Spark's, changed."""
    name = random.choice(sorted(samples()))
    files: dict[str, Buffer | Reference] = dict(samples()[name])
    batch = int(name.rpartition("-")[2])
    kind = Kind.BATCH
    target = str(directory / "target.py")
    is_changed = random.random() < 0.95
    for _ in range(random.choice((1, 1, 1, 2, 3)) if is_changed else 0):
        path = random.choice(sorted(files))
        content = files[path]
        assert isinstance(content, bytes)
        match random.randrange(10):
            case 0:
                files[_at(random.choice(NAMES), target)] = content
            case 1:
                files[f"{path}{_at(random.choice(NAMES), target)}"] = files.pop(path)
            case 2:
                del files[path]
            case 3:
                files[path] = flipped(content, random)
            case 4:
                kind = random.choice((Kind.FRONTIER, Kind.EPOCH, Kind.ROLLED, Kind.SNAPSHOT, Kind.DRAINED))
            case 5:
                batch += random.choice((1, -1, 10**15, -(10**15)))
            case 6:
                blob = random.choice(("control.json", "streams/s/0/00000000", "runs/run/other-0/00000000", BLOB))
                files[path] = Reference(blob, 0, random.choice((1, 1 << 40)), 0)
            case 7:
                number = re.sub(r"\d+", lambda _: str(random.choice((0, 1, 7, 10**17))), path, count=1)
                files[number] = files.pop(path)
            case _:
                files[path] = _changed_file(path, content, random, target)
        if not files or not all(isinstance(each, bytes) for each in files.values()):
            break
    before = _everything(directory)
    own = directory / "task"
    try:
        restored = _restored(files, batch, kind)
        lay_out(
            own / "checkpoint",
            restored.files,
            restored.last_batch,
            restored.watermark_us,
            is_stateful=not name.startswith("handler"),
            places=restored.places,
        )
    except CorruptState as error:
        outcome = _named(error, PREFIX, "control.json")
    else:
        _judge_layout(own / "checkpoint", restored.last_batch, is_stateful=not name.startswith("handler"))
        outcome = ""
    if stray := [path for path in _everything(directory) - before if own not in (path, *path.parents)]:
        raise Wrong(f"a file outside of the task's directory: {stray}")
    if not is_changed and outcome:
        raise Wrong(f"an unchanged checkpoint is refused: {outcome}")
    return Verdict("restore", not outcome, outcome)


def play_wishes(random: Random, directory: Path) -> Verdict:
    """A low-level task is restored from a log that holds timers, and a wish to end, of anybody's."""
    good = {"timers": {"window": 1_764_000_000_000, "": -5}, "shutdown": False}
    text = text_of(changed(good, random), random).encode(errors="replace")
    wishes = flipped(text, random) if random.random() < 0.2 else text
    try:
        restored = _restored({**samples()["handler-0"], "handler": b"its own", "wishes": wishes}, 0, Kind.BATCH)
        lay_out(directory / "checkpoint", restored.files, 0, restored.watermark_us, places=restored.places)
    except CorruptState as error:
        return Verdict("wishes", False, _named(error, PREFIX))
    if stored := (directory / "checkpoint" / "wishes").read_bytes():
        found = json.loads(stored)
        types = {type(at) for at in found["timers"].values()}
        if found.keys() != good.keys() or type(found["shutdown"]) is not bool or types - {int}:
            raise Wrong(f"a handler is told that it has asked for {found}")
    return Verdict("wishes", True, "")


def _restored(files: Mapping[str, Buffer | Reference], batch: int, kind: Kind) -> Any:
    blobs = MemoryAccount().blobs()
    blobs.create(BLOB)
    last = batch if kind in (Kind.BATCH, Kind.DRAINED) else -1
    records = [Record(Kind.EPOCH, GROUP, "count-0", OLD), Record(kind, GROUP, "count-0", OLD, last, 1, files=files)]
    at = 0
    for record in records:
        data = encode_record(record)
        blobs.append(BLOB, data, at)
        at += len(data)
    return take_over(
        blobs, PREFIX, group_id=GROUP, task="count-0", writer=NEW, first=False, may_append=lambda: True, meta={}
    )[1]


def _changed_file(path: str, content: bytes, random: Random, target: str) -> bytes:
    if path.endswith(".zip"):
        return _changed_zip(content, random, target)
    if path.endswith("schema") or "_stateSchema" in path:
        return _changed_schema(content, random)
    lines = content.split(b"\n")
    number = random.randrange(len(lines))
    with suppress(ValueError):
        value = json.loads(lines[number])
        if isinstance(value, dict) and "conf" in value and random.random() < 0.5:
            setting = random.choice(sorted(value["conf"]))
            value["conf"][setting] = random.choice(("org.evil.Provider", "com.evil", "a/b", *VALUES[:4]))
        else:
            value = changed(value, random)
        lines[number] = _at(text_of(value, random), target).encode(errors="replace")
    return b"\n".join(lines)


def _changed_zip(content: bytes, random: Random, target: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(sorted(entries))
    choice = random.randrange(8)
    if choice == 0:
        entries[_at(random.choice(NAMES[1:]), target)] = entries[name]
    elif choice == 1:
        del entries[name]
    elif choice == 2:
        entries["CURRENT"] = random.choice((b"../../MANIFEST-000001\n", b"", b"MANIFEST-000001\n", b"/etc/passwd\n"))
    elif choice == 3:
        return _bomb(entries, random)
    elif choice == 4:
        return flipped(content, random)
    elif choice == 5:  # Java reads the local headers, Python the directory at the end
        old, new = b"MANIFEST-", random.choice((b"../../../", b"/tmp/evil"))
        return content.replace(old, new, 1)
    elif choice == 6 and "OPTIONS" in "".join(entries):
        options = next(each for each in entries if each.startswith("OPTIONS"))
        entries[options] = entries[options].replace(
            b"[DBOptions]", b"[DBOptions]\n  wal_dir=/tmp/evil\n  db_log_dir=/tmp/evil"
        )
    else:
        version, _, text = entries["metadata"].partition(b"\n")
        value = json.loads(text)
        if value["sstFiles"] and random.random() < 0.7:
            part = random.choice(value["sstFiles"])
            part[random.choice(sorted(part))] = random.choice((*NAMES, *VALUES))
        else:
            value = changed(value, random)
        entries["metadata"] = version + b"\n" + _at(text_of(value, random), target).encode(errors="replace")
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))) as archive:
        for entry, data in entries.items():
            archive.writestr(zipfile.ZipInfo(entry), data)
    return sink.getvalue()


def _bomb(entries: Mapping[str, bytes], random: Random) -> bytes:
    """A zip with 260 MiB in one entry, which it says, or not."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data)
    data = sink.getvalue()
    name = random.choice((b"metadata", b"MANIFEST-000001"))
    size = random.choice((260 << 20, 1_000))
    crc, packed = zlib.crc32(bytes(1 << 20)), zeros()
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 8, 0, 33, crc, len(packed), size, len(name), 0) + name
    at = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    directory = struct.pack(
        "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, 0, 8, 0, 33, crc, len(packed), size, len(name), 0, 0, 0, 0, 0, at
    )
    count = struct.unpack_from("<H", data, end + 10)[0] + 1
    central = data[at:end] + directory + name
    closing = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(central), at + len(local) + len(packed), 0)
    return data[:at] + local + packed + central + closing


def _changed_schema(content: bytes, random: Random) -> bytes:
    match random.randrange(4):
        case 0:
            return flipped(content, random)
        case 1:
            return content[: random.randrange(len(content))]
        case 2:  # Spark makes an object of the class
            old = random.choice((b'"timestamp"', b'"string"', b'"long"', b'"struct"'))
            udt = b'{"type":"udt","class":"org.evil.Type","sqlType":"long"}'
            if random.random() < 0.5:
                udt = udt.replace(b'"udt"', b'"\\u0075dt"')
            return _with_lengths(content.replace(old, udt, 1), len(udt) - len(old))
    return content + content


def _with_lengths(content: bytes, added: int) -> bytes:
    """Add to the length of each text of Java's that has grown; the first that is a JSON object."""
    at = content.index(b'{"')
    (length,) = struct.unpack_from(">H", content, at - 2)
    return content[: at - 2] + struct.pack(">H", min(max(length + added, 0), 65_535)) + content[at:]


def _at(text: str, target: str) -> str:
    return text.replace("{target}", target)


def _everything(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


def _judge_layout(checkpoint: Path, batch: int, *, is_stateful: bool) -> None:
    """What lies there is what Spark may read: written without a look at the code that has laid it out."""
    root = checkpoint.resolve()
    paths = [path for path in checkpoint.rglob("*") if path.is_file()]
    names = {str(path.relative_to(checkpoint)) for path in paths}
    for path in paths:
        if not path.resolve().is_relative_to(root) or path.is_symlink():
            raise Wrong(f"{path} leads outside")
        content = path.read_bytes()
        if path.suffix == ".zip":
            _judge_zip(path, content, names, checkpoint)
        if path.parent.name == "offsets":
            for value in json.loads(content.split(b"\n")[1]).get("conf", {}).values():
                if "." in value and value not in PROVIDERS.values():
                    raise Wrong(f"the class {value} in {path}")
        if "schema" in path.name or "_stateSchema" in str(path):
            plain = re.sub(rb"\\u00([0-9a-fA-F]{2})", lambda found: bytes([int(found[1], 16)]), content)
            if re.search(rb'"type"\s*:\s*"udt"', plain):
                raise Wrong(f"a class in {path}")
    if batch >= 0 and f"offsets/{batch}" not in names:
        raise Wrong("no plan of the last batch")
    if batch >= 0 and is_stateful:
        versions = {int(found[1]) for name in names if (found := re.fullmatch(r"state/0/0/(\d+)\.\w+", name))}
        snapshots = {int(found[1]) for name in names if (found := re.fullmatch(r"state/0/0/(\d+)\.zip", name))}
        since = max(snapshots, default=1)
        if batch + 1 not in versions or not set(range(since, batch + 2)) <= versions:
            raise Wrong(f"the state after batch {batch} is not there, of {sorted(versions)}")


def _judge_zip(path: Path, content: bytes, names: set[str], checkpoint: Path) -> None:
    """As Java's ZipInputStream reads it: one local header after the other."""
    at, entries = 0, {}
    while content[at : at + 4] == b"PK\3\4":
        method, packed, size, name_length, more = struct.unpack_from("<8xH8xIIHH", content, at)
        name = content[at + 30 : at + 30 + name_length].decode()
        start = at + 30 + name_length + more
        data = content[start : start + packed]
        entries[name] = zlib.decompress(data, -zlib.MAX_WBITS) if method else data
        if len(entries[name]) != size:
            raise Wrong(f"an entry of {path} has another size")
        at = start + packed
    if content[at : at + 4] != b"PK\1\2":
        raise Wrong(f"{path} is no zip")
    for name in entries:
        if not re.fullmatch(r"[A-Za-z0-9.-]+", name) or name.startswith(("OPTIONS", ".")):
            raise Wrong(f"{path} has an entry {name!r}")
    if not re.fullmatch(rb"MANIFEST-\d+\n", entries["CURRENT"]):
        raise Wrong(f"{path} names the manifest {entries['CURRENT']!r}")
    store = str(path.parent.relative_to(checkpoint))
    for part in json.loads(entries["metadata"].partition(b"\n")[2])["sstFiles"]:
        if not re.fullmatch(r"[0-9]+\.sst", part["localFileName"]):
            raise Wrong(f"{path} names a file {part['localFileName']!r}")
        here = checkpoint / store / "SSTs" / part["dfsSstFileName"]
        if f"{store}/SSTs/{part['dfsSstFileName']}" not in names or here.stat().st_size != part["sizeBytes"]:
            raise Wrong(f"{path} names {part['dfsSstFileName']!r}, which is not there")


def _named(error: CorruptState, *prefixes: str) -> str:
    """The error's text, which names a blob and a position."""
    text = str(error)
    if not error.blob or f"blob {error.blob}, position {error.position}" not in text:
        raise Wrong(f"an error without its place: {text}")
    if prefixes and not error.blob.startswith(prefixes):
        raise Wrong(f"an error with another place: {text}")
    if len(text) > 2_000:
        raise Wrong(f"an error of {len(text)} characters")
    return text


# Records.


def play_record(random: Random, directory: Path) -> Verdict:
    """A record with other numbers and texts in its header, read by whoever reads records."""
    del directory
    files = {"offsets/0": b"offset", "state/0/0/1.delta": b"d" * random.choice((10, 20_000))}
    slices = [Slice(number, bytes([number]) * 9, number + 1, 5, 7) for number in range(random.randrange(3))]
    meta = {
        "needs": {"runs/run/a-0": 1},
        "read": {"s/0": [0, 9]},
        "once": ["k", 3],
        "key": ["a"],
        "stood_at": {BLOB: [0, 1]},
    }
    record = Record(Kind.BATCH, GROUP, "count-0", OLD, 0, 1, 5, False, 5, slices, files, meta)  # type: ignore[arg-type]
    good = encode_record(record)
    data = _rewritten(good, random)
    outcome = ""
    try:
        found = decode_record(data, blob=BLOB, position=0)
    except (CorruptState, TooOld) as error:
        outcome = _named(error, BLOB) if isinstance(error, CorruptState) else str(error)
    else:
        if decode_record(encode_record(found), blob=BLOB, position=0) != found:
            raise Wrong(f"a record that is not what it says: {found}")
    blobs = MemoryAccount().blobs()
    blobs.create(BLOB)
    first = encode_record(Record(Kind.EPOCH, GROUP, "count-0", OLD))
    blobs.append(BLOB, first, 0)
    blobs.append(BLOB, data, len(first))
    reader = LogReader(blobs, PREFIX)
    plays: Sequence[Callable[[], object]] = (
        lambda: list(reader.fetch(reader.scan((0, 0)).parts)),
        reader.tail,
        lambda: reader.is_unchanged((0, len(first) + len(data))),
        lambda: dict(
            take_over(
                blobs, PREFIX, group_id=GROUP, task="count-0", writer=NEW, first=False, may_append=lambda: True, meta={}
            )[1].files
        ),
    )
    for play in plays:
        try:
            play()
        except CorruptState as error:
            outcome = outcome or _named(error)
        except TooOld as error:
            outcome = outcome or str(error)
    return Verdict("record", not outcome, outcome)


def _rewritten(data: bytes, random: Random) -> bytes:
    """The record with a changed header and changed files, and right lengths and checksums, mostly."""
    size = header_size(data, blob="", position=0)
    prefix = list(_PREFIX.unpack_from(data))
    fixed = list(_FIXED.unpack_from(data, _PREFIX.size))
    at = _PREFIX.size + _FIXED.size
    entries = [list(_ENTRY.unpack_from(data, at + number * _ENTRY.size)) for number in range(fixed[10])]
    text: Any = json.loads(data[size - 4 - fixed[11] : size - 4])
    packed, rest = data[size : size + fixed[7]], data[size + fixed[7] : -16]
    words = None
    match random.randrange(8):
        case 0 if entries:
            entry = random.choice(entries)
            entry[random.randrange(len(entry))] = random.choice((0, 1, 1 << 16, (1 << 31) - 1))
        case 1:
            fixed[random.choice((1, 2, 3, 4, 5, 6, 8))] = random.choice((0, 1, 99, (1 << 31) - 1))
        case 2:
            files = zlib.decompress(packed) if packed else b""
            files = random.choice((files + files, flipped(files, random), files[:-1], bytes(1 << 20), b"\xff" * 50))
            packed, fixed[8] = zlib.compress(files), random.choice((len(files), 1, 1 << 40))
        case 3:
            packed = random.choice((packed[:-1], packed + b"x", _zeros_of_zlib(), b"x"))
        case 4:
            prefix[2] = random.choice((0, 3, 7, 255))
        case 5:
            text.setdefault("meta", {})[random.choice(("needs", "read", "batch_bytes", "stood_at", "once", "key"))] = (
                random.choice(VALUES)
            )
        case _:
            text = changed(text, random)
            words = text_of(text, random).encode(errors="replace")
    words = json.dumps(text).encode() if words is None else words
    fixed[7], fixed[9], fixed[10], fixed[11] = len(packed), zlib.crc32(packed), len(entries), len(words)
    prefix[4] = _PREFIX.size + _FIXED.size + len(entries) * _ENTRY.size + len(words) + 4
    prefix[5] = prefix[4] + len(packed) + len(rest) + 16
    index = b"".join(_ENTRY.pack(*entry) for entry in entries)
    head = _PREFIX.pack(*prefix) + _FIXED.pack(*fixed) + index + words
    crc = zlib.crc32(head)
    return head + struct.pack("<I", crc) + packed + rest + struct.pack("<QI4s", prefix[5], crc, b"LAZS")


# Rows.


class Runs:
    """Unpickled, it leaves a trace."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self._path,)


def play_rows(random: Random, directory: Path) -> Verdict:
    """Rows of a source stream, by a producer that may write whatever it likes there."""
    count = random.choice((1, 3, 10))
    good = _table(random, count)
    trace = directory / "unpickled"
    data, rows, is_good = _stream(good, random, str(trace))
    blobs = MemoryAccount().blobs()
    blob = blob_name("streams/s/0", 0)
    blobs.create(blob)
    record = Record(Kind.BATCH, GROUP, "producer", NOBODY, 0, 0, slices=[Slice(0, data, rows)], meta={"stream": "s"})
    blobs.append(blob, encode_record(record), 0)
    outcome = ""
    try:
        for table in Reader(blobs, "s", until_now=True):
            for column in table.columns:
                column.validate()
            if is_good and table != good:
                raise Wrong("other rows than were written")
            _shown(table)
    except CorruptState as error:
        outcome = _named(error, blob)
        if is_good:
            raise Wrong(f"good rows are refused: {outcome}") from error
    if trace.exists():
        raise Wrong("a pickle was loaded")
    return Verdict("rows", not outcome, outcome)


def _shown(table: pa.Table) -> None:
    from samza_azure.commands.peek import shown

    text = shown(table)
    if any(not each.isprintable() and each != "\n" for each in text):
        raise Wrong(f"control characters on a terminal: {text!r:.200}")
    for line in text.splitlines():
        json.loads(line)


def _table(random: Random, count: int) -> pa.Table:
    texts = ["a", None, "ü\x1b[2J\x9b", "x" * 100]
    columns = {
        "n": pa.array([random.choice((None, 1, -(1 << 62))) for _ in range(count)], pa.int64()),
        "s": pa.array([random.choice(texts) for _ in range(count)], pa.string()),
        "b": pa.array([random.choice((None, b"\xff", b"")) for _ in range(count)], pa.binary()),
        "l": pa.array([random.choice((None, [], ["a", "b"])) for _ in range(count)], pa.list_(pa.string())),
        "m": pa.array([random.choice((None, [], [("k", 1)])) for _ in range(count)], pa.map_(pa.string(), pa.int64())),
        "t": pa.array([random.choice((None, 0, 1 << 50)) for _ in range(count)], pa.timestamp("us", "UTC")),
        "d": pa.array(["a"] * count).dictionary_encode(),
    }
    chosen = random.sample(sorted(columns), random.randrange(1, len(columns) + 1))
    return pa.table({name: columns[name] for name in chosen})


def _stream(good: pa.Table, random: Random, trace: str) -> tuple[bytes, int, bool]:
    """Bytes, the number of rows that their record says, and whether they are those that a producer writes."""
    count = good.num_rows
    match random.randrange(12):
        case 0:
            return encode_rows(good), count, True
        case 1:
            return encode_rows(good), random.choice((0, 1 << 31, count + 1)), False
        case 2:
            return flipped(encode_rows(good), random), count, False
        case 3 | 4 | 5:  # offsets and lengths, where nothing packs them
            return flipped(_unpacked(good), random, random.choice((1, 3, 30))), count, False
        case 6:
            data = encode_rows(pa.table({"z": pa.array([0] * 10_000, pa.int64())}))
            size = struct.pack("<q", 80_000)
            return data.replace(size, struct.pack("<q", random.choice((1 << 33, 1 << 45, -7, 79_999)))), 10_000, False
        case 7:
            folded = _folded(random)
            return _unpacked(folded), folded.num_rows, False
        case 8:
            kind: pa.DataType = pa.int64()
            for _ in range(random.choice((10, 60, 500))):
                kind = pa.list_(kind)
            with suppress(pa.ArrowException, RecursionError):
                return _unpacked(pa.table({"deep": pa.nulls(1, kind)})), 1, False
            return b"", 1, False
        case 9:
            field = pa.field(
                "p",
                pa.int64(),
                metadata={
                    "ARROW:extension:name": random.choice(("arrow.py_extension_type", "x")),
                    "ARROW:extension:metadata": pickle.dumps(Runs(trace)),
                },
            )
            rows = pa.table([pa.array([1], pa.int64())], schema=pa.schema([field], {b"pandas": DEEP.encode()}))
            return _unpacked(rows), 1, False
        case 10:
            data = encode_rows(good)
            return random.choice((b"", data[:-9], data + data, b"\xff" * 64, data[: len(data) // 2])), count, False
    return _unpacked(pa.table({"n": pa.nulls(1_000_000)})), 1_000_000, False


def _unpacked(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def _folded(random: Random) -> pa.Table:
    """A few bytes that are many rows."""
    count = 20_000
    text = "x" * 50_000
    match random.randrange(4):
        case 0:
            return pa.table({"d": pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([text]))})
        case 1:
            return pa.table({"r": pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array([text]))})
        case 2:
            one = pa.array([text], pa.string_view())
            views = one.buffers()[1].to_pybytes() * count
            column = pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(views), *one.buffers()[2:]])
            return pa.table({"v": column})
    inner = pa.array(list(range(10_000)), pa.int64())
    column = pa.ListViewArray.from_arrays(
        pa.array([0] * count, pa.int32()), pa.array([10_000] * count, pa.int32()), inner
    )
    return pa.table({"lv": column})


# Tables.


def play_table(random: Random, directory: Path) -> Verdict:
    """A table of which one row, or one file, is not what its writers write."""
    del directory
    rows, blobs = MemoryTransactions(), MemoryAccount().blobs()
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])

    def opened() -> SegmentStore:
        return SegmentStore(rows, blobs, "t", wait=lambda pause: None)

    store = opened()
    tables.create(store, schema, time="at", granularity=Granularity.DAY)
    writer = tables.Appender(store, LockTask("a", "a", 0, LockOwner("a", "1")))
    for number in range(2):
        writer.append(
            pa.table([pa.array([number * 86_400_000_000], schema.field(0).type), pa.array([number])], schema=schema)
        )
    keep = "runs/run/count-0/00000000"
    blobs.create(keep)
    key = random.choice(sorted(rows._rows))
    row = rows._rows[key]
    values = dict(row.values)
    match random.randrange(5):
        case 0:
            values.pop(random.choice(sorted(values)), None)
        case 1 | 2 if values:
            column = random.choice(sorted(values))
            value = random.choice((*VALUES, keep, DEEP, "1:", "a:b", "5-1", "0:9999999999"))
            values[column] = value
            if column == "file" and value == keep:
                blobs.append(keep, bytes(100), 0)
        case 3 if values:
            column = random.choice(sorted(values))
            with suppress(ValueError, TypeError):
                values[column] = text_of(changed(json.loads(str(values[column])), random), random)
        case _:
            name = random.choice([name for name, _ in blobs.list("tables/")])
            content = blobs.read(name, 0)
            data = flipped(content.data, random, random.choice((1, 5)))  # type: ignore[union-attr]
            blobs.delete(name)
            blobs.put(name, data)
            for other, each in rows._rows.items():
                if each.values.get("file") == name:
                    rows._rows[other] = replace(each, values={**each.values, "crc": zlib.crc32(data)})
            values = dict(rows._rows[key].values)
    rows._rows[key] = replace(row, values={name: value for name, value in values.items() if value is not None})
    outcome = ""
    plays: Sequence[Callable[[], object]] = (
        lambda: tables.snapshot_of(opened()).to_arrow(),
        lambda: tables.snapshot_of(opened()).files(filter=[("n", ">", 0)]),
        lambda: opened().positions(),
        lambda: [opened().collect(now, 1) for now in (10**15, 2 * 10**15)],
        lambda: tables.compact(opened(), LockTask("c", "c", 0, LockOwner("c", "1"))),
    )
    for play in plays:
        try:
            play()
        except CorruptState as error:
            outcome = outcome or _named(error)
        except ConfigError as error:
            outcome = outcome or str(error)
    if not [name for name, _ in blobs.list(keep) if name == keep]:
        raise Wrong(f"the row {key} has deleted a log")
    return Verdict("table", not outcome, outcome)


# The group, and all small texts.


def play_group(random: Random, directory: Path) -> Verdict:
    """A control blob, rows of processors, and requests; and what the commands and the page show of them."""
    del directory
    from samza_azure.commands.show import status_view
    from samza_azure.commands.terminal import console
    from samza_azure.group import rows as group_rows
    from samza_azure.group.timing import Timing
    from samza_azure.host.status import document
    from samza_azure.page.document import Lines, made

    outcome = ""
    control = CONTROL
    fields = json.loads(gzip.decompress(control_blob.encode(CONTROL)))
    packed = gzip.compress(text_of(changed(fields, random), random).encode(errors="replace"), mtime=0)
    packed = random.choice((packed, packed, packed, packed[:-3], packed + b"x", _bomb_of_lists(GZIP)))
    control_blob.decode.cache_clear()
    try:
        control = control_blob.decode(packed)
        control_blob.encode(control)
    except (CorruptState, TooOld) as error:
        outcome = _named(error) if isinstance(error, CorruptState) else str(error)
    members = []
    for row in ROWS.values():
        good = group_rows.columns(replace(row, tasks={name: _full(each) for name, each in row.tasks.items()}, **_MORE))
        columns: dict[str, Any] = dict(good)
        name = random.choice(sorted((*good, "format", "epoch")))
        columns[name] = random.choice((*VALUES, DEEP, "z:" + base64.b64encode(_bomb_of_lists(zlib.MAX_WBITS)).decode()))
        if random.random() < 0.5:
            name = random.choice(("tasks", "tasks", "machine", "released"))
            columns[name] = text_of(changed(json.loads(str(good[name])), random), random)
        members.append(group_rows.processor_row(row.processor, "e", columns))
    group_rows.leader_row("e", {"leader": random.choice(VALUES), "epoch": random.choice(VALUES)})
    asked = group_rows.request(random.choice(NAMES), "e", {"kind": "DRAIN", "uuid": random.choice(VALUES)})
    if asked.kind is not None and not asked.key:
        raise Wrong("a request without a key")
    ours = [row for row in members if row.is_ours]
    shown = document("app", control, ours)
    json.dumps(shown)
    json.dumps(made(shown, {}, Timing(), Lines(), 0))
    with io.StringIO() as out:
        console(out).print(status_view(shown))
        text = out.getvalue()
    if any(not each.isprintable() and each not in "\n\t" for each in text):
        raise Wrong(f"control characters on a terminal: {text!r:.300}")
    return Verdict("group", not outcome, outcome)


def play_last_day(random: Random, directory: Path) -> Verdict:
    """The record of the last day, and what the page shows of it."""
    del directory
    from samza_azure.group.rows import RECORD
    from samza_azure.host.last_day import FAILURES, MESSAGE_LIMIT, Failed, LastDay, decoded, encoded
    from samza_azure.page.day import day

    failed = Failed("t-0", "b", "vm-7", "1.2", "0a1b", "no disk", "Traceback", 5, 9, 3)
    good = encoded(LastDay(((7, 5, None, 2.5), (8, None, 1.0, 0.0)), (failed, failed)))
    text = text_of(changed(json.loads(str(good[RECORD])), random), random)
    columns = random.choice((good | {RECORD: text}, good | {random.choice(sorted(good)): random.choice(VALUES)}))
    found = decoded(columns, 10)
    if len(found.failures) > FAILURES or any(len(each.message) > MESSAGE_LIMIT for each in found.failures):
        raise Wrong(f"more than a record has: {found}")
    json.dumps(day(found), allow_nan=False)
    return Verdict("last_day", found != LastDay(), "" if found != LastDay() else "nothing of it makes sense")


#: What a row has besides only at times.
_MORE: Any = {
    "ending": "1 no disk",
    "too_old_for": 2,
    "no_container": True,
    "machine": Machine("vm-7", "1.2", "0a1b", Use(0.5, 1 << 30, 4 << 30, 1 << 20, 1 << 29)),
}


def _full(report: TaskReport) -> TaskReport:
    """The same with all that a report may have."""
    return replace(
        report,
        drain=DrainPhase.FLUSHING,
        ends={"flights/0": (0, 5)},
        frozen_for="drain",
        read={"flights/0": (0, 5)},
        error=TaskError("no disk", "Traceback"),
        appended_at=5.0,
        progress=Progress(1, 2, 3, 4, 5.0, 6.0, 7, {"flights": 8}, 9, 1.5, {"flights/0": 8}),
        last_batch=LastBatch(9, 5, {"triggerExecution": 7, "addBatch": 5}, late=1, state_rows=5, state_bytes=99),
        tried="2 of 6 tries have failed",
        failures=2,
        restarts=3,
        too_old_for=2,
    )


@functools.cache
def _bomb_of_lists(wbits: int) -> bytes:
    """A JSON text of 96 MiB that is a hundred million values."""
    packing = zlib.compressobj(6, wbits=wbits)
    block = b"[]," * (1 << 20)
    return b"".join(
        (
            packing.compress(b"["),
            *(packing.compress(block) for _ in range(32)),
            packing.compress(b"0]"),
            packing.flush(),
        )
    )


def play_texts(random: Random, directory: Path) -> Verdict:
    """Tokens, positions, locks and messages: short texts that programs of anybody's leave in the account."""
    del directory
    from samza_azure.group.notification import DrainNotification
    from samza_azure.library.drain_states import DrainMessage
    from samza_azure.library.lease_lock import _token
    from samza_azure.stream_io import token
    from samza_azure.stream_io.log import hint_position
    from samza_azure.stream_io.ranges import RangePosition
    from samza_azure.tables.sink import SinkPosition

    good = {
        "token": {"stream": "s", "at": {"streams/s/0": [0, 5]}, "ended": []},
        "sink": {"writer": [1, 2], "at": {"a": [0, 1]}, "until": None, "before_us": None, "drained": False},
        "file": {"number": 1, "at": {"a": [0, 1]}, "until": {"a": [0, 2]}},
        "lock": {"token": 5, "nonce": "n"},
        "drain": {"uuid": "u", "runId": "r", "drainMode": "DEFAULT"},
        "message": {"task-name": "t", "run-id": "r"},
    }
    kind = random.choice(sorted(good))
    text = text_of(changed(good[kind], random), random)
    outcome = ""
    try:
        match kind:
            case "token":
                packed = random.choice(
                    (zlib.compress(text.encode(errors="replace")), _bomb_of_lists(zlib.MAX_WBITS), b"x")
                )
                token.encode("s", token.decode(base64.urlsafe_b64encode(packed).decode().rstrip("="), "s"))
            case "sink":
                str(SinkPosition.parse(text, "stream"))
            case "file":
                bytes(RangePosition.parse(text.encode(errors="replace")))
            case "lock":
                _token(text.encode(errors="replace"), "locks/l")
            case "drain":
                DrainNotification.from_json(text)
            case _:
                DrainMessage.from_json(text)
    except CorruptState as error:
        outcome = _named(error)
    except (ConfigError, ValueError) as error:
        outcome = str(error)
    hint_position({"blob": random.choice(VALUES), "length": random.choice(VALUES)})
    return Verdict("texts", not outcome, outcome)


# Files of people.


def play_export(random: Random, directory: Path) -> Verdict:
    """A source and a stage's output, with rows by whoever may write there, are exported to a file or a folder."""
    blobs = MemoryAccount().blobs()
    good = random.choice((_table, _awkward))(random, random.choice((1, 3, 10)))
    is_source = random.random() < 0.5
    rows, is_good = 0, True
    for prefix in random.sample(("streams/s/0", "streams/s/1") if is_source else _OUTPUTS, 2):
        data, said, is_right = encode_rows(good), good.num_rows, True
        if random.random() < 0.3:
            data, said, is_right = _stream(good, random, str(directory / "unpickled"))
        writer, name = (NOBODY, "producer") if is_source else (OLD, prefix.rpartition("/")[2])
        blobs.create(blob_name(prefix, 0))
        begin = Record(Kind.EPOCH, GROUP, name, writer, meta={"stream": "s"})
        record = Record(Kind.BATCH, GROUP, name, writer, 0, 1, slices=[Slice(0, data, said)], meta={"stream": "s"})
        records = [record] if is_source else [begin, record]
        blobs.append(blob_name(prefix, 0), b"".join(map(encode_record, records)), 0)
        rows, is_good = rows + said, is_good and is_right
    by = random.choice((None, None, By.RUN, By.DAY))
    ending = random.choice((".parquet", ".csv", ".csv.gz", ".jsonl", ".json.gz")) if by is None else ""
    to = directory / f"rows{ending}"
    account: Any = _Exported(blobs)
    kind = KINDS.get(Path(to.name.removesuffix(".gz")).suffix, "parquet")
    target = Target(str(to), is_folder=by is not None, kind=kind, gz=to.name.endswith(".gz"))
    outcome = ""
    try:
        found = KeptRows(Reader(blobs, "s", until_now=True, table_bytes=AT_ONCE), None)
        count, _ = export(
            account, None, found, target, progress=lambda rows: None, by=by, time=random.choice(good.column_names)
        )
    except CorruptState as error:
        outcome = _named(error, "streams/s/", "runs/")
    except SamzaAzureError as error:
        outcome = str(error)
        if is_good and by is None and kind != "csv":
            raise Wrong(f"good rows are refused: {outcome}") from error
    else:
        _judge_export(to, count, rows, good if is_good else None)
    if outcome and to.exists():
        raise Wrong(f"{to.name} is there after {outcome}")
    if stray := [path for path in _everything(directory) if to not in (path, *path.parents)]:
        raise Wrong(f"files beside the target: {stray}")
    return Verdict("export", not outcome, outcome)


_OUTPUTS = ("runs/run/count-0", "runs/run/count-1", "runs/..../count-0", "runs/a=b%2F/count-0")


def _awkward(random: Random, count: int) -> pa.Table:
    """Rows that Spark can write, and that other formats and programs have no room for."""
    any_bytes = pa.array(
        [random.choice((None, b"\xff\xfe", b"\xed\xa0\x80", b'a\r\n"')) for _ in range(count)], pa.binary()
    )
    numbers = [random.choice((None, 0, -(1 << 62), (1 << 63) - 1)) for _ in range(count)]
    columns = [
        any_bytes.view(pa.string()),
        pa.array([random.choice((math.nan, -math.inf, -0.0)) for _ in range(count)]),
        pa.array(numbers, pa.timestamp("us", "UTC")),
        pa.array(numbers, pa.timestamp("us")),
        pa.array([random.choice((None, 0, -(1 << 31), (1 << 31) - 1)) for _ in range(count)], pa.date32()),
        pa.array(numbers, pa.decimal128(38, 6)),
        pa.array(numbers, pa.duration("us")),
        pa.array([{"end": each, "start": None} for each in numbers]),
        pa.array([[each] for each in any_bytes.to_pylist()], pa.list_(pa.binary())).view(pa.list_(pa.string())),
        pa.nulls(count),
    ]
    chosen = random.sample(columns, random.randrange(1, 4))
    names = ("a", "of_run", "on_day", "", "../x", "\u202e\x1b[2J", "a.b", "end")
    return pa.table(chosen, names=random.sample(names, len(chosen)))


@dataclass(frozen=True)
class _Exported:
    """The part of an account that an export to this machine uses."""

    kept: Any

    def blobs(self) -> Any:
        return self.kept


def _judge_export(to: Path, count: int, rows: int, good: pa.Table | None) -> None:
    if count != rows:
        raise Wrong(f"{count} rows of {rows}")
    found = 0
    for path in [to] if to.is_file() else [each for each in to.rglob("*") if each.is_file()]:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        name = path.name.removesuffix(".gz")
        if name.endswith(".parquet"):
            table = pq.read_table(io.BytesIO(content))
            found += table.num_rows
            if good is not None and to.is_file() and as_lines(table) != 2 * as_lines(good):
                raise Wrong("other rows than were written")
        elif name.endswith(".csv"):
            return  # a text may have any bytes, and lines
        else:
            lines = content.decode().split("\n")[:-1]
            found += len(lines)
            for line in lines:
                json.loads(line)
    if found != rows:
        raise Wrong(f"{found} rows in the files, of {rows}")


# What brings a job back.


def play_recover(random: Random, directory: Path) -> Verdict:
    """A group whose control blob is lost or damaged, with copies, rows and logs of which some say what they like."""
    (directory / "job.toml").write_text(_JOB)
    config = Config.load(directory / "job.toml")
    account = MemoryAccount()
    blobs = account.blobs()
    base = replace(CONTROL, phase=RunPhase.RUNNING, run_id="run", revision=7)
    fields = json.loads(gzip.decompress(control_blob.encode(base)))
    control_blob.decode.cache_clear()

    def hostile() -> bytes:
        packed = gzip.compress(text_of(changed(fields, random), random).encode(errors="replace"), mtime=0)
        raised = fields | {"revision": random.choice((8, 1 << 47, 1 << 63, 10**30, -1))}
        return random.choice(
            (packed, packed, packed, packed[:-3], gzip.compress(json.dumps(raised).encode()), _bomb_of_lists(GZIP))
        )

    for revision in random.sample((5, 6, 7), random.randrange(1, 4)):
        right = control_blob.encode(replace(base, revision=revision))
        blobs.put(copy_name(revision), right if random.random() < 0.7 else hostile())
    for name in (random.choice(NAMES), "9", f"{1 << 47:016d}"):
        if random.random() < 0.2:
            blobs.put(f"control/{name}", hostile())
    tasks = sorted(base.tasks)
    for task in tasks if random.random() < 0.7 else random.sample(tasks, random.randrange(len(tasks))):
        writer = Writer((1 << 63) - 1 if random.random() < 0.1 else random.choice((2, 3, 1 << 31)), 1)
        meta: Any = {"read": random.choice(({"flights/0": [0, 0]}, *VALUES)) if random.random() < 0.1 else {}}
        blob = blob_name(task_log("run", task), 0)
        blobs.create(blob)
        group = bytes.fromhex(base.group_id) if random.random() < 0.95 else GROUP
        blobs.append(blob, encode_record(Record(Kind.EPOCH, group, task, writer, meta=meta)), 0)
    if random.random() < 0.3:
        account.storage.control_create(hostile())
    if random.random() < 0.5:
        said = {"leader": random.choice(VALUES), "epoch": random.choice(VALUES), "version": random.choice(VALUES)}
        account.storage.upsert(LEADER, LEADER, {key: each for key, each in said.items() if _is_storable(each)})
    outcome = ""
    before = {name for name, _ in blobs.list("")}
    with redirect_stderr(io.StringIO()) as err, redirect_stdout(io.StringIO()):
        try:
            recover(config, cast(Account, account), yes=True)
        except CorruptState as error:
            outcome = _named(error)
        except (ConfigError, TooOld) as error:
            outcome = str(error)
    if not all(each.isprintable() or each == "\n" for each in err.getvalue() + outcome):
        raise Wrong(f"control characters on a terminal: {err.getvalue() + outcome!r:.300}")
    if gone := before - {name for name, _ in blobs.list("")} - {name for name, _ in blobs.list("control/")}:
        raise Wrong(f"it has deleted {gone}")
    if not outcome:
        control_blob.decode.cache_clear()
        answer = account.storage.control_read(None, None)
        if isinstance(answer, Content):
            written = control_blob.decode(answer.data)
            if max(written.revision, written.version, written.epoch) >= 1 << 62:
                raise Wrong(f"numbers without room to rise: {written.revision}, {written.epoch}")
    return Verdict("recover", not outcome, outcome)


_JOB = """
app = { name = "flights", main = "flights:none" }
azure.storage.connect = "UseDevelopmentStorage=true"
"""


def _is_storable(value: Any) -> bool:
    """Whether a row can hold it: a bool, a 64-bit integer, a number or a text."""
    return isinstance(value, bool | float | str) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)


def play_binding(random: Random, directory: Path) -> Verdict:
    """The blob and the row that say what a container and a table belong to, of which one says what it likes."""
    del directory
    names = Names("app/1", "app-1", "app1")
    own = {"format": 1, "application": "app/1", "id": "a" * 32}
    blob, row = own | {"table": "app1"}, own | {"container": "app-1"}
    outcome = ""
    try:
        if random.random() < 0.6:
            data = text_of(changed(blob, random), random).encode(errors="replace")[:4096]
            half = _half(flipped(data, random) if random.random() < 0.2 else data, "table", "e", "The blob")
            refuse_others(names, _half_of(row, "container", "e", "The row"), half)
        else:
            row[random.choice(sorted(row))] = random.choice(
                (*VALUES, "APP-1", "app2", "app/2", "/", "b" * 32, "a" * 32)
            )
            half = _half_of(row, "container", "e", "The row")
            refuse_others(names, half, _half_of(blob, "table", "e", "The blob"))
    except (ConfigError, TooOld) as error:
        outcome = str(error)
        if len(outcome) > 2_000 or not outcome.isprintable():
            raise Wrong(f"a message that fits on no terminal: {outcome!r:.300}") from error
    else:
        if half.id != own["id"] or half.other not in ("app1", "app-1", "APP1") or half.application not in ("", "app/1"):
            raise Wrong(f"they go together, although one says {half}")
    return Verdict("binding", not outcome, outcome)


PLAYS: tuple[tuple[Callable[[Random, Path], Verdict], int], ...] = (
    (play_restore, 5),
    (play_wishes, 1),
    (play_record, 3),
    (play_rows, 4),
    (play_table, 3),
    (play_group, 2),
    (play_last_day, 1),
    (play_texts, 2),
    (play_export, 2),
    (play_recover, 2),
    (play_binding, 1),
)


def play(seed: int, directory: Path, only: Callable[[Random, Path], Verdict] | None = None) -> Verdict:
    """The case of this seed, or the one of another play that it would be. Raise `Wrong`, or anything that is no
    SamzaAzureError.
    """
    random = Random(seed)
    chosen = random.choices([each for each, _ in PLAYS], [weight for _, weight in PLAYS])[0]
    return (only or chosen)(random, directory)


__all__ = ["PLAYS", "UNPACKED_MAX", "SamzaAzureError", "Verdict", "Wrong", "play"]
