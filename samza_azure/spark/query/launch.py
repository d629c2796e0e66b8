"""Start the query of a stage. A task does that with its logs as sources, a warm-up with sources without rows."""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.pipeline.analysed import TaskInput
from samza_azure.pipeline.state import PROVIDERS
from samza_azure.spark.jvm.catalyst import in_sql
from samza_azure.spark.jvm.session import make_active
from samza_azure.spark.jvm.session_kept import session_kept
from samza_azure.spark.jvm.sink import start
from samza_azure.spark.pipeline.pipeline import AnalysedQuery
from samza_azure.spark.query.query_context import QueryContext
from samza_azure.spark.query.source import FORMAT

STATE_PARTITIONS = "spark.sql.shuffle.partitions"
STATE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
TRIGGER_MS = 100


def source(context: QueryContext, stage: AnalysedQuery, read: TaskInput, option: str, value: str) -> DataFrame:
    """One input of a stage, read as this option says. Its rows are in as many partitions as the job file says; those of
    a key stay together, in their order.

    Rows of a stage with state are in one: Spark spreads them in front of the state, by the key of the operator. To
    spread them here, too, would cost another shuffle, and by another key it would change the order of a group's rows.
    """
    frame = context.spark.readStream.format(FORMAT).schema(read.columns.ddl).option(option, value).load()
    if stage.plan.batch_partitions == 1 or stage.plan.stateful:
        return frame
    by = [frame[in_sql(each)] for each in read.key] or [F.rand(0)]  # the same numbers for a part that is read again
    return frame.repartition(stage.plan.batch_partitions, *by)


def launch(
    context: QueryContext,
    stage: AnalysedQuery,
    frames: Sequence[DataFrame],
    checkpoint: str,
    run_batch: Callable[[DataFrame, int], None],
    *,
    state: str,
    name: str,
    pool: str,
) -> StreamingQuery:
    """The running query of a stage over these inputs. `state` is the kind of its state, `pool` that of its jobs.

    Hold `context.starts.session` meanwhile: all queries share the settings of the session.
    """
    spark = context.spark
    make_active(spark)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
    spark.conf.set(STATE_PROVIDER, PROVIDERS[state])
    spark.conf.set(STATE_PARTITIONS, str(stage.plan.batch_partitions))
    with session_kept(spark, stage.stage.name):
        frame = stage.stage.function(*frames)
    frame = stage.with_destination(spark, frame)
    return start(
        frame,
        run_batch,
        name=name,
        checkpoint=checkpoint,
        output_mode=stage.stage.output_mode,
        trigger_ms=TRIGGER_MS,
    )
