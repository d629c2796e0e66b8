"""The closed blobs of a source or an output stream that are past the stream's retention. They are deleted by the
task that writes an output, and by the first one that reads a source partition (`tasks/forgetting.py`); `forget` is
for the logs between stages.

Promised: a blob is named only if it is wholly past the limit, and read by all tasks and named readers. The blobs of a
log are named in order, so deleting them one by one leaves no hole after a crash. If everything is read, less than the
limit plus one blob stays of a log; of a source's log also what producers may still rely on (`source_log.SPARED_S`).

Not promised: that a blob is named soon. The blob that a log is written to is never named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samza_azure.logs.names import blob_index, large_index


@dataclass(frozen=True, slots=True)
class Keeps:
    """The retention of a stream: in seconds, and in bytes of each log; None: no such limit."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A blob in a listing; `age_s` is the time since its last write, `since_s` that since it was created."""

    name: str
    size: int
    age_s: float
    since_s: float


@dataclass(frozen=True, slots=True)
class LogBlob:
    """A blob of a log with the large blobs that its records refer to. `age_s` is the least of their ages."""

    log: str
    index: int
    size: int
    age_s: float
    names: tuple[str, ...]  # in the order in which they are to be deleted


def pieces(prefix: str, listed: Sequence[Listed]) -> list[LogBlob]:
    """The pieces of a log, oldest first. `listed` may hold other blobs, too."""
    found: dict[int, list[Listed]] = {}
    for each in sorted(listed, key=lambda each: each.name):
        index = blob_index(prefix, each.name)
        if index is None:
            index = large_index(prefix, each.name)
        if index is not None:
            found.setdefault(index, []).append(each)
    return [
        LogBlob(
            prefix,
            index,
            sum(each.size for each in of),
            min(each.age_s for each in of),
            tuple(sorted((each.name for each in of), key=lambda name: blob_index(prefix, name) is None)),
        )
        for index, of in sorted(found.items())
    ]


def past(kept: Sequence[LogBlob], needed: Mapping[str, int], keeps: Keeps) -> list[LogBlob]:
    """The pieces that may be deleted; `kept` are all, oldest first. `needed`: the first blob of each log still read.

    It ends at the first piece that stays: newer ones are not past the limit before that one is.
    """
    left, found = sum(each.size for each in kept), list[LogBlob]()
    for each in kept:
        is_old = keeps.seconds is not None and each.age_s > keeps.seconds
        is_more = keeps.bytes is not None and left - each.size >= keeps.bytes
        if each.index >= needed.get(each.log, 0) or not (is_old or is_more):
            break
        found.append(each)
        left -= each.size
    return found
