"""One history on two storages at once: the simulator's storage in memory, and a service.

After each step both answers must be the same: values, refusals by Azure's own code, kinds of errors,
and ETags in so far as the same two answers have the same one. Where the emulator is known to differ, `differences`
says so, and the history goes on with another blob. Leases that ran out are there from the beginning.
"""

import inspect
import uuid
from asyncio import Runner
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from samza_azure.errors import SamzaAzureError
from samza_azure.group.control import NAME
from samza_azure.outcomes import Missing, NotModified, Refused
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs, Content, ControlBlob, Row, Rows, Value
from samza_azure.storage.memory import MemoryAccount
from tests.storage.differences import DONE, Difference
from tests.storage.stock import SECONDS, Stock

AnyAccount: TypeAlias = Account | MemoryAccount
Call: TypeAlias = Callable[[Any, Any], Any]

#: The lessees; the first of them held the leases that have run out.
IDS = tuple(str(uuid.UUID(int=number)) for number in (0xA, 0xB, 0xC))


@dataclass(frozen=True, slots=True)
class Tag:
    """An ETag by the order in which it was first seen: the same number on both storages."""

    number: int


@dataclass(frozen=True, slots=True)
class Raised:
    """What a call raised: whose fault it is. The messages may differ."""

    kind: str


@dataclass(slots=True)
class Tags:
    """The ETags that one storage has given, in the order in which they were first seen."""

    given: list[str] = field(default_factory=list)

    def etag(self, tag: Tag | None) -> str | None:
        """As the storage wrote it."""
        return None if tag is None else self.given[tag.number]

    def seen(self, answer: object) -> object:
        """An answer as it can be compared."""
        match answer:
            case str():
                if answer not in self.given:
                    self.given.append(answer)
                return Tag(self.given.index(answer))
            case Content(data=data, etag=etag):
                return data, self.seen(etag)
            case Row(key=key, etag=etag, values=values):
                return key, self.seen(etag), dict(values)
            case [Row(), *_]:
                return [self.seen(row) for row in answer]
            case Mapping():
                return {key: dict(values) for key, values in answer.items()}
            case Sequence():
                return list(answer)
        return answer


@dataclass(slots=True)
class Space:
    """What a history knows of the ETags of one blob, or of its rows: on either side, and in the order of the writes."""

    ours: Tags = field(default_factory=Tags)
    theirs: Tags = field(default_factory=Tags)
    written: list[Tag] = field(default_factory=list)

    def choose(self, back: int | None) -> Tag | None:
        """The last ETag, or an older one."""
        written = self.written
        return written[-1 - min(back, len(written) - 1)] if back is not None and written else None


@dataclass(slots=True)
class Pair:
    """The two storages, and names that were never used before on either."""

    stock: Stock
    runner: Runner
    differences: Sequence[Difference]
    met: Counter[Difference] = field(default_factory=Counter)  # what was answered, and how often
    used: int = 0

    def name(self) -> str:
        """Another name."""
        self.used += 1
        return f"h{self.used}"


contents = st.binary(max_size=8)
blobs_to_lease = st.sampled_from(["new", "leased", "leased", "expired", "expired", "missing"])
who = st.sampled_from([None, None, None, *IDS])  # None: the last lessee
logs = st.sampled_from(["log/0", "log/0", "log/0", "log/1", "log-2"])
#: Partition and key; None: the row that was written last, whose ETag the last one is.
places = st.one_of(
    st.none(), st.tuples(st.sampled_from(["members", "requests"]), st.sampled_from(["one", "One", "it's 100 %|ä"]))
)
back = st.sampled_from([0, 0, 0, 0, 1, 2])  # which ETag: mostly the last one, sometimes an older one
maybe_back = st.one_of(st.none(), back)
columns = st.dictionaries(
    st.sampled_from(["beat", "state", "progress"]),
    st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    ),
    max_size=3,
)


class Same(RuleBasedStateMachine):
    """A history of calls, each made on both."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair
        self.place = pair.name()
        self.space = Space()

    def same(self, what: str, call: Call, etag: int | None = None, state: str = "") -> Any:
        """Both answer the same. What they answer; None where they are known to differ."""
        stock, space = self.pair.stock, self.space
        tag = space.choose(etag)
        ours, theirs = self.ask(stock.memory, space.ours, tag, call), self.ask(stock.service, space.theirs, tag, call)
        note(f"{what}, {state}: {ours}")
        found = Difference(what, state, outcome(ours), outcome(theirs))
        self.pair.met[found] += 1
        if ours != theirs:
            if (
                tag is not None
                and tag != space.written[-1]
                and isinstance(ours, Refused)
                and isinstance(theirs, Refused)
            ):
                return ours  # an old ETag and no lease: which of the two the refusal names, no document says
            assert found in self.pair.differences, f"{found}: documented is {ours}, the service says {theirs}"
            if DONE in (found.documented, found.azurite):
                self.differ()
            return None
        if isinstance(ours, Tag):
            space.written.append(ours)
        return ours

    def ask(self, account: AnyAccount, tags: Tags, tag: Tag | None, call: Call) -> object:
        """One answer."""
        try:
            answer = call(account, tags.etag(tag))
            return tags.seen(self.pair.runner.run(_finish(answer)) if inspect.isawaitable(answer) else answer)
        except SamzaAzureError as error:
            return Raised(type(error).__name__)

    def differ(self) -> None:
        """From now on the two are in different states."""


class Leases(Same):
    """What `ControlBlob` has, in any order."""

    leased = ""

    @initialize(kind=blobs_to_lease)
    def begin(self, kind: str) -> None:
        self.begin_blob(kind)

    @rule(kind=blobs_to_lease)
    def begin_blob(self, kind: str) -> None:
        """Another blob: new, leased by A, with A's lease run out long ago, or not there."""
        self.space = Space()
        self.leased = self.pair.stock.take() if kind == "expired" else self.pair.name()
        if kind in ("new", "leased"):
            self.create(b"0")
        if kind == "leased":
            self.acquire(IDS[0], 60, None)
        elif kind == "expired":
            _, tag = self.on_blob("read", lambda blob, _: blob.read(timeout=SECONDS))
            self.space.written.append(tag)

    def differ(self) -> None:
        self.begin_blob("new")

    def on_blob(self, what: str, call: Callable[[ControlBlob, Any], Any], etag: int | None = None) -> Any:
        blob, storage = self.present(), self.pair.stock.memory.storage
        state = "missing" if blob is None else storage._lease_state(blob)
        return self.same(what, lambda account, etag: call(account.leased_blob(self.leased), etag), etag, state)

    def on_lease(
        self, what: str, by: str | None, call: Callable[[ControlBlob, str, Any], Any], etag: int | None = None
    ) -> None:
        """A call that names a lease: that of A, the last lessee, or of B, any other client."""
        blob = self.present()
        holder = blob.lease.id if blob is not None and blob.lease is not None else None
        lease = by or holder or IDS[0]
        self.on_blob(f"{what} {'A' if lease == holder else 'B'}", lambda blob, etag: call(blob, lease, etag), etag)

    def present(self) -> Any:
        """The blob as the memory has it."""
        return self.pair.stock.memory.storage.beside(self.leased)._blobs.get(NAME)

    @rule(data=contents)
    def create(self, data: bytes) -> None:
        self.on_blob("create", lambda blob, _: blob.create(data, timeout=SECONDS))

    @rule(unless=maybe_back)
    def read(self, unless: int | None) -> None:
        self.on_blob("read", lambda blob, etag: blob.read(timeout=SECONDS, unless_etag=etag), unless)

    @rule(by=who)
    def read_with_lease(self, by: str | None) -> None:
        self.on_lease("read with", by, lambda blob, lease, _: blob.read(timeout=SECONDS, lease_id=lease))

    @precondition(lambda self: self.space.written)
    @rule(data=contents, etag=back, by=who)
    def write(self, data: bytes, etag: int, by: str | None) -> None:
        def call(blob: ControlBlob, lease: str, etag: Any) -> object:
            return blob.write(data, etag=etag, lease_id=lease, timeout=SECONDS)

        self.on_lease("write with", by, call, etag)

    @rule(by=who, seconds=st.sampled_from([15, 60]), etag=maybe_back)
    def acquire(self, by: str | None, seconds: int, etag: int | None) -> None:
        def call(blob: ControlBlob, lease: str, etag: Any) -> object:
            return blob.acquire(lease, seconds=seconds, timeout=SECONDS, etag=etag)

        self.on_lease("acquire", by, call, etag)

    @rule(by=who, etag=maybe_back)
    def renew(self, by: str | None, etag: int | None) -> None:
        self.on_lease("renew", by, lambda blob, lease, etag: blob.renew(lease, timeout=SECONDS, etag=etag), etag)

    @rule(by=who)
    def release(self, by: str | None) -> None:
        self.on_lease("release", by, lambda blob, lease, _: blob.release(lease, timeout=SECONDS))

    @rule(etag=maybe_back)
    def break_now(self, etag: int | None) -> None:
        self.on_blob("break", lambda blob, etag: blob.break_now(timeout=SECONDS, etag=etag), etag)


class LogsAndRows(Same):
    """What `Blobs`, `Rows` and `NamedRows` have, in any order."""

    row = ("members", "one")

    @initialize()
    def begin(self) -> None:
        self.create_log("log/0")
        self.insert(("members", "one"), {"beat": 1})

    def on_blobs(self, what: str, call: Callable[[Blobs], Any]) -> None:
        self.same(what, lambda account, _: call(account.blobs()))

    def on_row(
        self,
        what: str,
        place: tuple[str, str] | None,
        call: Callable[[Rows, str, str, Any], Any],
        etag: int | None = None,
    ) -> None:
        partition, key = place or self.row
        at = f"{self.place} {partition}"
        if isinstance(self.same(what, lambda account, etag: call(account.rows(), at, key, etag), etag), Tag):
            self.row = partition, key

    @rule(name=logs)
    def create_log(self, name: str) -> None:
        self.on_blobs("create log", lambda blobs: blobs.create(f"{self.place}/{name}"))

    @rule(name=logs, data=contents)
    def put(self, name: str, data: bytes) -> None:
        self.on_blobs("put", lambda blobs: blobs.put(f"{self.place}/{name}", data))

    @rule(name=logs, data=st.binary(min_size=1, max_size=8), beside=st.sampled_from([0, 0, 0, 0, 1, -1, 100]))
    def append(self, name: str, data: bytes, beside: int) -> None:
        """Mostly at the end, sometimes beside it."""
        there = self.pair.stock.memory.blobs().read(f"{self.place}/{name}", 0)
        position = max(0, beside + (0 if isinstance(there, Missing) else there.size))
        self.on_blobs("append", lambda blobs: blobs.append(f"{self.place}/{name}", data, position))

    @rule(name=logs, start=st.integers(0, 20), length=st.one_of(st.none(), st.integers(1, 20)))
    def read_range(self, name: str, start: int, length: int | None) -> None:
        self.on_blobs("read range", lambda blobs: blobs.read(f"{self.place}/{name}", start, length))

    @rule(prefix=st.sampled_from(["/", "/log", "/log/", "/log/1", "/nothing"]))
    def enumerate(self, prefix: str) -> None:
        self.on_blobs("list", lambda blobs: blobs.list(self.place + prefix))

    @rule(name=logs)
    def delete(self, name: str) -> None:
        self.on_blobs("delete", lambda blobs: blobs.delete(f"{self.place}/{name}"))

    @rule(row=places, values=columns)
    def insert(self, row: tuple[str, str] | None, values: Mapping[str, Value]) -> None:
        self.on_row("insert", row, lambda rows, at, key, _: rows.insert(at, key, values, timeout=SECONDS))

    @rule(row=places, values=columns, etag=back)
    def merge(self, row: tuple[str, str] | None, values: Mapping[str, Value], etag: int) -> None:
        def call(rows: Rows, at: str, key: str, etag: Any) -> object:
            return rows.merge(at, key, values, etag=etag, timeout=SECONDS)

        self.on_row("merge", row, call, etag)

    @rule(row=places, values=columns, etag=back)
    def replace(self, row: tuple[str, str] | None, values: Mapping[str, Value], etag: int) -> None:
        def call(rows: Rows, at: str, key: str, etag: Any) -> object:
            return rows.replace(at, key, values, etag=etag, timeout=SECONDS)

        self.on_row("replace", row, call, etag)

    @rule(row=places, etag=back)
    def remove(self, row: tuple[str, str] | None, etag: int) -> None:
        self.on_row(
            "delete row", row, lambda rows, at, key, etag: rows.delete(at, key, etag=etag, timeout=SECONDS), etag
        )

    @rule(row=places)
    def get(self, row: tuple[str, str] | None) -> None:
        self.on_row("get", row, lambda rows, at, key, _: rows.get(at, key, timeout=SECONDS))

    @rule(row=places)
    def query(self, row: tuple[str, str] | None) -> None:
        self.on_row("query", row, lambda rows, at, _key, _: rows.query(at, timeout=SECONDS))

    @rule(name=st.sampled_from(["a", "a/b"]), values=columns)
    def publish(self, name: str, values: Mapping[str, Value]) -> None:
        def call(account: AnyAccount, _: str | None) -> object:
            account.hints().publish(f"{self.place}/{name}", values)
            return {name: hint for name, hint in account.hints().poll().items() if name.startswith(f"{self.place}/")}

        self.same("publish", call)


async def _finish(answer: Awaitable[object]) -> object:
    return await answer


def outcome(answer: object) -> str:
    """An answer in one word, as the list of differences has it."""
    match answer:
        case Refused(code=word) | Raised(kind=word):
            return word
        case Missing() | NotModified():
            return type(answer).__name__
    return DONE
