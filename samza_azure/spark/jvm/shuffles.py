"""Let a cluster forget what a batch has shuffled when the batch is over.

Spark does so when Java has collected what names a shuffle, which may take half an hour. Until then its files stay on
the disks of executors, and an executor that leaves hands them on.
Promised: only shuffles are forgotten that the plan of this one batch has made. Others, as those of a user's RDD or of a
cached table, are below the leaves of the plan: batches share them.
Not promised: that nothing stays. What a subquery has shuffled, or a batch that has failed, goes when Spark sees to it;
what an executor hands to another one just then, when that one ends.
"""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.spark.jvm.session import compiled, java_class

NAME = "Shuffles"
SPARK = "org.apache.spark"
SHUFFLE = "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec"
PLAN = "org.apache.spark.sql.execution.SparkPlan"
SOURCE = f"""
public class {NAME} {{
    public void forget({SPARK}.SparkContext context, {PLAN} plan) {{
        if (context.cleaner().isDefined()) forget(({SPARK}.ContextCleaner) context.cleaner().get(), plan);
    }}

    private static void forget({SPARK}.ContextCleaner cleaner, {PLAN} plan) {{
        for (int i = 0; i < plan.children().size(); i++) forget(cleaner, ({PLAN}) plan.children().apply(i));
        if (plan instanceof {SHUFFLE}) cleaner.doCleanupShuffle((({SHUFFLE}) plan).shuffleId(), false);
    }}
}}
"""


class Shuffles:
    """Those of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._java = compiled(spark, NAME, SOURCE)
        self._context = spark.sparkContext._jsc.sc()
        # By reflection on its field: SparkEnv's methods refer to classes that the wheel does not have.
        tracker = java_class(spark, "java.lang.Class").forName(f"{SPARK}.SparkEnv").getDeclaredField("mapOutputTracker")
        tracker.setAccessible(True)
        self._tracker: Any = tracker.get(self._context.env())

    def forget(self, query: StreamingQuery) -> None:
        """Forget those of the batch that the query has computed last. Call it when nobody reads its rows any more."""
        self._java.forget(self._context, query._jsq.streamingQuery().lastExecution().executedPlan())

    def is_known(self, number: int) -> bool:
        """Whether a stage may still read what was shuffled under this number. If not, none ever will."""
        return bool(self._tracker.containsShuffle(number))
