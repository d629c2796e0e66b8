"""End threads that Spark starts for each Python process of a source, and never ends.

Spark has a thread for each factory of Python processes, which ends those that are idle. A source has a factory of its
own, whose only process is never idle. Its thread outlives the source, and keeps the session of the source's query:
400 kB for each start of a task. `tests/spark/test_private_interfaces.py` pins the private interfaces that this uses.
"""

import logging
from functools import lru_cache
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.session import java_class

log = logging.getLogger(__name__)

NAME = "Monitors"
SOURCE = f"""
public class {NAME} implements java.util.concurrent.Callable, Thread.UncaughtExceptionHandler {{
    public Object call() throws Exception {{
        Thread[] threads = new Thread[Thread.activeCount() + 100];
        for (int i = Thread.enumerate(threads) - 1; i >= 0; i--) {{
            Class kind = threads[i].getClass();
            if (!kind.getName().equals("org.apache.spark.api.python.PythonWorkerFactory$MonitorThread")) continue;
            Object factory = kind.getField("$outer").get(threads[i]);
            java.lang.reflect.Field has_idle_workers = factory.getClass().getDeclaredField("useDaemon");
            has_idle_workers.setAccessible(true);
            if (has_idle_workers.getBoolean(factory)) continue;
            threads[i].setUncaughtExceptionHandler(this);
            threads[i].interrupt();
        }}
        return null;
    }}

    public void uncaughtException(Thread thread, Throwable error) {{}}
}}
"""


def end_monitors(spark: SparkSession) -> None:
    """End those of all sources, also of sources that still run. A failure only costs memory."""
    try:
        _monitors(spark).call()
    except Exception as error:  # noqa: BLE001  # any error of Java or py4j
        log.info("Threads of Spark's sources are not ended: %s", error)


@lru_cache(maxsize=1)
def _monitors(spark: SparkSession) -> Any:
    compiler = java_class(spark, "org.codehaus.janino.SimpleCompiler")()
    compiler.cook(SOURCE)
    return compiler.getClassLoader().loadClass(NAME).getConstructor(None).newInstance(None)
