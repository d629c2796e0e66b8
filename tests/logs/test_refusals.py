"""Records that none of the rules can have written are refused, with their position; one test for each message."""

import json
import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest

from samza_azure.errors import CorruptState
from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import CHUNK, Append, Create, Read, Sent, Span
from samza_azure.logs.reading import fetch_part, scan, tail, unchanged
from samza_azure.logs.record import (
    PREFIX_LENGTH,
    RAW_BYTES,
    TRAILER_LENGTH,
    Header,
    Kind,
    Record,
    Reference,
    Slice,
    Writer,
    decode_files,
    decode_header,
    encode,
    header_size,
    last_length,
)
from samza_azure.logs.restart_files import needed, state_kind
from samza_azure.logs.source_log import SharedLog
from samza_azure.logs.task_log import LogLimits, append, log_record, restored_files, send, set_aside, take_over
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.driver import drive, perform
from tests.logs.race import GROUP, PREFIX, batch_record, owner, stored

OLD, NEW = Writer(3, 1), Writer(5, 1)
BLOB = blob_name(PREFIX, 0)


def header(kind: Kind, number: int, batch: int = -1, writer: Writer = OLD) -> Header:
    record = Record(kind, GROUP, "clean-0", writer, batch, number)
    return decode_header(encode(record), blob=BLOB, position=0)


EPOCH = header(Kind.EPOCH, 0)


@pytest.mark.parametrize(
    ("before", "then", "why"),
    [
        ([EPOCH], header(Kind.BATCH, 5, 0), "This is record 5 of its blob, where 1 belongs"),
        ([], header(Kind.BATCH, 0, 0), "The blob does not begin with an EPOCH"),
        ([EPOCH], header(Kind.SNAPSHOT, 1), "A SNAPSHOT is the second record of each blob but the first one"),
        ([header(Kind.EPOCH, 0, writer=NEW)], header(Kind.EPOCH, 1), r"EPOCH of writer 3\.1 after writer 5\.1"),
        ([EPOCH], header(Kind.BATCH, 1, 0, NEW), r"A record of writer 5\.1 without its EPOCH, after writer 3\.1"),
        ([EPOCH, header(Kind.DRAINED, 1, 0)], header(Kind.BATCH, 2, 1), "A record after DRAINED"),
        ([EPOCH, header(Kind.BATCH, 1, 3)], header(Kind.BATCH, 2, 3), "Batch 3 after batch 3"),
        ([EPOCH, header(Kind.BATCH, 1, 3)], header(Kind.FRONTIER, 2, 2), "says batch 2 was the last one; it was 3"),
    ],
)
def test_a_record_that_cannot_come_here_is_refused(before: list[Header], then: Header, why: str) -> None:
    log = owner(OLD, 0).log
    for each in before:
        log.add(each, {})
    place = log.end[1]
    with pytest.raises(CorruptState, match=why) as refused:
        log.add(then, {})
    assert (refused.value.blob, refused.value.position) == (BLOB, place)


def test_a_drained_log_takes_nothing_more_from_its_owner() -> None:
    each, blobs = owner(OLD, 0), MemoryAccount().blobs()
    drive(each.life(first=True), blobs)
    drive(append(each.log, lambda: log_record(each.log, Kind.DRAINED, batch=0)), blobs)
    with pytest.raises(ValueError, match="clean-0 is drained, nothing can follow"):
        drive(append(each.log, lambda: batch_record(each.log, 1)), blobs)


def test_an_unsettled_append_is_settled_before_rows_are_set_aside() -> None:
    each, blobs = owner(OLD, 0), MemoryAccount().blobs()
    drive(each.life(first=True), blobs)
    lost = append(each.log, lambda: batch_record(each.log, 0))
    perform(next(lost), blobs)
    lost.send(Sent.UNKNOWN)
    drive(set_aside(each.log, 1, [Slice(0, b"rows", 1)]), blobs)
    assert (each.log.last_batch, each.log.unsettled, len(stored(blobs))) == (0, None, 2)


def test_a_log_that_became_shorter_is_corruption() -> None:
    rule = send(BLOB, b"bytes", 10)
    assert next(rule) == Append(BLOB, b"bytes", 10)
    assert rule.send(Sent.UNKNOWN) == Read(BLOB, 10, 5)
    with pytest.raises(CorruptState, match="The log is 4 bytes long and was longer"):
        rule.send(Span(b"", 4))


def test_large_files_that_lie_near_each_other_are_restored() -> None:
    each, blobs = owner(OLD, 0), MemoryAccount().blobs()
    drive(each.life(first=True), blobs)
    files = {f"state/0/{store}/1.delta": bytes([store]) * RAW_BYTES for store in (1, 2)}
    drive(append(each.log, lambda: log_record(each.log, Kind.BATCH, batch=0, files=files)), blobs)
    heir = owner(NEW, 0).log
    drive(take_over(heir, first=False, meta={}), blobs)
    assert drive(restored_files(heir), blobs) == files


def test_a_log_that_was_rolled_and_not_opened_again_ends_in_rolled() -> None:
    each, blobs = owner(OLD, 1, LogLimits(roll_records=2)), MemoryAccount().blobs()
    drive(each.life(first=True), blobs)
    rolling = append(each.log, lambda: batch_record(each.log, 1))
    operation = next(rolling)
    while not isinstance(operation, Create):  # of the next blob
        operation = rolling.send(perform(operation, blobs))
    found = drive(tail(PREFIX), blobs)
    assert found is not None
    assert (found.header.kind, found.end) == (Kind.ROLLED, (1, 0))


def test_the_tail_of_a_log_whose_newest_blob_has_no_record_is_in_the_one_before() -> None:
    each, blobs = owner(OLD, 8, LogLimits(roll_records=2)), MemoryAccount().blobs()
    drive(each.life(first=True), blobs)
    found = drive(tail(PREFIX), blobs)
    assert found is not None and found.end[0] >= 3
    blobs.create(blob_name(PREFIX, found.end[0] + 1))
    assert drive(tail(PREFIX), blobs) == found


def test_a_scan_counts_the_bytes_of_the_rows_that_it_has_found() -> None:
    each, blobs = owner(OLD, 2), MemoryAccount().blobs()
    drive(each.life(first=True), blobs)
    found = drive(scan(PREFIX, (0, 0)), blobs)
    assert (found.rows, found.size) == (2, sum(len(drive(fetch_part(part), blobs)) for part in found.parts))


def damaged(offset: int, layout: str, value: Any) -> bytes:
    """A record in whose header one field says something else, and whose CRC agrees with that."""
    data = bytearray(encode(Record(Kind.BATCH, GROUP, "clean-0", OLD, 0, 1, slices=(Slice(0, b"rows", 1),))))
    size = header_size(data, blob=BLOB, position=0)
    struct.pack_into(layout, data, offset, value)
    struct.pack_into("<I", data, size - 4, zlib.crc32(data[: size - 4]))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (damaged(6, "<B", 99), "makes no sense .99 is not a valid Kind"),
        (damaged(PREFIX_LENGTH + 76, "<I", 1), "makes no sense .its parts do not add up"),
        (damaged(12, "<Q", 400), "The record's parts do not add up to its length"),
    ],
)
def test_a_header_that_is_whole_and_makes_no_sense_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(CorruptState, match=why):
        decode_header(data, blob=BLOB, position=0)


def test_a_position_where_no_record_ends_is_corruption() -> None:
    with pytest.raises(CorruptState, match="No record ends here"):
        last_length(bytes(TRAILER_LENGTH), blob=BLOB, position=100)


def test_a_trailer_that_leads_to_another_record_is_noticed() -> None:
    blobs = MemoryAccount().blobs()
    first, second = (encode(Record(Kind.EPOCH, GROUP, "clean-0", OLD, -1, number)) for number in (0, 1))
    data = bytearray(first + second)
    struct.pack_into("<Q", data, len(data) - TRAILER_LENGTH, len(data))
    blobs.create(BLOB)
    blobs.append(BLOB, bytes(data), 0)
    with pytest.raises(CorruptState, match="The last record's lengths differ"):
        drive(tail(PREFIX), blobs)


def test_a_record_of_another_stream_is_refused_by_its_producer() -> None:
    log = SharedLog("streams/flights/0", "producer", GROUP, lambda: 0.0, group_id=b"another group id")
    with pytest.raises(CorruptState, match="belongs to another stream"):
        log.add(EPOCH)


@pytest.mark.parametrize(
    ("paths", "kind"),
    [
        (["metadata", "offsets/1"], None),
        (["metadata", "state/0/0/1.delta"], "memory"),
        (["state/0/0/1.zip"], "rocksdb"),
    ],
)
def test_files_say_what_keeps_the_state(paths: list[str], kind: str | None) -> None:
    assert state_kind(paths) == kind


def test_while_a_snapshot_is_too_large_to_be_at_hand_no_part_is_given_up() -> None:
    elsewhere = Reference("runs/r/large/clean-0/00000000/x", 0, 10, 0)
    files: dict[str, Any] = {
        "state/0/0/1.zip": json.dumps({}).encode(),
        "state/0/0/2.zip": elsewhere,
        "state/0/0/SSTs/of-the-first.sst": elsewhere,
    }
    assert list(needed(files, 1)) == ["state/0/0/2.zip", "state/0/0/SSTs/of-the-first.sst"]


def test_a_damaged_end_of_a_long_record_is_noticed_although_its_header_is_read_by_itself() -> None:
    blobs = MemoryAccount().blobs()
    data = bytearray(encode(Record(Kind.EPOCH, GROUP, "clean-0", OLD, -1, 0, files={"state": bytes(2 * CHUNK)})))
    data[-TRAILER_LENGTH + 8] ^= 1
    blobs.create(BLOB)
    blobs.append(BLOB, bytes(data), 0)
    with pytest.raises(CorruptState, match="The record's end is damaged"):
        drive(tail(PREFIX), blobs)


@pytest.mark.parametrize("kind", [Kind.EPOCH, Kind.FRONTIER, Kind.ROLLED])
@pytest.mark.parametrize("size", [1, RAW_BYTES])
def test_only_records_of_state_carry_files(kind: Kind, size: int) -> None:
    """Finding F1: a FRONTIER replaced the state of a task."""
    log = owner(OLD, 0).log
    if kind is not Kind.EPOCH:
        log.add(EPOCH, {})
    record = Record(kind, GROUP, "clean-0", OLD, -1, log.number, files={"state/0/0/1.delta": bytes(size)})
    with pytest.raises(CorruptState, match=f"A record of the kind {kind.name} carries no files"):
        log.add(decode_header(encode(record), blob=BLOB, position=0), {})


@pytest.mark.parametrize("name", ["control.json", "runs/r/clean-1/00000000", "runs/r/large/clean-1/00000000/x", ""])
def test_records_refer_to_no_blobs_of_others(name: str) -> None:
    """Otherwise a program that may write one log could have any other blob read as a part of it."""
    record = Record(Kind.BATCH, GROUP, "clean-0", OLD, 0, 1, slices=[Slice(0, Reference(name, 0, 4, 0), 1)])
    log, blobs = owner(OLD, 0).log, MemoryAccount().blobs()
    drive(take_over(log, first=True, meta={}), blobs)
    with pytest.raises(CorruptState, match="which is no blob of this log"):
        log.add(decode_header(encode(record), blob=BLOB, position=log.end[1]), {})
    blobs.append(BLOB, encode(record), log.end[1])
    with pytest.raises(CorruptState, match="which is no blob of this log"):
        drive(scan(PREFIX, (0, 0)), blobs)


def test_files_that_would_fill_the_memory_are_not_unpacked() -> None:
    data = encode(Record(Kind.BATCH, GROUP, "clean-0", OLD, 0, files={"offsets/0": b"x"}))
    good = decode_header(data, blob=BLOB, position=0)
    for packed, unpacked in ((zlib.compress(bytes(50 << 20)), 1000), (b"x", 5), (zlib.compress(b"x" * 6), 6)):
        header = replace(good, files_unpacked=unpacked, files_crc=zlib.crc32(packed))
        with pytest.raises(CorruptState, match=f"The record's files make no sense .*position {good.size}"):
            decode_files(packed, header, blob=BLOB, position=0)


def test_reports_of_idle_tasks_that_refer_to_each_other_are_read_once() -> None:
    blobs = MemoryAccount().blobs()
    length = len(encode(Record(Kind.EPOCH, GROUP, "a", OLD, meta={"stood_at": {PREFIX: [0, 100]}})))
    data = encode(Record(Kind.EPOCH, GROUP, "a", OLD, meta={"stood_at": {PREFIX: [0, length]}}))
    blobs.create(BLOB)
    blobs.append(BLOB, data, 0)
    assert drive(unchanged(PREFIX, (0, length)), blobs)
