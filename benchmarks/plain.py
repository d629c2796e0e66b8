"""Plain Structured Streaming, to compare with: `plain.py WHAT …`, run by the benchmarks in a fresh process.

The same queries on the same session settings as a container's, as far as they speed Spark up: file-based checkpoint
manager, one JVM of the same size, Java's archive. What a container changes for its own ends is as Spark has it: the
context, the watermark, batches without data. There are as many shuffle partitions as cores, or one for small batches,
which is the best for it here. Each run prints one line of JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import cpu_s
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from samza_azure.spark.jvm import java
from samza_azure.spark.jvm.session import connect_session
from samza_azure.spark.jvm.settings import settings_of

SCHEMA = "carrier string, ts timestamp, dep_delay double"
POLL_S = 0.1
#: So long each way rests after a pass: until windows that are over are emitted.
REST_S = 1.2


def session(directory: Path, partitions: int | None = None, **more: str) -> SparkSession:
    """A session as above."""
    settings = {
        **{f"spark.{name}": value for name, value in more.items()},
        "spark.sql.shuffle.partitions": str(partitions or os.cpu_count()),
        "spark.sql.streaming.noDataMicroBatches.enabled": "true",
        "spark.sql.streaming.minBatchesToRetain": "100",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.scheduler.mode": "FIFO",
    }
    every = settings_of(settings, directory)
    return connect_session("plain", every, java.launch(every, os.environ, directory), SparkContext)


def read(spark: SparkSession, source: Path, files: str) -> DataFrame:
    """A stream of Parquet files; `files` in one batch, 0: as many as there are."""
    reader = spark.readStream.schema(SCHEMA)
    return (reader if files == "0" else reader.option("maxFilesPerTrigger", files)).parquet(str(source))


def write(frame: DataFrame, work: Path, name: str, **trigger: Any) -> Any:
    """A running query into Parquet files."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(work / f"{name}-checkpoint"))
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.outputMode("append").start(str(work / name))


def until(query: Any, holds: Callable[[], bool]) -> None:
    """Wait, and do not outlive the query."""
    while not holds():
        if not query.isActive:
            raise SystemExit(f"The query ended: {query.exception()}")
        time.sleep(POLL_S)


def rows_in(query: Any) -> int:
    """Rows that its finished batches have read."""
    return sum(progress.numInputRows for progress in query.recentProgress)


class RowsRead:
    """The same, for a query that is asked often over a long time: it looks at a report once."""

    def __init__(self, query: Any) -> None:
        self._query, self._last, self._rows = query, "", dict[int, int]()

    def so_far(self) -> int:
        """Rows that its finished batches have read. Spark keeps ten reports here, and is asked ten times a second."""
        last = self._query.lastProgress
        if last is not None and last.timestamp != self._last:
            # Spark also reports the batch to come, without rows, while there is none.
            self._rows |= {each.batchId: each.numInputRows for each in self._query.recentProgress if each.numInputRows}
            self._last = last.timestamp
        return sum(self._rows.values())


def throughput(work: Path, source: Path, files: str, expected: int, *, two: bool) -> dict[str, Any]:
    """The example's stages over all files. Both queries run and have seen a first file before the time counts."""
    sys.path.insert(0, str(work))
    from pipeline import clean, daily_delays

    spark = session(work / "spark")
    inbox = work / "inbox"
    inbox.mkdir()
    (work / "between").mkdir()
    names = sorted(source.iterdir())
    stages = clean(read(spark, inbox, files))
    queries = [write(stages, work, "between")] if two else []
    second = daily_delays(read(spark, work / "between", "0") if two else stages)
    queries.append(write(second, work, "result"))
    os.link(names[0], inbox / names[0].name)
    until(queries[0], lambda: all(rows_in(query) > 0 for query in queries))
    begun, cpu = time.monotonic(), cpu_s(os.getpid())
    for name in names[1:]:
        os.link(name, inbox / name.name)
    until(queries[-1], lambda: rows_in(queries[-1]) >= expected)
    seconds, cpu = time.monotonic() - begun, cpu_s(os.getpid()) - cpu
    batches = [sum(progress.numInputRows > 0 for progress in query.recentProgress) for query in queries]
    return {"seconds": seconds, "cpu": cpu, "batches": batches}


def passes(work: Path, source: Path, files: str, size: int, kept: list[int]) -> list[dict[str, float]]:
    """Both stages over `size` files at a time, in one Spark; `kept` are the rows that pass the first stage so far."""
    sys.path.insert(0, str(work))
    from pipeline import clean, daily_delays

    spark = session(work / "spark")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10")
    inbox = work / "inbox"
    inbox.mkdir()
    (work / "between").mkdir()
    often = {"processingTime": "100 milliseconds"}  # as ours: without it an idle query lists its folder all the time
    queries = [write(clean(read(spark, inbox, files)), work, "between", **often)]
    queries.append(write(daily_delays(read(spark, work / "between", "0")), work, "result", **often))
    names = sorted(source.iterdir())
    found, read_by_second = [], RowsRead(queries[1])
    for number, expected in enumerate(kept):
        begun, cpu = time.monotonic(), cpu_s(os.getpid())
        for name in names[number * size : (number + 1) * size]:
            os.link(name, inbox / name.name)
        until(queries[1], lambda: read_by_second.so_far() >= expected)  # noqa: B023 - used at once
        found.append({"seconds": time.monotonic() - begun, "cpu": cpu_s(os.getpid()) - cpu})
        for name in inbox.iterdir():  # it would list them again and again
            name.unlink()
        time.sleep(REST_S)
    return found


def same(work: Path, source: Path, form: str, kind: str, sizes: list[int]) -> list[dict[str, float]]:
    """The example's job as one query, over files of one pass after the other; how many rows each has.

    `form`: a batch a pass (`all`), so many files a batch, or `now`: a trigger `availableNow` a pass, 8 files a batch.
    """
    sys.path.insert(0, str(work))
    from pipeline import clean, daily_delays

    spark = session(work / "spark")
    inbox = work / "inbox"
    inbox.mkdir()
    reader = spark.readStream.schema(SCHEMA).format(kind)
    if form != "all":
        reader = reader.option("maxFilesPerTrigger", "8" if form == "now" else form)
    result = daily_delays(clean(reader.load(str(inbox))))
    query = write(result, work, "result") if form != "now" else None
    names, found, expected = sorted(source.iterdir()), [], 0
    for number, size in enumerate(sizes):
        expected += size
        begun, cpu = time.monotonic(), cpu_s(os.getpid())
        for name in names:
            if name.name.startswith(f"{number:03}-"):
                os.link(name, inbox / name.name)
        if query is None:
            write(result, work, "result", availableNow=True).awaitTermination()
        else:
            until(query, lambda: rows_in(query) >= expected)  # noqa: B023 - used at once
        found.append({"seconds": time.monotonic() - begun, "cpu": cpu_s(os.getpid()) - cpu})
    if query is not None:
        query.processAllAvailable()
    return found


def small(work: Path, pace_s: float) -> list[dict[str, Any]]:
    """The windowed stage into Parquet files, one file of rows a batch: the progress of each."""
    sys.path.insert(0, str(work))
    spark = session(work / "spark", partitions=1)
    inbox = work / "inbox"
    inbox.mkdir()
    from pipeline import windows

    source = spark.readStream.schema("key string, ts timestamp, value double").parquet(str(inbox))
    query = write(windows(source), work, "result")
    for name in sorted((work / "prepared").iterdir()):
        due = time.monotonic() + pace_s
        name.rename(inbox / name.name)
        until(query, lambda: time.monotonic() >= due)  # noqa: B023 - used at once
    return [{"batch": each.batchId, "rows": each.numInputRows, **each.durationMs} for each in query.recentProgress]


def column(work: Path, computed: str) -> None:
    """Compute a column of as many rows as a line says, on one core, until there are no more lines. Say when it has."""
    spark = session(work / "spark", master="local[1]")
    for line in sys.stdin:
        rows = spark.range(0, int(line), numPartitions=1).selectExpr("cast(id % 1000 as string) AS key", "id AS n")
        rows.selectExpr("*", f"{computed} AS computed").write.format("noop").mode("overwrite").save()
        print(int(line), flush=True)


def supervised(work: Path) -> None:
    """Both stages until it is killed. Says when their queries run, and when both have finished a batch since then."""
    sys.path.insert(0, str(work))
    from pipeline import clean, daily_delays

    spark = session(work / "spark")
    (work / "between").mkdir(exist_ok=True)
    queries = [write(clean(read(spark, work / "inbox", "0")), work, "between")]
    queries.append(write(daily_delays(read(spark, work / "between", "0")), work, "result"))
    print(json.dumps("runs"), flush=True)
    until(queries[0], lambda: all(rows_in(query) > 0 for query in queries))
    print(json.dumps("finished"), flush=True)
    queries[0].awaitTermination()


def main(what: str, *arguments: str) -> None:
    """Run one of the comparisons."""
    match what:
        case "two" | "one":
            work, source, files, expected = arguments
            result: Any = throughput(Path(work), Path(source), files, int(expected), two=what == "two")
        case "passes":
            work, source, files, size, *kept = arguments
            result = passes(Path(work), Path(source), files, int(size), list(map(int, kept)))
        case "same":
            work, source, form, kind, *sizes = arguments
            result = same(Path(work), Path(source), form, kind, list(map(int, sizes)))
        case "supervised":
            supervised(Path(arguments[0]))
            return
        case "column":
            work, computed = arguments
            column(Path(work), computed)
            return
        case "small":
            result = small(Path(arguments[0]), float(arguments[1]))
        case _:
            raise SystemExit(f"There is no comparison {what!r}.")
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # the JVM dies with us
