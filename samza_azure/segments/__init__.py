"""Tables that are appended to and compacted at the same time. Pure: no clock, no I/O, no dice.

A table is a set of segments. A segment is rows of one interval in one immutable file. It carries a version, which
rises with each time that its interval is locked, and the set of roots, of appended segments, whose rows it has. What
a reader sees is a function of the segments that are present (`chunk`, `timeline`). So a compaction replaces nothing:
it adds segments that overshadow others, and what it has not read it cannot hide.

Who may add segments is decided by locks (`locks`), and all of it is put together in `datasource`: what an append, a
compaction and a REPLACE check in the one step in which they publish.

To be read in this order: interval, partitions, segment, sequence, chunk, timeline, locks, datasource.
"""

from samza_azure.segments.chunk import Chunk
from samza_azure.segments.datasource import Advance, Datasource, Published, Refused
from samza_azure.segments.interval import ETERNITY, Granularity, Interval
from samza_azure.segments.locks import Granted, Lock, LockBox, LockType, Owner, Request, Revoked, Task, Wait, covering
from samza_azure.segments.partitions import Partitions
from samza_azure.segments.segment import File, Publish, Segment, SegmentId
from samza_azure.segments.sequence import Sequence
from samza_azure.segments.timeline import Entry, Timeline

__all__ = [
    "ETERNITY",
    "Advance",
    "Chunk",
    "Datasource",
    "Entry",
    "File",
    "Granted",
    "Granularity",
    "Interval",
    "Lock",
    "LockBox",
    "LockType",
    "Owner",
    "Partitions",
    "Publish",
    "Published",
    "Refused",
    "Request",
    "Revoked",
    "Segment",
    "SegmentId",
    "Sequence",
    "Task",
    "Timeline",
    "Wait",
    "covering",
]
