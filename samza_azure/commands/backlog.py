"""How far behind its sources a run is: the rows between the positions of its tasks and the ends of the logs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from samza_azure.logs.names import source_log, stream_and_partition
from samza_azure.logs.position import Position
from samza_azure.storage.interface import Blobs
from samza_azure.storage.listing import log_sizes
from samza_azure.storage.log import LogReader

#: Rows are counted by reading headers, in at most this many bytes of a log; beyond that the count is a lower bound.
COUNTED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Behind:
    """The unread part of a source partition."""

    rows: int
    is_all: bool  # all rows are counted; else there are more
    size: int  # bytes of the log


def behind(blobs: Blobs, shown: Mapping[str, Any]) -> dict[str, Behind]:
    """The unread part of each source partition, by a status document. Empty while the tasks' positions are unknown."""
    if shown["phase"] not in ("RUNNING", "DRAINING", "DRAINED"):
        return {}
    found = {}
    stands = shown["positions"] if shown["phase"] == "DRAINED" else shown["read"]
    for partition, (index, position) in {**shown["read"], **stands}.items():
        prefix = source_log(partition)
        sizes = log_sizes(blobs, prefix)
        left = {
            number: size - (position if number == index else 0) for number, size in sizes.items() if number >= index
        }
        start = (index, position) if index in left or not left else (min(left), 0)  # retention has deleted the blob
        scan = LogReader(blobs, prefix).scan(start, COUNTED_BYTES)
        found[partition] = Behind(scan.rows, scan.at_end, sum(left.values()))
    return found


def by_stream(found: Mapping[str, Behind]) -> dict[str, Behind]:
    """The sums per stream."""
    total: dict[str, Behind] = {}
    for partition, each in found.items():
        stream, _ = stream_and_partition(partition)
        so_far = total.get(stream, Behind(0, True, 0))
        total[stream] = Behind(so_far.rows + each.rows, so_far.is_all and each.is_all, so_far.size + each.size)
    return total


def ends_of(blobs: Blobs, partitions: Iterable[str]) -> dict[str, Position]:
    """The present ends of the logs of these source partitions, for those that have a log."""
    tails = {partition: LogReader(blobs, source_log(partition)).tail() for partition in partitions}
    return {partition: last.end for partition, last in tails.items() if last is not None}


def rows_before(blobs: Blobs, shown: Mapping[str, Any], ends: Mapping[str, Position]) -> int:
    """A lower bound of the rows before these ends that the run has not read yet; 0: none."""
    rows = 0
    for partition, end in ends.items():
        index, position = shown["read"].get(partition, (0, 0))
        if (index, position) < end:
            # By rows, not by positions: after the last row a producer appends the event time, which no task reads.
            found = LogReader(blobs, source_log(partition)).scan((index, position), COUNTED_BYTES, until=end)
            rows += found.rows or (0 if found.end >= end or found.at_end else 1)
    return rows


def unread(found: Mapping[str, Behind]) -> str:
    """The unread rows, for a message: "1204 rows of orders"; empty if there are none."""
    left = [(stream, each) for stream, each in by_stream(found).items() if each.rows or not each.is_all]
    return ", ".join(f"{'' if each.is_all else 'more than '}{each.rows} rows of {stream}" for stream, each in left)
