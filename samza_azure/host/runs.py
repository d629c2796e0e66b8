"""The logs of runs, as far as coordination is concerned with them: are there any, and which may be deleted."""

import asyncio

from samza_azure.errors import StateLost
from samza_azure.protocol.log import INTERMEDIATE
from samza_azure.protocol.operations import large_prefix
from samza_azure.storage.export import first_blobs
from samza_azure.storage.interface import Blobs
from samza_azure.storage.log import LogReader

PREFIX = "runs/"


def run_prefix(run_id: str) -> str:
    """What the names of all logs of a run begin with."""
    return f"{PREFIX}{run_id}/"


class RunLogs:
    """What the leader needs of the data path. The calls are rare and slow, so they run in a thread."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def refuse_if_any(self) -> None:
        """Raise `StateLost` if task logs exist: a control blob must not be made anew beside them."""
        found = await asyncio.to_thread(self._blobs.list, PREFIX)
        if found:
            raise StateLost(
                "There are task logs, but no control blob. Restore control.json, or delete the logs to start afresh",
                blob=found[0][0],
            )

    async def clean(self, run_id: str) -> None:
        """Delete the logs of a drained run that hold no output stream. Idempotent."""
        await asyncio.to_thread(self._clean, run_id)

    def _clean(self, run_id: str) -> None:
        for prefix, index in first_blobs(self._blobs, run_prefix(run_id)):
            opening = LogReader(self._blobs, prefix, frozenset()).opening(index)
            if opening is not None and opening.meta.get(INTERMEDIATE):
                for below in (f"{large_prefix(prefix)}/", f"{prefix}/"):
                    for name, _ in self._blobs.list(below):
                        self._blobs.delete(name)
