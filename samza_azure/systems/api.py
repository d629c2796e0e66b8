"""The interface of a connector, in Samza's words.

`streams.<id>.system` in the job file names a `SystemFactory`: a built-in one, or `package.module:Factory`.

In: for each task of a source stream the factory makes a `SystemConsumer`. The task appends what the consumer returns to
its own log, together with the position, in one record: so each row is in the log once, whoever dies when.

Out: for each task that sends a stream which a stage writes it makes a `SystemProducer`. The task follows the stream's
logs, so it sends committed rows only. It numbers them, and its own log says which numbers it sends before it sends
them: whoever dies when, a row comes again with the same number, and after all rows with lower ones. So each row is
outside at least once, and whoever keeps the last number of each writer sees it once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

#: Where to read on in a partition: two whole numbers from 0, which grow in the order of the rows, the first one first.
#: A system with one number for each row writes it as the second, (0, offset); one with files, (file, offset).
SystemPosition: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SystemStream:
    """A stream outside, as the job file declares it. Of one that a stage writes, the schema is that of the stage.

    Example:
        path = stream.directory / stream.options["path"]
    """

    name: str
    partitions: int
    schema: "pa.Schema"
    options: Mapping[str, str]  # `streams.<id>.options`
    directory: Path  # of the job file, where relative paths begin
    owner: int = 0  # greater for each later owner of a task: by it an older one can be told to stop
    event_time: str | None = None  # the column
    dead_letters: int = 0  # `streams.<id>.dead_letters`; 0: a message that is no row is an error
    is_output: bool = False  # whether a stage writes it
    key: tuple[str, ...] = ()  # of an output: the columns by which the stage partitions its rows
    #: The partitions that the run before did not know, though it read the stream: they begin at their oldest row.
    added: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SystemRows:
    """Some rows of one partition.

    Example:
        SystemRows(0, pa.table({"n": [1, 2]}), (0, 2))
    """

    partition: int
    table: "pa.Table"  # with the columns of the schema, in any types that hold their values
    position: SystemPosition  # behind these rows
    #: No row that comes later in the partition is older than this, in microseconds since 1970. None: the latest event
    #: time in the rows, less `streams.<id>.frontier_lag`, says it.
    event_time_us: int | None = None
    #: Messages among them that are no rows: the columns are raw, reason, place and time, as in `<id>-dead`. Only if the
    #: stream has `dead_letters`.
    dead: "pa.Table | None" = None


@dataclass(frozen=True, slots=True)
class SystemLag:
    """What is left of a partition outside, as a look at its end has found.

    Example:
        SystemLag(rows=120, size=24_000, seconds=3.5, age_s=0.2, is_current=True)
    """

    rows: int
    size: int  # about how many bytes they have
    seconds: float | None  # the last of them came so much later than the last one that was read; None: not known
    age_s: float  # since the look began
    is_current: bool = True  # False: the outside has not answered since, so more may be there

    @property
    def seconds_at_most(self) -> float | None:
        """The same, if more has come ever since: while the outside does not answer, nobody knows.

        Example:
            assert SystemLag(rows=120, size=24_000, seconds=3.5, age_s=2.0, is_current=False).seconds_at_most == 5.5
        """
        return self.seconds if self.is_current else (self.seconds or 0.0) + self.age_s


class SystemConsumer(Protocol):
    """Reads the partitions of one task. All calls come from one thread.

    An error of its own ends the task, which is tried again from its last record. `StorageUnavailable` says that the
    outside does not answer at the moment: the task waits, and that is no failure.

    It may also have a method `state(partition)`, which returns some bytes that it needs beside the position, behind
    the rows that `read` has returned; and a method `restore(partition, state)`, which is called with them before
    `open`. They are in the same record as the rows, and go from one run to the next with the position.

    It may also have a method `lag(partition)`, which returns a `SystemLag`, or None before the first look, without
    waiting. It is shown; and a partition is then silent while such a look has found it at its end, whatever `read`
    says. A look counts for 150 s, and no longer than it is current.

    It may also have a method `tell(function)`, which is called before `open`: call the function at once, from any
    thread, whenever `read` may have something new. Then `read` is called ten times a second only while it has.

    It may also have a method `pause()`, which is called in the place of `read`, as often, while the readers of the
    stream have as many unread bytes as `streams.<id>.backlog.bytes` allows: so that what `lag` returns stays true.

    It may also have a method `recorded(partition, position)`, which is called once a record with what was read up to
    there is in the log: for those who want to see outside how far a job is.

    It may also have a method `warning()`, which returns without waiting a sentence for people while something outside
    needs them although rows are read, as partitions that were added, and else an empty text: it is logged and shown.

    Example:
        consumer.open(0, (0, 0))
        while (rows := consumer.read()) is not None:
            print(rows.partition, rows.position)
        consumer.close()
    """

    def open(self, partition: int, position: SystemPosition) -> None:
        """Read a partition from a position on; (0, 0) is its beginning. Called once for each, before `read`.

        Raises:
            StorageUnavailable: the outside does not answer at the moment: the call comes again.
        """

    def read(self) -> SystemRows | None:
        """The next rows of one of the partitions, a few MiB at most. None if none of them has any now: do not wait for
        them. Only a partition that had none then, and none for `idle.timeout`, no longer holds back event time.

        It must read on behind the position that it has returned, and after `open` exactly behind the position there.

        Raises:
            StorageUnavailable: the outside does not answer at the moment: the call comes again.
        """

    def close(self) -> None:
        """Called once at the end. A processor that is killed calls nothing."""


@dataclass(frozen=True, slots=True)
class SystemWriter:
    """Who sends rows outside: one task of one run of a job.

    Example:
        SystemWriter("4f6e…:2026-11-28-a:takings-out-0", 4, 3 * 1024 + 1)
    """

    id: str  # the same for each owner of the task, and unlike that of any other task
    partitions: int | None  # as many as the stream outside had when the rows were numbered; None: it has none
    owner: int  # greater for each later owner of the task


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that can never be sent, and why.

    Example:
        RefusedRow(17, "It has 1,203,444 bytes as an event, and the hub takes 1,046,528.", b'{"id": 17}')
    """

    index: int  # among the rows of the call, from 0
    reason: str  # a sentence
    raw: bytes  # what would have been sent


class SystemProducer(Protocol):
    """Sends the rows of one task. All calls come from one thread.

    An error of its own ends the task, which is tried again from its last record. `StorageUnavailable` says that the
    outside does not answer at the moment: the task waits and calls again, and that is no failure.

    Example:
        first = producer.open(writer) or 0
        refused = producer.send(first, rows)
        producer.flush()
        producer.close()
    """

    def open(self, writer: SystemWriter) -> int | None:
        """Begin. Return the number of the first row that is not outside yet, if the outside keeps that together with
        the rows; None otherwise. With a number, rows below it are not sent again: then each row is outside once. And
        after `StorageUnavailable` this producer is closed, and another one opened, which says how far it came.

        Raises:
            StorageUnavailable: the outside does not answer at the moment: the call comes again.
        """

    def send(self, number: int, rows: "pa.Table") -> Sequence[RefusedRow]:
        """Take rows, numbered from `number` on, and return those that can never be sent. No row need be outside yet.

        Where a row goes must depend on the row, its number and the writer alone, since it may be sent again.
        """

    def flush(self) -> None:
        """Return when all rows that were taken are durable outside, in their order. If it raises
        `StorageUnavailable`, it is called again, unless `open` has returned a number.
        """

    def close(self) -> None:
        """Called once at the end. A processor that is killed calls nothing."""


class SystemAdmin(Protocol):
    """Knows the stream outside.

    It may also have a method `look()` for `samza-azure check --connect`: it tries to reach the outside, and returns in
    words what it has found, or raises an error that says what to do. It takes 10 s at most.

    It may also have a method `back_to(time, stood)` for `samza-azure rewind --to TIME`. `stood` has the positions where
    reading stands, by partition. It returns the position of the first row that came in at that time or later, for each
    partition where that lies before the position where reading stands.

    Example:
        class Admin:
            def partitions(self) -> int | None:
                return None
    """

    def partitions(self) -> int | None:
        """How many partitions it has. None if that is for the job file to say."""


class SystemFactory(Protocol):
    """Makes the parts of one system. It is made without arguments, in each container.

    It may also have a method `get_producer(stream)`, which returns a `SystemProducer` for one task. Without it no stage
    can write such a stream.

    Example:
        class Factory:
            def get_admin(self, stream: SystemStream) -> SystemAdmin:
                return Admin()

            def get_consumer(self, stream: SystemStream) -> SystemConsumer:
                return Consumer(stream)
    """

    def get_admin(self, stream: SystemStream) -> SystemAdmin:
        """Check the options of a stream, without reaching the outside.

        `stream.is_output` says whether it is read or written.

        Raises:
            ConfigError: an option is wrong.
        """

    def get_consumer(self, stream: SystemStream) -> SystemConsumer:
        """A consumer for one task."""


__all__ = [
    "RefusedRow",
    "SystemAdmin",
    "SystemConsumer",
    "SystemFactory",
    "SystemLag",
    "SystemPosition",
    "SystemProducer",
    "SystemRows",
    "SystemStream",
    "SystemWriter",
]
