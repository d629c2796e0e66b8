"""Performs retention: deletes what a stream no longer keeps, blob after blob; and of a source's log a blob that is no
part of it any more (`source_log.in_line`).

The rules are in `logs.retention`. A task that writes the stream deletes from its own log and from logs of earlier runs;
for a source partition, the first of the tasks that read it does. Two at the same time do no harm.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from samza_azure.errors import ConfigError, SamzaAzureError, StorageUnavailable
from samza_azure.logs.forget import NeededBlobs, needed_from
from samza_azure.logs.names import RUNS, blob_index, large_index, large_prefix, run_of, stage_and_number
from samza_azure.logs.retention import Keeps, Listed, LogBlob, past, pieces
from samza_azure.logs.source_log import SPARED_S, in_line
from samza_azure.storage.interface import Blobs, NamedRows
from samza_azure.stream_io.driver import drive
from samza_azure.stream_io.listing import log_indexes, stream_of
from samza_azure.stream_io.token import COLUMN, Stand, decode, from_columns

log = logging.getLogger(__name__)


def row_of(stream: str, reader: str) -> str:
    """The name of a named reader's row."""
    return f"{stream}/{reader}"


def readers_of(positions: NamedRows, stream: str) -> dict[str, Stand]:
    """The named readers of a stream, with their positions. One with an unreadable row counts as needing everything."""
    found = {}
    for name, values in positions.poll().items():
        of, _, reader = name.rpartition("/")
        if of == stream:
            try:
                found[reader] = decode(from_columns(values), stream)
            except ConfigError:
                found[reader] = Stand()
    return found


def stand_of(positions: NamedRows, stream: str, reader: str) -> Stand | None:
    """Where a named reader stands; None if it has no row. Raise `ConfigError` for an unreadable one: to begin at the
    earliest rows, as if there were none, would give the reader's program all rows again."""
    row = row_of(stream, reader)
    values = positions.poll().get(row)
    if values is None:
        return None
    try:
        text = from_columns(values)
        if not text:
            raise ConfigError(f"It has no column {COLUMN}.")
        try:
            return decode(text, stream)
        except ConfigError as error:
            raise ConfigError(f"The column {COLUMN} holds {text!r:.80}, which is no position in {stream}.") from error
    except ConfigError as error:
        raise ConfigError(
            f"{positions.where(row)} was not written by samza-azure. {error} So it is unknown what the reader {reader} "
            f"has read. Begin where you know it: with `follow {stream} --name {reader} --from TOKEN`, or token= of "
            "Reader, which write the row anew. Or forget the reader: samza-azure delete JOB --stream "
            f"{stream} --reader {reader}."
        ) from error


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of one stream. The `delete_…` methods return how many blobs of a log were deleted."""

    blobs: Blobs
    positions: NamedRows
    stream: str
    keeps: Keeps
    spared_s: float = SPARED_S  # so long a source's blob stays once there is a later one: a producer may rely on it

    def delete_of_source(self, prefix: str, group_id: bytes, tasks: Sequence[str]) -> int:
        """Delete from a source partition's log. `tasks` are the logs of all tasks that read it."""
        listed = self.blobs.list_with_ages(f"{prefix}/")
        found = pieces(prefix, listed)
        if len(found) < 2:
            return 0
        since_s = {blob_index(prefix, each.name): each.since_s for each in listed}
        oldest = found[0]
        if since_s[oldest.index] >= self.spared_s and not in_line(prefix, listed, oldest.index):
            # A producer that slept has created it again, and has died before it saw that. Readers would begin with it.
            return self._delete([oldest])
        # Without a record no reader knows where the log continues: the last blob that has one is kept, even if a later
        # blob was begun; and the one before, while producers rely on it.
        last = max((each.index for each in found if each.size and since_s[each.index] >= self.spared_s), default=0)
        # The listing came first: a reader that registers after this look at the rows begins at what is left.
        first = min(last, self._named(prefix))
        first = drive(needed_from(prefix, group_id, tasks, round(first)), self.blobs)
        return self._delete(past(found, {prefix: first}, self.keeps))

    def delete_of_output(self, own: NeededBlobs, tasks: Sequence[str], number: int, numbers: int) -> int:
        """Delete from a task's own log, and from the logs of earlier runs that fall to this task.

        `tasks` are the logs of the sinks that read it. The task has `number` of `numbers`. Earlier runs are drained.
        """
        listed = self._listed(own.prefix)
        ours = pieces(own.prefix, listed)
        held = [index for name in own.large if (index := large_index(own.prefix, name)) is not None]
        last = max((each.index for each in ours if blob_index(own.prefix, each.names[0]) is not None), default=0)
        first = min([last, own.first, self._named(own.prefix), *held])
        needed: dict[str, float] = {
            own.prefix: drive(needed_from(own.prefix, own.group_id, tasks, round(first)), self.blobs)
        }
        older: list[LogBlob] = []
        for prefix in self._earlier(own.prefix, number, numbers):
            needed[prefix] = self._named(prefix)
            older += pieces(prefix, self._listed(prefix))
        older.sort(key=lambda each: (-each.age_s, each.log, each.index))
        whole = {name: (1 << 62) if math.isinf(index) else round(index) for name, index in needed.items()}
        return self._delete(past([*older, *ours], whole, self.keeps))

    def _listed(self, prefix: str) -> list[Listed]:
        return [
            *self.blobs.list_with_ages(f"{prefix}/"),
            *self.blobs.list_with_ages(f"{large_prefix(prefix)}/"),
        ]

    def _earlier(self, own: str, number: int, numbers: int) -> list[str]:
        """The logs of this stream in earlier runs whose number falls to us."""
        found = []
        for prefix, indexes in log_indexes(self.blobs, RUNS).items():
            if run_of(prefix) == run_of(own) or stage_and_number(prefix)[1] % numbers != number:
                continue
            if stream_of(self.blobs, prefix, indexes[0]) == self.stream:
                found.append(prefix)
        return found

    def _named(self, prefix: str) -> float:
        """The first blob that a named reader still needs; infinite if none does."""
        needs = [stand.needs(prefix) for stand in readers_of(self.positions, self.stream).values()]
        return min((each for each in needs if each is not None), default=math.inf)

    def _delete(self, found: Sequence[LogBlob]) -> int:
        """Delete one after the other, so that no hole is left; stop at one that a policy or a legal hold keeps."""
        for number, each in enumerate(found):
            try:
                for name in each.names:
                    self.blobs.delete(name)
            except StorageUnavailable:
                raise
            except SamzaAzureError as error:
                log.info("%s keeps more than its retention: %s", self.stream, error)
                return number
        return len(found)
