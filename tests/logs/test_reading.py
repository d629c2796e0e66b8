"""How readers read a log: how many reads a scan makes before it lets others have a turn, and what is at the end."""

from itertools import pairwise

import pytest

from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import Read
from samza_azure.logs.reading import Scan, scan
from samza_azure.logs.record import Kind, Record, Slice, Writer, encode
from samza_azure.logs.task_log import LogLimits
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.driver import perform
from samza_azure.stream_io.log import LogReader, take_over

PREFIX = "streams/flights/0"
BLOBS = 20


def log_of_short_blobs() -> Blobs:
    """Each blob holds a record and ROLLED."""
    blobs = MemoryAccount().blobs()
    for index in range(BLOBS):
        name = blob_name(PREFIX, index)
        blobs.create(name)
        for number, kind in enumerate((Kind.FRONTIER, Kind.ROLLED)):
            record = encode(Record(kind, bytes(16), "a", Writer(0, 0), index, number))
            blobs.append(name, record, blobs.list(name)[0][1])
    return blobs


def test_a_scan_ends_after_so_many_reads_also_where_each_blob_takes_one() -> None:
    blobs, ends, reads = log_of_short_blobs(), [(0, 0)], list[int]()
    found = Scan((0, 0), (0, 0))
    while not found.at_end:
        rule, answer = scan(PREFIX, ends[-1], reads_max=3), None
        reads.append(0)
        try:
            while True:
                operation = rule.send(answer)
                reads[-1] += isinstance(operation, Read)
                answer = perform(operation, blobs)
        except StopIteration as stop:
            found = stop.value
        ends.append(found.end)
    assert max(reads) == 3
    assert ends[-1] == (BLOBS, 0)
    assert all(after > before for before, after in pairwise(ends[:-1]))


@pytest.mark.parametrize(
    ("limits", "batches"),
    [
        (LogLimits(), 0),
        (LogLimits(), 3),
        (LogLimits(roll_records=2), 3),  # the last record is in another blob than the batch
        (LogLimits(record_bytes=64), 1),  # the file is in a blob of its own
    ],
    ids=["no batch", "one blob", "several blobs", "a large record"],
)
def test_the_plan_of_the_last_batch_is_found_from_the_end(limits: LogLimits, batches: int) -> None:
    prefix, blobs = "runs/r/daily-0", MemoryAccount().blobs()
    writer, _ = take_over(
        blobs, prefix, group_id=bytes(16), task="daily-0", writer=Writer(1, 0), first=True, may_append=lambda: True,
        meta={}, limits=limits,
    )  # fmt: skip
    plan = None
    for batch in range(batches):
        plan = b"plan %d" % batch * 30
        writer.append(batch, slices=[Slice(0, b"rows", 1)], files={f"offsets/{batch}": plan})
    for _ in range(3):
        writer.append_frontier(5)
    assert LogReader(blobs, prefix).last_plan() == plan
    blobs.create(blob_name(prefix, writer.position[0] + 1))  # it was created, and nobody has opened it yet
    assert LogReader(blobs, prefix).last_plan() == plan


def test_a_task_that_is_no_query_has_no_plan() -> None:
    prefix, blobs = "runs/r/daily-0", MemoryAccount().blobs()
    writer, _ = take_over(
        blobs, prefix, group_id=bytes(16), task="daily-0", writer=Writer(1, 0), first=True, may_append=lambda: True,
        meta={},
    )  # fmt: skip
    writer.append(0, files={"position": b"3"})
    assert LogReader(blobs, prefix).last_plan() is None
