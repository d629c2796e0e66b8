"""The committed rows of a stream, over runs, tasks and blobs."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from samza_azure.errors import ConfigError
from samza_azure.logs.record import Slice, Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.arrow import encode
from samza_azure.stream_io.listing import first_blobs, streams
from samza_azure.stream_io.log import LogWriter, take_over
from samza_azure.stream_io.source_stream import SourceWriter
from tests.storage.conftest import AnyAccount
from tests.storage.stored_rows import export


@pytest.fixture
def blobs(account: AnyAccount) -> Blobs:
    return account.blobs()


def task(blobs: Blobs, run: str, name: str, stream: str, limits: LogLimits | None = None) -> LogWriter:
    """A task that writes a stream."""
    writer, _ = take_over(
        blobs,
        f"runs/{run}/{name}",
        group_id=bytes(16),
        task=name,
        writer=Writer(1, 1),
        first=True,
        may_append=lambda: True,
        meta={"stream": stream},
        limits=limits,
    )
    return writer


def part(destination: int, values: Sequence[int]) -> Slice:
    return Slice(destination, encode(pa.table({"v": values})), len(values))


def values(blobs: Blobs, stream: str, runs: Sequence[str] | None = None) -> list[int]:
    return list(export(blobs, stream, runs)["v"].to_pylist())


def test_rows_come_run_by_run_task_by_task_batch_by_batch(blobs: Blobs) -> None:
    for run, offset in (("a", 0), ("b", 100)):
        for name in ("count-10", "count-2"):
            writer = task(blobs, run, name, "counts")
            number = int(name.partition("-")[2])
            writer.append(0, slices=(part(0, [offset + number]), part(1, [offset + number + 1])))
            writer.append(1, slices=(part(0, [offset + number + 2]),))
    assert values(blobs, "counts") == [2, 3, 4, 10, 11, 12, 102, 103, 104, 110, 111, 112]
    assert values(blobs, "counts", ["b", "a"])[:2] == [102, 103]
    assert values(blobs, "counts", ["b"]) == [102, 103, 104, 110, 111, 112]


def test_only_the_logs_of_the_stream_are_read(blobs: Blobs) -> None:
    task(blobs, "r", "clean-0", "by-carrier").append(0, slices=(part(0, [1]),))
    task(blobs, "r", "count-0", "counts").append(0, slices=(part(0, [2]),))
    assert values(blobs, "counts") == [2]
    assert streams(blobs) == ["by-carrier", "counts"]


def test_rows_in_many_blobs_and_beside_the_log_are_read(blobs: Blobs) -> None:
    writer = task(blobs, "r", "count-0", "counts", LogLimits(roll_records=4, record_bytes=100))
    for number in range(12):
        writer.append(number, slices=(part(0, [number]),))
    assert values(blobs, "counts") == list(range(12))


def test_blobs_that_retention_has_deleted_are_no_longer_part_of_it(blobs: Blobs) -> None:
    writer = task(blobs, "r", "count-0", "counts", LogLimits(roll_records=4))
    for number in range(6):
        writer.append(number, slices=(part(0, [number]),))
    blobs.delete("runs/r/count-0/00000000")
    assert values(blobs, "counts") == [3, 4, 5]


def test_a_source_stream_is_its_partitions(account: AnyAccount) -> None:
    producer = SourceWriter(account.blobs(), account.hints(), "flights", 2, flush_rows=2)
    producer.write(pa.table({"v": [1, 2, 3, 4, 5]}))
    producer.close()
    assert values(account.blobs(), "flights") == [1, 2, 5, 3, 4]


def test_an_unknown_stream_is_named_with_those_there_are(blobs: Blobs) -> None:
    with pytest.raises(ConfigError, match=r"No log holds the stream 'x'\. Known streams: none"):
        export(blobs, "x")
    task(blobs, "r", "count-0", "counts")
    with pytest.raises(ConfigError, match="Known streams: counts"):
        export(blobs, "x")


def test_a_stream_without_rows_says_so(blobs: Blobs) -> None:
    task(blobs, "r", "count-0", "counts")
    with pytest.raises(ConfigError, match="'counts' has no rows yet"):
        export(blobs, "counts")


def test_a_log_without_a_record_holds_no_stream(blobs: Blobs) -> None:
    blobs.create("runs/r/count-0/00000000")
    task(blobs, "r", "count-1", "counts").append(0, slices=(part(0, [1]),))
    assert values(blobs, "counts") == [1]
    assert first_blobs(blobs, "runs/") == [("runs/r/count-1", 0)]
