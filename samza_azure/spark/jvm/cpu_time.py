"""The processor time that Spark's batches take: of a query's own thread, and of the tasks that it runs.

A query's thread asks its sources, plans each batch and gives its tasks to Spark's threads, whose time Spark measures.
Not counted, since it belongs to no query: Java's compiler and collector, Spark's scheduler, and the Python processes.
"""

from functools import lru_cache
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.spark.jvm.session import compiled

NAME = "CpuTimes"
SCHEDULER = "org.apache.spark.scheduler"
SOURCE = f"""
public class {NAME} extends {SCHEDULER}.SparkListener {{
    private final java.util.Map pools = new java.util.concurrent.ConcurrentHashMap();  // of the stages that run
    private final java.util.Map spent = new java.util.concurrent.ConcurrentHashMap();  // by pool

    public void onStageSubmitted({SCHEDULER}.SparkListenerStageSubmitted event) {{
        java.util.Properties properties = event.properties();
        String pool = properties == null ? null : properties.getProperty("spark.scheduler.pool");
        if (pool != null) pools.put(Integer.valueOf(event.stageInfo().stageId()), pool);
    }}

    public void onStageCompleted({SCHEDULER}.SparkListenerStageCompleted event) {{
        pools.remove(Integer.valueOf(event.stageInfo().stageId()));
    }}

    public void onTaskEnd({SCHEDULER}.SparkListenerTaskEnd event) {{
        Object pool = pools.get(Integer.valueOf(event.stageId()));
        org.apache.spark.executor.TaskMetrics metrics = event.taskMetrics();
        if (pool == null || metrics == null) return;
        spentOf(pool).addAndGet(metrics.executorCpuTime() + metrics.executorDeserializeCpuTime());
    }}

    private java.util.concurrent.atomic.AtomicLong spentOf(Object pool) {{
        spent.putIfAbsent(pool, new java.util.concurrent.atomic.AtomicLong());
        return (java.util.concurrent.atomic.AtomicLong) spent.get(pool);
    }}

    public long ofTasks(String pool) {{
        return spentOf(pool).get();
    }}

    public String ofBoth(org.apache.spark.sql.execution.streaming.runtime.StreamExecution query, String pool) {{
        long id = query.queryExecutionThread().getId();
        return java.lang.management.ManagementFactory.getThreadMXBean().getThreadCpuTime(id) + " " + spentOf(pool);
    }}
}}
"""


class CpuTime:
    """Of one query, whose jobs have a pool of their own. Make this before it starts."""

    def __init__(self, spark: SparkSession, pool: str) -> None:
        self._times, self._pool = installed(spark), pool
        self._before = (0, int(self._times.ofTasks(pool)))

    def since_last(self, query: StreamingQuery) -> tuple[float, float]:
        """Seconds of its thread and of its tasks since the last call, or since this was made. A task that ended a
        moment ago may come with the next call, and a thread that has ended has no time.
        """
        thread, tasks = map(int, self._times.ofBoth(query._jsq.streamingQuery(), self._pool).split())
        before, self._before = self._before, (thread, tasks)
        return max(thread - before[0], 0) / 1e9, (tasks - before[1]) / 1e9


@lru_cache(maxsize=1)
def installed(spark: SparkSession) -> Any:
    """What listens to Spark's tasks."""
    times = compiled(spark, NAME, SOURCE)
    spark.sparkContext._jsc.sc().addSparkListener(times)
    return times
