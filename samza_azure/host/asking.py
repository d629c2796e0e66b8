"""Requests to the leader, written as rows, by commands or by programs of your own.

The leased control blob refuses all other writers, so a request cannot be written there. The leader validates the row,
acts, and writes its answer into it.

Nothing here needs the control blob's own client, or imports it: its package takes half of a command's start.
"""

import getpass
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from samza_azure.errors import SamzaAzureError, StorageUnavailable, Unsettled
from samza_azure.group.control import Control, RunPhase, signalled
from samza_azure.group.notification import DrainNotification, from_fields
from samza_azure.group.rows import LEADER, REQUESTS, RequestKind, is_run_id, leader_row, request_columns
from samza_azure.outcomes import Refused
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S, Rows
from samza_azure.storage.limits import HINTS, drain_hint, hint_key
from samza_azure.storage.transactions import Act, Write


def asker() -> str:
    """The user and the machine that make a request, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container whose user has no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"[:200]


async def write_request(
    table: Rows, kind: RequestKind, run_id: str, lives: Sequence[str] = (), until_ms: int = 0
) -> str:
    """Write a request and return its key. An empty `run_id` is for the run in progress, or else the next.

    Raise `StorageUnavailable` if the request was not written.
    """
    return str((await _write(table, kind, run_id, lives, until_ms))["uuid"])


async def _write(
    table: Rows, kind: RequestKind, run_id: str, lives: Sequence[str] = (), until_ms: int = 0
) -> Mapping[str, str | int]:
    """Write a request and return its columns.

    If the answer is lost, read the row, so that nothing is requested twice. Raise `StorageUnavailable` if the request
    was not written.
    """
    key = str(uuid.uuid4())
    columns = _columns(kind, key, run_id, lives, until_ms)
    try:
        await table.insert(REQUESTS, key, columns, timeout=CALL_S)
    except Unsettled:
        if await table.get(REQUESTS, key, timeout=CALL_S) is None:
            raise StorageUnavailable("The request could not be written. Try again.") from None
    return columns


async def write_drain(table: Rows, control: Control | None, run_id: str) -> DrainNotification:
    """Write a request for a drain, and hint at it if it is for the run in progress. Return it as it will be read.

    Containers read the hints more often than followers the leader row, so the followers look often by the time that
    the leader has taken the request up. The clean-up of a run deletes its hints; those of a mistyped run would stay.
    """
    asked = from_fields(await _write(table, RequestKind.DRAIN, run_id))
    over = (RunPhase.NONE, RunPhase.DRAINED)
    if control is not None and run_id == control.run_id and control.phase not in over:
        with suppress(SamzaAzureError):  # without the hint, followers hear of the drain with their next look
            await table.insert(HINTS, hint_key(drain_hint(run_id, asked.uuid)), {}, timeout=CALL_S)
    return asked


#: How long an early request waits for the answer to one call, in seconds: what it saves is less.
EARLY_S = 2.0


@dataclass(frozen=True, slots=True)
class EarlyRequest:
    """A drain requested for the run that the leader row names as running. The control blob has not been asked."""

    run_id: str
    key: str
    is_written: bool  # False: the answer was lost, so the row may be there, or come


def write_drain_early(account: Account, run_id: str) -> EarlyRequest | None:
    """Request the drain of the running run, by the leader row alone, so that the fleet drains while a command imports
    the rest. `run_id` may name the run that is meant. `hint_drain_early` belongs to it.

    None if the row names no such run, or if it was certainly not requested: ask again by the control blob. A row that
    is out of date names a run that no longer runs: its request changes nothing.
    """
    try:
        rows = account.transactions(LEADER, timeout_s=EARLY_S).query(LEADER, f"{LEADER}~")
    except SamzaAzureError:
        return None
    found = next((leader_row(row.etag, row.values) for row in rows if row.key == LEADER), None)
    current, phase = signalled(found.signal) if found is not None else ("", "")
    if phase != RunPhase.RUNNING or run_id not in ("", current) or not is_run_id(current):
        return None
    key = str(uuid.uuid4())
    row = Write(Act.INSERT, key, _columns(RequestKind.DRAIN, key, current))
    try:
        answer = account.transactions(REQUESTS, timeout_s=EARLY_S).transact([row])
    except Unsettled:
        return EarlyRequest(current, key, is_written=False)
    except SamzaAzureError:
        return None
    return None if isinstance(answer, Refused) else EarlyRequest(current, key, is_written=True)


def hint_drain_early(account: Account, early: EarlyRequest) -> None:
    """Hint at the request, as `write_drain` does."""
    with suppress(SamzaAzureError):
        account.hints(timeout_s=EARLY_S).publish(drain_hint(early.run_id, early.key), {})


def _columns(
    kind: RequestKind, key: str, run_id: str, lives: Sequence[str] = (), until_ms: int = 0
) -> dict[str, str | int]:
    asked_ms = time.time_ns() // 1_000_000
    return request_columns(kind, key, run_id, lives, by=asker(), asked_ms=asked_ms, until_ms=until_ms)
