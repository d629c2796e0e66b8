"""What a pipeline emits, beside what its functions emit as one Spark batch over the same rows."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from samza_azure.application import Application
from samza_azure.errors import ConfigError
from samza_azure.spark.pipeline.schema import arrow_schema, parse_schema

from .task_driver import Fleet

Row = dict[str, Any]
#: Rows by stream, in the pieces in which they are produced.
Pieces = Sequence[tuple[str, Sequence[Row]]]
MakeFleet = Callable[[Application, str], Fleet]


def multiset(rows: Sequence[Row]) -> Counter[str]:
    """The rows without their order. Text stands for a row: its values may be lists or maps."""
    return Counter(repr(sorted(row.items())) for row in rows)


def as_batch(spark: SparkSession, run: Fleet, pieces: Pieces) -> dict[str, list[Row]]:
    """What each output stream would hold if the stages were one Spark batch."""
    frames: dict[str, DataFrame] = {}
    for stream in run.pipeline.plan.sources:
        schema = parse_schema(spark, run.config.streams[stream].schema or "", stream)
        rows = [row for of, piece in pieces for row in piece if of == stream]
        frames[stream] = spark.createDataFrame(pa.Table.from_pylist(rows, schema=arrow_schema(schema)))
    for stage in run.application.stages:
        frames[stage.output] = stage.function(*(frames[name] for name in stage.inputs))
    read = {name for stage in run.application.stages for name in stage.inputs}
    return {name: frame.toArrow().to_pylist() for name, frame in frames.items() if name not in read}


def put_out(run: Fleet, stream: str) -> list[Row]:
    """The rows of an output stream; none, if it has none yet."""
    try:
        return run.rows(stream)
    except ConfigError:
        return []


def streamed(run: Fleet, pieces: Pieces, keys: Mapping[str, str | None] | None = None) -> None:
    """Produce the pieces one after the other, each read before the next, with hand-overs in between; then drain."""
    run.start(*run.pipeline.plan.tasks())
    writers = {}
    for number, (stream, rows) in enumerate(pieces):
        declared = run.config.streams[stream]
        schema = arrow_schema(parse_schema(run.spark, declared.schema or "", stream))
        if stream not in writers:
            writers[stream] = run.writer(stream, declared.partitions, flush_rows=40, event_time=declared.event_time)
        writers[stream].write(pa.Table.from_pylist(list(rows), schema=schema), (keys or {}).get(stream))
        writers[stream].flush()
        run.until_all_is_read(stream)
        if number == len(pieces) // 2 - 1:
            for task in run.pipeline.plan.tasks():
                run.move(task)
    for writer in writers.values():
        writer.close()
    for stream in run.pipeline.plan.sources:
        if stream in writers:
            run.until_all_is_read(stream)
    run.drain()


def assert_equal(run: Fleet, pieces: Pieces, keys: Mapping[str, str | None] | None = None) -> None:
    """Run the pipeline over these rows, and find what a batch finds; nothing late."""
    streamed(run, pieces, keys)
    for stream, rows in as_batch(run.spark, run, pieces).items():
        found, expected = multiset(put_out(run, stream)), multiset(rows)
        assert found == expected, f"{stream}: {found - expected} too many, {expected - found} missing"
    assert run.late == 0
