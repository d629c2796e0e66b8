"""The record format: what goes in comes out, version 1 stays version 1, damage is noticed.

The golden files were written by `encode(GOLDEN)`. A changed format needs a new number and a new file beside the old
ones, which stay; to make it: `python -c "from tests.logs.test_record import *; FILE.write_bytes(encode(GOLDEN))"`.
"""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_azure.errors import CorruptState, TooOld
from samza_azure.logs.record import (
    FORMAT,
    LENGTH_MAX,
    PREFIX_LENGTH,
    RAW_BYTES,
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

FILE = Path(__file__).parent / "golden" / "record-v1.bin"
FILE_2 = FILE.with_name("record-v2.bin")

GOLDEN = Record(
    Kind.BATCH,
    bytes(range(16)),
    "clean-0",
    Writer(7, 2),
    batch=41,
    number=43,
    frontier_us=1_357_034_400_000_000,
    idle=True,
    watermark_us=-1,
    slices=(
        Slice(0, b"rows for nobody in particular", 3, 1_357_034_400_000_000, 1_357_038_000_000_000),
        Slice(3, Reference("runs/r/large/clean-0/00000000/7.2-41-batch-5-00000001", 2, 3, 4_000_000_000), 1),
        Slice(4_000_000_000, b"", 0),
    ),
    files={
        "metadata": b'{"id":"x"}',
        "offsets/41": b"v1\n",
        "state/0/0/42.delta": bytes(range(256)),
        "state/0/0/42.snapshot": Reference("runs/r/large/clean-0/00000000/7.2-41-batch-5-00000001", 0, 2, 5),
        "empty": b"",
    },
    meta={"stream": "by-carrier", "partitions": 4, "über": None},
)

int64 = st.integers(-(1 << 63) + 1, (1 << 63) - 1)
uint64 = st.integers(0, (1 << 64) - 1)
uint32 = st.integers(0, (1 << 32) - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
references = st.builds(Reference, text, uint64, uint64, uint32)
contents = st.binary(max_size=200) | references
slices = st.builds(Slice, uint32, contents, uint32, st.none() | int64, st.none() | int64)
meta = st.dictionaries(text, st.none() | st.booleans() | st.integers() | text | st.lists(text), max_size=5)
records = st.builds(
    Record,
    st.sampled_from(Kind),
    st.binary(min_size=16, max_size=16),
    text,
    st.builds(Writer, uint64, uint32),
    batch=int64,
    number=uint32,
    frontier_us=st.none() | int64,
    idle=st.booleans(),
    watermark_us=st.none() | int64,
    slices=st.lists(slices, max_size=5).map(tuple),
    files=st.dictionaries(text, contents, max_size=5),
    meta=meta,
)


def decoded(data: bytes) -> Record:
    return decode(data, blob="log", position=100)


@given(records)
def test_an_encoded_record_is_decoded_unchanged(record: Record) -> None:
    assert decoded(encode(record)) == record


@given(records, st.binary(max_size=50))
def test_bytes_after_a_record_do_not_affect_it(record: Record, more: bytes) -> None:
    assert decoded(encode(record) + more) == record


@given(records)
def test_each_part_is_found_through_the_header_alone(record: Record) -> None:
    data = encode(record)
    size = header_size(data[:PREFIX_LENGTH], blob="log", position=0)
    header = decode_header(data[:size], blob="log", position=0)
    files = decode_files(data[size : size + header.files_length], header, blob="log", position=0)
    rows = [data[entry.offset : entry.offset + entry.length] for entry in header.entries if entry.blob is None]

    assert (header.length, header.size) == (len(data), size)
    assert {**files, **header.references} == record.files
    assert rows == [part.data for part in record.slices if isinstance(part.data, bytes)]


@given(records)
def test_the_last_record_is_found_from_the_end(record: Record) -> None:
    data = encode(record)
    header = decode_header(data, blob="log", position=0)

    assert last_length(data[-TRAILER_LENGTH:], blob="log", position=len(data)) == len(data)
    check_trailer(data[-TRAILER_LENGTH:], header, blob="log", position=0)


def test_each_format_has_a_golden_file() -> None:
    assert all(FILE.with_name(f"record-v{number}.bin").exists() for number in range(1, FORMAT + 1))


def test_version_1_is_read_unchanged() -> None:
    assert decoded(FILE.read_bytes()) == GOLDEN


def test_version_1_is_written_unchanged() -> None:
    # The files part is compressed, and zlib may improve: it is compared by content, all else byte by byte.
    now, then = encode(GOLDEN), FILE.read_bytes()
    here, there = (decode_header(data, blob="log", position=0) for data in (now, then))
    later = {"length": 0, "files_length": 0, "files_crc": 0, "crc": 0}

    assert now[: PREFIX_LENGTH - 8] == then[: PREFIX_LENGTH - 8]
    shift = here.files_length - there.files_length
    moved = tuple(replace(entry, offset=entry.offset + (shift if entry.blob is None else 0)) for entry in there.entries)
    assert replace(here, **later) == replace(there, entries=moved, **later)
    assert (
        now[here.size + here.files_length : -TRAILER_LENGTH] == then[there.size + there.files_length : -TRAILER_LENGTH]
    )


LARGE = {"state/0/0/42.delta": bytes(range(256)) * 64, "state/0/0/43.delta": memoryview(b"raw" * RAW_BYTES)}
ZIP = {"state/0/0/42.zip": bytes(RAW_BYTES)}


def test_large_files_are_stored_uncompressed_and_indexed_in_the_header() -> None:
    """So they can be read, and referred to, without the rest. What reads the log looks into zips: they are unpacked."""
    record = replace(GOLDEN, files={**GOLDEN.files, **LARGE, **ZIP})
    data = encode(record)
    header = decode_header(data, blob="log", position=1000)
    packed = data[header.size : header.size + header.files_length]

    assert header.raw == LARGE.keys()
    for path, content in LARGE.items():
        place = header.references[path]
        assert place == Reference("log", place.offset, len(content), zlib.crc32(content))
        assert data[place.offset - 1000 :][: place.length] == content
    assert decode_files(packed, header, blob="log", position=1000).items() >= ZIP.items()
    assert decoded(data) == record


def test_only_a_record_with_large_files_is_of_version_2() -> None:
    assert encode(GOLDEN)[4] == 1
    assert encode(replace(GOLDEN, files=ZIP))[4] == 1
    assert encode(replace(GOLDEN, files=LARGE))[4] == 2


def test_version_2_is_still_what_it_was() -> None:
    assert decoded(FILE_2.read_bytes()) == replace(GOLDEN, files={**GOLDEN.files, **LARGE})


@pytest.mark.parametrize("place", [-1, 0])
def test_damage_to_a_large_file_is_noticed(place: int) -> None:
    data = encode(replace(GOLDEN, files=LARGE, slices=()))
    header = decode_header(data, blob="log", position=0)
    file = header.references["state/0/0/42.delta"]
    damaged = bytearray(data)
    damaged[file.offset + place % file.length] ^= 1
    with pytest.raises(CorruptState, match="A slice or file is damaged"):
        decoded(bytes(damaged))


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_damage_to_any_byte_is_noticed(flip: int) -> None:
    intact = FILE.read_bytes()
    for place in range(len(intact)):
        damaged = bytearray(intact)
        damaged[place] ^= flip
        with pytest.raises(CorruptState, match=r"\(blob log, position [1-9]\d\d\)"):
            decoded(bytes(damaged))


def test_a_record_cut_short_anywhere_is_noticed() -> None:
    intact = FILE.read_bytes()
    for length in range(len(intact)):
        with pytest.raises(CorruptState, match="cut short"):
            decoded(intact[:length])


def test_a_later_format_is_said_to_be_one() -> None:
    later = bytearray(FILE.read_bytes())
    size = header_size(later, blob="log", position=100)
    later[4] = 3
    later[size - 4 : size] = zlib.crc32(later[: size - 4]).to_bytes(4, "little")
    with pytest.raises(TooOld, match=r"at 100 of log has format 3 .* knows 2. Start the later one") as raised:
        decoded(bytes(later))
    assert (raised.value.needs, raised.value.knows) == (3, 2)


def test_a_record_has_the_lowest_format_that_will_do() -> None:
    assert encode(GOLDEN)[4] == 1
    assert encode(replace(GOLDEN, files={"state/0/0/1.sst": bytes(RAW_BYTES)}))[4] == 2


def test_names_that_a_later_release_has_added_to_the_text_are_ignored() -> None:
    record = replace(GOLDEN, slices=(), files={})
    data, more = encode(record), b',"since_then":[1]}'
    size, length = (int.from_bytes(data[at : at + width], "little") for at, width in ((8, 4), (12, 8)))
    text_length = int.from_bytes(data[PREFIX_LENGTH + 76 : PREFIX_LENGTH + 80], "little")
    assert size == PREFIX_LENGTH + 80 + text_length + 4
    added = len(more) - 1
    head = (
        data[:8]
        + (size + added).to_bytes(4, "little")
        + (length + added).to_bytes(8, "little")
        + data[20 : PREFIX_LENGTH + 76]
        + (text_length + added).to_bytes(4, "little")
        + data[PREFIX_LENGTH + 80 : size - 5]
        + more
    )
    crc = zlib.crc32(head).to_bytes(4, "little")
    later = head + crc + data[size:-TRAILER_LENGTH] + (length + added).to_bytes(8, "little") + crc + b"LAZS"
    assert decoded(later) == record


def resealed(data: bytes, text: bytes | None = None, **changes: bytes) -> bytes:
    """A record whose header says something else, under the right checksum: as a stranger could write it."""
    size = int.from_bytes(data[8:12], "little")
    text_length = int.from_bytes(data[PREFIX_LENGTH + 76 : PREFIX_LENGTH + 80], "little")
    places = {"length": (12, 20), "files_length": (PREFIX_LENGTH + 56, PREFIX_LENGTH + 60)}
    head = bytearray(data[: size - 4])
    if text is not None:
        head[size - 4 - text_length :] = text.ljust(text_length)  # JSON may end in spaces
    for name, value in changes.items():
        begin, end = places[name]
        head[begin:end] = value
    return bytes(head) + zlib.crc32(head).to_bytes(4, "little") + data[size:]


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b'{"task":7}',
        b"[]",
        b"7",
        b'{"task":"t","blobs":[1]}',
        b'{"task":"t","files":{"f":[]}}',
        b'{"task":"t","meta":1}',
    ],
)
def test_a_header_that_lacks_a_field_or_has_another_kind_of_it_is_refused(text: bytes) -> None:
    data = encode(replace(GOLDEN, slices=()))
    assert decode_header(resealed(data, b'{"task":"t"}'), blob="log", position=100).task == "t"
    with pytest.raises(CorruptState, match=r"header makes no sense .*\(blob log, position 100\)"):
        decode_header(resealed(data, text), blob="log", position=100)


def test_parts_that_do_not_follow_each_other_or_do_not_fill_the_record_are_refused() -> None:
    data = encode(replace(GOLDEN, slices=(Slice(0, b"rows", 1), Slice(1, b"more", 1))))
    length = int.from_bytes(data[12:20], "little")
    files = int.from_bytes(data[PREFIX_LENGTH + 56 : PREFIX_LENGTH + 60], "little")
    longer = resealed(data, length=(length + 1).to_bytes(8, "little"))
    with pytest.raises(CorruptState, match="parts do not add up to its length"):
        decode_header(longer, blob="log", position=100)
    nearer = resealed(data, files_length=(files - 1).to_bytes(4, "little"))
    with pytest.raises(CorruptState, match="parts do not follow each other"):
        decode_header(nearer, blob="log", position=100)


def test_a_record_that_no_append_can_take_is_refused() -> None:
    with pytest.raises(ValueError, match="one append takes at most"):
        encode(replace(GOLDEN, slices=(Slice(0, bytes(LENGTH_MAX), 1),)))


def test_a_group_id_has_sixteen_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes, not 3"):
        encode(replace(GOLDEN, group_id=b"abc"))


def test_writers_are_ordered_by_generation_then_attempt() -> None:
    assert sorted([Writer(2, 1), Writer(1, 9), Writer(2, 0)]) == [Writer(1, 9), Writer(2, 0), Writer(2, 1)]


def test_settings_in_offsets_are_compressed() -> None:
    settings = b'{"conf":{' + b",".join(b'"spark.sql.streaming.setting.%d":"true"' % n for n in range(40)) + b"}}"
    files: Mapping[str, Any] = {"offsets/41": settings}
    assert len(encode(replace(GOLDEN, files=files, slices=()))) < len(settings) / 2
