"""The committed rows of a stream, over all runs and tasks, read at once: what tests compare with.

The order is run by run, within a run task by task, and within a log the order in which rows were appended, destination
by destination. A source stream has one log for each partition and no runs. Every row that was committed when its log
was read is there, once.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from samza_azure.errors import ConfigError
from samza_azure.logs.names import RUNS, SOURCE_BLOB, run_folder, stream_folder
from samza_azure.logs.position import Position
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.arrow import decode
from samza_azure.stream_io.listing import first_blobs, stream_of, streams
from samza_azure.stream_io.log import LogReader

#: The bytes of rows that are fetched from a log at a time.
_AT_ONCE = 32 << 20


def export(blobs: Blobs, stream: str, runs: Sequence[str] | None = None) -> pa.Table:
    """All rows as one table. Raise ConfigError if no log holds the stream, or none has a row yet."""
    batches = list(batches_of(blobs, stream, runs))
    if not batches:
        raise ConfigError(f"The stream {stream!r} has no rows yet.")
    return pa.Table.from_batches(batches)


def batches_of(blobs: Blobs, stream: str, runs: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """All rows, batch by batch. `runs` are run ids in their order; without them all runs, by name."""
    logs = _source_logs(blobs, stream) or _task_logs(blobs, stream, runs)
    if not logs:
        raise ConfigError(f"No log holds the stream {stream!r}. Known streams: {', '.join(streams(blobs)) or 'none'}.")
    for prefix, index in logs:
        yield from _rows(LogReader(blobs, prefix), (index, 0))


def _rows(reader: LogReader, position: Position) -> Iterator[pa.RecordBatch]:
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
