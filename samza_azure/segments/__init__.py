"""Tables that are appended to and compacted at the same time. Pure: no clock, no I/O, no dice.

A table is a set of segments. A segment is rows of one interval in one immutable file. It has a version, which increases
each time its interval is locked, and the set of roots (appended segments) whose rows it has. What a reader sees is a
function of the segments that are present (`chunk`, `timeline`).

Promised: a compaction replaces nothing. It adds segments that overshadow others, and cannot hide what it has not read.

Locks decide who may add segments (`locks`). `publishing` has what an append, a compaction and a REPLACE check in the
one step in which they publish.

Not promised: anything about time. Nothing here knows how old a lock or a segment is, or whether its owner is alive.

Start reading at `interval`, then partitions, segment, sequence, chunk, timeline, locks, publishing.

The names below are imported at their first use, since reading a job file needs the granularities only.
"""

from typing import TYPE_CHECKING

from samza_azure.lazy import attributes

if TYPE_CHECKING:
    from samza_azure.segments.chunk import Chunk
    from samza_azure.segments.interval import ETERNITY, Granularity, Interval
    from samza_azure.segments.locks import (
        Blocked,
        Granted,
        LockBox,
        LockOwner,
        LockRequest,
        LockTask,
        LockType,
        Revoked,
        TableLock,
    )
    from samza_azure.segments.partitions import Partitions
    from samza_azure.segments.publishing import Advance, LostRace, Published
    from samza_azure.segments.segment import File, Publish, Segment, SegmentId
    from samza_azure.segments.sequence import SequenceNumber
    from samza_azure.segments.timeline import Timeline, TimelineEntry

__all__ = [
    "ETERNITY",
    "Advance",
    "Blocked",
    "Chunk",
    "File",
    "Granted",
    "Granularity",
    "Interval",
    "LockBox",
    "LockOwner",
    "LockRequest",
    "LockTask",
    "LockType",
    "LostRace",
    "Partitions",
    "Publish",
    "Published",
    "Revoked",
    "Segment",
    "SegmentId",
    "SequenceNumber",
    "TableLock",
    "Timeline",
    "TimelineEntry",
]

_HOMES = {
    "Advance": "publishing",
    "Blocked": "locks",
    "Chunk": "chunk",
    "ETERNITY": "interval",
    "File": "segment",
    "Granted": "locks",
    "Granularity": "interval",
    "Interval": "interval",
    "LockBox": "locks",
    "LockOwner": "locks",
    "LockRequest": "locks",
    "LockTask": "locks",
    "LockType": "locks",
    "LostRace": "publishing",
    "Partitions": "partitions",
    "Publish": "segment",
    "Published": "publishing",
    "Revoked": "locks",
    "Segment": "segment",
    "SegmentId": "segment",
    "SequenceNumber": "sequence",
    "TableLock": "locks",
    "Timeline": "timeline",
    "TimelineEntry": "timeline",
}

__getattr__ = attributes(__name__, _HOMES)
