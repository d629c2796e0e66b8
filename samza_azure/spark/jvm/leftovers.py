"""End what is left of a query that has ended: a thread of Spark's for each source, a listener, and a connection.

Spark has a thread for each factory of Python processes, which ends those that are idle. A source has a factory of its
own, whose only process is never idle. Its thread outlives the source, and keeps the session of the source's query, 400
kB. The listener belongs to that session, too: Spark still hands it each event of each later query.
py4j has a connection for each thread of Java's that calls Python, as that of a query does for its batches. It outlives
the thread, and Python has a thread that reads from it.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.spark.jvm.session import compiled, gateway_of

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

    // Only idle connections are in this list, since no call from Java to Python leads to another. A thread that calls
    // Python takes its own out of it first, under the lock, and opens a new one if that is closed. So closing the
    // connection of a query that still runs does no harm.
    public void endConnections(py4j.CallbackClient client) throws Exception {{
        java.util.concurrent.locks.Lock lock =
            (java.util.concurrent.locks.Lock) valueOf(py4j.CallbackClient.class, client, "lock");
        lock.lock();
        try {{
            java.util.Collection idle =
                (java.util.Collection) valueOf(py4j.CallbackClient.class, client, "connections");
            for (java.util.Iterator i = idle.iterator(); i.hasNext();) {{
                py4j.ClientServerConnection each = (py4j.ClientServerConnection) i.next();
                if (!each.isInitiatedFromClient()) continue;  // Python has opened it for its own calls
                i.remove();
                each.shutdown();
            }}
        }} finally {{
            lock.unlock();
        }}
    }}

    private Object valueOf(Object object, String name) throws Exception {{
        return valueOf(object.getClass(), object, name);
    }}

    private Object valueOf(Class declaring, Object object, String name) throws Exception {{
        java.lang.reflect.Field field = declaring.getDeclaredField(name);
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
    ends: dict[str, Callable[[], None]] = {
        "thread": lambda: _leftovers(spark).endThreads(),
        "listener": lambda: _leftovers(spark).endListener(query._jsq.streamingQuery().sparkSessionForStream()),
        "connection": lambda: _leftovers(spark).endConnections(
            gateway_of(spark).java_gateway_server.getCallbackClient()
        ),
    }
    for what, end in ends.items():
        try:
            end()
        except Exception as error:  # noqa: BLE001  # any error of Java or py4j; the others end nevertheless
            log.info("A %s of a query that has ended is left: %s", what, error)


@lru_cache(maxsize=1)
def _leftovers(spark: SparkSession) -> Any:
    return compiled(spark, NAME, SOURCE)
