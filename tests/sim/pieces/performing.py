"""What a call of a processor does to the storage, and what its answer becomes: `host/perform.py` without a fleet.

Part of `pieces`. In a fleet a row that is not parsed again, or a blob that a clean-up leaves, shows only much later.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeVar

from samza_azure.errors import StorageUnavailable, Unsettled
from samza_azure.group import actions as a
from samza_azure.group.answers import Answer, Busy, Kept, TooLarge, Trouble
from samza_azure.group.control import Control, decode, encode
from samza_azure.group.rows import MEMBERS, LeaderRow, ProcessorRow, columns, processor_row
from samza_azure.host import runs
from samza_azure.host.perform import NOBODY, perform
from samza_azure.logs.names import blob_name, large_prefix
from samza_azure.logs.record import INTERMEDIATE, Slice, Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.outcomes import Refused
from samza_azure.storage.interface import Content
from samza_azure.storage.limits import HINTS, hint_key, hint_name
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from samza_azure.stream_io.log import take_over
from simulator.ledger import demand

T = TypeVar("T")
#: A few records fill a blob, and what is larger than a few hundred bytes has a blob of its own.
LIMITS = LogLimits(roll_records=3, record_bytes=600)
ROW = ProcessorRow("p0", "life")
LEADS = LeaderRow(1, 1, "s", "e", 1)


def check_performing(dice: Random) -> None:
    """Answer: what was done, and what the answer is understood to mean."""
    _check_trouble(dice)
    _check_scan(dice)
    _check_write(dice)
    _check_clean_up(dice)


def same(what: str, found: object, wanted: object) -> None:
    """Compare what was found with what must be."""
    demand(found == wanted, f"Answer: {what}: {str(found)[:300]}, and {str(wanted)[:300]} is right")


def _done(
    action: a.StorageAction, account: MemoryAccount, *, limit: int = 1 << 20, known: Mapping[str, ProcessorRow] = NOBODY
) -> Answer:
    blob, table, logs = account.control_blob(), account.rows(), runs.RunLogs(account.blobs())
    return asyncio.run(perform(action, "p0", blob, table, logs, limit=limit, timeout=1.0, known=known))


class _Broken(Link):
    """Each call fails with this error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        raise self._error


def _check_trouble(dice: Random) -> None:
    """A call without an answer may have happened, or has not; a busy service says when to come back."""
    after_s = dice.choice([0.5, 7.0])
    error, wanted = dice.choice(
        [
            (Unsettled("No answer."), Trouble.UNSETTLED),
            (StorageUnavailable("No connection."), Trouble.UNAVAILABLE),
            (StorageUnavailable("Busy.", after_s=after_s), Busy(after_s)),
        ]
    )
    action: Any = dice.choice(
        [
            a.ReadOwnRow(),
            a.InsertOwnRow(ROW),
            a.ReplaceOwnRow(ROW, "e"),
            a.MergeOwnRow(ROW, "e"),
            a.ReadLeaderRow(),
            a.WriteLeaderRow(LEADS, dice.choice(["e", None])),
            a.ReadControl(dice.choice(["l", None])),
            a.BreakLease("e"),
            a.AcquireLease("l", "e"),
            a.RenewLease("l"),
            a.ReleaseLease("l"),
            a.WriteControl(Control("g"), "e", "l"),
            a.ScanMembers(),
            a.ReadMember("p1"),
            a.ReadRequests(),
            a.AnswerRequest("r", "e", "accepted"),
            a.MarkDead("p1", "e", 2),
            a.DeleteMember("p1", "e"),
            a.DeleteRequest("r", "e"),
            a.CleanRun("r"),
        ]
    )
    same(f"what {error!r} means", _done(action, MemoryAccount(link=_Broken(error))), wanted)


def _check_scan(dice: Random) -> None:
    """A scan shows the rows as they are, also those of which only the state, or the incarnation, has changed."""
    storage = MemoryStorage(lambda: 0.0)
    account = MemoryAccount(storage)
    names = [f"p{number}" for number in range(dice.randrange(1, 6))]
    for name in names:
        row = ProcessorRow(name, f"life of {name}", beat=dice.choice([1, 2]), adopted=dice.choice([0, 3]))
        storage.insert(MEMBERS, name, columns(row))
    before = _done(a.ScanMembers(), account)
    assert isinstance(before, tuple)
    known = {row.processor: row for row in before if isinstance(row, ProcessorRow) and dice.random() < 0.9}
    for name in [name for name in names if dice.random() < 0.5]:
        found = storage.get(MEMBERS, name)
        assert found is not None
        match dice.randrange(4):
            case 0:
                storage.update(MEMBERS, name, {"state": "DEAD", "epoch": 2}, found.etag, merge=True)
            case 1:
                storage.update(MEMBERS, name, {"beat": 3}, found.etag, merge=True)
            case 2:
                again = ProcessorRow(name, "next life", beat=int(found.values["beat"]))
                storage.update(MEMBERS, name, columns(again), found.etag, merge=False)
            case _:
                storage.remove(MEMBERS, name, found.etag)
    there = tuple(processor_row(row.key, row.etag, row.values) for row in storage.query(MEMBERS))
    same("what a scan shows", _done(a.ScanMembers(), account, known=known), there)
    name = dice.choice(names)
    dead = dice.choice([row.etag for row in there] or ["e"])
    is_there = any(row.processor == name and row.etag == dead for row in there)
    marked = _done(a.MarkDead(name, dead, 2), account)
    same("whether the mark is refused", isinstance(marked, Refused), not is_there)


def _check_write(dice: Random) -> None:
    """The control blob is written only under its lease and ETag, and only newcomers may make it too large."""
    storage = MemoryStorage(lambda: 0.0)
    account = MemoryAccount(storage)
    etag = storage.control_create(encode(Control("g")))
    assert isinstance(etag, str)
    if is_leased := dice.random() < 0.9:
        storage.lease_acquire("lease", 60, None)
    write = a.WriteControl(
        Control("g", revision=1),
        dice.choice([etag, etag, "e"]),
        dice.choice(["lease", "lease", "x"]),
        dice.random() < 0.5,
    )
    fits = dice.random() < 0.5
    answer = _done(write, account, limit=1 << 20 if fits else 1)
    is_ours = is_leased and write.lease_id == "lease" and write.etag == etag
    wanted = TooLarge if write.has_newcomers and not fits else str if is_ours else Refused
    same("what becomes of a write of the control blob", type(answer), wanted)
    content = storage.control_read(None, None)
    assert isinstance(content, Content)
    same("the control blob", decode(content.data).revision, 1 if wanted is str else 0)
    renewed = _done(a.RenewLease(write.lease_id), account)
    same("whether a renewal is refused", renewed is not None, not is_leased or write.lease_id != "lease")


def _check_clean_up(dice: Random) -> None:
    """Of a drained run only the logs of output streams stay, and what a policy keeps, with a log to find it by."""
    storage = MemoryStorage(lambda: 0.0)
    account = MemoryAccount(storage)
    blobs = account.blobs()
    inner = [f"runs/r/clean-{number}" for number in range(dice.randrange(3))]
    others = ["runs/r/daily-0", "runs/r2/clean-0", "runs/r-2/clean-0"]
    for prefix in [*inner, *others]:
        log, _ = take_over(
            blobs,
            prefix,
            group_id=bytes(16),
            task=prefix.rpartition("/")[2],
            writer=Writer(1, 1),
            first=True,
            may_append=lambda: True,
            meta={INTERMEDIATE: "clean" in prefix},
            limits=LIMITS,
        )
        for batch in range(dice.randrange(5)):
            log.append(batch, slices=[Slice(0, bytes(dice.choice([9, 700])), 1)], files={f"offsets/{batch}": b"state"})
        storage.insert(HINTS, hint_key(prefix), {})
    every = [name for name, _ in blobs.list("")]
    own = {
        prefix: [name for name in every if name.startswith((f"{prefix}/", f"{large_prefix(prefix)}/"))]
        for prefix in inner
    }
    goes = [name for names in own.values() for name in names]
    held = {name for name in goes if dice.random() < 0.1} if dice.random() < 0.4 else set[str]()
    storage.held = dict.fromkeys(held, "BlobImmutableDueToPolicy")
    found_by = {
        blob_name(prefix, 0)
        for prefix, names in own.items()
        if any("/large/" in name for name in held.intersection(names))
    }
    log = logging.getLogger(runs.__name__)
    log.disabled = True  # it warns of what is kept
    answer = _done(a.CleanRun("r"), account)
    log.disabled = False
    kept = held | found_by
    same("how much is kept", answer.count if isinstance(answer, Kept) else answer, len(kept) or None)
    same(
        "what is left",
        [name for name, _ in blobs.list("")],
        [name for name in every if name not in goes or name in kept],
    )
    hints = {hint_name(row.key) for row in storage.query(HINTS)}
    same("the hints that are left", hints, {"runs/r2/clean-0", "runs/r-2/clean-0"})
    storage.held = {}
    same("a clean-up when nothing is kept", _done(a.CleanRun("r"), account), None)
    same("what is left then", [name for name, _ in blobs.list("")], [name for name in every if name not in goes])


__all__ = ["check_performing"]
