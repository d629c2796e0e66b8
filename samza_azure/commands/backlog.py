"""How far behind its sources a run is: the rows between the positions of its tasks and the ends of the logs."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from samza_azure.commands.terminal import say
from samza_azure.config import LOG, Config
from samza_azure.errors import CorruptState, SamzaAzureError
from samza_azure.logs.names import blob_index, source_log, stream_and_partition, task_log
from samza_azure.logs.position import Position
from samza_azure.logs.record import READ
from samza_azure.messages import Progress
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.log import LogReader

#: Rows are counted by reading headers, in at most this many bytes of a log; beyond that the count is a lower bound.
COUNTED_BYTES = 64 << 20
#: The number of partitions that are read in parallel: each takes several calls.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Behind:
    """The unread part of a source partition."""

    rows: int
    is_all: bool  # all rows are counted; otherwise there are more
    size: int  # bytes of the log
    pace: float | None = None  # rows per second that its tasks read; None: unknown, since they also read others
    event_ms: int | None = None  # the event time that its last record has reached
    appended_s: float | None = None  # seconds since the last append, by the service's clock
    lag_s: float | None = None  # outside: by so many seconds the last row came later than the last one that was read


@dataclass(frozen=True, slots=True)
class TaskBehind:
    """The unread part of all that a task reads."""

    rows: int | None  # None: unknown, since the size of its rows is
    is_all: bool
    is_estimate: bool  # from the mean size of rows read so far: the rows in logs of other stages are not counted
    size: int


def outside(config: Config) -> frozenset[str]:
    """The streams whose rows come from outside: no log of the account holds them."""
    return frozenset(name for name, stream in config.streams.items() if stream.system != LOG)


def behind(blobs: Blobs, shown: dict[str, Any], without: Collection[str] = ()) -> dict[str, Behind]:
    """The unread part of each source partition of a status document, if the positions of its readers are known.

    Positions that only their logs have are added to the document. Streams that are not in the account are left out.
    """
    _hear(blobs, shown)
    stands = {each: at for each, at in _stands(shown).items() if stream_and_partition(each)[0] not in without}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(lambda each: _behind(blobs, each, stands[each], shown["tasks"]), stands)
        return dict(zip(stands, found, strict=True))


def behind_outside(shown: Mapping[str, Any]) -> dict[str, Behind]:
    """What is left outside of the partitions of streams from there, as the tasks that read them have said."""
    found = {}
    for task in shown["tasks"]:
        done = Progress(**task["progress"]) if task["progress"] else Progress()
        for partition, rows in ((each, rows) for each, rows in done.lag_rows.items() if each in shown["read"]):
            pace = _pace(partition, shown["tasks"])
            size, lag_s = done.behind_sources.get(partition, 0), done.lag_s.get(partition)
            found[partition] = Behind(rows, is_all=True, size=size, pace=pace, lag_s=lag_s)
    return found


def behind_of_tasks(blobs: Blobs, shown: Mapping[str, Any], found: Mapping[str, Behind]) -> dict[str, TaskBehind]:
    """The unread part of what each task reads, as far as it is known. `found` is the result of `behind`.

    Source partitions count from the task's own position; several stages may read the same partition.
    """
    read_by = {
        task["name"]: {partition: (at[0], at[1]) for partition, at in task["read"].items() if partition in found}
        for task in shown["tasks"]
    }
    known = {(partition, at): found[partition] for partition, at in _stands(shown).items() if partition in found}
    others = list(dict.fromkeys(each for read in read_by.values() for each in read.items() if each not in known))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        known |= dict(zip(others, threads.map(lambda each: _behind(blobs, each[0], each[1], ()), others), strict=True))

    total = {}
    for task in shown["tasks"]:
        read = read_by[task["name"]]
        counted = [known[each] for each in read.items()]
        sources = {stream_and_partition(partition)[0] for partition in read}
        done = Progress(**task["progress"]) if task["progress"] else Progress()
        if done.lag_rows:  # it reads from outside alone
            rows = sum(rows for partition, rows in done.lag_rows.items() if partition in shown["read"])
            total[task["name"]] = TaskBehind(rows, is_all=True, is_estimate=False, size=sum(done.behind.values()))
            continue
        size = sum(each for stream, each in done.behind.items() if stream not in sources)
        if counted or done.behind:
            total[task["name"]] = TaskBehind(
                None if size and not done.size else sum(each.rows for each in counted) + done.rows_in(size),
                all(each.is_all for each in counted),
                size > 0,
                sum(each.size for each in counted) + size,
            )
    return total


def _hear(blobs: Blobs, shown: dict[str, Any]) -> None:
    """Add to a status document the positions of tasks that have reported none, from the last records of their logs.

    The records of earlier releases hold no positions.
    """

    def where(task: str) -> Mapping[str, Any] | None:
        try:
            last = LogReader(blobs, task_log(shown["run_id"], task)).tail()
        except CorruptState:
            return None  # its owner reports that when it starts
        if last is None:
            return None
        return last.header.meta.get(READ) if last.header.batch >= 0 else {}  # then it has read nothing

    if shown["phase"] == "DRAINED":
        return  # the control blob has the positions at which the run ended
    unheard: dict[str, list[str]] = shown["unheard"]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        said = dict(zip(unheard, threads.map(where, unheard), strict=True))
    by_name = {task["name"]: task for task in shown["tasks"]}
    for name, read in said.items():
        if read is not None:
            begun = {partition: shown["positions"].get(partition, [0, 0]) for partition in unheard.pop(name)}
            by_name[name]["read"] = {partition: list(read.get(partition, at)) for partition, at in begun.items()}
    for partition in shown["read"]:
        ends = [task["read"][partition] for task in shown["tasks"] if partition in task["read"]]
        shown["read"][partition] = min(ends, default=shown["read"][partition])


def _stands(shown: Mapping[str, Any]) -> dict[str, Position]:
    """The run's position in each source partition, where it is known."""
    if shown["phase"] == "DRAINED":
        found = {**shown["read"], **shown["positions"]}
    else:
        unheard = {each for partitions in shown["unheard"].values() for each in partitions}
        found = {partition: at for partition, at in shown["read"].items() if partition not in unheard}
    return {partition: (index, position) for partition, (index, position) in found.items()}


def _behind(blobs: Blobs, partition: str, stands: Position, tasks: Sequence[Mapping[str, Any]]) -> Behind:
    prefix, (index, position) = source_log(partition), stands
    listed = {blob_index(prefix, each.name): each for each in blobs.list_with_ages(f"{prefix}/")}
    log = {number: each for number, each in listed.items() if number is not None}
    left = {number: each.size - (position if number == index else 0) for number, each in log.items() if number >= index}
    start = (index, position) if index in left or not left else (min(left), 0)  # retention has deleted the blob
    reader = LogReader(blobs, prefix)
    scan = reader.scan(start, COUNTED_BYTES)
    last = reader.tail(max(log)) if log else None
    frontier_us = None if last is None else last.header.frontier_us
    return Behind(
        scan.rows,
        scan.at_end,
        sum(left.values()),
        _pace(partition, tasks),
        None if frontier_us is None else frontier_us // 1000,
        min((each.age_s for each in log.values()), default=None),
    )


def _pace(partition: str, tasks: Sequence[Mapping[str, Any]]) -> float | None:
    """The rows per second of the slowest reader of a partition; None if one also reads others, or does not run."""
    paces = []
    for task in tasks:
        if partition in task["read"]:
            streams = (task["progress"] or {}).get("behind", {})
            if len(task["read"]) > 1 or streams.keys() - {stream_and_partition(partition)[0]}:
                return None
            pace = task["progress"]["pace"] if task["progress"] else 0.0
            if pace is None:
                return None  # it does not run
            paces.append(pace)
    return min(paces, default=None)


def by_stream(found: Mapping[str, Behind]) -> dict[str, Behind]:
    """The sums per stream."""
    total: dict[str, Behind] = {}
    for partition, each in found.items():
        stream, _ = stream_and_partition(partition)
        so_far = total.get(stream, Behind(0, True, 0))
        total[stream] = Behind(so_far.rows + each.rows, so_far.is_all and each.is_all, so_far.size + each.size)
    return total


def ends_of(blobs: Blobs, partitions: Iterable[str]) -> dict[str, Position]:
    """The present ends of the logs of these source partitions, for those that have a log."""
    tails = {partition: LogReader(blobs, source_log(partition)).tail() for partition in partitions}
    return {partition: last.end for partition, last in tails.items() if last is not None}


def rows_before(blobs: Blobs, shown: Mapping[str, Any], ends: Mapping[str, Position]) -> int:
    """A lower bound of the rows before these ends that the run has not read yet; 0: none."""
    rows = 0
    for partition, end in ends.items():
        index, position = shown["read"].get(partition, (0, 0))
        if (index, position) < end:
            # By rows, not by positions: after the last row a producer appends the event time, which no task reads.
            found = LogReader(blobs, source_log(partition)).scan((index, position), COUNTED_BYTES, until=end)
            rows += found.rows or (0 if found.end >= end or found.at_end else 1)
    return rows


def say_unread(account: Account, config: Config, shown: dict[str, Any], text: str) -> None:
    """Print a text with the unread rows as `{left}`, if there are any, and the streams of which they are unknown."""
    without = outside(config)
    found = behind(account.blobs(), shown, without)
    if left := unread(found):
        say(text.format(left=left))
    unread_of = (stream_and_partition(each)[0] for each in shown["read"] if each not in found)
    if unknown := dict.fromkeys(stream for stream in unread_of if stream not in without):
        say(f"How far {', '.join(unknown)} is read is not known: no task has reported it, and no log says it.")


@contextmanager
def rows_are_optional() -> Iterator[None]:
    """On an error, print that the number of unread rows is unknown, and go on: the command has done its work."""
    try:
        yield
    except SamzaAzureError as error:
        say(f"How many rows are not read is unknown: {error}")


def unread(found: Mapping[str, Behind]) -> str:
    """The unread rows, for a message: "1204 rows of orders"; empty if there are none."""
    left = [(stream, each) for stream, each in by_stream(found).items() if each.rows or not each.is_all]
    return ", ".join(f"{'' if each.is_all else 'more than '}{each.rows} rows of {stream}" for stream, each in left)
