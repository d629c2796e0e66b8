"""The blobs of a log between stages that are no longer needed, so that its owner may delete them. `retention` is for
source and output streams; after a drain the leader deletes the rest (`group/housekeeping.py`).

Promised: no blob is named that a restore, a replay or a reader may still read. What a snapshot has replaced stays
replaced, and a reader never reads again what its record says it is done with. So no fence is needed: a former owner may
delete late, or again. Not promised: that a blob is named soon. A reader without a record needs them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from samza_azure.logs.names import blob_index, large_index, large_prefix
from samza_azure.logs.operations import Enumerate, Rule
from samza_azure.logs.reading import tail
from samza_azure.logs.record import NEEDS, Reference
from samza_azure.logs.task_log import TaskLog


@dataclass(frozen=True, slots=True)
class NeededBlobs:
    """The blobs that a restore of a log reads."""

    prefix: str
    group_id: bytes
    first: int  # the blob that begins with the last snapshot, or an older one that holds files of the checkpoint
    large: frozenset[str]  # separate blobs that hold such files, however old


def kept(log: TaskLog) -> NeededBlobs:
    """What the next owner will read. A blob that is not opened yet has no snapshot."""
    log.prune()
    held = frozenset(content.blob for content in log.files.values() if isinstance(content, Reference))
    older = [index for name in held if (index := blob_index(log.prefix, name)) is not None]
    return NeededBlobs(log.prefix, log.group_id, min([log.end[0] if log.number else log.end[0] - 1, *older]), held)


def outdated(own: NeededBlobs, readers: Sequence[str]) -> Rule[list[str]]:
    """The names of the blobs that nobody needs. `readers` are the logs of all tasks that read this one."""
    first = yield from needed_from(own.prefix, own.group_id, readers, own.first)
    if first <= 0:
        return []
    logs: list[tuple[str, int]] = yield Enumerate(f"{own.prefix}/")
    large: list[tuple[str, int]] = yield Enumerate(f"{large_prefix(own.prefix)}/")
    found = [(name, blob_index(own.prefix, name)) for name, _ in logs]
    found += [(name, large_index(own.prefix, name)) for name, _ in large if name not in own.large]
    return [name for name, index in found if index is not None and index < first]


def needed_from(prefix: str, group_id: bytes, readers: Sequence[str], first: int) -> Rule[int]:
    """The first blob of a log that one of these tasks may still read, or `first` if that is before it."""
    for reader in readers:
        if first <= 0:
            return 0
        last = yield from tail(reader)
        meta = last.header.meta if last is not None and last.header.group_id == group_id else {}
        first = min(first, meta.get(NEEDS, {}).get(prefix, 0))
    return first
