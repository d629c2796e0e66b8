"""What the fleet is made of, each piece by itself: what is written down, logs without a fleet, calls and their answers.

A fleet writes small records, short rows and few kinds of files, so a mistake in the rare ones would not be seen in it.
Here each seed draws them: what production writes is read by production and by `plain`, which shares no code with it;
what is damaged or foreign must be refused; a log must hold in the end what was reported to those who wrote it. No
decision is made a second time here: what users would miss is an invariant of the fleet.
"""

import datetime as dt
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from samza_azure.errors import CorruptState, TooOld
from samza_azure.logs.partition import Key, key_bytes, partition_of
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
from simulator.ledger import Violation, demand

from . import plain
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


# Keys.


def check_keys(dice: Random) -> None:
    """Form: the bytes of a key, and so its partition, are those that every release computes."""
    values: list[Key] = ["", "é", "1:a", 7, -7, True, False, b"\x00", None, dt.date(2013, 1, 31)]
    refused(
        "a key of floats",
        lambda: partition_of([dice.choice([1.5, dt.datetime(2013, 1, 31, tzinfo=dt.UTC)])], 3),
        TypeError,
    )
    key = [dice.choice(values) for _ in range(dice.choice([1, 1, 2, 3]))]
    data, count = plain.key_bytes(key), dice.randrange(1, 9)
    demand(key_bytes(key) == data, f"Form: the bytes of {key}")
    wanted = 0 if data is None else zlib.crc32(data) % count
    demand(partition_of(key, count) == wanted, f"Form: the partition of {key}")


CHECKS: dict[str, Callable[[Random], None]] = {
    "records": check_records,
    "keys": check_keys,
    "rows": check_rows,
    "requests": check_requests,
    "controls": check_controls,
    "notifications": check_notifications,
    "streams": check_streams,
    "producers": check_producers,
    "task logs": check_task_logs,
    "calls": check_performing,
}
