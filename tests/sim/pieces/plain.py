"""The formats and some pure functions once more, as plainly as their descriptions, and with no code of production's.

They are slow, and used for nothing else: `alone` compares what production writes, reads and works out with these.
"""

import base64
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
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


def key_bytes(key: Sequence[Any]) -> bytes | None:
    """What is hashed of a key."""

    def text(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        return ({True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)).encode()

    if len(key) == 1:
        return None if key[0] is None else text(key[0])
    return b"".join(b"~" if each is None else str(len(text(each))).encode() + b":" + text(each) for each in key)
