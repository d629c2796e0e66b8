"""What a command asks of the leader, through a row in the table, and what becomes of it.

A leased blob refuses every other writer, so a request cannot enter there. The leader validates it and acts.
"""

import uuid
from dataclasses import dataclass

from samza_azure.errors import StorageUnavailable, Unsettled
from samza_azure.host.status import CALL_S
from samza_azure.protocol.control import Control, RunPhase
from samza_azure.protocol.rows import REQUESTS
from samza_azure.storage.interface import Rows


@dataclass(frozen=True, slots=True)
class Asked:
    """A drain that was asked for. `run_id` is empty if it is for whichever run comes next."""

    run_id: str
    already: str = ""  # the answer, when nothing had to be asked


async def ask_drain(control: Control | None, table: Rows, run_id: str) -> Asked:
    """Ask for the drain of a run; without an id of the run in progress, or else of the next one."""
    phase = control.phase if control is not None else RunPhase.NONE
    current = control.run_id if control is not None else ""
    wanted = run_id or (current if phase is not RunPhase.NONE else "")
    if control is not None and wanted and wanted in control.past:
        return Asked(wanted, "already drained")
    if phase is RunPhase.DRAINING and wanted == current:
        return Asked(wanted, "already draining")
    key = str(uuid.uuid4())
    values = {"kind": "drain", "uuid": key, "runId": wanted, "drainMode": "DEFAULT"}
    try:
        await table.insert(REQUESTS, key, values, timeout=CALL_S)
    except Unsettled:
        if await table.get(REQUESTS, key, timeout=CALL_S) is None:
            raise StorageUnavailable("The request could not be written. Ask again.") from None
    return Asked(wanted)
