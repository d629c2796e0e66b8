"""End what is left of a query that has ended: for each source a thread, an allocator and a path, and for the query its
stores, a listener and a connection.

Spark has a thread for each factory of Python processes, which ends those that are idle. A source has a factory of its
own, whose only process is never idle. Its thread outlives the source, and keeps the session of the source's query, 400
kB. The listener belongs to that session, too: Spark still hands it each event of each later query.
A source also leaves an allocator of Arrow's, and Java remembers the path of its process's socket to delete it when the
JVM exits, although Spark has deleted it by then.
Spark leaves stores open until its maintenance finds that their query has ended, up to a minute later. Before it closes
one, it uploads its last snapshot, and so makes the directory of a task that is gone anew.
py4j has a connection for each thread of Java's that calls Python, as that of a query does for its batches. It outlives
the thread, and Python has a thread that reads from it.
What stays is a logger of log4j for each store in RocksDB, 1.2 kB.
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
STREAMING = "org.apache.spark.sql.execution.streaming"
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

    public void closeAllocators({STREAMING}.runtime.StreamExecution query) throws Exception {{
        for (scala.collection.Iterator i = query.sources().iterator(); i.hasNext();) {{
            Object source = i.next();
            try {{
                ((org.apache.arrow.memory.BufferAllocator) valueOf(valueOf(source, "runner"), "allocator")).close();
            }} catch (Exception error) {{}}  // rows of it were under way, or it never ran; those of the others close
        }}
    }}

    // A socket that is just being made may be forgotten, too. Spark deletes it itself.
    public void forgetSockets() throws Exception {{
        Class hook = Class.forName("java.io.DeleteOnExitHook");
        synchronized (hook) {{
            for (java.util.Iterator i = ((java.util.Set) valueOf(hook, null, "files")).iterator(); i.hasNext();) {{
                String path = (String) i.next();
                if (path.endsWith(".sock") && !new java.io.File(path).exists()) i.remove();
            }}
        }}
    }}

    // Spark's maintenance may be uploading a snapshot of one of them. The upload fails then, which Spark logs.
    public void closeStores(java.util.UUID run) throws Exception {{
        {STREAMING}.state.StateStore$ stores = {STREAMING}.state.StateStore$.MODULE$;
        scala.collection.mutable.HashMap loaded =
            (scala.collection.mutable.HashMap) valueOf(stores, "loadedProviders");
        scala.collection.Iterator ids;
        synchronized (loaded) {{
            ids = loaded.keysIterator().toList().iterator();
        }}
        while (ids.hasNext()) {{
            {STREAMING}.state.StateStoreProviderId id = ({STREAMING}.state.StateStoreProviderId) ids.next();
            if (id.queryRunId().equals(run)) stores.removeFromLoadedProvidersAndClose(id);  // without an upload
        }}
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
    """Call this after the query was stopped. A failure costs memory, open files, and room on the disk.

    The threads of all sources are ended, also of sources that still run: they do nothing.
    """
    try:
        left = _leftovers(spark)
    except Exception as error:  # noqa: BLE001  # any error of Java or py4j
        log.info("Nothing of an ended query could be closed: %s", error)
        return
    ends: dict[str, Callable[[], None]] = {
        "stores": lambda: left.closeStores(query._jsq.runId()),
        "threads": left.endThreads,
        "allocators": lambda: left.closeAllocators(query._jsq.streamingQuery()),
        "paths": left.forgetSockets,
        "listener": lambda: left.endListener(query._jsq.streamingQuery().sparkSessionForStream()),
        "connections": lambda: left.endConnections(gateway_of(spark).java_gateway_server.getCallbackClient()),
    }
    for what, end in ends.items():
        try:
            end()
        except Exception as error:  # noqa: BLE001  # any error of Java or py4j; the others end nevertheless
            log.info("The %s of an ended query could not be closed: %s", what, error)


@lru_cache(maxsize=1)
def _leftovers(spark: SparkSession) -> Any:
    return compiled(spark, NAME, SOURCE)
