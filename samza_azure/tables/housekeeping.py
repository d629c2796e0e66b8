"""What a job does for its tables besides appending: compaction, retention, garbage collection.

This is low-priority work of the first of a table's sinks, and moves with it. It can be stopped between two groups of
segments; what was published until then stays. If a task with a higher priority revokes its lock, it does the rest at
its next turn.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from samza_azure.config import TableSettings
from samza_azure.logs.names import run_folder
from samza_azure.segments import LockOwner, LockTask, Published, SequenceNumber
from samza_azure.tables.compaction import compact, due
from samza_azure.tables.sink import group_of, is_drained
from samza_azure.tables.store.segments import SegmentStore

log = logging.getLogger(__name__)

#: Below the priority of appends, and of rewrites by hand.
PRIORITY = 0
#: The interval between turns: the first after changes, then longer and longer up to the second.
LOOK_S, LOOK_MOST_S = 30.0, 3_600.0


@dataclass(slots=True)
class Housekeeping:
    """The housekeeping of one table by one attempt at a task. For one thread."""

    store: SegmentStore
    table: TableSettings
    task: str
    owner: LockOwner
    goes_on: Callable[[], bool]
    collected_us: int | None = None
    looked: SequenceNumber | None = None  # at the last turn
    is_written_to: bool = False  # between the last two turns
    seen: SequenceNumber | None = None  # at the last collection
    in_vain: int = 0  # collections since then that have found nothing
    is_disturbed: bool = False  # whether the last turn was interrupted: it may have left locks

    def turn(self, now_us: int) -> bool:
        """Do what is due. Return whether anything was."""
        table, name = self.table, f"{group_of(self.task)}@{self.owner.incarnation}"
        who = LockTask(name, name, PRIORITY, self.owner)
        did = False
        if self.is_disturbed:
            self.store.release_all(name)
        self.is_disturbed = True
        if table.compact:
            groups = due(self.store, now_us, target_bytes=table.target)
            for done in compact(self.store, who, target_bytes=table.target, groups=groups, goes_on=self.goes_on):
                log.info("%s: %s", table.name, done.refused or f"{done.inputs} segments became {done.outputs}")
                did = did or not done.refused
        if table.keep_s is not None:
            did = self._drop_old(who, now_us - round(table.keep_s * 1e6)) or did
        now = self.store.latest().sequence
        self.is_written_to, self.looked = self.looked not in (None, now), now
        did = self._collect(now_us) or did
        self.is_disturbed = False
        return did

    def _collect(self, now_us: int) -> bool:
        """Collect garbage once per grace period, unless nothing was published since the last two found none."""
        every_us = round(self.table.grace_s * 1e6)
        since_us = None if self.collected_us is None else now_us - self.collected_us
        if is_set_back := since_us is not None and since_us < 0:  # the clock was set back since the last one
            self.in_vain = 0
        is_due = since_us is None or since_us >= every_us or is_set_back
        if not is_due or not self.goes_on():
            return False
        now = self.store.latest().sequence
        if now != self.seen:
            self.seen, self.in_vain = now, 0
        if self.in_vain >= 2:
            return False
        self.collected_us = now_us
        found = self.store.collect(now_us, every_us)
        did = bool(self._forget_runs() or found.segments or found.orphans)
        self.in_vain = 0 if did else self.in_vain + 1
        return did

    def _forget_runs(self) -> int:
        """Delete the positions of earlier runs that were drained and whose logs are gone. Return how many.

        A position keeps rows from being published again, which is impossible without the logs; a zombie that still has
        rows in memory finds that its stream has moved. The positions are read before the logs are looked for: a run has
        logs before it has a position.
        """
        mine = self.owner.processor.partition("/")[0]
        drained: dict[str, list[str]] = {}
        for stream, position in self.store.positions().items():
            run, _, task = stream.partition("/")
            if run != mine and task and is_drained(position):
                drained.setdefault(run, []).append(stream)
        gone = [run for run in drained if not self.store.blobs.list(run_folder(run))]
        for stream in (stream for run in gone for stream in drained[run]):
            self.store.forget(stream)
        return len(gone)

    def _drop_old(self, who: LockTask, before_us: int) -> bool:
        """Drop the intervals that ended before a moment. One that others hold is dropped at a later turn."""
        did = False
        old = [
            entry.chunk.interval
            for entry in self.store.latest().timeline.lookup()
            if entry.chunk.interval.end <= before_us and any(one.file is not None for one in entry.segments)
        ]
        for interval in dict.fromkeys(old):
            if not self.goes_on():
                break
            done = isinstance(self.store.drop(who, interval), Published)
            log.info("%s: %s %s", self.table.name, interval, "is dropped" if done else "is held by others")
            did = did or done
        return did
