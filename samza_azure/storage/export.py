"""The committed rows of a stream, over all runs and tasks.

The order is run by run, within a run task by task, and within a log the order in which rows were appended, destination
by destination. A source stream has one log for each partition and no runs. Every row that was committed when its log
was read is there, once.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from samza_azure.errors import ConfigError
from samza_azure.logs.names import RUNS, SOURCE_BLOB, STREAMS, TASK_BLOB, run_folder, run_of, stream_folder
from samza_azure.logs.position import Position
from samza_azure.storage.interface import Blobs
from samza_azure.storage.log import LogReader

if TYPE_CHECKING:
    import pyarrow as pa

#: The bytes of rows that are fetched from a log at a time.
_AT_ONCE = 32 << 20


def export(blobs: Blobs, stream: str, runs: Sequence[str] | None = None) -> "pa.Table":
    """All rows as one table. Raise ConfigError if no log holds the stream, or none has a row yet."""
    import pyarrow as pa  # kept out of the supervisor, whose memory it would double

    batches = list(batches_of(blobs, stream, runs))
    if not batches:
        raise ConfigError(f"The stream {stream!r} has no rows yet.")
    return pa.Table.from_batches(batches)


def batches_of(blobs: Blobs, stream: str, runs: Sequence[str] | None = None) -> "Iterator[pa.RecordBatch]":
    """All rows, batch by batch. `runs` are run ids in their order; without them all runs, by name."""
    logs = _source_logs(blobs, stream) or _task_logs(blobs, stream, runs)
    if not logs:
        raise ConfigError(f"No log holds the stream {stream!r}. Known streams: {', '.join(streams(blobs)) or 'none'}.")
    for prefix, index in logs:
        yield from _rows(LogReader(blobs, prefix), (index, 0))


def streams(blobs: Blobs) -> list[str]:
    """The streams that have logs, by name."""
    sources = {found["stream"] for name, _ in blobs.list(STREAMS) if (found := SOURCE_BLOB.fullmatch(name))}
    written = {stream_of(blobs, *log) for log in first_blobs(blobs, RUNS)}
    return sorted(sources | (written - {""}))


def _rows(reader: LogReader, position: Position) -> "Iterator[pa.RecordBatch]":
    from samza_azure.storage.arrow import decode

    while True:
        found = reader.scan(position, _AT_ONCE)
        for data in reader.fetch(found.parts):
            yield from decode(data)
        if found.at_end:
            return
        position = found.end


def _source_logs(blobs: Blobs, stream: str) -> list[tuple[str, int]]:
    """The logs of a source stream and their first blobs, in the order of partitions."""
    first: dict[tuple[int, str], int] = {}
    for name, _ in blobs.list(stream_folder(stream)):
        if found := SOURCE_BLOB.fullmatch(name):
            first.setdefault((int(found["number"]), found["prefix"]), int(found["index"]))
    return [(prefix, first[number, prefix]) for number, prefix in sorted(first)]


def _task_logs(blobs: Blobs, stream: str, runs: Sequence[str] | None) -> list[tuple[str, int]]:
    """The logs of all tasks that write a stream, and their first blobs."""
    prefixes = [RUNS] if runs is None else [run_folder(run) for run in runs]
    logs = [log for prefix in prefixes for log in first_blobs(blobs, prefix)]
    return [log for log in logs if stream_of(blobs, *log) == stream]


def first_blobs(blobs: Blobs, below: str) -> list[tuple[str, int]]:
    """The task logs below a prefix, by run, stage and number, and the first remaining blob of each."""
    first: dict[tuple[str, str, int, str], int] = {}
    for name, size in blobs.list(below):
        if size and (found := TASK_BLOB.fullmatch(name)):
            key = found["run"], found["stage"], int(found["number"]), found["prefix"]
            first.setdefault(key, int(found["index"]))
    return [(key[-1], first[key]) for key in sorted(first)]


def runs_in(blobs: Blobs) -> list[str]:
    """The runs that have logs, by id. An id that a leader has made begins with the time."""
    return list(dict.fromkeys(run_of(prefix) for prefix, _ in first_blobs(blobs, RUNS)))


def log_indexes(blobs: Blobs, below: str) -> dict[str, list[int]]:
    """The logs below a prefix and the numbers of their blobs, in order, without task logs that have no record."""
    found: dict[str, list[int]] = {}
    for name, size in blobs.list(below):
        log = SOURCE_BLOB.fullmatch(name) or (TASK_BLOB.fullmatch(name) if size else None)
        if log is not None:
            found.setdefault(log["prefix"], []).append(int(log["index"]))
    return found


def log_sizes(blobs: Blobs, prefix: str) -> dict[int, int]:
    """The sizes of the blobs of one log, by number."""
    found = (
        (SOURCE_BLOB.fullmatch(name) or TASK_BLOB.fullmatch(name), size) for name, size in blobs.list(f"{prefix}/")
    )
    return {int(log["index"]): size for log, size in found if log is not None}


def stream_of(blobs: Blobs, prefix: str, index: int) -> str:
    """The stream that a task's log holds, by its first record; empty for a log without a record."""
    reader = LogReader(blobs, prefix)
    while (opening := reader.opening(index)) is None:
        later = [number for number, size in log_sizes(blobs, prefix).items() if size and number > index]
        if not later:
            return ""
        index = min(later)  # retention has deleted the blob since it was listed
    return str(opening.meta.get("stream", ""))
