"""The interface of a connector, in Samza's words.

`streams.<id>.system` in the job file names a `SystemFactory`: a built-in one, or `package.module:Factory`. For each
task of such a stream the factory makes a `SystemConsumer`. The task appends what the consumer returns to its own log,
together with the position, in one record: so each row is in the log once, whoever dies when.
"""

from collections.abc import Mapping
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
    """A stream outside, as the job file declares it.

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
        SystemLag(rows=120, size=24_000, seconds=3.5, age_s=0.2)
    """

    rows: int
    size: int  # about how many bytes they have
    seconds: float | None  # the last of them came so much later than the last one that was read; None: not known
    age_s: float  # since the look began


class SystemConsumer(Protocol):
    """Reads the partitions of one task. All calls come from one thread.

    An error of its own ends the task, which is tried again from its last record. `StorageUnavailable` says that the
    outside does not answer at the moment: the task waits, and that is no failure.

    It may also have a method `lag(partition)`, which returns a `SystemLag`, or None before the first look, without
    waiting. It is shown; and a partition is then silent once such a look has found it at its end, whatever `read` says.

    Example:
        consumer.open(0, (0, 0))
        rows = consumer.read()
    """

    def open(self, partition: int, position: SystemPosition) -> None:
        """Read a partition from a position on; (0, 0) is its beginning. Called once for each, before `read`."""

    def read(self) -> SystemRows | None:
        """The next rows of one of the partitions, a few MiB at most. None if none of them has any now: do not wait for
        them. Only a partition that had none then, and none for `idle.timeout`, no longer holds back event time.

        It must read on behind the position that it has returned, and after `open` exactly behind the position there.
        """

    def close(self) -> None:
        """Called once at the end. A processor that is killed calls nothing."""


class SystemAdmin(Protocol):
    """Knows the stream outside.

    It may also have a method `look()` for `samza-azure check --connect`: it tries to reach the outside, and returns in
    words what it has found, or raises an error that says what to do. It takes 10 s at most.

    Example:
        class Admin:
            def partitions(self) -> int | None:
                return None
    """

    def partitions(self) -> int | None:
        """How many partitions it has. None if that is for the job file to say."""


class SystemFactory(Protocol):
    """Makes the parts of one system. It is made without arguments, in each container.

    Example:
        class Factory:
            def get_admin(self, stream: SystemStream) -> SystemAdmin:
                return Admin()

            def get_consumer(self, stream: SystemStream) -> SystemConsumer:
                return Consumer(stream)
    """

    def get_admin(self, stream: SystemStream) -> SystemAdmin:
        """Check the options of a stream, without reaching the outside. Raise `ConfigError` if one is wrong."""

    def get_consumer(self, stream: SystemStream) -> SystemConsumer:
        """A consumer for one task."""


__all__ = [
    "SystemAdmin",
    "SystemConsumer",
    "SystemFactory",
    "SystemLag",
    "SystemPosition",
    "SystemRows",
    "SystemStream",
]
