"""Which closed blobs of a source or an output stream are past what the stream keeps.

Promised: only whole blobs are named, only such as are past the limit, and none that a task or a named reader has not
read. The blobs of a log are named in their order, so whoever deletes them one after the other leaves no hole when it
dies. Where all is read, what stays of a log is less than the limit and one blob.

Not promised: that it is soon, nor anything about the blob that a log is written to: it is never named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samza_azure.logs.operations import blob_index, large_prefix


@dataclass(frozen=True, slots=True)
class Keeps:
    """What a stream keeps: rows of the last so many seconds, so many bytes of each log; None: no such limit."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A blob as a listing shows it; `age_s` is how long ago it was written last."""

    name: str
    size: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    """A blob of a log with the large blobs that its records refer to. `age_s` is that of the youngest of them."""

    log: str
    index: int
    size: int
    age_s: float
    names: tuple[str, ...]  # in the order in which they are to be deleted


def pieces(prefix: str, listed: Sequence[Listed]) -> list[Piece]:
    """A log's, oldest first. `listed` may hold more than this log."""
    found: dict[int, list[Listed]] = {}
    for each in sorted(listed, key=lambda each: each.name):
        index = blob_index(prefix, each.name)
        if index is None:
            index = blob_index(large_prefix(prefix), each.name.rpartition("/")[0])
        if index is not None:
            found.setdefault(index, []).append(each)
    return [
        Piece(
            prefix,
            index,
            sum(each.size for each in of),
            min(each.age_s for each in of),
            tuple(sorted((each.name for each in of), key=lambda name: blob_index(prefix, name) is None)),
        )
        for index, of in sorted(found.items())
    ]


def past(kept: Sequence[Piece], needed: Mapping[str, int], keeps: Keeps) -> list[Piece]:
    """Of these, oldest first, those that may go. `needed` says of each log from which blob on it is still read.

    It ends at the first that stays: what is newer is not past the limit before that one is.
    """
    left, found = sum(each.size for each in kept), list[Piece]()
    for each in kept:
        is_old = keeps.seconds is not None and each.age_s > keeps.seconds
        is_more = keeps.bytes is not None and left - each.size >= keeps.bytes
        if each.index >= needed.get(each.log, 0) or not (is_old or is_more):
            break
        found.append(each)
        left -= each.size
    return found
