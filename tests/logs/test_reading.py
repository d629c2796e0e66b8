"""How readers read a log: how many reads a scan makes before it lets others have a turn."""

from itertools import pairwise

from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import Read
from samza_azure.logs.reading import Scan, scan
from samza_azure.logs.record import Kind, Record, Writer, encode
from samza_azure.storage.driver import perform
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount

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
