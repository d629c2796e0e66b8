"""Each optional argument of `samza_azure` and `samza_azure.segments` at another value than its default, by its effect.

The arguments are found by inspection, so a new one without a case fails here. A wrapper that drops an argument on its
way to a well-tested core is noticed by nothing else. Those of `samza_azure.tables` are in
`tests/storage/test_every_argument.py`.
"""

import io
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import samza_azure
from samza_azure import (
    AccessDenied,
    Application,
    AzureJobCoordinatorFactory,
    AzureLock,
    Config,
    ConfigError,
    CorruptState,
    DrainMessage,
    DrainMonitor,
    DrainNotifications,
    DrainStates,
    EventHubsOnce,
    JobCoordinator,
    PassthroughJobCoordinatorFactory,
    Reader,
    SharedTasks,
    SignInFailed,
    SourceWriter,
    StateLost,
    StorageUnavailable,
    Unsettled,
    segments,
)
from samza_azure.application import Stage
from samza_azure.errors import TimedOut, Verdict
from samza_azure.library.lease_lock import LeaseLock
from samza_azure.library.threaded import ThreadedCoordinator
from samza_azure.logs.operations import Pause
from samza_azure.logs.record import Kind, Slice, Writer
from samza_azure.machine.clock import boot_time
from samza_azure.messages import StartTask
from samza_azure.segments import File, Interval, Partitions, Publish, Segment, Timeline
from samza_azure.storage.connection import Account
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from samza_azure.stream_io.arrow import encode
from samza_azure.stream_io.log import LogReader, take_over
from samza_azure.stream_io.produced import PRODUCED, Production
from samza_azure.stream_io.retention import readers_of
from samza_azure.systems.once import NUMBER, WRITER
from tests.arguments import holds, ignore, optional_arguments
from tests.storage.conftest import Clock

T = TypeVar("T")
PATIENCE_S = 30.0
JOB = """
app = { name = "${NAME}", main = "pipeline:app" }
azure.storage.connect = "UseDevelopmentStorage=true"

[streams.s]
schema = "v bigint, ts timestamp"
event_time = "ts"
partitions = 2
"""
NAMED = {"NAME": "n"}
NOW = datetime.now(UTC)
FIRST, SECOND = Interval.of("2024-01-01", "2024-01-02"), Interval.of("2024-01-02", "2024-01-03")


class Waits(Exception):
    """Something waits that should not, or that a case wants to see."""


def no_wait(_: object) -> None:
    raise Waits


@dataclass(slots=True)
class Down(Link):
    """Carries nothing until somebody has waited."""

    waits: list[Pause] = field(default_factory=list)

    def call(self, operation: str, effect: Callable[[], T]) -> T:
        if not self.waits:
            raise StorageUnavailable("Nobody answers.")
        return effect()


@dataclass(frozen=True, slots=True)
class Place:
    """An account in memory, which `Account.from_config` returns, a clock that is set, and a job file."""

    account: MemoryAccount
    clock: Clock
    job: Path

    @property
    def config(self) -> Config:
        return Config.load(self.job)

    def writer(self, account: MemoryAccount | None = None, partitions: int = 1, **options: Any) -> SourceWriter:
        account = account or self.account
        return SourceWriter(account.blobs(), account.hints(), "s", partitions, **options)

    def reader(self, stream: str = "s", **options: Any) -> Reader:
        return Reader(self.account.blobs(), stream, **{"wait": no_wait, **options})

    def once(self, key: str) -> Production:
        return Production(self.account.transactions(PRODUCED), "s", key)

    def stored(self, partition: int = 0) -> int:
        """How many rows a partition has."""
        return LogReader(self.account.blobs(), f"streams/s/{partition}").scan((0, 0)).rows


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    clock, job = Clock(), tmp_path / "job.toml"
    account = MemoryAccount(MemoryStorage(clock))
    job.write_text(JOB)
    monkeypatch.setenv("NAME", NAMED["NAME"])
    monkeypatch.setattr(Account, "from_config", lambda storage: account)
    # `AzureLock` takes no clock and `Reader.from_job` nothing to wait with, and no case shall wait forever.
    monkeypatch.setitem(LeaseLock.__init__.__kwdefaults__, "now", clock)
    for waiting in (Reader, SourceWriter):
        monkeypatch.setitem(waiting.__init__.__kwdefaults__, "wait", no_wait)
    return Place(account, clock, job)


def rows(*numbers: int, at: datetime = NOW) -> pa.Table:
    """Rows of the source stream. All have one event time."""
    return pa.table({"v": numbers, "ts": pa.array([at] * len(numbers), pa.timestamp("us", "UTC"))})


def read(reader: Reader) -> list[int]:
    """What a reader returns before it waits."""
    found: list[int] = []
    with suppress(Waits):
        for table in reader:
            found += table["v"].to_pylist()
    return found


def until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while (answer := look()) is None:
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)
    return answer


def _stage(**how: Any) -> Stage:
    application = Application()

    @application.stage("s", output="counts", **how)
    def count(frame: object) -> object:
        return frame

    return application.stages[0]


def _task(**how: Any) -> Stage:
    application = Application()

    @application.task("s", **how)
    class Count:
        async def process(self, envelope: object, collector: object) -> None: ...

    return application.stages[0]


def _needs_no_account(place: Place) -> bool:
    place.job.write_text(JOB.replace("UseDevelopmentStorage=true", "${NONE}"))
    return Config.load(place.job, reaches_storage=False).storage.connect is None


def _is_measured(factory: Any, place: Place) -> bool:
    reader = InMemoryMetricReader()
    factory.get_job_coordinator("p", place.config, MeterProvider([reader])).container_uses(5)
    return reader.get_metrics_data() is not None


def _notices(place: Place, withdrawn: str = "") -> Any:
    """The notices of a coordinator that was given one, by their sources; perhaps it is withdrawn."""
    coordinator: JobCoordinator = AzureJobCoordinatorFactory().get_job_coordinator("p", place.config)
    assert isinstance(coordinator, ThreadedCoordinator)
    coordinator.start()
    try:
        view = until(lambda: coordinator.view)
        coordinator.decommission("scale-in", by=boot_time() + 900.0, source="x")
        if withdrawn:
            coordinator.recommission(source=withdrawn)
        coordinator.decommission("the last one", source="last")
        until(lambda: view.notices.get("last"))  # they are taken in their order
        return dict(view.notices)
    finally:
        coordinator.stop()
        coordinator.wait()


def _settings(place: Place, **asked: bool) -> Any:
    """What a coordinator goes by that was asked this; what that means for the group is tested in `tests/group`."""
    coordinator: JobCoordinator = AzureJobCoordinatorFactory().get_job_coordinator("p", place.config)
    assert isinstance(coordinator, ThreadedCoordinator)
    coordinator.ask(new_run=False, wait_for_upgrade=False, **asked)
    coordinator.start()
    try:
        return until(lambda: coordinator.view).settings
    finally:
        coordinator.stop()
        coordinator.wait()


def _is_held_longer(place: Place) -> bool:
    lock = AzureLock(place.config.storage, "one", lease_s=60)
    with lock:
        place.clock.now += 30
        return lock.held


def _is_told(place: Place) -> bool:
    told = threading.Event()
    with AzureLock(place.config.storage, "one", on_lost=lambda reason: told.set()):
        place.clock.now += 100
        return told.wait(PATIENCE_S)


def _gives_up(place: Place) -> bool:
    tokens, other = list[int | None](), AzureLock(place.config.storage, "one")
    waiter = threading.Thread(target=lambda: tokens.append(other.lock(timeout=0.0)))
    with AzureLock(place.config.storage, "one"):
        waiter.start()
        waiter.join(PATIENCE_S)
        gave_up = tokens == [None]
        other.unlock()  # it would wait forever
        waiter.join()
    return gave_up


def _calls_back_soon(place: Place) -> bool:
    called, notifications = threading.Event(), DrainNotifications(place.account)
    monitor = DrainMonitor(notifications, "r", 0.01)
    monitor.register_drain_callback(lambda drain: called.set())
    monitor.start()
    notifications.write("r")
    try:
        return called.wait(PATIENCE_S)
    finally:
        monitor.stop()


def _has_failed(place: Place) -> bool:
    shared = SharedTasks(AzureJobCoordinatorFactory().get_job_coordinator("a", place.config), "part", 1)
    shared._tasks["part-0"] = StartTask("part-0", 1, 1, first=True, run_id="r", group_id="g")
    shared.ended("part-0", "it broke")
    return "it broke" in repr(shared._commands.get())


def _states() -> DrainStates:
    """Of two streams with two partitions each, one partition of the first is drained, and all of the second."""
    states = DrainStates("r", {"a": (0, 1), "b": (0, 1)}, {})
    for stream, partition in (("a", 0), ("b", 0), ("b", 1)):
        states.update(DrainMessage("r"), stream, partition)
    return states


def _written(place: Place, *numbers: int) -> Place:
    with place.writer() as writer:
        for number in numbers:
            writer.write(rows(number))
            writer.flush()
    return place


def _token(place: Place) -> str:
    """A token after row 1, where rows 1 and 2 are stored."""
    reader = _written(place, 1).reader()
    assert read(reader) == [1]
    _written(place, 2)
    return reader.token


def _with_file(place: Place) -> Place:
    with io.BytesIO() as data:
        pq.write_table(pa.table({"v": [1]}), data)
        place.account.blobs().put("files/outs/1-a.out-files-0.00000000.parquet", data.getvalue())
    return place


def _committed(place: Place, make: Callable[[], Reader]) -> list[int]:
    """What a reader of the same name has after one that has committed row 1."""
    reader = make()
    assert read(reader) == [1]
    reader.commit()
    _written(place, 2)
    assert readers_of(place.account.readers(), "s").keys() == {"mine"}
    return read(make())


def _named(place: Place) -> list[int]:
    return _committed(_written(place, 1), lambda: place.reader(name="mine", positions=place.account.readers()))


def _ends(reader: Reader) -> bool:
    """Whether it ends, and does not wait for more."""
    return len(list(reader)) == 1


def _in_order(place: Place) -> bool:
    """Runs in the order that is given, not by their names."""
    for run in ("1-a", "2-b"):
        writer, _ = take_over(
            place.account.blobs(), f"runs/{run}/count-0", group_id=bytes(16), task="count-0", writer=Writer(1, 1),
            first=True, may_append=lambda: True, meta={"stream": "out"},
        )  # fmt: skip
        writer.append(0, slices=(Slice(0, encode(rows(1)), 1),), kind=Kind.BATCH)
    found = [log for log, _ in place.reader("out").once_through(["2-b", "1-a"])]
    return found == ["runs/2-b/count-0", "runs/1-a/count-0"]


def _future_rows(place: Place, ahead: timedelta, **options: Any) -> int:
    writer = place.writer(event_time="ts", **options)
    writer.write(rows(1, at=NOW + ahead))
    return writer.rows_of_the_future


def _frontier(place: Place, **options: Any) -> int | None:
    with place.writer(**options) as writer:
        writer.write(rows(1))
    return writer.frontier_us


def _waits_for_readers(place: Place) -> bool:
    writer = place.writer(max_backlog_bytes=1, backlog_wait_s=0.0, wait=_refuse)
    writer.write(rows(1))
    writer.flush()
    try:
        writer.write(rows(2))
    except TimedOut:
        return True
    return False


def _is_refused(write: Callable[[], object]) -> bool:
    with pytest.raises(ConfigError):
        write()
    return True


def _waits(place: Place) -> bool:
    link = Down()
    with place.writer(MemoryAccount(place.account.storage, link=link), wait=link.waits.append) as writer:
        writer.write(rows(1))
    return len(link.waits) > 0 and place.stored() == 1


def _producer(place: Place) -> bool:
    with place.writer(new_id=lambda: b"\7" * 16) as writer:
        writer.write(rows(1))
    last = LogReader(place.account.blobs(), "streams/s/0").tail(0)
    return last is not None and last.header.task == "07" * 16


def _reads_clock(place: Place) -> bool:
    looks: list[float] = []
    with place.writer(now=lambda: looks.append(0.0) or 0.0) as writer:
        writer.write(rows(1))
    return len(looks) > 0


def _stored_at_once(place: Place, make: Callable[..., SourceWriter], **options: Any) -> bool:
    """Whether a row is stored without a flush."""
    make(**options).write(rows(1))
    return place.stored() + place.stored(1) == 1


def _stored_once(place: Place, make: Callable[[], SourceWriter]) -> bool:
    for _ in range(2):
        with make() as writer:
            writer.write(rows(1))
    return writer.rows_skipped == 1 and place.stored() + place.stored(1) == 1


def _other_content(place: Place) -> bool:
    with SourceWriter.of(place.config, place.account, "s", once="k", content="1") as writer:  # type: ignore[arg-type]
        writer.write(rows(1))
    other = SourceWriter.of(place.config, place.account, "s", once="k", content="2")  # type: ignore[arg-type]
    return _is_refused(lambda: other.write(rows(1)))


def _stays_together(writer: SourceWriter, place: Place, **how: Any) -> bool:
    """Whether rows of one key go to one partition; without a key, partitions take turns."""
    for _ in range(2):
        writer.write(rows(7), **how)
    writer.close()
    return {place.stored(0), place.stored(1)} == {0, 2}


def _timeline() -> Timeline:
    return Timeline(Segment.root("t", interval, 0, 0) for interval in (FIRST, SECOND))


def _half() -> Timeline:
    """A root of a batch of two, the other one of which is missing."""
    return Timeline([Segment.root("t", FIRST, 0, 0, group=Partitions.of(0, 1))])


#: Each says by the argument's effect whether it had one; with the default it would be False.
CASES: dict[str, Callable[[Place], object]] = {
    "AccessDenied()(may_pass)": lambda _: AccessDenied("m", may_pass=True).exit_code is Verdict.UNREACHABLE,
    **{
        f"{error.__name__}()(position)": lambda _, error=error: "position 7" in str(error("m", blob="b", position=7))
        for error in (CorruptState, StateLost)
    },
    **{
        f"{error.__name__}()(after_s)": lambda _, error=error: error("m", after_s=7).after_s == 7
        for error in (StorageUnavailable, SignInFailed, Unsettled)
    },
    "Application.stage(output_mode)": lambda _: _stage(output_mode="update").output_mode == "update",
    "Application.stage(partition_by)": lambda _: _stage(partition_by="v").partition_by == ("v",),
    "Application.stage(tasks)": lambda _: _stage(tasks=3).tasks == 3,
    "Application.task(output)": lambda _: _task(output="out").output == "out",
    "Application.task(partition_by)": lambda _: _task(partition_by=["v"]).partition_by == ("v",),
    "Application.task(max_concurrency)": lambda _: _task(max_concurrency=4).max_concurrency == 4,
    "Application.task(tasks)": lambda _: _task(tasks=3).tasks == 3,
    **{
        f"{factory.__name__}.get_job_coordinator(metrics)": lambda place, factory=factory: _is_measured(
            factory(), place
        )
        for factory in (AzureJobCoordinatorFactory, PassthroughJobCoordinatorFactory)
    },
    "JobCoordinator.ask(restarted)": lambda place: _settings(place, restarted=True).restarted,
    "JobCoordinator.decommission(by)": lambda place: _notices(place)["x"].by is not None,
    "JobCoordinator.decommission(source)": lambda place: "x" in _notices(place),
    "JobCoordinator.recommission(source)": lambda place: "x" not in _notices(place, withdrawn="x"),
    "JobCoordinator.ask(only_holder)": lambda place: _settings(place, only_holder=True).holds_directory,
    "AzureLock()(lease_s)": _is_held_longer,
    "AzureLock()(on_lost)": _is_told,
    "AzureLock.lock(timeout)": _gives_up,
    "Config.load(environment)": lambda place: Config.load(place.job, environment={"NAME": "m"}).app.name == "m",
    "Config.load(overrides)": lambda place: Config.load(place.job, overrides={"app.id": "2"}).app.id == "2",
    "Config.load(reaches_storage)": _needs_no_account,
    "Config.parse(environment)": lambda _: Config.parse(JOB, environment={"NAME": "m"}).app.name == "m",
    "Config.parse(overrides)": lambda _: Config.parse(JOB, overrides={"app.id": "2"}).app.id == "2",
    "Config.parse(path)": lambda place: Config.parse(JOB, path=place.job).processor.dir.parent == place.job.parent,
    "DrainMonitor()(interval_s)": _calls_back_soon,
    "DrainNotifications.write(run_id)": lambda place: DrainNotifications(place.account).write("r").run_id == "r",
    "SharedTasks.ended(why)": _has_failed,
    "check_token(token)": lambda place: samza_azure.check_token(place.job.parent, 7) == 7,
    "DrainStates.is_drained(stream)": lambda _: _states().is_drained("b"),
    "DrainStates.is_drained(partition)": lambda _: _states().is_drained("a", 0),
    "Reader()(start)": lambda place: read(_written(place, 1).reader(start="latest")) == [],
    "Reader()(token)": lambda place: read(place.reader(token=_token(place))) == [2],
    "Reader()(until_now)": lambda place: _ends(_written(place, 1).reader(until_now=True)),
    "Reader()(table_bytes)": lambda place: len(list(_written(place, 1, 2).reader(until_now=True, table_bytes=1))) == 2,
    "Reader()(wait)": lambda place: _is_refused(lambda: next(iter(place.reader(wait=_refuse)))),
    "Reader()(name)": lambda place: _named(place) == [2],
    "Reader()(positions)": lambda place: _named(place) == [2],
    "Reader()(files)": lambda place: read(_with_file(place).reader("out", files="outs")) == [1],
    "Reader()(table)": lambda place: _is_refused(lambda: place.reader("out", table="outs")),
    "Reader()(passing)": lambda place: place.reader("out", table="outs", passing=False).token != "",
    "Reader.of(name)": lambda place: (
        _committed(_written(place, 1), lambda: Reader.of(place.config, place.account, "s", name="mine", wait=no_wait))  # type: ignore[arg-type]
        == [2]
    ),
    "Reader.of(**options)": lambda place: (
        read(Reader.of(_written(place, 1).config, place.account, "s", start="latest")) == []  # type: ignore[arg-type]
    ),
    "Reader.from_job(start)": lambda place: read(Reader.from_job(_written(place, 1).job, "s", start="latest")) == [],
    "Reader.from_job(token)": lambda place: read(Reader.from_job(place.job, "s", token=_token(place))) == [2],
    "Reader.from_job(until_now)": lambda place: _ends(Reader.from_job(_written(place, 1).job, "s", until_now=True)),
    "Reader.from_job(name)": lambda place: (
        _committed(_written(place, 1), lambda: Reader.from_job(place.job, "s", name="mine")) == [2]
    ),
    "Reader.once_through(runs)": _in_order,
    "EventHubsOnce()(state)": lambda _: not EventHubsOnce(b'{"w":3}').is_new({WRITER: "w", NUMBER: 3}),
    "SourceWriter()(schema)": lambda place: _is_refused(
        lambda: place.writer(schema=pa.schema([("w", pa.int64())])).write(rows(1))
    ),
    "SourceWriter()(key)": lambda place: _stays_together(place.writer(partitions=2, key="v"), place),
    "SourceWriter()(event_time)": lambda place: _frontier(place, event_time="ts") is not None,
    "SourceWriter()(frontier_lag_s)": lambda place: (
        _frontier(place, event_time="ts", frontier_lag_s=60.0) == round(NOW.timestamp() * 1e6) - 60_000_000
    ),
    "SourceWriter()(max_future_s)": lambda place: _future_rows(place, timedelta(days=2), max_future_s=3e5) == 0,
    "SourceWriter()(clock)": lambda place: _future_rows(place, timedelta(), clock=lambda: 0.0) == 1,
    "SourceWriter()(flush_rows)": lambda place: _stored_at_once(place, place.writer, flush_rows=1),
    "SourceWriter()(flush_bytes)": lambda place: _stored_at_once(place, place.writer, flush_bytes=1),
    "SourceWriter()(wait)": _waits,
    "SourceWriter()(new_id)": _producer,
    "SourceWriter()(now)": _reads_clock,
    "SourceWriter()(once)": lambda place: _stored_once(place, lambda: place.writer(once=place.once("k"))),
    "SourceWriter()(max_backlog_bytes)": _waits_for_readers,
    "SourceWriter()(backlog_wait_s)": _waits_for_readers,
    "SourceWriter.from_job(once)": lambda place: _stored_once(
        place, lambda: SourceWriter.from_job(place.job, "s", once="k")
    ),
    "SourceWriter.from_job(**options)": lambda place: _stored_at_once(
        place, lambda **options: SourceWriter.from_job(place.job, "s", **options), flush_rows=1
    ),
    "SourceWriter.of(once)": lambda place: _stored_once(
        place,
        lambda: SourceWriter.of(place.config, place.account, "s", once="k"),  # type: ignore[arg-type]
    ),
    "SourceWriter.of(content)": _other_content,
    "SourceWriter.of(**options)": lambda place: _stored_at_once(
        place,
        lambda **options: SourceWriter.of(place.config, place.account, "s", **options),  # type: ignore[arg-type]
        flush_rows=1,
    ),
    "SourceWriter.write(key)": lambda place: _stays_together(place.writer(partitions=2), place, key="v"),
    "Partitions()(numbers)": lambda _: [*Partitions([3])] == [3],
    "Partitions()(runs)": lambda _: [*Partitions(runs=[(3, 5)])] == [3, 4],
    "Segment.root(group)": lambda _: not _half().visible(),
    "Segment.root(file)": lambda _: Segment.root("t", FIRST, 0, 0, file=File("f")).file == File("f"),
    "Segment.root(published)": lambda _: (
        Segment.root("t", FIRST, 0, 0, published=(Publish(1, 1),)).published == (Publish(1, 1),)
    ),
    "Timeline()(segments)": lambda _: len(_timeline()) == 2,
    "Timeline.lookup(interval)": lambda _: [entry.interval for entry in _timeline().lookup(FIRST)] == [FIRST],
    "Timeline.lookup(incomplete)": lambda _: len(_half().lookup(incomplete=True)) == 1,
    "Timeline.visible(interval)": lambda _: [one.interval for one in _timeline().visible(SECOND)] == [SECOND],
}


#: By the name that an argument begins with: what has a class of this name.
HOMES: dict[str, Any] = {
    **dict.fromkeys(samza_azure.__all__, samza_azure),
    **dict.fromkeys(segments.__all__, segments),
    "JobCoordinator": SimpleNamespace(JobCoordinator=ThreadedCoordinator),  # whose `ask` is more than a refusal
}


def _refuse(_: float) -> None:
    raise ConfigError("This reader would wait.")


@pytest.mark.parametrize("argument", sorted(CASES))
def test_an_optional_argument_has_its_effect(place: Place, argument: str) -> None:
    assert CASES[argument](place)


@pytest.mark.parametrize("argument", sorted(CASES))
def test_a_case_fails_if_its_argument_is_ignored(place: Place, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PATIENCE_S", 0.5)
    ignore(argument, HOMES[argument.partition("(")[0].partition(".")[0]], monkeypatch)
    assert not holds(CASES[argument], place)


def test_each_optional_argument_has_a_case() -> None:
    assert optional_arguments(samza_azure, segments) == CASES.keys()
