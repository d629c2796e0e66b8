"""The public API as a type checker must see it. Never executed: `make check` runs mypy in strict mode over it.

A change that breaks a line here breaks programs of users. Each public name is used at least once; a test counts.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, assert_type

import samza_azure
from samza_azure import (
    AccessDenied,
    Application,
    AzureJobCoordinatorFactory,
    AzureLock,
    ClusterMembership,
    Collector,
    Config,
    ConfigError,
    CoordinationUtils,
    CorruptState,
    DrainMessage,
    DrainMode,
    DrainMonitor,
    DrainNotification,
    DrainNotifications,
    DrainStates,
    Envelope,
    EventHubsOnce,
    Handler,
    JobCoordinator,
    JobCoordinatorListener,
    JobFailed,
    JobModel,
    LeaderElector,
    LeaderElectorListener,
    LeftOpen,
    Lock,
    PassthroughJobCoordinatorFactory,
    PermitExpired,
    PipelineRefused,
    Reader,
    RefusedRow,
    RowsGone,
    SamzaAzureError,
    SharedTasks,
    SignInFailed,
    SourceWriter,
    StateLost,
    StorageUnavailable,
    Superseded,
    SystemAdmin,
    SystemConsumer,
    SystemFactory,
    SystemLag,
    SystemProducer,
    SystemRows,
    SystemStream,
    SystemWriter,
    TaskCoordinator,
    TimedOut,
    Unsettled,
    check_token,
    tables,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from samza_azure.storage.connection import Account


# A pipeline. A stage keeps the type of its function.

app = Application()


@app.stage("flights", output="by-carrier", partition_by="carrier")
def clean(flights: "DataFrame") -> "DataFrame":
    return flights.where("dep_delay IS NOT NULL")


@app.stage("orders", "payments", output="matched", partition_by=["order", "day"], output_mode="update", tasks=2)
def match(orders: "DataFrame", payments: "DataFrame") -> "DataFrame":
    return orders.join(payments, "order")


@app.task("flights", output="alerts", partition_by="carrier", max_concurrency=4)
class Alert:
    """A handler of coroutines."""

    async def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
        assert_type(envelope.stream, str)
        assert_type(envelope.partition, int)
        assert_type(envelope.offset, str)
        collector.send({"carrier": envelope.row["carrier"]})
        coordinator.set_timer(envelope.row["carrier"], timedelta(hours=1))
        coordinator.set_timer(envelope.row["carrier"], datetime(2030, 1, 1, tzinfo=UTC))
        coordinator.delete_timer(envelope.row["carrier"])
        coordinator.commit()
        coordinator.shutdown()

    async def on_timer(self, key: str, collector: Collector) -> None:
        collector.send({"carrier": key})

    async def on_drain(self, collector: Collector) -> None:
        collector.send({"carrier": None})


@app.task("orders", "payments")
class Ledger:
    """A plain one, which emits nothing."""

    def process(self, envelope: Envelope, collector: Collector) -> None: ...


@app.task("orders", output="booked", tasks=1)
def ledger() -> Handler:
    return Ledger()


assert_type(Alert(), Alert)
handler: Handler = Alert()


def called(frame: "DataFrame") -> None:
    assert_type(clean(frame), "DataFrame")
    assert_type(match(frame, frame), "DataFrame")


# The configuration.

config = Config.load("job.toml")
assert_type(config, Config)
assert_type(Config.parse("[app]", environment={"CONNECT": "x"}), Config)


# A coordinator and its listener.


class Listener(JobCoordinatorListener):
    """What a program overrides."""

    def on_job_model_expired(self) -> None: ...

    def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
        assert_type(job_model.version, int)
        assert_type(job_model.epoch, int)
        assert_type(job_model.run_id, str)
        assert_type(job_model.processors, Mapping[str, tuple[str, ...]])

    def on_leadership(self, leads: bool, epoch: int) -> None: ...

    def on_coordinator_stop(self) -> None: ...

    def on_coordinator_failure(self, error: Exception) -> None: ...


for factory in (AzureJobCoordinatorFactory(), PassthroughJobCoordinatorFactory()):
    coordinator = factory.get_job_coordinator("one", config)
    assert_type(coordinator, JobCoordinator)
    coordinator.set_listener(Listener())
    coordinator.start()
    assert_type(coordinator.is_leader, bool)
    assert_type(coordinator.job_model, JobModel | None)
    coordinator.stop()
    coordinator.give_up("No disk.")


# Shared tasks.


class Mine(SharedTasks):
    """A member with a share of the tasks."""

    def on_start(self, task: str, generation: int) -> None: ...

    def on_stop(self, task: str) -> None: ...

    def on_failure(self, task: str, why: str) -> None:
        """What the task runs has ended."""
        self.ended(task, why)


assert_type(check_token("/mnt/checkpoint"), int)

with Mine(coordinator, "partition", 16) as mine:
    assert_type(mine.tasks, tuple[str, ...])
    assert_type(mine.may_act, bool)


# An elector, the membership and a lock.


class Electee(LeaderElectorListener):
    """A candidate."""

    def on_becoming_leader(self, epoch: int) -> None: ...

    def on_losing_leadership(self) -> None: ...


with AzureJobCoordinatorFactory().get_coordination_utils("group", "one", config) as tools:
    assert_type(tools.leader_elector, LeaderElector)
    assert_type(tools.cluster_membership, ClusterMembership)
    tools.leader_elector.set_listener(Electee())
    tools.leader_elector.try_become_leader()
    assert_type(tools.leader_elector.epoch, int)
    tools.leader_elector.resign_leadership()
    tools.cluster_membership.register_processor()
    assert_type(tools.cluster_membership.processors(), tuple[str, ...])
    assert_type(tools.cluster_membership.number_of_processors(), int)
    tools.cluster_membership.unregister_processor()
    lock = tools.get_lock("ledger")
    assert_type(lock, Lock)
    with lock as token:
        assert_type(token, int)
    assert_type(lock.lock(timeout=1.0), int | None)
    assert_type(lock.try_lock(), int | None)
    assert_type(lock.held, bool)
    assert_type(lock.lost, str | None)
    lock.unlock()


def any_tools(given: CoordinationUtils, lock: AzureLock) -> Lock:
    given.close()
    return lock


# Rows in and out, without a run.

writer = SourceWriter.from_job("job.toml", "flights")
assert_type(writer, SourceWriter)
with writer as entered:
    assert_type(entered, SourceWriter)
reader = Reader.from_job("job.toml", "by-carrier", start="latest", until_now=True)
assert_type(reader, Reader)
assert_type(reader.token, str)


# Events that come again.

once = EventHubsOnce(b"")
is_new: bool = once.is_new({b"samza-writer": b"w", b"samza-number": 1})
state: bytes = bytes(once)

# A connector.


class Ticks:
    """Counts."""

    def __init__(self, stream: SystemStream) -> None:
        self.most = int(stream.options["most"]) + stream.partitions + len([*stream.schema.names, stream.name])
        self.at = 0, 0

    def partitions(self) -> int | None:
        return None

    def open(self, partition: int, position: tuple[int, int]) -> None:
        self.at = position

    def read(self) -> SystemRows | None:
        rows = SystemRows(0, pa.table({"n": [1]}), (0, self.at[1] + 1), event_time_us=None)
        return rows if rows.position < (0, self.most) else None

    def lag(self, partition: int) -> SystemLag | None:
        left = self.most - self.at[1] - partition
        return SystemLag(rows=left, size=8 * left, seconds=None, age_s=0.0)

    def close(self) -> None: ...


class TicksFactory:
    """Makes one."""

    def get_admin(self, stream: SystemStream) -> SystemAdmin:
        return Ticks(stream)

    def get_consumer(self, stream: SystemStream) -> SystemConsumer:
        return Ticks(stream)

    def get_producer(self, stream: SystemStream) -> SystemProducer:
        return Prints(stream.key if stream.is_output else ())


class Prints:
    """Prints rows."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self.key = key

    def open(self, writer: SystemWriter) -> int | None:
        self.writer = f"{writer.id} {writer.partitions or 1} {writer.owner}"
        return None

    def send(self, number: int, rows: pa.Table) -> list[RefusedRow]:
        print(self.writer, number, rows)
        return [RefusedRow(index=0, reason="It is the first.", raw=b"")] if number == 0 else []

    def flush(self) -> None: ...

    def close(self) -> None: ...


connector: SystemFactory = TicksFactory()


# A drain, for programs that use the coordinator without Spark.

notifications = DrainNotifications.of(config)
asked = notifications.write("run")
assert_type(asked, DrainNotification)
assert_type(asked.mode, DrainMode)
assert_type(notifications.wanted("run"), DrainNotification | None)
assert_type(notifications.clean("run") + notifications.clean_all(), int)
monitor = DrainMonitor(notifications, "run", interval_s=1.0)
assert_type(monitor.register_drain_callback(lambda drain: print(drain.uuid)), bool)
monitor.start()
monitor.stop()
states = DrainStates("run", {"flights": range(2)}, {"flights": 1})
assert_type(DrainMessage.from_json("{}").to_json(), str)
assert_type(states.is_drained("flights", 0), bool)


# Tables.


def appended(rows: "pa.Table") -> None:
    store = tables.store(config, "delays")
    owner = tables.LockOwner("p1")
    tables.create(store, rows.schema, time="at", granularity=tables.Granularity.DAY)
    appender = tables.Appender(store, tables.LockTask("appender", "nightly", 50, owner))
    appender.append(rows)
    appender.close()


def compacted() -> None:
    store = tables.store(config, "delays")
    task = tables.LockTask("compactor", "compactor", 0, tables.LockOwner("p2"))
    done = tables.compact(store, task, groups=tables.plan(store))
    done.append(tables.rewrite(store, task, tables.Interval.of("2024-01-01", "2024-02-01"), tables.Granularity.DAY))
    assert_type(done, list[tables.Compacted])
    assert_type([one for one in done if one.why is tables.Unmerged.LOCKED], list[tables.Compacted])


def looked_up(account: "Account") -> None:
    before = tables.snapshot_of(tables.store_of(account, "delays"))
    table = tables.open(config.storage, "delays", at=before.sequence)
    assert_type(table, tables.TableSnapshot)
    late: tables.Filter = [("delay", ">", 60)]
    assert_type(table.files(tables.Interval.parse("2024-01-01/2024-02-01"), late), list[tables.FilePart])


# Errors: each is a SamzaAzureError with an exit code.

errors: Sequence[type[SamzaAzureError]] = (
    AccessDenied,
    ConfigError,
    CorruptState,
    JobFailed,
    LeftOpen,
    PermitExpired,
    PipelineRefused,
    RowsGone,
    SignInFailed,
    StateLost,
    StorageUnavailable,
    Superseded,
    TimedOut,
    Unsettled,
)
exit_code: int = SamzaAzureError.exit_code


def placed(error: CorruptState) -> None:
    assert_type(error.blob, str)
    assert_type(error.position, int)


assert_type(samza_azure.__all__, list[str])
