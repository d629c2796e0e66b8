"""Tables that are appended to and compacted at the same time. Pure: no clock, no I/O, no dice.

A table is a set of segments. A segment is rows of one interval in one immutable file. It carries a version, which
rises with each time that its interval is locked, and the set of roots, of appended segments, whose rows it has. What
a reader sees is a function of the segments that are present (`chunk`, `timeline`). So a compaction replaces nothing:
it adds segments that overshadow others, and what it has not read it cannot hide.

Who may add segments is decided by locks (`locks`), and all of it is put together in `datasource`: what an append, a
compaction and a REPLACE check in the one step in which they publish.

To be read in this order: interval, partitions, segment, sequence, chunk, timeline, locks, datasource.

The names below are loaded when they are first asked for: whoever only reads a job file needs the granularities alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samza_azure.segments.chunk import Chunk
    from samza_azure.segments.datasource import Advance, Datasource, Published, Refused
    from samza_azure.segments.interval import ETERNITY, Granularity, Interval
    from samza_azure.segments.locks import (
        Granted,
        Lock,
        LockBox,
        LockType,
        Owner,
        Request,
        Revoked,
        Task,
        Wait,
        covering,
    )
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

_HOMES = {
    "Advance": "datasource",
    "Chunk": "chunk",
    "Datasource": "datasource",
    "ETERNITY": "interval",
    "Entry": "timeline",
    "File": "segment",
    "Granted": "locks",
    "Granularity": "interval",
    "Interval": "interval",
    "Lock": "locks",
    "LockBox": "locks",
    "LockType": "locks",
    "Owner": "locks",
    "Partitions": "partitions",
    "Publish": "segment",
    "Published": "datasource",
    "Refused": "datasource",
    "Request": "locks",
    "Revoked": "locks",
    "Segment": "segment",
    "SegmentId": "segment",
    "Sequence": "sequence",
    "Task": "locks",
    "Timeline": "timeline",
    "Wait": "locks",
    "covering": "locks",
}


def __getattr__(name: str) -> Any:
    """A name from the module where it lives; from then on it is an ordinary one."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
