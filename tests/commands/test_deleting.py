"""`delete`, `rewind` and named readers, as a user gives them: on the emulator, with a group that has drained a run."""

import asyncio
import io
import itertools
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from samza_azure import AzureJobCoordinatorFactory, Config, JobCoordinator, SharedTasks, SourceWriter, cli
from samza_azure.commands import exclusive
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.eventhubs.hub import EventHub
from samza_azure.group import control as control_blob
from samza_azure.group.control import Control, Member, RunPhase
from samza_azure.group.drain import REMEMBERED
from samza_azure.group.rows import MEMBERS, RECORD, ProcessorRow, ProcessorState, columns
from samza_azure.host.last_day import LastDay, encoded
from samza_azure.logs.names import BINDING
from samza_azure.logs.operations import Pause
from samza_azure.logs.position import Position
from samza_azure.logs.record import Slice, Writer
from samza_azure.outcomes import Missing
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Content
from samza_azure.storage.transactions import Act, Write
from samza_azure.stream_io.arrow import encode
from samza_azure.stream_io.log import LogReader, take_over
from samza_azure.stream_io.produced import PRODUCED
from tests.storage.proxy import Front, Guard, Reply, Request

JOB = """
app = {{ name = "shop", id = "{id}", main = "none:none" }}
azure.storage.connect = "${{CONNECT}}"
job.coordinator.profile = "fast"

[streams.orders]
partitions = 1
schema = "id BIGINT, at TIMESTAMP"
event_time = "at"

[streams.notes]
partitions = 1
schema = "id BIGINT"
"""
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass(slots=True)
class Place:
    """A job on the emulator, and a user at a terminal."""

    job: Path
    account: Account
    config: Config
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def command(self, name: str, *options: str, types: str = "") -> tuple[int, str, str]:
        self.patch.setattr(sys, "argv", ["samza-azure", name, str(self.job), *options])
        self.patch.setattr(sys, "stdin", io.StringIO(types))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self.capture.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    def rows(self, stream: str, *ids: int) -> None:
        """A record each, an hour of event time apart."""
        writer = SourceWriter.of(self.config, self.account, stream)
        for number in ids:
            columns = {"id": [number], "at": [NOON + timedelta(hours=number)]}
            writer.write(pa.table({name: columns[name] for name in (writer._schema or pa.schema([])).names}))
            writer.flush()
        writer.close()

    def output(self, run: str, *values: int) -> None:
        log, _ = take_over(
            self.account.blobs(), f"runs/{run}/count-0", group_id=bytes(16), task="count-0", writer=Writer(1, 1),
            first=True, may_append=lambda: True, meta={"stream": "out"},
        )  # fmt: skip
        log.append(0, slices=(Slice(0, encode(pa.table({"v": values})), len(values)),))

    def ends(self) -> dict[str, Position]:
        found = {}
        for stream in ("orders", "notes"):
            last = LogReader(self.account.blobs(), f"streams/{stream}/0").tail()
            found[f"{stream}/0"] = last.end if last is not None else (0, 0)
        return found

    def write(self, control: Control) -> None:
        """The control blob as a group has left it."""

        async def once() -> None:
            blob = self.account.control_blob()
            await blob.create(control_blob.encode(control), timeout=10)
            await self.account.aclose()

        asyncio.run(once())

    def leased(self, leader: Member | None = None) -> str:
        """The control blob names this leader, and is leased by it, or by a command. Return the lease."""

        async def once() -> str:
            blob, lease = self.account.control_blob(), str(uuid.uuid4())
            assert await blob.acquire(lease, seconds=60, timeout=10) is None
            if leader is not None:
                found = await blob.read(timeout=10)
                assert isinstance(found, Content)
                led = replace(control_blob.decode(found.data), leader=leader)
                written = await blob.write(control_blob.encode(led), etag=found.etag, lease_id=lease, timeout=10)
                assert isinstance(written, str)
            await self.account.aclose()
            return lease

        return asyncio.run(once())

    def freed(self, lease: str) -> None:
        """That lease is released."""

        async def once() -> None:
            await self.account.control_blob().release(lease, timeout=10)
            await self.account.aclose()

        asyncio.run(once())

    def control(self) -> Control | None:
        async def once() -> Control | None:
            found = await self.account.control_blob().read(timeout=10)
            await self.account.aclose()
            assert isinstance(found, Content | Missing)
            return control_blob.decode(found.data) if isinstance(found, Content) else None

        return asyncio.run(once())

    def drained(self, run: str = "1-a", **fields: object) -> Control:
        control = Control(
            group_id="0" * 32, run_id=run, phase=RunPhase.DRAINED, past=(run,), sources={"orders": 1, "notes": 1},
            positions=self.ends(),
        )  # fmt: skip
        control = replace(control, **fields)  # type: ignore[arg-type]
        self.write(control)
        return control


@pytest.fixture
def place(
    emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Place]:
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(id=uuid.uuid4().hex[:8]))
    monkeypatch.setenv("CONNECT", emulator.connection_string)
    config = Config.load(job, environment=os.environ)
    account = Account.from_config(config.storage)
    account.ensure_created()
    yield Place(job, account, config, monkeypatch, capsys)
    account.close()


def names(place: Place, prefix: str = "") -> list[str]:
    return [name for name, _ in place.account.blobs().list(prefix) if name != BINDING]


def test_a_drained_run_goes_when_its_name_is_typed_and_stays_otherwise(place: Place) -> None:
    place.output("1-a", 1, 2)
    place.output("2-b", 3)
    place.drained("1-a")
    code, _, said = place.command("delete", "--run", "1-a", types="yes\n")
    assert code == 2 and "1 blobs, 0.0 MiB of the drained run 1-a" in said and "Nothing was deleted" in said
    assert names(place, "runs/1-a/")
    assert place.command("delete", "--run", "1-a", types="1-a\n")[:2] == (0, "Deleted run 1-a: 1 blobs, 0.0 MiB.\n")
    assert names(place, "runs/") == ["runs/2-b/count-0/00000000"]
    code, _, said = place.command("delete", "--run", "1-b")
    assert code == 2 and "No drained run has the id '1-b'. Drained runs with rows: none." in said
    assert place.control() == replace(place.control() or Control(""), past=("1-a",)), "its id never comes back"


def test_a_run_that_only_its_logs_remember_is_exported_first_and_can_be_deleted(place: Place, tmp_path: Path) -> None:
    made = [f"{1_700_000_000_000 + number}-{number:08x}" for number in range(REMEMBERED + 1)]
    for number in (0, 1, REMEMBERED):
        place.output(made[number], number)
    place.drained(made[-1], past=tuple(made[1:]))
    to = tmp_path / "out.parquet"
    assert place.command("export", "out", "--to", str(to))[0] == 0
    assert pq.read_table(to).column(0).to_pylist() == [0, 1, REMEMBERED]
    assert place.command("delete", "--run", made[0], types=f"{made[0]}\n")[0] == 0
    assert sorted({name.split("/")[1] for name in names(place, "runs/")}) == [made[1], made[-1]]


def test_a_run_in_progress_that_was_named_by_a_late_clock_is_not_deleted(place: Place) -> None:
    """Its id, which begins with the time, is less than those of all remembered runs, as that of a forgotten one."""
    made = tuple(f"{1_700_000_000_000 + number}-{number:08x}" for number in range(REMEMBERED))
    late = "1000000000000-00000000"
    place.output(late, 7)
    place.drained(late, phase=RunPhase.RUNNING, past=made)
    code, _, said = place.command("delete", "--run", late, "--yes")
    assert code == 2 and f"Run {late} is not drained" in said
    assert names(place, f"runs/{late}/")


def test_a_run_in_progress_and_its_streams_are_not_deleted(place: Place) -> None:
    place.rows("orders", 1)
    place.drained("2-b", phase=RunPhase.RUNNING, past=())
    for options in (
        ("--run", "2-b"),
        ("--stream", "orders"),
    ):
        code, _, said = place.command("delete", *options, "--yes")
        assert code == 2 and "Run 2-b is not drained" in said and "drain job.toml --wait" in said
    assert names(place, "streams/orders/")


def test_deleting_a_stream_deletes_its_rows_readers_and_positions(place: Place) -> None:
    place.rows("orders", 1, 2)
    place.rows("notes", 1)
    before = place.drained()
    assert place.command("follow", "orders", "--from", "earliest", "--until-now", "--name", "w")[0] == 0
    code, out, said = place.command("delete", "--stream", "orders", types="orders\n")
    assert (code, out) == (0, "Deleted stream orders: 1 blobs, 0.0 MiB.\n")
    assert "Its named readers are forgotten: w." in said
    assert names(place, "streams/") == ["streams/notes/0/00000000"]
    after = place.control()
    assert after is not None and after.positions == {"notes/0": before.positions["notes/0"]}
    assert place.account.readers().poll() == {}
    assert list(place.account.hints().poll()) == ["streams/notes/0"]
    place.output("1-a", 5)
    assert place.command("delete", "--stream", "out", "--yes")[0] == 0
    code, _, said = place.command("delete", "--stream", "out", "--yes")
    assert code == 2 and "No log holds the stream 'out'. Known streams: notes." in said


def test_all_deletes_everything_of_the_job_and_nothing_else(place: Place) -> None:
    place.rows("orders", 1)
    place.output("1-a", 1)
    place.drained()
    place.account.blobs().put("somebody/else", b"s")
    history = place.account.transactions(RECORD)
    history.transact([Write(Act.INSERT, RECORD, encoded(LastDay(((1_000, 5, None, None),))))])
    code, out, said = place.command("delete", "--all", types="shop\n")
    assert code == 0 and "This deletes everything of 'shop'" in said
    assert out.startswith("Deleted shop: 2 blobs")
    assert out.endswith("1 blobs outside its folders stay, such as exports to az://: somebody/else.\n")
    assert names(place) == ["somebody/else"]
    assert place.control() is None and not place.account.hints().poll()
    assert history.query("!", "~") == [], "what the job's page showed of errors"


class Ending(Front):
    """In front of one of an emulator's services. From some call on to any of those that share the count, all are
    refused, as if whoever calls had been killed before it."""

    def __init__(self, target: int, calls: "Iterator[int]", last: int) -> None:
        self._target, self._calls, self._last, self.has_refused = target, calls, last, False
        super().__init__()

    def instead(self, request: Request) -> Reply | None:
        self.has_refused |= next(self._calls) >= self._last
        return Reply(403, "KeyBasedAuthenticationNotPermitted") if self.has_refused else None

    def passed_on(self, request: Request) -> tuple[int, Request]:
        return self._target, request


#: At every eighth call in `make test`.
AT_ANY_CALL = pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.long)])


@AT_ANY_CALL
def test_a_deletion_of_all_that_was_killed_at_any_call_goes_on(place: Place, emulator: Azurite, step: int) -> None:
    """Also with a table that the job file has no more: its rows stayed, if its files were deleted already."""

    async def free() -> None:
        await place.account.control_blob().break_now(timeout=10)
        await place.account.aclose()

    for last in itertools.count(1, step):
        place.account.ensure_created()
        place.rows("orders", 1)
        place.output("1-a", 1)
        place.account.blobs().put("tables/gone/1.parquet", b"rows")
        place.account.transactions("table.gone").transact([Write(Act.INSERT, "head", {"v": 1})])
        place.account.transactions("table.bare").transact([Write(Act.INSERT, "head", {"v": 1})])
        place.account.readers().publish("orders/w", {"at": "x"})
        place.drained()
        calls = itertools.count(1)
        with Ending(emulator.blob_port, calls, last) as blobs, Ending(emulator.table_port, calls, last) as tables:
            there = {emulator.blob_port: blobs.port, emulator.table_port: tables.port}
            connect = emulator.connection_string
            for port, other in there.items():
                connect = connect.replace(f":{port}/", f":{other}/")
            place.patch.setenv("CONNECT", connect)
            place.command("delete", "--all", "--yes")
            place.patch.setenv("CONNECT", emulator.connection_string)
            was_killed = blobs.has_refused or tables.has_refused
        if was_killed:
            asyncio.run(free())
            code, _, said = place.command("delete", "--all", "--yes")
            assert code == 0, (last, said)
        assert names(place) == [], last
        assert [row["RowKey"] for row in place.account._synchronous().table.list_entities()] == [], last
        if not was_killed:
            return


def test_a_binding_that_another_program_has_leased_is_left_and_so_is_everything_else(place: Place) -> None:
    """The command asked again and again, as fast as it could, for as long as the lease lasted."""
    place.account.ensure_created()
    place.rows("orders", 1)
    place.drained()
    before = place.account.blobs().list("")
    lease = place.account._synchronous().container.get_blob_client(BINDING).acquire_lease(60)
    code, _, said = place.command("delete", "--all", "--yes")
    assert code == 2
    assert "was refused (LeaseIdMissing): another program has leased the blob streams/binding.json" in said
    assert place.account.blobs().list("") == before
    lease.release()
    place.rows("orders", 2)
    code, _, said = place.command("delete", "--all", "--yes")
    assert code == 0, said


class At(Front):
    """In front of one of an emulator's services: before one of the calls something else happens."""

    def __init__(self, target: int, calls: "Iterator[int]", act: Callable[[int], None]) -> None:
        self._target, self._calls, self._act = target, calls, act
        super().__init__()

    def instead(self, request: Request) -> Reply | None:
        self._act(next(self._calls))
        return None

    def passed_on(self, request: Request) -> tuple[int, Request]:
        return self._target, request


@contextmanager
def acting(place: Place, emulator: Azurite, act: Callable[[int], None]) -> Iterator[str]:
    """A connection string on which `act` is called before each call, with its number."""
    calls, connect = itertools.count(1), emulator.connection_string
    with At(emulator.blob_port, calls, act) as blobs, At(emulator.table_port, calls, act) as tables:
        for port, other in ((emulator.blob_port, blobs.port), (emulator.table_port, tables.port)):
            connect = connect.replace(f":{port}/", f":{other}/")
        yield connect


def stored(place: Place) -> list[str]:
    """What is in the container and holds anything."""
    return [name for name, size in place.account.blobs().list("") if size]


def rows_of(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)})


@AT_ANY_CALL
def test_a_producer_that_writes_at_any_call_of_a_deletion_leaves_no_rows(
    place: Place, emulator: Azurite, step: int
) -> None:
    """It created its stream again, ended with 0, and its rows were in a container that belonged to nobody."""
    ends = set[str]()
    for at in itertools.count(1, step):
        place.account.ensure_created()
        place.rows("orders", 1)
        place.drained()
        writer = SourceWriter.of(place.config, place.account, "notes", wait=give_up)
        writer.write(rows_of(1))
        writer.flush()
        came = False

        def act(number: int, at: int = at, writer: SourceWriter = writer) -> None:
            nonlocal came
            if number == at:
                came = True
                writer.write(rows_of(2))
                try:
                    writer.close()
                except ConfigError as error:
                    said = str(error)
                    ends.add("marked" if "delete JOB --all` deletes what" in said else said.partition(", so ")[2])
                else:
                    ends.add("stored")

        with acting(place, emulator, act) as connect:
            place.patch.setenv("CONNECT", connect)
            code, _, said = place.command("delete", "--all", "--yes")
            place.patch.setenv("CONNECT", emulator.connection_string)
        assert code == 0, (at, said)
        assert stored(place) == [], at
        if not came:
            break
    every = {"stored", "marked", "these are gone, too. Write them again with a new writer."}
    assert ends == every if step == 1 else ends <= every


@pytest.mark.parametrize(
    ("once", "step"), [("", 4), ("K", 4), *(pytest.param(once, 1, marks=pytest.mark.long) for once in ("", "K"))]
)
def test_a_deletion_at_any_call_of_a_producer_leaves_no_rows(
    place: Place, emulator: Azurite, once: str, step: int
) -> None:
    """Nor its idempotence key, which refused other rows to the next job in the table."""
    for at in itertools.count(1, step):
        place.account.ensure_created()
        place.rows("orders", 1)
        place.drained()
        came = False

        def act(number: int, at: int = at) -> None:
            nonlocal came
            if number == at:
                came = True
                code, _, said = place.command("delete", "--all", "--yes")
                assert code == 0, said

        with acting(place, emulator, act) as connect:
            config = Config.load(place.job, environment={**os.environ, "CONNECT": connect})
            account = Account.from_config(config.storage)
            writer = SourceWriter.of(config, account, "orders", wait=give_up, once=once)
            with suppress(SamzaAzureError):  # with a key also: it, or the blob to write to, was deleted
                writer.write(pa.table({"id": [2], "at": [NOON]}))
                writer.close()
            account.close()
        if not came:
            return
        assert stored(place) == [], at
        assert place.account.transactions(PRODUCED).query("!", "~") == [], at


def give_up(pause: Pause) -> None:
    raise AssertionError(f"it waits: {pause}")


class Working(SharedTasks):
    """Says when its task is its own."""

    def __init__(self, coordinator: JobCoordinator, name: str, count: int) -> None:
        super().__init__(coordinator, name, count)
        self.begun = threading.Event()

    def on_start(self, task: str, generation: int) -> None:
        self.begun.set()


def test_nothing_is_deleted_or_rewound_while_a_processor_runs(place: Place) -> None:
    place.rows("orders", 1)
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator("p0", place.config)
    with Working(coordinator, "part", 1) as working:
        assert working.begun.wait(60)  # before that it is no member yet, and `delete` right to go on
        for command, options in (("delete", ("--all", "--yes")), ("rewind", ("--to", "earliest"))):
            code, _, said = place.command(command, *options)
            assert (
                code == 2 and "Processors of 'shop' run: p0. Stop them first: samza-azure stop job.toml --wait" in said
            )
    assert names(place, "streams/orders/")


def test_delete_waits_until_a_killed_processor_is_dead_then_deletes(place: Place) -> None:
    """Its row says that it lives, and it holds the lease."""
    place.drained()
    dead = ProcessorRow("p9", "i9", state=ProcessorState.ACTIVE)

    async def leave() -> None:
        await place.account.rows().insert(MEMBERS, "p9", columns(dead), timeout=10)
        await place.account.aclose()

    asyncio.run(leave())
    place.leased(leader=Member("p9", "i9"))
    code, out, said = place.command("delete", "--all", "--yes")
    assert (code, out[:12]) == (0, "Deleted shop") and "p9 may have died; waiting" in said
    assert place.control() is None


@pytest.mark.parametrize(
    "command", [("delete", "--all", "--yes"), ("rewind", "--to", "earliest"), ("recover", "--yes")]
)
def test_a_second_command_leaves_the_first_one_alone(place: Place, command: tuple[str, ...]) -> None:
    """It ended the lease of the first one, which went on for up to 15 s: both deleted, or one undid the other."""
    place.rows("orders", 1)
    place.drained()
    before = place.control()
    lease = place.leased()
    code, _, said = place.command(*command)
    assert code == 2 and "another command works on this job" in said
    assert place.control() == before
    place.freed(lease)
    code, _, said = place.command(*command)
    assert code == 0, said


def test_a_command_that_has_ended_the_lease_of_a_dead_leader_says_that_nobody_leads(place: Place) -> None:
    """So that the next one finds the lease of a command. Of two that look at the same moment, one writes first."""
    place.drained()
    place.leased(leader=Member("p9", "i9"))
    seen: list[Control | None] = []

    async def act(held: exclusive.Held) -> None:
        seen.append(held.control)
        with pytest.raises(ConfigError, match="another command works"):
            await asyncio.to_thread(
                exclusive.exclusively, place.config, Account.from_config(place.config.storage), other
            )

    async def other(held: exclusive.Held) -> None:
        raise AssertionError("two hold the job")

    exclusive.exclusively(place.config, place.account, act)
    (control,) = seen
    assert control is not None and control.leader is None
    assert place.control() == control


@pytest.mark.parametrize(
    "command",
    [
        ("follow", "orders", "--name", "", "--until-now"),
        ("delete", "--stream", "orders", "--reader", "", "--yes"),
        ("produce", "orders", "rows.csv", "--once", ""),
    ],
)
def test_an_empty_name_is_none(place: Place, command: tuple[str, ...]) -> None:
    """As of a shell's variable that is not set: the option counted as left out, and the whole stream was deleted."""
    place.rows("orders", 1)
    place.drained()
    code, _, said = place.command(*command)
    assert code == 2 and "'' cannot be used: it should be 1 to " in said
    assert names(place, "streams/orders/")


@pytest.mark.parametrize("options", [(), ("--run", "a", "--all"), ("--reader", "w"), ("--all", "--reader", "w")])
def test_delete_without_a_target_exits_with_2(place: Place, options: tuple[str, ...]) -> None:
    code, _, said = place.command("delete", *options)
    assert code == 2 and "Say what to delete: --run ID, --stream ID, --stream ID --reader NAME, or --all." in said


def test_the_next_run_reads_from_the_earliest_rows(place: Place) -> None:
    place.rows("orders", 1, 2, 3)
    place.rows("notes", 1)
    place.drained()
    code, out, _ = place.command("rewind", "--to", "earliest")
    assert code == 0 and out.startswith("The next run reads 3 rows of orders, 1 rows of notes again.")
    assert "samza-azure run job.toml --new-run" in out and "delete job.toml --run 1-a" in out
    control = place.control()
    assert control is not None and control.positions == {"orders/0": (0, 0), "notes/0": (0, 0)}
    assert place.command("rewind", "--to", "earliest")[1].startswith("Nothing to read again")


def test_the_next_run_reads_from_a_time_on_and_skips_nothing_unread(place: Place) -> None:
    place.rows("orders", 1, 2, 3)
    stood = place.drained().positions
    code, out, _ = place.command("rewind", "--stream", "orders", "--to", "2026-01-31T15:00+01:00")
    assert code == 0 and out.startswith("The next run reads 2 rows of orders again.")
    control = place.control()
    assert control is not None and (0, 0) < control.positions["orders/0"] < stood["orders/0"]
    place.rows("orders", 4)
    code, out, _ = place.command("rewind", "--stream", "orders", "--to", "2030-01-01T00:00Z")
    assert code == 0 and out.startswith("Nothing to read again"), "a later time never skips rows"
    assert place.control() == control


def test_a_stream_from_outside_is_read_from_its_beginning_again_and_how_much_is_left_there_is_not_said(
    place: Place,
) -> None:
    outside = '[streams.clicks]\nsystem = "tail"\noptions.path = "clicks.jsonl"\nschema = "id BIGINT"\n'
    place.job.write_text(place.job.read_text() + outside)
    place.rows("orders", 1)
    positions = {"orders/0": (0, 0), "clicks/0": (0, 117)}
    place.drained(sources={"orders": 1, "clicks": 1}, positions=positions)
    code, out, said = place.command("status", "--json")
    assert (code, json.loads(out)["behind"].keys()) == (0, {"orders/0"}), said
    code, _, said = place.command("rewind", "--to", "2026-01-31T05:00Z")
    assert code == 2 and "come from outside, where its connector cannot find them by time." in said
    code, out, _ = place.command("rewind", "--to", "earliest")
    assert code == 0 and out.startswith("The next run reads all rows of clicks again.")
    control = place.control()
    assert control is not None and control.positions == {"orders/0": (0, 0), "clicks/0": (0, 0)}


def test_a_hub_is_read_again_from_a_time_on_and_not_from_where_its_options_begin(place: Place) -> None:
    declared = (
        '[streams.clicks]\nsystem = "eventhubs"\noptions.name = "hub"\noptions.connect = "${HUBS}"\n'
        'options.start = "newest"\npartitions = 2\nschema = "id BIGINT"\n'
    )
    place.job.write_text(place.job.read_text() + declared)
    with EventHubs({"hub": 2}) as hubs:
        place.patch.setenv("HUBS", hubs.connection_string)
        hubs.send("hub", 0, [b'{"id": 1}', b'{"id": 2}'])
        made = EventHub("hub", connect=lambda: hubs.connection_string).facts().created_ms
        stood = {"clicks/0": (made, 2), "clicks/1": (made, 0)}
        place.drained(sources={"clicks": 2}, positions=stood)
        code, out, _ = place.command("rewind", "--to", "2030-01-01T00:00Z")
        assert code == 0 and out.startswith("Nothing to read again"), "a later time never skips rows"
        code, out, _ = place.command("rewind", "--to", "2020-01-01T00:00Z")
    assert code == 0, out
    assert out.startswith("The next run reads what is left of clicks since 2020-01-01T00:00:00+00:00 again.")
    control = place.control()
    assert control is not None and control.positions == {"clicks/0": (made, 0), "clicks/1": (made, 0)}
    code, _, said = place.command("rewind", "--to", "earliest")
    assert code == 2 and "streams.clicks.options.start is 'newest'" in said, "it would begin there"


def test_the_lease_is_renewed_while_the_rows_to_read_again_are_counted(place: Place, emulator: Azurite) -> None:
    """That may take longer than a lease lasts; then the rewind could not be written."""
    place.rows("orders", 1)
    place.drained()
    counts, renews, in_time = threading.Event(), threading.Event(), []

    def slowly(method: str, path: str) -> bool:
        if method == "GET" and "/streams/orders/0/" in path:
            counts.set()
            in_time.append(renews.wait(5.0))
        elif counts.is_set() and "comp=lease" in path:
            renews.set()
        return False

    place.patch.setattr(exclusive, "RENEW_S", 0.05)
    with Guard(emulator.blob_port, slowly) as guard:
        port = f":{emulator.blob_port}/"
        place.patch.setenv("CONNECT", emulator.connection_string.replace(port, f":{guard.port}/"))
        code, out, _ = place.command("rewind", "--to", "earliest", "--stream", "orders")
    assert code == 0 and out.startswith("The next run reads 1 rows of orders again.")
    assert in_time and all(in_time)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "yesterday"), "Give earliest, or a time like 2026-01-31T05:00Z"),
        (("--to", "2026-01-31T05:00"), "has no zone. Write 2026-01-31T05:00Z for UTC"),
        (("--to", "earliest", "--stream", "order"), "read no source stream 'order'. It read orders, notes."),
        (("--to", "2026-01-31T05:00Z"), "The rows of 'notes' have no event time"),
    ],
)
def test_bad_words_to_rewind_are_answered(place: Place, options: tuple[str, ...], said: str) -> None:
    place.rows("notes", 1)
    place.drained()
    code, _, text = place.command("rewind", *options)
    assert code == 2 and said in text


def test_a_run_that_is_not_drained_or_never_was_is_not_rewound(place: Place) -> None:
    code, _, said = place.command("rewind", "--to", "earliest")
    assert code == 2 and "No run was drained yet" in said
    place.drained("2-b", phase=RunPhase.RUNNING, past=())
    code, _, said = place.command("rewind", "--to", "earliest")
    assert code == 2 and "Run 2-b is not drained. A run in progress is never rewound" in said


def test_a_named_follower_continues_where_it_stopped_and_can_be_removed(place: Place) -> None:
    place.rows("notes", 1, 2)
    follow = ("follow", "notes", "--until-now", "--name", "w")
    code, out, said = place.command(*follow)
    assert (code, out) == (0, ""), "the first time it begins with what comes"
    assert "The reader 'w' is new: it begins with the rows from now on. All rows: --from earliest, once." in said
    place.rows("notes", 3)
    code, out, said = place.command(*follow)
    assert (code, [json.loads(line) for line in out.splitlines()]) == (0, [{"id": 3}])
    assert said.startswith("To go on from here"), said
    assert place.command(*follow)[1] == ""
    code, _, said = place.command("delete", "--stream", "notes", "--reader", "x")
    assert code == 2 and "has no reader 'x'. Named readers of it: w." in said
    assert place.command("delete", "--stream", "notes", "--reader", "w")[0] == 0
    assert place.account.readers().poll() == {}


def test_from_counts_only_the_first_time_for_a_named_follower(place: Place) -> None:
    """A job of cron that says `--from earliest` printed every row again each time, and with latest it lost some."""
    place.rows("notes", 1, 2)

    def followed(begin: str, name: str = "w") -> tuple[list[int], str]:
        code, out, said = place.command("follow", "notes", "--until-now", "--name", name, "--from", begin)
        assert code == 0, said
        return [json.loads(line)["id"] for line in out.splitlines()], said

    rows, said = followed("earliest")
    assert (rows, "goes on where it stood" in said) == ([1, 2], False)
    token = said.partition("To go on from here: --from ")[2].strip()
    for number, begin in enumerate(("earliest", "latest", token), 3):
        place.rows("notes", number)
        rows, said = followed(begin)
        assert rows == [number], begin
        assert "To begin elsewhere, forget it first: samza-azure delete job.toml --stream notes --reader w\n" in said
    assert place.command("delete", "--stream", "notes", "--reader", "w")[0] == 0
    assert followed(token)[0] == [3, 4, 5], "a token of the first time"
    place.account.readers().publish("notes/w", {"at": "x"})
    code, _, said = place.command("follow", "notes", "--until-now", "--name", "w", "--from", "earliest")
    assert (code, "it is unknown what the reader w has read" in said) == (2, True), said
    assert followed(token)[0] == [3, 4, 5], "and instead of a position that cannot be read"
