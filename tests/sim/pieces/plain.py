"""The formats and some pure functions once more, as plainly as their descriptions, and with no code of production's.

They are slow, and used for nothing else: `alone` compares what production writes, reads and works out with these.
"""

import base64
import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any

NO_TIME = -(1 << 63)


class Cut:
    """Bytes from which fields are cut one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def bytes(self, length: int) -> bytes:
        """The next `length` bytes."""
        found = self.data[self.at : self.at + length]
        if len(found) != length:
            raise ValueError("cut short")
        self.at += length
        return found

    def number(self, length: int) -> int:
        """Little-endian, without a sign."""
        return int.from_bytes(self.bytes(length), "little")

    def time(self) -> int | None:
        """Microseconds; None is the least number that there is."""
        found = int.from_bytes(self.bytes(8), "little", signed=True)
        return None if found == NO_TIME else found


def record(data: bytes) -> dict[str, Any]:
    """What a record's bytes say. References are tuples (blob, offset, length, CRC)."""
    cut = Cut(data)
    magic, format_, kind, flags = cut.bytes(4), cut.number(2), cut.number(1), cut.number(1)
    size, length = cut.number(4), cut.number(8)
    said: dict[str, Any] = {"format": format_, "kind": kind, "idle": flags == 1, "size": size, "length": length}
    said["group_id"], said["writer"], said["number"] = cut.bytes(16), (cut.number(8), cut.number(4)), cut.number(4)
    said["batch"] = int.from_bytes(cut.bytes(8), "little", signed=True)
    said["frontier_us"], said["watermark_us"] = cut.time(), cut.time()
    packed_length, unpacked_length, packed_crc = cut.number(4), cut.number(8), cut.number(4)
    slices, text_length = cut.number(4), cut.number(4)
    index = [
        (
            cut.number(4),
            cut.number(4),
            cut.time(),
            cut.time(),
            cut.number(8),
            cut.number(8),
            cut.number(4),
            cut.number(4),
        )
        for _ in range(slices)
    ]
    text = json.loads(cut.bytes(text_length))
    sound = magic == b"SZAL" and zlib.crc32(data[: cut.at]) == cut.number(4) and cut.at == size and flags < 2
    packed = cut.bytes(packed_length)
    unpacked = Cut(zlib.decompress(packed) if packed else b"")
    sound = sound and zlib.crc32(packed) == packed_crc and len(unpacked.data) == unpacked_length
    files: dict[str, Any] = {}
    while unpacked.at < len(unpacked.data):
        name_length, content_length = unpacked.number(2), unpacked.number(4)
        path = unpacked.bytes(name_length).decode()
        files[path] = unpacked.bytes(content_length)
    first_raw, blobs = cut.at, text.get("blobs", [])
    said["raw"] = [path for path, (blob, *_) in text.get("files", {}).items() if blob == 0]
    for path, (blob, offset, part, crc) in text.get("files", {}).items():
        files[path] = (blobs[blob - 1], offset, part, crc) if blob else data[first_raw + offset :][:part]
        sound = sound and (blob > 0 or zlib.crc32(files[path]) == crc)
        cut.at += 0 if blob else part
    said["files"], said["slices"] = files, []
    for destination, rows, least, greatest, offset, part, crc, blob in index:
        inside = data[offset : offset + part]
        content = (blobs[blob - 1], offset, part, crc) if blob else inside
        sound = sound and (blob > 0 or (offset == cut.at and zlib.crc32(inside) == crc))
        cut.at += 0 if blob else part
        said["slices"].append((destination, rows, least, greatest, content))
    last = cut.number(8), cut.bytes(4), cut.bytes(4)
    if not sound or last != (length, data[size - 4 : size], b"LAZS") or cut.at != length:
        raise ValueError("it is not laid out as it should be")
    return said | {"task": text["task"], "meta": text.get("meta", {})}


def records(data: bytes) -> list[dict[str, Any]]:
    """Those of a blob, each with its place."""
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at + 12 : at + 20], "little")
        found.append({"at": at, **record(data[at : at + length])})
        at += length
    return found


def control(data: bytes) -> dict[str, Any]:
    """The fields of the control blob."""
    found: dict[str, Any] = json.loads(gzip.decompress(data))
    return found


def column_text(name: str, values: Mapping[str, Any]) -> str:
    """A text that may lie in several columns, and may be packed."""
    count = values[f"{name}_columns"]
    text = "".join(values[name if number == 0 else f"{name}_{number}"] for number in range(count))
    return zlib.decompress(base64.b64decode(text[2:])).decode() if text.startswith("z:") else text


def fits(text: str, columns: int, limit: int) -> bool:
    """Whether a text has room in this many columns, packed if it is too long for one."""
    if len(text) <= limit:
        return True
    packed = "z:" + base64.b64encode(zlib.compress(text.encode(), 1)).decode()
    return len(packed) <= columns * limit


def assign(
    tasks: Sequence[str],
    members: Collection[str],
    current: Mapping[str, str],
    *,
    balance: bool,
    given_up: Mapping[str, str],
) -> dict[str, str]:
    """The assignment, task by task."""
    if not members:
        return {}
    away = {task: member for task, member in given_up.items() if member in members}
    kept = {task: current[task] for task in tasks if current.get(task) in members} | {
        task: away[task] for task in tasks if task in away
    }
    if balance:
        size = {member: sum(owner == member for owner in kept.values()) for member in members}
        ranked = sorted(members, key=lambda member: (-size[member], member))
        for rank, member in enumerate(ranked):
            target = len(tasks) // len(members) + (rank < len(tasks) % len(members))
            own = [task for task in tasks if kept.get(task) == member]
            stages = {task.rsplit("-", 1)[0]: [] for task in own}
            for task in own:
                stages[task.rsplit("-", 1)[0]].append(task)
            rounds = [task for turn in zip_longest(*stages.values()) for task in turn if task is not None]
            for task in rounds[target:]:
                del kept[task]
    for task in tasks:
        if task not in kept:
            kept[task] = min(members, key=lambda member: (sum(o == member for o in kept.values()), member))
    if not away:
        return kept
    final = {task: owner for task, owner in kept.items() if task not in away}
    final |= {task: current[task] for task in away if current.get(task) in members and task in tasks}
    for task in tasks:
        if task not in final:
            others = [member for member in members if member != away[task]] or list(members)
            final[task] = min(others, key=lambda member: (sum(o == member for o in final.values()), member))
    return final


def bytes_between(begin: tuple[int, int], end: tuple[int, int], roll_bytes: int) -> int:
    """About how many bytes lie between: each blob that another one follows is `roll_bytes` long."""
    if end <= begin:
        return 0
    count = 0
    for blob in range(begin[0], end[0] + 1):
        first = begin[1] if blob == begin[0] else 0
        count += max((end[1] if blob == end[0] else roll_bytes) - first, 0)
    return count


def silent(looks: Iterable[tuple[float, str]], interval_s: float, timeout_s: float) -> bool:
    """Whether the last read shows a row that has been silent for the timeout. Reads are instants and ETags."""
    seen = list(looks)
    same = [at for number, (at, etag) in enumerate(seen) if all(each == seen[-1][1] for _, each in seen[number:])]
    gaps = [min(after - before, 2 * interval_s) for before, after in pairwise(same)]
    return len(gaps) >= 3 and sum(gaps) >= timeout_s


def key_bytes(key: Sequence[Any]) -> bytes | None:
    """What is hashed of a key."""

    def text(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        return ({True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)).encode()

    if len(key) == 1:
        return None if key[0] is None else text(key[0])
    return b"".join(b"~" if each is None else str(len(text(each))).encode() + b":" + text(each) for each in key)


def zip_of(parts: Mapping[str, int], logs: Mapping[str, int], *, broken: bool) -> bytes:
    """A snapshot of RocksDB: a zip that names files and their sizes."""
    named: dict[str, Any] = {"sstFiles": [{"dfsSstFileName": name, "sizeBytes": size} for name, size in parts.items()]}
    if logs:
        named["logFiles"] = [{"dfsLogFileName": name, "sizeBytes": size} for name, size in logs.items()]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps(named))
    return file.getvalue()[: 40 if broken else None]


def needed(files: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Which files of a checkpoint a restart after `batch` needs: asked of each file by itself."""

    def parts_of(path: str) -> dict[str, int]:
        content = files[path]
        if not isinstance(content, bytes):
            return {}
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                named = json.loads(archive.read("metadata").split(b"\n", 1)[1])
        except (zipfile.BadZipFile, KeyError, ValueError):
            return {}
        store = path.rpartition("/")[0]
        found = {f"{store}/SSTs/{each['dfsSstFileName']}": each["sizeBytes"] for each in named["sstFiles"]}
        return found | {
            f"{store}/logs/{each['dfsLogFileName']}": each["sizeBytes"] for each in named.get("logFiles", ())
        }

    def size(path: str) -> int:
        content = files[path]
        return len(content) if isinstance(content, bytes) else content.length

    def store_and_version(path: str) -> tuple[str, int, str] | None:
        store, _, leaf = path.rpartition("/")
        stem, _, kind = leaf.partition(".")
        if path.startswith("state/") and stem.isdecimal() and kind in ("snapshot", "zip", "delta", "changelog"):
            return store, int(stem), kind
        return None

    versioned = {path: found for path in files if (found := store_and_version(path)) is not None}
    zips = {path: parts_of(path) for path, (_, _, kind) in versioned.items() if kind == "zip"}

    def newest(store: str) -> int:
        whole = [
            version
            for path, (other, version, kind) in versioned.items()
            if other == store and kind in ("snapshot", "zip") and version <= batch + 1
            if all(part in files and size(part) == length for part, length in zips.get(path, {}).items())
        ]
        return max(whole, default=0)

    def is_unknown(path: str) -> bool:
        store, version, _ = versioned[path]
        return version >= newest(store) and not isinstance(files[path], bytes)

    def is_outdated(path: str) -> bool:
        if any(is_unknown(each) for each in zips):
            return False
        old = [
            each for each, parts in zips.items() if path in parts and versioned[each][1] < newest(versioned[each][0])
        ]
        return bool(old) and sum(path in parts for parts in zips.values()) == len(old)

    def is_needed(path: str) -> bool:
        first, _, rest = path.partition("/")
        if first == "commits" or is_outdated(path):
            return False
        if first == "offsets":
            return rest in (str(batch), str(batch - 1))
        if path in versioned:
            store, version, kind = versioned[path]
            since = newest(store)
            return version == since if kind in ("snapshot", "zip") else since < version <= batch + 1
        if first == "sources":
            source, _, leaf = path.rpartition("/")
            compacted = [
                int(each.rpartition("/")[2].partition(".")[0])
                for each in files
                if each.rpartition("/")[0] == source and each.endswith(".compact")
            ]
            return int(leaf.partition(".")[0]) >= max(compacted, default=0)
        return True

    return {path: content for path, content in files.items() if is_needed(path)}
