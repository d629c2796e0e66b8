"""Everything that a processor does to the storage account: one `match`, read from top to bottom.

Each action carries the fence of its call: the ETag of the row or blob that it was decided for, and for the control blob
the lease id as well. No call is repeated here: a failure becomes an answer, from which the next decision is made.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from samza_azure.errors import ModelTooLarge, StateLost, StorageUnavailable, TooOld, Unsettled
from samza_azure.group import actions, control, rows
from samza_azure.group.answers import Answer, Busy, ControlRead, Later, TooLarge, Trouble
from samza_azure.group.rows import LEADER, MEMBERS, REQUESTS, ProcessorRow
from samza_azure.group.timing import LEASE_S
from samza_azure.host.runs import RunLogs
from samza_azure.logs.names import run_folder
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Content, ControlBlob, Row, Rows, Value
from samza_azure.storage.limits import HINTS, hint_name

NOBODY: Mapping[str, ProcessorRow] = MappingProxyType({})


async def perform(
    action: actions.StorageAction,
    me: str,
    blob: ControlBlob,
    table: Rows,
    runs: RunLogs,
    *,
    limit: int,
    timeout: float,
    known: Mapping[str, ProcessorRow] = NOBODY,
    trouble: Callable[[StorageUnavailable], None] = lambda error: None,
) -> Answer:
    """Perform the action and return the answer. Rows with the same ETag as in `known` are not parsed again.

    `trouble` hears why there is no answer, for the log: decisions do not depend on it.
    """
    try:
        return await _perform(action, me, blob, table, runs, limit, timeout, known)
    except TooOld as error:
        return Later(error.needs, str(error))
    except Unsettled as error:
        trouble(error)
        return Trouble.UNSETTLED
    except StorageUnavailable as error:
        trouble(error)
        return Busy(error.after_s) if error.after_s else Trouble.UNAVAILABLE


async def _perform(
    action: actions.StorageAction,
    me: str,
    blob: ControlBlob,
    table: Rows,
    runs: RunLogs,
    limit: int,
    timeout: float,
    known: Mapping[str, ProcessorRow],
) -> Answer:
    match action:
        case actions.ReadOwnRow():
            return await _member(table, me, timeout)
        case actions.ReadMember(processor=processor):
            return await _member(table, processor, timeout)
        case actions.InsertOwnRow(row=own):
            return await table.insert(MEMBERS, me, rows.columns(own), timeout=timeout)
        case actions.ReplaceOwnRow(row=own, etag=etag):
            return await table.replace(MEMBERS, me, rows.columns(own), etag=etag, timeout=timeout)
        case actions.MergeOwnRow(row=own, etag=etag):
            return await table.merge(MEMBERS, me, rows.columns(own), etag=etag, timeout=timeout)
        case actions.ReadLeaderRow():
            row = await table.get(LEADER, LEADER, timeout=timeout)
            return rows.leader_row(row.etag, row.values) if row is not None else Missing()
        case actions.WriteLeaderRow(row=leader, etag=seen):
            values = rows.leader_columns(leader)
            if seen is None:
                return await table.insert(LEADER, LEADER, values, timeout=timeout)
            return await table.merge(LEADER, LEADER, values, etag=seen, timeout=timeout)
        case actions.ReadControl(lease_id=lease_id, unless_etag=unless_etag):
            content = await blob.read(timeout=timeout, unless_etag=unless_etag, lease_id=lease_id)
            return ControlRead(control.decode(content.data), content.etag) if isinstance(content, Content) else content
        case actions.CreateControl(control=value):
            try:
                await runs.refuse_if_any()
            except StateLost:
                if isinstance(await blob.read(timeout=timeout), Missing):
                    raise
                return Refused("BlobAlreadyExists")  # another processor was faster, and the run has begun
            return await blob.create(control.encode(value), timeout=timeout)
        case actions.BreakLease(etag=etag):
            return await blob.break_now(etag=etag, timeout=timeout)
        case actions.AcquireLease(lease_id=lease_id, etag=etag):
            return await blob.acquire(lease_id, seconds=LEASE_S, etag=etag, timeout=timeout)
        case actions.RenewLease(lease_id=lease_id):
            return await blob.renew(lease_id, timeout=timeout)
        case actions.ReleaseLease(lease_id=lease_id):
            return await blob.release(lease_id, timeout=timeout)
        case actions.WriteControl(control=value, etag=etag, lease_id=lease_id, has_newcomers=has_newcomers):
            try:
                data = control.encode(value, limit=limit if has_newcomers else None)
            except ModelTooLarge as error:
                return TooLarge(str(error))
            return await blob.write(data, etag=etag, lease_id=lease_id, timeout=timeout)
        case actions.ScanMembers():
            return _all(await table.query(MEMBERS, timeout=timeout), known)
        case actions.ReadRequests():
            found = await table.query(REQUESTS, timeout=timeout)
            return tuple(rows.request(row.key, row.etag, row.values, row.age_s) for row in found)
        case actions.AnswerRequest(key=key, etag=etag, answer=answer):
            return await table.merge(REQUESTS, key, {"answer": answer}, etag=etag, timeout=timeout)
        case actions.MarkDead(processor=processor, etag=etag, epoch=epoch):
            dead: dict[str, Value] = {"state": str(rows.ProcessorState.DEAD), "epoch": epoch}
            return await table.merge(MEMBERS, processor, dead, etag=etag, timeout=timeout)
        case actions.DeleteMember(processor=processor, etag=etag):
            return await table.delete(MEMBERS, processor, etag=etag, timeout=timeout)
        case actions.DeleteRequest(key=key, etag=etag):
            return await table.delete(REQUESTS, key, etag=etag, timeout=timeout)
        case actions.CleanRun(run_id=run_id):
            kept = await runs.clean(run_id)
            for hint in await table.query(HINTS, timeout=timeout):
                if hint_name(hint.key).startswith(run_folder(run_id)):
                    await table.delete(HINTS, hint.key, etag=hint.etag, timeout=timeout)
            return kept


async def _member(table: Rows, processor: str, timeout: float) -> Answer:
    row = await table.get(MEMBERS, processor, timeout=timeout)
    return rows.processor_row(row.key, row.etag, row.values, row.age_s) if row is not None else Missing()


def _all(found: Sequence[Row], known: Mapping[str, ProcessorRow]) -> Answer:
    read = []
    for row in found:
        before = known.get(row.key)
        is_same = before is not None and before.etag == row.etag
        read.append(before if is_same and before else rows.processor_row(row.key, row.etag, row.values, row.age_s))
    return tuple(read)
