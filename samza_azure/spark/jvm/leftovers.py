"""End what Spark keeps of a query that has ended: a thread for each source, and a listener.

Spark has a thread for each factory of Python processes, which ends those that are idle. A source has a factory of its
own, whose only process is never idle. Its thread outlives the source, and keeps the session of the source's query, 400
kB. The listener belongs to that session, too: Spark still hands it each event of each later query.
"""

import logging
from functools import lru_cache
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.spark.jvm.session import compiled

log = logging.getLogger(__name__)

NAME = "Leftovers"
SOURCE = f"""
public class {NAME} implements Thread.UncaughtExceptionHandler {{
    public void endThreads() throws Exception {{
        Thread[] threads = new Thread[Thread.activeCount() + 100];
        for (int i = Thread.enumerate(threads) - 1; i >= 0; i--) {{
            Class kind = threads[i].getClass();
            if (!kind.getName().equals("org.apache.spark.api.python.PythonWorkerFactory$MonitorThread")) continue;
            Object factory = kind.getField("$outer").get(threads[i]);
            if (((Boolean) valueOf(factory, "useDaemon")).booleanValue()) continue;  // it may have idle processes
            threads[i].setUncaughtExceptionHandler(this);
            threads[i].interrupt();
        }}
    }}

    public void endListener(org.apache.spark.sql.classic.SparkSession session) throws Exception {{
        Object listener = valueOf(session.streams(), "listenerBus");
        session.sparkContext().removeSparkListener((org.apache.spark.scheduler.SparkListenerInterface) listener);
    }}

    private Object valueOf(Object object, String name) throws Exception {{
        java.lang.reflect.Field field = object.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(object);
    }}

    public void uncaughtException(Thread thread, Throwable error) {{}}
}}
"""


def end_leftovers(spark: SparkSession, query: StreamingQuery) -> None:
    """Call this after the query was stopped. A failure costs only memory.

    The threads of all sources are ended, also of sources that still run: they do nothing.
    """
    try:
        leftovers = _leftovers(spark)
        leftovers.endThreads()
        leftovers.endListener(query._jsq.streamingQuery().sparkSessionForStream())
    except Exception as error:  # noqa: BLE001  # any error of Java or py4j
        log.info("Spark keeps a thread and a listener of a query that has ended: %s", error)


@lru_cache(maxsize=1)
def _leftovers(spark: SparkSession) -> Any:
    return compiled(spark, NAME, SOURCE)
