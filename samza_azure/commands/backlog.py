"""How far behind its sources a run is: what lies between where its tasks have read and where the logs end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from samza_azure.logs.position import Position
from samza_azure.storage.export import log_sizes
from samza_azure.storage.interface import Blobs
from samza_azure.storage.log import LogReader

#: Rows are counted by reading headers, this much of a log at most; beyond it they are more than were counted.
COUNTED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Behind:
    """What of a source partition is not read yet."""

    rows: int
    is_all: bool  # that are counted; else there are more
    size: int  # bytes of the log


def behind(blobs: Blobs, shown: Mapping[str, Any]) -> dict[str, Behind]:
    """Of each source partition, by a status document. Nothing while nobody says where the tasks stand."""
    if shown["phase"] not in ("RUNNING", "DRAINING", "DRAINED"):
        return {}
    found = {}
    stands = shown["positions"] if shown["phase"] == "DRAINED" else shown["read"]
    for partition, (index, position) in {**shown["read"], **stands}.items():
        prefix = f"streams/{partition}"
        sizes = log_sizes(blobs, prefix)
        left = {
            number: size - (position if number == index else 0) for number, size in sizes.items() if number >= index
        }
        scan = LogReader(blobs, prefix).scan((index, position), COUNTED_BYTES)
        found[partition] = Behind(scan.rows, scan.at_end, sum(left.values()))
    return found


def by_stream(found: Mapping[str, Behind]) -> dict[str, Behind]:
    """The same, added up."""
    total: dict[str, Behind] = {}
    for partition, each in found.items():
        stream = partition.rpartition("/")[0]
        so_far = total.get(stream, Behind(0, True, 0))
        total[stream] = Behind(so_far.rows + each.rows, so_far.is_all and each.is_all, so_far.size + each.size)
    return total


def ends_of(blobs: Blobs, partitions: Iterable[str]) -> dict[str, Position]:
    """Where the logs of these source partitions end now; of those that have rows."""
    tails = {partition: LogReader(blobs, f"streams/{partition}").tail() for partition in partitions}
    return {partition: last.end for partition, last in tails.items() if last is not None}


def rows_before(blobs: Blobs, shown: Mapping[str, Any], ends: Mapping[str, Position]) -> int:
    """How many rows before these ends the run has not read yet, at least; 0: none."""
    rows = 0
    for partition, end in ends.items():
        index, position = shown["read"].get(partition, (0, 0))
        if (index, position) < end:
            # By rows, not by positions: behind the last row a producer says how far time has come, which no task reads.
            found = LogReader(blobs, f"streams/{partition}").scan((index, position), COUNTED_BYTES, until=end)
            rows += found.rows or (0 if found.end >= end or found.at_end else 1)
    return rows


def unread(found: Mapping[str, Behind]) -> str:
    """What is left, for a sentence: "1204 rows of orders"; empty if nothing is."""
    left = [(stream, each) for stream, each in by_stream(found).items() if each.rows or not each.is_all]
    return ", ".join(f"{'' if each.is_all else 'more than '}{each.rows} rows of {stream}" for stream, each in left)
