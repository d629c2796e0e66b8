"""The end of a query of Spark's: each batch is given to Python as Spark has planned it, and its rows are put on disk.

Spark's own way to Python, `foreachBatch`, computes a batch's plan into rows, and makes of these a second plan, which is
analysed, optimised, compiled and run for each batch. `BatchSink` gives Python the batch itself. It also runs the job
that puts the rows into blocks on disk (see `output.py`) without the checks that Spark makes of functions that users
write: they read the classes of Spark anew for each job.
Both together save an eighth of a small batch's processor time. `tests/spark/test_sink.py` pins what a batch is.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.spark.jvm.predicates import predicates
from samza_azure.spark.jvm.session import compiled, gateway_of, java_class

NAME = "BatchSink"
SQL = "org.apache.spark.sql"
SINK = f"{SQL}.execution.streaming.Sink"
TO_PYTHON = f"{SQL}.execution.streaming.sources.PythonForeachBatchFunction"
QUERIES = f"{SQL}.classic.StreamingQueryManager"
DATASET = f"{SQL}.classic.Dataset"
SOURCE = f"""
public class {NAME} implements {SINK} {{
    private final {TO_PYTHON} python;
    private scala.Function1 prepare;

    public {NAME}() {{
        this(null);
    }}

    private {NAME}({TO_PYTHON} python) {{
        this.python = python;
    }}

    public String name() {{
        return "{NAME}";
    }}

    public {SQL}.types.StructType schema() {{
        return new {SQL}.types.StructType();
    }}

    public java.util.Set capabilities() {{
        return java.util.Collections.emptySet();
    }}

    public void addBatch(long batch, {SQL}.Dataset rows) {{
        python.call(rows, batch);
    }}

    public Object start(
        {DATASET} frame, String name, String checkpoint, {SQL}.streaming.OutputMode mode, long triggerMs,
        {TO_PYTHON} python
    ) throws Exception {{
        {QUERIES} queries = ({QUERIES}) frame.sparkSession().streams();
        scala.Option none = scala.Option.empty(), directory = scala.Option.apply(checkpoint);
        return queries.startQuery(
            scala.Option.apply(name), none, directory, frame,
            new scala.collection.immutable.Map.Map1("checkpointLocation", checkpoint), new {NAME}(python), mode,
            false, true, {SQL}.streaming.Trigger.ProcessingTime(triggerMs),
            new org.apache.spark.util.SystemClock(), none, none
        );
    }}

    public void prepareBy(scala.Function1 prepare) {{
        this.prepare = prepare;
    }}

    public org.apache.spark.rdd.RDD onDisk({DATASET} frame, int rowsABatch) throws Throwable {{
        if (prepare != null) prepare.apply(frame.queryExecution().executedPlan());
        org.apache.spark.rdd.RDD rows = frame.toArrowBatchRdd(rowsABatch, "UTC", true, false);
        rows.persist(org.apache.spark.storage.StorageLevel.DISK_ONLY());
        try {{
            compute(rows);
            return rows;
        }} catch (Throwable error) {{
            rows.unpersist(false);
            throw error;
        }}
    }}

    // A job as of RDD.foreachPartition. Its function is Scala's empty set: asked whether it contains the rows, it says
    // no without reading them, and executors have that class. The rows are in the block before it is asked.
    public void compute(org.apache.spark.rdd.RDD rows) throws Throwable {{
        org.apache.spark.SimpleFutureAction job = rows.sparkContext().submitJob(
            rows, (scala.Function1) scala.collection.immutable.Set$.MODULE$.empty(),
            scala.collection.immutable.Range$.MODULE$.apply(0, rows.getNumPartitions()),
            new scala.runtime.AbstractFunction2() {{
                public Object apply(Object partition, Object result) {{
                    return scala.runtime.BoxedUnit.UNIT;
                }}
            }},
            new scala.runtime.AbstractFunction0() {{
                public Object apply() {{
                    return scala.runtime.BoxedUnit.UNIT;
                }}
            }}
        );
        job.ready(scala.concurrent.duration.Duration.Inf(), null);
        ((scala.util.Try) job.value().get()).get();  // throws what has ended the job
    }}
}}
"""


def start(
    frame: DataFrame,
    run_batch: Callable[[DataFrame, int], None],
    *,
    name: str,
    checkpoint: str,
    output_mode: str,
    trigger_ms: int,
) -> StreamingQuery:
    """The running query, which gives each batch and its number to `run_batch`, as `foreachBatch` would."""
    spark = frame.sparkSession
    ensure_callback_server_started(gateway_of(spark))  # type: ignore[no-untyped-call]
    modes = java_class(spark, f"{SQL}.streaming.OutputMode")
    mode = modes.Update() if output_mode == "update" else modes.Append()
    return StreamingQuery(sink(spark).start(frame._jdf, name, checkpoint, mode, trigger_ms, _Batches(spark, run_batch)))


class _Batches:
    """What Java calls."""

    def __init__(self, spark: SparkSession, run_batch: Callable[[DataFrame, int], None]) -> None:
        self._spark, self._run_batch = spark, run_batch

    def call(self, batch: Any, number: int) -> None:
        self._run_batch(DataFrame(batch, self._spark), number)

    class Java:
        implements = (TO_PYTHON,)


@lru_cache(maxsize=1)
def sink(spark: SparkSession) -> Any:
    """The Java object that starts such queries, and puts rows on disk."""
    made = compiled(spark, NAME, SOURCE)
    made.prepareBy(predicates(spark))
    return made
