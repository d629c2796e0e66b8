"""Requests of commands to the leader, through rows in the table. `samza_azure.host.asking` writes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from samza_azure.commands.terminal import clock
from samza_azure.errors import ConfigError
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.requests import ALREADY_DRAINED, ALREADY_DRAINING, flushes
from samza_azure.group.rows import REQUESTS, ProcessorRow, RequestKind, request
from samza_azure.host.asking import EarlyRequest, write_drain, write_request
from samza_azure.host.status import GroupAccount, control_of
from samza_azure.messages import DrainStep
from samza_azure.storage.interface import CALL_S, Rows


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and the run that it is for; `run_id` is empty if it is for the next run."""

    run_id: str
    key: str = ""  # of the request's row; empty if no request was needed
    already: str = ""  # why none was needed


async def ask_drain(control: Control | None, table: Rows, run_id: str, early: EarlyRequest | None = None) -> Asked:
    """Request the drain of a run; without an id, of the run in progress. Raise `ConfigError` if there is none.

    An early request is for the run that was in progress when it was written, never for a run that has begun since.
    """
    phase = control.phase if control is not None else RunPhase.NONE
    current = control.run_id if control is not None else ""
    wanted = run_id or (current if phase is not RunPhase.NONE else "")
    if control is not None and early is not None:
        drains = (control.drain, *control.drains)
        if any(drain is not None and drain.uuid == early.key for drain in drains):
            return Asked(early.run_id, early.key)  # taken up; a small job may be drained, and its next run begun
        if early.run_id != wanted:
            now = f"now it is run {wanted}" if wanted else "now it is none"
            raise ConfigError(
                f"Run {early.run_id} was in progress a moment ago, and {now}. No other run was asked to drain. "
                f"Ask again, or say with --run-id which one is meant."
            )
    if not wanted:
        raise ConfigError(
            "No run has begun yet, so there is none to drain. Is this the job that you mean? With --run-id ID a run is "
            "drained as soon as it begins."
        )
    if control is not None and wanted in control.past:
        return Asked(wanted, already=ALREADY_DRAINED)
    if early is not None and control is not None and await _is_there(table, early):
        return Asked(wanted, early.key)
    if phase is RunPhase.DRAINING and wanted == current:
        return Asked(wanted, already=ALREADY_DRAINING)
    return Asked(wanted, (await write_drain(table, control, wanted)).uuid)


async def _is_there(table: Rows, early: EarlyRequest) -> bool:
    return early.is_written or await table.get(REQUESTS, early.key, timeout=CALL_S) is not None


async def ask_cancel(account: GroupAccount, run_id: str) -> Asked:
    """Request the cancellation of a drain that has not begun to flush, or that no leader has accepted yet.

    The requests are read before the control blob: a drain that a leader accepts in between is in both.
    """
    table = account.rows()
    found = [request(row.key, row.etag, row.values) for row in await table.query(REQUESTS, timeout=CALL_S)]
    control = await control_of(account)
    wanted = run_id or (control.run_id if control is not None else "")
    if control is not None and wanted in control.past:
        raise ConfigError(
            f"Run {wanted} is drained{final_since(control, wanted)}. That cannot be undone; the next start begins the "
            "next run."
        )
    if control is not None and wanted == control.run_id:
        refuse_after_flush(control, "its drain can no longer be cancelled")
    waiting = any(each.kind is RequestKind.DRAIN and not each.answer and each.run_id in ("", wanted) for each in found)
    if not waiting and (control is None or control.drain is None or wanted != control.run_id):
        return Asked(wanted, already="not draining")
    return Asked(wanted, await write_request(table, RequestKind.CANCEL, wanted))


async def ask_stop(control: Control | None, rows: Sequence[ProcessorRow], table: Rows) -> Asked:
    """Request that all live processors commit and leave. Those that start later are not affected."""
    current = control.run_id if control is not None else ""
    lives = [row.incarnation for row in rows if row.alive]
    if control is None or not lives:
        return Asked(current, already="stopped")
    refuse_after_flush(control, "it ends by itself and can no longer be stopped")
    return Asked(current, await write_request(table, RequestKind.STOP, current, lives))


async def ask_notice(table: Rows, kind: RequestKind, incarnation: str, until_ms: int = 0) -> Asked:
    """Request that one incarnation of a processor is decommissioned until then, or that this is withdrawn."""
    return Asked("", await write_request(table, kind, "", [incarnation], until_ms))


async def answer_to(table: Rows, key: str) -> str | None:
    """The leader's answer to a request; empty if there is none yet, None if the request is deleted."""
    row = await table.get(REQUESTS, key, timeout=CALL_S)
    return request(row.key, row.etag, row.values).answer if row is not None else None


def refuse_after_flush(control: Control, so: str) -> None:
    """Raise `ConfigError` if the run flushes, or failed while it did: FLUSH is the point of no return."""
    if control.phase is RunPhase.FAILED and control.drain is not None and control.drain.step is DrainStep.FLUSH:
        since = final_since(control, control.run_id)
        raise ConfigError(
            f"Run {control.run_id} failed while it flushed{since}: {so}. The next start resumes the flush."
        )
    if flushes(control):
        raise ConfigError(
            f"Run {control.run_id} is already flushing{final_since(control, control.run_id)}: {so}. "
            "samza-azure drain --wait waits for its end."
        )


def final_since(control: Control, run_id: str) -> str:
    """The facts of a run's drain, for a message: `, final since 14:02:11, asked by ada@host`; or empty."""
    drain = next((each for each in (control.drain, *control.drains) if each and each.run_id == run_id), None)
    if drain is None:
        return ""
    at = dict(zip(drain.history, drain.at_ms, strict=False)).get("FLUSH", 0)
    since = f", final since {clock(at)}" if at else ""
    return f"{since}, asked by {drain.by}" if drain.by else since
