"""Container and table belong together: who shares only one of them is refused, however many begin at once."""

import itertools
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samza_azure.account import Secret, Storage
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable, TooOld
from samza_azure.logs.names import BINDING
from samza_azure.logs.operations import Span
from samza_azure.outcomes import Missing
from samza_azure.storage.binding import (
    ROW,
    Half,
    Names,
    Nowhere,
    begin_to_empty,
    bind,
    end_emptying,
    read,
    refuse_others,
    refuse_unbound,
    unbind,
)
from samza_azure.storage.blobs import AzureBlobs
from samza_azure.storage.connection import Account
from tests.storage.proxy import Guard


@dataclass(slots=True)
class Memory:
    """Containers and tables in memory, each with at most one half."""

    halves: dict[str, Half] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    versions: Iterator[int] = field(default_factory=itertools.count)


@dataclass(slots=True)
class InMemory:
    """The halves of one client; `before` is called before each of its calls, with the number of the call."""

    memory: Memory
    names: Names
    before: Callable[[int], None] = lambda number: None
    calls: int = 0

    def _call(self) -> None:
        self.calls += 1
        self.before(self.calls)

    def _read(self, at: str) -> Half | Nowhere:
        self._call()
        return self.memory.halves.get(at, Nowhere.NOT_BOUND)

    def _create(self, at: str, half: Half) -> None:
        self._call()
        self.memory.halves.setdefault(at, replace(half, etag=str(next(self.memory.versions))))

    def _delete(self, at: str, half: Half) -> None:
        self._call()
        if self.memory.halves.get(at) == half:
            del self.memory.halves[at]

    def read_blob(self) -> Half | Nowhere:
        return self._read(f"container {self.names.container}")

    def read_row(self) -> Half | Nowhere:
        return self._read(f"table {self.names.table.lower()}")

    def is_used(self) -> bool:
        self._call()
        return self.names.container in self.memory.used

    def create_blob(self, half: Half) -> None:
        self._create(f"container {self.names.container}", half)

    def create_row(self, half: Half) -> None:
        self._create(f"table {self.names.table.lower()}", half)

    def replace_blob(self, half: Half) -> None:
        self._call()
        at = f"container {self.names.container}"
        if (found := self.memory.halves.get(at)) is not None and found.etag == half.etag:
            self.memory.halves[at] = replace(half, etag=str(next(self.memory.versions)))

    def delete_blob(self, half: Half) -> None:
        self._delete(f"container {self.names.container}", half)

    def delete_row(self, half: Half) -> None:
        self._delete(f"table {self.names.table.lower()}", half)


def start(memory: Memory, names: Names, before: Callable[[int], None] = lambda number: None) -> bool:
    """Begin like a processor. Return whether the names are ours."""
    halves = InMemory(memory, names, before)
    try:
        bind(halves, names, *read(halves))
    except ConfigError:
        return False
    return True


def holds(memory: Memory, names: Names) -> bool:
    """Whether both halves name each other and the application."""
    blob = memory.halves.get(f"container {names.container}")
    row = memory.halves.get(f"table {names.table.lower()}")
    return (
        blob is not None
        and row is not None
        and blob.id == row.id
        and (blob.application, blob.other.lower()) == (names.application, names.table.lower())
        and (row.application, row.other) == (names.application, names.container)
    )


A, B = "a/1", "b/1"
NAMES = st.builds(Names, st.sampled_from([A, B]), st.sampled_from(["c1", "c2"]), st.sampled_from(["t1", "T1", "t2"]))


class Killed(Exception):
    """The process ended at this call."""


@given(st.lists(st.tuples(NAMES, st.integers(1, 9), st.booleans()), min_size=2, max_size=4), st.booleans())
@example([(Names(A, "c1", "t1"), 4, False), (Names(B, "c2", "t1"), 9, False)], False)
@example([(Names(A, "c1", "t1"), 3, False), (Names(B, "c1", "t2"), 9, False)], False)
@example([(Names(A, "c1", "t1"), 2, False), (Names(A, "c1", "t1"), 9, False)], False)
@example([(Names(A, "c1", "t1"), 3, True), (Names(B, "c1", "t1"), 9, False)], False)
@example([(Names(A, "c1", "t1"), 5, False), (Names(B, "c1", "t2"), 9, False)], True)
@example([(Names(A, "c1", "t1"), 6, True), (Names(A, "c1", "t1"), 9, False)], True)
def test_of_those_that_begin_at_once_one_has_each_name(starts: list[tuple[Names, int, bool]], is_lost: bool) -> None:
    """Each start is interrupted before one of its calls by all that follow, and perhaps killed there. With `is_lost`, a
    job had one of the containers, and its blob was lost."""
    memory, bound = Memory(), list[Names]()
    earlier = [Names(A, "c1", "t1")] if is_lost else []
    for names in earlier:
        assert start(memory, names)
        memory.used.add(names.container)
        del memory.halves[f"container {names.container}"]

    def play(number: int) -> None:
        if number == len(starts):
            return
        names, at, dies = starts[number]
        others = iter([number + 1])

        def before(call: int) -> None:
            if call == at:
                play(next(others))
                if dies:
                    raise Killed

        with suppress(Killed):
            if start(memory, names, before):
                bound.append(replace(names, table=names.table.lower()))
                assert holds(memory, names)
            else:
                assert any(each != names for each in earlier + [each for each, _, _ in starts]), (
                    "refused by its own job"
                )
        for each in others:  # it had ended before that call
            play(each)

    play(0)
    for one, other in itertools.combinations(set(bound), 2):
        assert one.container != other.container, bound
        assert one.table != other.table, bound
    for names in bound:
        assert holds(memory, names) and start(memory, names)


@given(st.lists(st.tuples(NAMES, st.integers(1, 9)), max_size=5))
def test_a_start_that_was_killed_can_be_made_again_and_leaves_no_half(killed: list[tuple[Names, int]]) -> None:
    memory = Memory()
    for each, at in killed:

        def before(call: int, at: int = at) -> None:
            if call == at:
                raise Killed

        with suppress(Killed):
            start(memory, each, before)
    for each, bound in {each: start(memory, each) for each, _ in killed}.items():  # the last start of each
        assert holds(memory, each) == bound
    wholes = [
        names
        for names in itertools.starmap(Names, itertools.product((A, B), ("c1", "c2"), ("t1", "t2")))
        if holds(memory, names)
    ]
    assert len(memory.halves) == 2 * len(wholes), "a half is left"


def test_a_lost_table_is_bound_again_and_a_lost_container_is_refused_until_all_is_deleted() -> None:
    memory, names = Memory(), Names(A, "c1", "t1")
    assert start(memory, names)
    row = memory.halves.pop("table t1")
    assert start(memory, names)
    assert holds(memory, names)
    assert memory.halves["table t1"].id == row.id

    del memory.halves["container c1"]
    halves = InMemory(memory, names)
    with pytest.raises(ConfigError, match=r"a container c1 that was deleted since, or emptied.*delete JOB --all"):
        refuse_others(names, *read(halves))
    refuse_others(names, *read(halves), to_empty=True)
    with pytest.raises(ConfigError, match=r"a container c1 that was deleted since.*delete JOB --all"):
        refuse_others(names, halves.read_row(), Nowhere.NOT_THERE)  # before a start creates an empty one
    unbind(halves, *read(halves))
    assert start(memory, Names(B, "c1", "t1"))


def test_a_lost_blob_is_written_again_if_the_container_has_anything_of_a_job(caplog: pytest.LogCaptureFixture) -> None:
    memory, names = Memory(), Names(A, "c1", "t1")
    assert start(memory, names)
    memory.used.add("c1")
    for each in (names, Names("", "c1", "t1")):
        lost = memory.halves.pop("container c1")
        halves = InMemory(memory, each)
        refuse_others(each, *read(halves))  # who only reads writes nothing
        assert "container c1" not in memory.halves
        for other in (Names(B, "c1", "t1"), Names(A, "c2", "t1")):
            assert not start(memory, other)
        caplog.clear()
        assert start(memory, each)
        assert replace(memory.halves["container c1"], etag="") == replace(lost, etag="")
        [said] = [record.getMessage() for record in caplog.records]
        assert said.startswith("The blob streams/binding.json of the container c1 was deleted. It is written again")


@pytest.mark.parametrize("left", ["blob", "row", "both"])
@pytest.mark.parametrize("at", range(1, 11))
def test_a_deletion_that_was_killed_goes_on(at: int, left: str) -> None:
    """From its mark on nobody begins, until it has ended."""
    memory, names = Memory(used={"c1"} if left == "row" else set()), Names(A, "c1", "t1")
    assert start(memory, names)
    if left != "both":
        del memory.halves["table t1" if left == "blob" else "container c1"]

    def before(call: int) -> None:
        if call == at:
            raise Killed

    for each in (before, lambda call: None):
        halves = InMemory(memory, names, each)
        try:
            begin_to_empty(halves, names)
            assert not start(memory, names)
            unbind(halves, *read(halves))
        except Killed:
            pass
    assert not memory.halves
    assert start(memory, names)


def test_a_deletion_that_could_not_delete_all_lets_others_in_again() -> None:
    memory, names = Memory(), Names(A, "c1", "t1")
    assert start(memory, names)
    begin_to_empty(InMemory(memory, names), names)
    with pytest.raises(ConfigError, match="delete JOB --all` deletes what the container c1 holds, or was interrupted"):
        refuse_unbound(InMemory(memory, names), names)
    end_emptying(InMemory(memory, names))
    refuse_unbound(InMemory(memory, names), names)
    assert start(memory, names)


def test_a_producer_goes_on_if_only_the_blob_is_lost() -> None:
    memory, names = Memory(used={"c1"}), Names(A, "c1", "t1")
    assert start(memory, names)
    del memory.halves["container c1"]
    refuse_unbound(InMemory(memory, names), names)
    del memory.halves["table t1"]
    with pytest.raises(ConfigError, match="was deleted while rows were written to it"):
        refuse_unbound(InMemory(memory, names), names)


def test_the_message_names_who_has_it_and_both_ways_out() -> None:
    memory = Memory()
    assert start(memory, Names("flights/1", "flights-1", "flights1"))
    other_table = (
        "The table flights1 belongs to the container flights-1 of the application flights/1, and not to the container "
        "trips-1 of trips/1: two jobs that share one would take each other's rows. Name another table in "
        "azure.storage.table, or leave that line out for one named after the application. If it is the same job under "
        'another name, give it the names that it had: azure.storage.container = "flights-1", app.name = "flights" and '
        'app.id = "1".'
    )
    other_container = (
        "The container flights-1 belongs to the table flights1, and not to the table flights2: two jobs that share one "
        "would take each other's rows. Name another container in azure.storage.container, or leave that line out for "
        "one named after the application. If it is the same job under another name, give it the names that it had: "
        'azure.storage.table = "flights1".'
    )
    for names, expected in (
        (Names("trips/1", "trips-1", "flights1"), other_table),
        (Names("flights/1", "flights-1", "flights2"), other_container),
    ):
        halves = InMemory(memory, names)
        with pytest.raises(ConfigError) as refused:
            refuse_others(names, *read(halves))
        assert str(refused.value) == expected


def test_settings_without_an_application_fit_every_one() -> None:
    memory = Memory()
    assert start(memory, Names("", "c1", "t1"))
    assert start(memory, Names(A, "c1", "t1"))
    assert not start(memory, Names("", "c1", "t2"))


# On Azurite.


@pytest.fixture
def own(azurite: Azurite) -> Iterator[Callable[..., Account]]:
    """Makes accounts with these names, made unique for the test."""
    unique, made = uuid.uuid4().hex[:12], list[Account]()

    def account(container: str, table: str, application: str = A, connect: str = azurite.connection_string) -> Account:
        names = Storage(Secret(connect), None, f"{container}{unique}", f"{table}{unique}", application=application)
        made.append(Account.from_config(names))
        return made[-1]

    yield account
    for each in made:
        each.close()


def has_container(account: Account) -> bool:
    return account.has_container(account._container)


def test_azurite_keeps_what_is_promised(own: Callable[..., Account]) -> None:
    one = own("c1", "t1")
    assert not one.exists()
    one.ensure_created()
    one.ensure_created()
    assert one.exists()
    for other in (own("c2", "t1", B), own("c1", "t2", B), own("c1", "t1", B), own("c2", "t1"), own("c1", "t2")):
        for call in (other.ensure_created, other.exists, lambda each=other: each.ensure_created(binds=False)):
            with pytest.raises(ConfigError, match="belongs to the"):
                call()
    assert not has_container(own("c2", "t2", B))
    assert own("c2", "t2", B)._halves().read_row() is Nowhere.NOT_THERE, "who was refused has created something"
    own("c2", "t2", B).ensure_created()
    one.unbind()
    with pytest.raises(ConfigError, match="belongs to the table"):
        own("c2", "t1").ensure_created()
    own("c1", "t1", B).ensure_created()


def test_who_only_requests_binds_nothing(own: Callable[..., Account]) -> None:
    own("c1", "t1").ensure_created(binds=False)
    own("c1", "t1", B).ensure_created()


@pytest.mark.parametrize(
    "given",
    [("c1", "t1", A), ("c2", "t1", B), ("c1", "t2", B), ("c1", "t1", B)],
    ids=["same", "table", "container", "app"],
)
def test_many_that_begin_at_once_on_azurite(own: Callable[..., Account], given: tuple[str, str, str]) -> None:
    accounts = [own("c1", "t1", A) if number % 2 else own(*given) for number in range(8)]
    together = threading.Barrier(len(accounts))

    def begin(account: Account) -> bool:
        together.wait()
        while True:
            try:
                account.ensure_created()
            except StorageUnavailable:
                continue
            except ConfigError:
                return False
            return True

    with ThreadPoolExecutor(len(accounts)) as threads:
        ours = list(threads.map(begin, accounts))
    ours_by_job = {number % 2: {ours[each] for each in range(number, 8, 2)} for number in (0, 1)}
    if given == ("c1", "t1", A):
        assert all(ours)
    else:
        assert {True} in ours_by_job.values(), ours
        assert {False} in ours_by_job.values(), ours


def test_who_may_not_bind_is_told_so_and_leaves_nothing(azurite: Azurite, own: Callable[..., Account]) -> None:
    own("c1", "t1").ensure_created(binds=False)
    with Guard(azurite.blob_port, lambda method, path: method == "PUT" and BINDING in path) as guard:
        connect = azurite.connection_string.replace(f":{azurite.blob_port}/", f":{guard.port}/")
        with pytest.raises(AccessDenied, match="Binding the container"):
            own("c1", "t1", connect=connect).ensure_created()
    own("c1", "t1", B).ensure_created()


def test_the_format_is_pinned(own: Callable[..., Account]) -> None:
    account = own("c1", "t1", "flights/1")
    account.ensure_created()
    stored = account.blobs().read(BINDING, 0)
    said = json.loads(getattr(stored, "data", b""))
    assert said == {"format": 1, "application": "flights/1", "table": account._table, "id": said["id"]}
    (row,) = account.transactions(ROW).query(ROW, f"{ROW}~")
    assert row.values == {"format": 1, "application": "flights/1", "container": account._container, "id": said["id"]}


def written(account: Account, data: bytes) -> None:
    blobs = account.blobs()
    assert isinstance(blobs, AzureBlobs)
    blobs.delete(BINDING)
    blobs.put(BINDING, data)


HOSTILE: list[dict[str, Any] | bytes] = [
    {"format": "1"},
    {"format": True},
    {"format": None},
    {"application": "\x1b[2J/1"},
    {"application": 7},
    {"table": "a\nb"},
    {"table": ["t1"]},
    {"table": "x" * 5000},
    {"id": "../x"},
    {"id": None},
    b"",
    b"{",
    b"[]",
    b"[" * 4096,
    b"\xff\xfe",
    b'"x"',
    b"{}",
]


def test_what_somebody_else_wrote_there_is_refused(own: Callable[..., Account]) -> None:
    account = own("c1", "t1")
    account.ensure_created()
    said = json.loads(getattr(account.blobs().read(BINDING, 0), "data", b""))
    for each in HOSTILE:
        written(account, each if isinstance(each, bytes) else json.dumps(said | each).encode())
        with pytest.raises(ConfigError, match=r"The blob streams/binding.json, .* was not written by samza-azure"):
            account.exists()


#: What only a job writes, of each kind. Whatever is left of it shows that the container was not recreated.
OF_A_JOB = [
    "control.json",
    "control/00000000000000000001",
    "runs/r/a-0/00000000",
    "streams/orders/0/00000000",
    "tables/t/x.parquet",
    "files/out/x.parquet",
    "locks/nightly",
]


@pytest.mark.parametrize("left", OF_A_JOB)
def test_whatever_is_left_of_a_job_shows_that_its_container_is_the_same(own: Callable[..., Account], left: str) -> None:
    account = own("c1", "t1")
    account.ensure_created()
    blobs = account.blobs()
    blobs.put("exports/rows.csv", b"of somebody else")
    blobs.delete(BINDING)
    with pytest.raises(ConfigError, match="that was deleted since, or emptied"):
        account.exists()
    blobs.put(left, b"x")
    assert account.exists()
    account.ensure_created(binds=False)
    assert isinstance(blobs.read(BINDING, 0), Missing)
    with pytest.raises(ConfigError, match="belongs to the"):
        own("c1", "t1", B).ensure_created()
    account.ensure_created()
    assert isinstance(blobs.read(BINDING, 0), Span)
    with pytest.raises(ConfigError, match="belongs to the"):
        own("c1", "t2", B).ensure_created()


def test_no_start_creates_a_container_that_was_deleted_from_beside_its_table(own: Callable[..., Account]) -> None:
    """An empty one would stand in the way of its restoration."""
    account = own("c1", "t1")
    account.ensure_created()
    account._synchronous().container.delete_container()
    for call in (account.ensure_created, account.exists, lambda: account.ensure_created(binds=False)):
        with pytest.raises(ConfigError, match=r"that was deleted since.*Restore that container"):
            call()
    with pytest.raises(ConfigError, match="belongs to the container"):
        own("c2", "t1", B).ensure_created()
    assert not has_container(account) and not has_container(own("c2", "t1", B))
    assert account.exists(to_empty=True)


def test_a_later_format_needs_a_later_release(own: Callable[..., Account]) -> None:
    account = own("c1", "t1")
    account.ensure_created()
    written(account, b'{"format": 2}')
    with pytest.raises(TooOld):
        account.ensure_created()
