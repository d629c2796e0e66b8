"""What every safety argument of this project takes for granted of a storage account: the promises, each with its check.

`samza-azure verify` plays them against the account of a job; tests/storage plays them on every storage that it has. A
check uses only blobs and rows of its own, through the interface that the product uses, and raises `Broken` with what it
saw. None relies on the outcome of another one.

Not promised: that a service that passes them keeps them forever, or under load.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from samza_azure.group.control import NAME
from samza_azure.logs.names import LOCKS
from samza_azure.logs.operations import Span
from samza_azure.outcomes import Missing, NotModified, Refused
from samza_azure.storage.interface import Blobs, Content, ControlBlob, Row, Rows, Value
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, Transactions, Write

T = TypeVar("T")

#: The time for the answer to one call. In seconds.
CALL_S = 10.0
#: The shortest lease that Azure grants, and the grace after which it must be over. In seconds.
LEASE_S, GRACE_S = 15, 2.0
#: How far the age of a blob that was just written may be off, by the service's own clock. In seconds.
AGE_S = 5.0
#: Rows beyond the first page of a query's answer.
ROWS = 1_001
#: Contenders where only one may win.
CONTENDERS = 8
PARTITION = "members"

A, B = (str(uuid.UUID(int=number)) for number in (0xA, 0xB))


class Subject(Protocol):
    """An account with an empty container and an empty table."""

    def blobs(self) -> Blobs: ...
    def control_blob(self) -> ControlBlob: ...
    def leased_blob(self, name: str) -> ControlBlob: ...
    def rows(self) -> Rows: ...
    def transactions(self, partition: str) -> Transactions: ...


class Broken(Exception):
    """The service did not do what it should. The message says what it did."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing that the service must do. `rests` says what here would fail without it, and `waits` that the check
    takes as long as a lease."""

    sentence: str
    rests: str
    check: Callable[[Subject], Awaitable[None]]
    waits: bool = False

    @property
    def name(self) -> str:
        """The name of its check."""
        return self.check.__name__.replace("_", " ")


PROMISES: list[Promise] = []
Check = Callable[[Subject], Awaitable[None]]


def _promise(sentence: str, *, rests: str, waits: bool = False) -> Callable[[Check], Check]:
    def listed(check: Check) -> Check:
        PROMISES.append(Promise(sentence, rests, check, waits))
        return check

    return listed


# The leased blob.


@_promise(
    "A block blob is created once, if it is missing; a second creation is refused and changes nothing.",
    rests="one control blob: two processors that start a job at once agree on one history",
)
async def one_creation(subject: Subject) -> None:
    blob = _blob(subject, "one-creation")
    _is(await blob.read(timeout=CALL_S), Missing(), "a read of a blob that was never written")
    etag = _done(await blob.create(b"first", timeout=CALL_S), "the creation of a blob")
    _refused(await blob.create(b"second", timeout=CALL_S), "a second creation of the blob")
    _is(await blob.read(timeout=CALL_S), Content(b"first", etag), "a read after a refused creation")


@_promise(
    "A write with If-Match is refused if the blob has changed.",
    rests="a stale leader cannot overwrite the job model",
)
async def write_by_etag(subject: Subject) -> None:
    blob = _blob(subject, "write-etag")
    first = await _leased(blob)
    second = _done(await blob.write(b"1", etag=first, lease_id=A, timeout=CALL_S), "a write with lease and ETag")
    _refused(await blob.write(b"2", etag=first, lease_id=A, timeout=CALL_S), "a write with an outdated ETag")
    _is(await blob.read(timeout=CALL_S), Content(b"1", second), "a read after a refused write")


@_promise(
    "A write without the lease, or with another one, is refused.",
    rests="nobody but the leader writes the job model while it leads",
)
async def write_by_lease(subject: Subject) -> None:
    blob = _blob(subject, "write-lease")
    etag = await _leased(blob)
    _refused(await blob.write(b"1", etag=etag, lease_id=B, timeout=CALL_S), "a write with a lease that nobody holds")
    _refused(await blob.read(lease_id=B, timeout=CALL_S), "a read that claims a lease that nobody holds")
    _is(await blob.read(lease_id=A, timeout=CALL_S), Content(b"0", etag), "a read with the lease")


@_promise("A lease has one holder at a time.", rests="there is one leader, and a lock of the library has one holder")
async def one_lease(subject: Subject) -> None:
    blob = _blob(subject, "one-lease")
    _done(await blob.create(b"0", timeout=CALL_S), "the creation of a blob")
    ids = [str(uuid.uuid4()) for _ in range(CONTENDERS)]
    answers = await asyncio.gather(*(blob.acquire(each, seconds=60, timeout=CALL_S) for each in ids))
    if (winners := answers.count(None)) != 1:
        raise Broken(f"of {CONTENDERS} requests for one lease at the same time, {winners} were granted")
    # By this code a command tells a leader from an account in trouble.
    _is(set(answers) - {None}, {Refused("LeaseAlreadyPresent")}, "each request for a lease that is taken")


@_promise("A lease is renewed by its holder and by nobody else.", rests="a leader notices that it leads no longer")
async def renewal(subject: Subject) -> None:
    blob = _blob(subject, "renewal")
    await _leased(blob)
    _done(await blob.renew(A, timeout=CALL_S), "a renewal by the holder")
    _refused(await blob.renew(B, timeout=CALL_S), "a renewal by somebody else")
    _done(await blob.acquire(A, seconds=30, timeout=CALL_S), "a second request by the holder")


@_promise(
    "Breaking a lease with period 0 ends it at once: its holder can neither renew nor write, and another one gets it.",
    rests="a successor takes over as soon as it suspects the leader, and not when the lease has run out",
)
async def break_at_once(subject: Subject) -> None:
    blob = _blob(subject, "break")
    etag = await _leased(blob)
    _done(await blob.break_now(timeout=CALL_S), "a break")
    _refused(await blob.renew(A, timeout=CALL_S), "a renewal after the break")
    _refused(await blob.write(b"1", etag=etag, lease_id=A, timeout=CALL_S), "a write after the break")
    _done(await blob.acquire(B, seconds=60, timeout=CALL_S), "a request for the lease after the break")
    _refused(await blob.write(b"1", etag=etag, lease_id=A, timeout=CALL_S), "a write by the former holder")


@_promise(
    "A released lease is free at once.",
    rests="a leader that leaves makes room for its successor",
)
async def release(subject: Subject) -> None:
    blob = _blob(subject, "release")
    await _leased(blob)
    _refused(await blob.release(B, timeout=CALL_S), "a release by somebody else")
    _done(await blob.release(A, timeout=CALL_S), "a release by the holder")
    _done(await blob.acquire(B, seconds=60, timeout=CALL_S), "a request for the lease after its release")


@_promise(
    "A lease that is not renewed ends after its time.",
    rests="a job whose processors are all dead is led again",
    waits=True,
)
async def expiry(subject: Subject) -> None:
    blob = _blob(subject, "expiry")
    etag = _done(await blob.create(b"0", timeout=CALL_S), "the creation of a blob")
    _done(await blob.acquire(A, seconds=LEASE_S, timeout=CALL_S), f"a request for {LEASE_S} s")
    await asyncio.sleep(LEASE_S + GRACE_S)
    _refused(await blob.write(b"1", etag=etag, lease_id=A, timeout=CALL_S), "a write under a lease that has run out")
    _done(await blob.acquire(B, seconds=LEASE_S, timeout=CALL_S), "a request for a lease that has run out")


@_promise(
    "A lease call with If-Match is refused if the blob has changed.",
    rests="a successor does not depose a leader that has written since it was last seen",
)
async def lease_by_etag(subject: Subject) -> None:
    blob = _blob(subject, "lease-etag")
    first = await _leased(blob)
    second = _done(await blob.write(b"1", etag=first, lease_id=A, timeout=CALL_S), "a write with lease and ETag")
    _refused(await blob.break_now(etag=first, timeout=CALL_S), "a break with an outdated ETag")
    _refused(await blob.renew(A, etag=first, timeout=CALL_S), "a renewal with an outdated ETag")
    _done(await blob.break_now(etag=second, timeout=CALL_S), "a break with the ETag of now")
    _refused(await blob.acquire(B, seconds=60, etag=first, timeout=CALL_S), "a request with an outdated ETag")


@_promise(
    "Lease calls leave the ETag as it is.",
    rests="an election does not refuse the write that it was held for",
)
async def etag_of_a_lease(subject: Subject) -> None:
    blob = _blob(subject, "lease-keeps")
    etag = await _leased(blob)
    _done(await blob.renew(A, timeout=CALL_S), "a renewal")
    _done(await blob.break_now(timeout=CALL_S), "a break")
    _is(await blob.read(timeout=CALL_S), Content(b"0", etag), "a read after lease calls")


@_promise(
    "A read with If-None-Match says that nothing has changed, and has the content if something did.",
    rests="processors watch the job model for the price of an empty answer, and miss no change of it",
)
async def conditional_read(subject: Subject) -> None:
    blob = _blob(subject, "read-etag")
    first = await _leased(blob)
    _is(await blob.read(unless_etag=first, timeout=CALL_S), NotModified(), "a read of what has not changed")
    second = _done(await blob.write(b"1", etag=first, lease_id=A, timeout=CALL_S), "a write with lease and ETag")
    _is(await blob.read(unless_etag=first, timeout=CALL_S), Content(b"1", second), "a read of what has changed")


# Logs.


@_promise(
    "An append blob is created once; a second creation is refused and does not empty it.",
    rests="a log that exists is never started anew",
)
async def one_log(subject: Subject) -> None:
    blobs = subject.blobs()
    _is(blobs.create("log/one"), True, "the creation of a log")
    _is(blobs.append("log/one", b"0123456789", 0), 10, "an append to a new log")
    _is(blobs.create("log/one"), False, "a second creation of the log")
    _is(blobs.read("log/one", 0), Span(b"0123456789", 10), "a read after a second creation")


@_promise(
    "An append happens at exactly the position that it names, or is refused.",
    rests="a stale owner of a task can add nothing to its log",
)
async def append_position(subject: Subject) -> None:
    blobs = subject.blobs()
    blobs.create("log/position")
    _is(blobs.append("log/position", b"0123456789", 0), 10, "an append at the end")
    for position in (0, 9, 11):
        _refused(blobs.append("log/position", b"x", position), f"an append at {position} of 10 bytes")
    _is(blobs.append("log/position", b"abc", 10), 13, "an append at the end")
    _is(blobs.read("log/position", 0), Span(b"0123456789abc", 13), "a read after refused appends")


@_promise(
    "Of several appends to one position at the same time, one succeeds.",
    rests="two owners of a task, or two producers, do not write over each other",
)
async def append_race(subject: Subject) -> None:
    blobs = subject.blobs()
    blobs.create("log/race")
    with ThreadPoolExecutor(CONTENDERS) as threads:
        answers = list(threads.map(lambda number: blobs.append("log/race", b"%04d" % number, 0), range(CONTENDERS)))
    found = blobs.read("log/race", 0)
    if answers.count(4) != 1 or not isinstance(found, Span) or found.size != 4:
        raise Broken(f"of {CONTENDERS} appends to one position, {answers.count(4)} succeeded, and the log has {found}")


@_promise(
    "A read sees each append as soon as it was answered.",
    rests="a new owner of a task finds everything that the former one wrote",
)
async def read_after_append(subject: Subject) -> None:
    blobs, written = subject.blobs(), b""
    blobs.create("log/fresh")
    for number in range(5):
        blobs.append("log/fresh", b"%d" % number, number)
        written += b"%d" % number
        _is(blobs.read("log/fresh", 0), Span(written, number + 1), f"a read right after append {number + 1}")


@_promise(
    "A read of a range has the bytes that are there and the size of all; of a blob that is not there, it says so.",
    rests="readers know where a log ends, and that a log is lost",
)
async def ranges(subject: Subject) -> None:
    blobs = subject.blobs()
    blobs.create("log/ranges")
    blobs.append("log/ranges", b"0123456789", 0)
    for start, length, wanted in ((4, 3, b"456"), (8, 100, b"89"), (10, 5, b""), (500, 5, b"")):
        _is(blobs.read("log/ranges", start, length), Span(wanted, 10), f"a read of {length} bytes from {start} of 10")
    _is(blobs.read("log/none", 0), Missing(), "a read of a blob that was never written")
    _is(blobs.append("log/none", b"x", 0), Missing(), "an append to a blob that was never created")


@_promise(
    "A blob of one's own name is written once, if it is missing.",
    rests="the large parts of a record, and the files of a table, are never replaced by a stale owner",
)
async def one_put(subject: Subject) -> None:
    blobs = subject.blobs()
    _is(blobs.put("put/one", b"first"), True, "the first write of a blob")
    _is(blobs.put("put/one", b"second"), False, "a second write of the blob")
    _is(blobs.read("put/one", 0), Span(b"first", 5), "a read after a second write")


@_promise(
    "A listing has a blob as soon as it is written, below its prefix, in the order of names, with its size.",
    rests="an owner finds the newest blob of a log, and retention the oldest",
)
async def listing(subject: Subject) -> None:
    blobs = subject.blobs()
    for name in ("list/a/2", "list/a/10", "list/b/1"):
        blobs.create(name)
    blobs.append("list/a/2", b"rows", 0)
    _is(list(blobs.list("list/a/")), [("list/a/10", 0), ("list/a/2", 4)], "a listing right after three writes")


@_promise(
    "A listing says how old a blob is by the service's own clock.",
    rests="retention deletes what is old, and nothing that is not",
)
async def age(subject: Subject) -> None:
    blobs, begun = subject.blobs(), time.monotonic()
    blobs.create("age/new")
    found = blobs.list_with_ages("age/")
    most = time.monotonic() - begun + AGE_S
    ages = [seconds for each in found for seconds in (each.age_s, each.since_s)]
    if len(found) != 1 or not all(-AGE_S < seconds < most for seconds in ages):
        raise Broken(f"a blob that was written {most - AGE_S:.1f} s before has the ages {ages} s")


@_promise(
    "A deleted blob is gone at once; a leased one is not deleted.",
    rests="a task does not read what was cleaned up, and nobody deletes the job model of a leader",
)
async def deletion(subject: Subject) -> None:
    blobs, leased = subject.blobs(), subject.control_blob()
    for number in range(3):
        blobs.create(f"delete/{number}")
    await _leased(leased)
    blobs.delete("delete/0")
    _is(blobs.read("delete/0", 0), Missing(), "a read of a deleted blob")
    kept = blobs.delete_many(["delete/1", "delete/2", NAME])
    _is(set(kept), {NAME}, "what a deletion of three blobs, one of them leased, keeps")
    _is(list(blobs.list("delete/")), [], "a listing after the deletion")


# Rows.


@_promise("A row is inserted once.", rests="two processors of one id do not both join, and a key is used once")
async def one_row(subject: Subject) -> None:
    rows = subject.rows()
    etag = _done(await rows.insert(PARTITION, "once", {"beat": 1}, timeout=CALL_S), "the insertion of a row")
    _refused(await rows.insert(PARTITION, "once", {"beat": 2}, timeout=CALL_S), "a second insertion of the row")
    _is(await rows.get(PARTITION, "once", timeout=CALL_S), Row("once", etag, {"beat": 1}), "a read after it")


@_promise(
    "A row is changed or deleted only if it has the ETag that is named.",
    rests="a processor that was marked dead notices it, and a dead mark spares one that has come back",
)
async def row_by_etag(subject: Subject) -> None:
    rows = subject.rows()
    first = _done(await rows.insert(PARTITION, "etag", {"beat": 1, "state": "x"}, timeout=CALL_S), "an insertion")
    second = _done(await rows.merge(PARTITION, "etag", {"beat": 2}, etag=first, timeout=CALL_S), "a merge")
    _refused(await rows.merge(PARTITION, "etag", {"beat": 3}, etag=first, timeout=CALL_S), "a merge with an old ETag")
    _refused(await rows.replace(PARTITION, "etag", {}, etag=first, timeout=CALL_S), "a replacement with an old ETag")
    _refused(await rows.delete(PARTITION, "etag", etag=first, timeout=CALL_S), "a deletion with an old ETag")
    wanted = Row("etag", second, {"beat": 2, "state": "x"})
    _is(await rows.get(PARTITION, "etag", timeout=CALL_S), wanted, "a read after refused changes")


@_promise("A write to a row that is gone is refused.", rests="a processor whose row was deleted stops")
async def row_that_is_gone(subject: Subject) -> None:
    rows = subject.rows()
    etag = _done(await rows.insert(PARTITION, "gone", {"beat": 1}, timeout=CALL_S), "an insertion")
    _done(await rows.delete(PARTITION, "gone", etag=etag, timeout=CALL_S), "a deletion")
    _refused(
        await rows.merge(PARTITION, "gone", {"beat": 2}, etag=etag, timeout=CALL_S), "a merge into a row that is gone"
    )
    _is(await rows.get(PARTITION, "gone", timeout=CALL_S), None, "a read of a row that is gone")


@_promise("Each write of a row changes its ETag.", rests="silence is told apart from heartbeats that say the same")
async def new_etags(subject: Subject) -> None:
    rows = subject.rows()
    etags = [_done(await rows.insert(PARTITION, "beats", {"beat": 1}, timeout=CALL_S), "an insertion")]
    for _ in range(5):
        etags.append(
            _done(await rows.merge(PARTITION, "beats", {"beat": 1}, etag=etags[-1], timeout=CALL_S), "a merge")
        )
    if len(set(etags)) != len(etags):
        raise Broken(f"six writes of the same values have {len(set(etags))} different ETags")


@_promise(
    "A row says when it was written by the service's own clock.",
    rests="rows of processors that are gone are deleted, and rows of others are not",
)
async def age_of_a_row(subject: Subject) -> None:
    rows, begun = subject.rows(), time.monotonic()
    _done(await rows.insert(PARTITION, "age", {"beat": 1}, timeout=CALL_S), "an insertion")
    found = await rows.get(PARTITION, "age", timeout=CALL_S)
    most = time.monotonic() - begun + AGE_S
    if found is None or not found.age_s < most:
        raise Broken(f"a row that was written {most - AGE_S:.1f} s before is {found and found.age_s} s old")


@_promise("A row comes back as it was written, with the types of its values.", rests="processors understand each other")
async def values(subject: Subject) -> None:
    rows = subject.rows()
    written: dict[str, Value] = {
        "most": 2**63 - 1,
        "least": -(2**63),
        "yes": True,
        "none": "",
        "text": "ä \U0001f680 '/#?",
    }
    etag = _done(await rows.insert(PARTITION, "values", written, timeout=CALL_S), "an insertion")
    found = await rows.get(PARTITION, "values", timeout=CALL_S)
    _is(found, Row("values", etag, written), "a read of a row")
    kinds = {name: type(value) for name, value in found.values.items()} if found is not None else {}
    _is(kinds, {name: type(value) for name, value in written.items()}, "the types in it")


@_promise(
    "A query has all rows of a partition as soon as they are written, in the order of their keys, page by page.",
    rests="the leader sees every processor",
)
async def query(subject: Subject) -> None:
    rows = subject.rows()
    for key in ("b", "a-2", "a", "10", "9"):
        _done(await rows.insert("few", key, {"beat": 1}, timeout=CALL_S), "an insertion")
    few = [row.key for row in await rows.query("few", timeout=CALL_S)]
    _is(few, ["10", "9", "a", "a-2", "b"], "a query right after five insertions")
    keys = [f"{number:05d}" for number in range(ROWS)]
    transactions = subject.transactions("pages")
    for start in range(0, ROWS, OPERATIONS_MAX):
        writes = [Write(Act.INSERT, key, {"beat": 1}) for key in keys[start : start + OPERATIONS_MAX]]
        _written(transactions.transact(writes), f"a transaction of {len(writes)} rows")
    found = [row.key for row in transactions.query("0", "~")]
    if found != keys:
        raise Broken(f"a query of {ROWS} rows has {len(found)}, in order: {found == sorted(found)}")


@_promise(
    "A transaction writes all of its rows or none.",
    rests="a table never shows half of a publish",
)
async def all_or_none(subject: Subject) -> None:
    rows = subject.transactions("all or none")
    made = rows.transact([Write(Act.INSERT, "a", {"n": 0}), Write(Act.INSERT, "b", {"n": 1})])
    old = _written(made, "a transaction of two insertions")[0]
    _written(rows.transact([Write(Act.MERGE, "a", {"n": 1}, etag=old)]), "a transaction with the ETag of now")
    half = rows.transact([Write(Act.INSERT, "c", {"n": 1}), Write(Act.INSERT, "a", {"n": 2})])
    _refused(half, "a transaction with an insertion of a row that is there")
    stale = rows.transact([Write(Act.MERGE, "b", {"n": 2}), Write(Act.MERGE, "a", {"n": 2}, etag=old)])
    _refused(stale, "a transaction with an old ETag")
    found = [(row.key, row.values["n"]) for row in rows.query("0", "~")]
    _is(found, [("a", 1), ("b", 1)], "the rows after two refused transactions")


# What the checks are made of.


def _blob(subject: Subject, name: str) -> ControlBlob:
    """A blob of its own for a check, below the folder of locks."""
    return subject.leased_blob(f"{LOCKS}{name}")


async def _leased(blob: ControlBlob) -> str:
    """Create the blob, leased by A for a minute; its ETag."""
    etag = _done(await blob.create(b"0", timeout=CALL_S), "the creation of a blob")
    _done(await blob.acquire(A, seconds=60, timeout=CALL_S), "a request for its lease")
    return etag


def _done(answer: T | Refused | Missing, doing: str) -> T:
    match answer:
        case Refused(code):
            raise Broken(f"{doing} was refused: {code}")
        case Missing():
            raise Broken(f"{doing} found nothing")
    return answer


def _written(answer: Sequence[str] | Refused, doing: str) -> Sequence[str]:
    return _done(answer, doing)


def _refused(answer: object, doing: str) -> None:
    if not isinstance(answer, Refused):
        raise Broken(f"{doing} was not refused, and answered with {_shown(answer)}")


def _is(answer: object, wanted: object, doing: str) -> None:
    if answer != wanted:
        raise Broken(f"{doing} answered with {_shown(answer)}, and should have with {_shown(wanted)}")


def _shown(answer: object) -> str:
    text = repr(answer)
    return text if len(text) <= 200 else f"{text[:200]}…"


__all__ = ["PROMISES", "Broken", "Promise", "Subject"]
