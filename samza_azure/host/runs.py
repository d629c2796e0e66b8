"""The logs of runs, as coordination needs them: whether a group was here before, and which logs may be deleted."""

import asyncio
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import TypeVar

from samza_azure.errors import CorruptState, StateLost, StorageUnavailable, TooOld
from samza_azure.group.answers import Kept
from samza_azure.group.control import NAME, Control
from samza_azure.host.copies import keep_copy
from samza_azure.logs.names import COPIES, RUNS, blob_name, large_prefix, run_folder, stage_and_number
from samza_azure.logs.record import INTERMEDIATE, Header
from samza_azure.storage.interface import DELETE_MAX, Blobs
from samza_azure.stream_io.listing import first_blobs
from samza_azure.stream_io.log import LogReader

log = logging.getLogger(__name__)
T = TypeVar("T")
#: How often a long clean-up logs its progress, in seconds.
TELL_EVERY_S = 10.0


class RunLogs:
    """The logs of runs, for the leader. The calls are rare and slow, so they run on a thread."""

    def __init__(self, blobs: Blobs, bind: Callable[[], object] = lambda: None) -> None:
        """`bind` binds the container and the table to the job, which a deletion of all may have released meanwhile."""
        self._blobs, self._bind = blobs, bind

    async def refuse_if_any(self) -> None:
        """Call this before a new control blob is created. Raise `StateLost` if another one was there before."""
        await asyncio.to_thread(self._bind)
        if (error := await asyncio.to_thread(lost_control, self._blobs)) is not None:
            raise error

    async def keep_copy(self, control: Control) -> None:
        """Keep a copy of the control blob beside the logs."""
        await _aside(lambda: keep_copy(self._blobs, control))

    async def clean(self, run_id: str) -> Kept | None:
        """Delete a drained run's logs, except those of output streams. Return what cannot be deleted. Idempotent."""
        over = threading.Event()
        try:
            return await _aside(lambda: self._clean(run_id, over))
        finally:
            over.set()  # if this processor ends, it does not wait for the rest

    def _clean(self, run_id: str, over: threading.Event) -> Kept | None:
        logs, unread = self._intermediate(run_id)
        names_of = Listing(name for name, _ in self._blobs.list(run_folder(run_id)))
        large = {prefix: names_of.below(large_prefix(prefix)) for prefix in logs}
        kept = self._delete(run_id, list(chain(*large.values())), over)
        names: list[str] = []
        for prefix in logs:
            own = names_of.below(prefix)
            stays = not kept.keys().isdisjoint(large[prefix])  # the next try finds the large blobs by a log
            kept |= dict.fromkeys(own[:1], "its large blobs are kept") if stays else {}
            names += own[1:] if stays else own
        kept |= self._delete(run_id, names, over) | unread
        if not kept:
            return None
        name, code = next(iter(kept.items()))
        log.warning(
            "%d blobs of the drained run %s cannot be deleted, %s for one (%s). The rest is deleted; these are tried "
            "again. If a policy or a legal hold keeps them, they are deleted when it ends.",
            len(kept),
            run_id,
            name,
            code,
        )
        return Kept(len(kept), code)

    def _intermediate(self, run_id: str) -> tuple[list[str], dict[str, str]]:
        """The logs of streams between stages; and the first blobs of the logs that cannot be read, with the reason.

        All tasks of a stage write the same stream, so one log of each stage is read. A log that cannot be read, because
        it is damaged or of a later release, must not end the leader: each leader after it would find the same.
        """
        by_stage: dict[str, list[tuple[str, int]]] = {}
        for prefix, index in first_blobs(self._blobs, run_folder(run_id)):
            by_stage.setdefault(stage_and_number(prefix)[0], []).append((prefix, index))
        found: list[str] = []
        unread: dict[str, str] = {}
        for logs in by_stage.values():
            first, trouble = self._opening(logs)
            if first is None:
                unread |= trouble
            elif first.meta.get(INTERMEDIATE):
                found += [prefix for prefix, _ in logs]
        return found, unread

    def _opening(self, logs: Sequence[tuple[str, int]]) -> tuple[Header | None, dict[str, str]]:
        """The first readable opening record of these logs, and the blobs before it that cannot be read."""
        trouble: dict[str, str] = {}
        for prefix, index in logs:
            try:
                first = LogReader(self._blobs, prefix, frozenset()).opening(index)
            except (CorruptState, TooOld) as error:
                trouble[blob_name(prefix, index)] = str(error)
                continue
            if first is not None:
                return first, trouble
        return None, trouble

    def _delete(self, run_id: str, names: list[str], over: threading.Event) -> dict[str, str]:
        """Delete blobs in batches; return those that are kept, and why."""
        kept: dict[str, str] = {}
        logged_at = time.monotonic()
        for start in range(0, len(names), DELETE_MAX):
            if over.is_set():
                raise StorageUnavailable("The clean-up was cancelled because the processor ends.")
            kept |= self._blobs.delete_many(names[start : start + DELETE_MAX])
            if time.monotonic() > logged_at + TELL_EVERY_S:
                logged_at = time.monotonic()
                log.warning(
                    "Clean-up of run %s: %d of %d blobs", run_id, min(start + DELETE_MAX, len(names)), len(names)
                )
        return kept


class Listing:
    """The names of many blobs, to be found by prefix."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def below(self, prefix: str) -> list[str]:
        """The names in this folder, sorted."""
        after = chr(ord("/") + 1)
        return self._names[bisect_left(self._names, f"{prefix}/") : bisect_left(self._names, f"{prefix}{after}")]


def lost_control(blobs: Blobs) -> StateLost | None:
    """The error if copies of a control blob or task logs exist: no new control blob must be created beside them.

    A drained run that wrote only tables or files has left no log. Then only the copies know up to where the sources
    were read, and a new group would read all of it again.
    """
    if found := blobs.list(COPIES):
        left, way_out = f"copies of it below {COPIES}", "brings it back from the newest one"
    elif found := blobs.list(RUNS):
        left, way_out = "task logs and no copy of it", "says what can be done"
    else:
        return None
    return StateLost(
        f"{NAME} was deleted: there are {left}. Without it a run would read the sources again from their beginning. "
        f"samza-azure recover JOB {way_out}; samza-azure delete JOB --all deletes all of the job, to start afresh",
        blob=found[-1][0],
    )


async def _aside(call: Callable[[], T]) -> T:
    """Run the call on a thread of its own, which the end of the process does not wait for."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001  # it is passed on
            done.set_exception(error)

    done.set_running_or_notify_cancel()
    threading.Thread(target=run, name="clean-up", daemon=True).start()
    return await asyncio.wrap_future(done)
