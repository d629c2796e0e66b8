"""What the driver does when an executor of a cluster leaves: it asks for another one, and where its rows have gone.

After the decommissioning of a worker a standalone master of Spark 4.3 starts no other executor until something else
happens in the cluster, although workers are free. It looks for free workers, too, when an application says how many
executors it wants. `Executors` says so each time that an executor is gone: as many as `spark.cores.max` allows, or
with dynamic allocation as many as Spark has asked for last. Spark itself asks only for another number than before, so
it would wait forever for the successor of one that it still counts on.

An executor that leaves hands on what it has shuffled. Where shuffled rows are, each executor asks for the first task of
a stage, and again when it gets a task with a higher epoch, which Spark gives to tasks when their stage begins. So a
task that has waited for a core or for its state would ask an executor that has left: its fetch failed, and its stage
began again. `Executors` raises the epoch of all tasks that have not begun, as soon as shuffled rows are elsewhere,
which is a second before their executor ends.
"""

import logging

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.session import compiled

log = logging.getLogger(__name__)

NAME = "Executors"
SCHEDULER = "org.apache.spark.scheduler"
SOURCE = f"""
public class {NAME} extends {SCHEDULER}.SparkListener implements Runnable {{
    private org.apache.spark.SparkContext context;
    private boolean isDynamic;

    public void watch(org.apache.spark.SparkContext context, boolean isDynamic) {{
        this.context = context;
        this.isDynamic = isDynamic;
        context.addSparkListener(this);
    }}

    public void onExecutorRemoved({SCHEDULER}.SparkListenerExecutorRemoved event) {{
        new Thread(this, "replacement of executor " + event.executorId()).start();  // it waits for the master
    }}

    public void run() {{
        if (isDynamic) {{
            context.requestExecutors(0);  // more
            return;
        }}
        context.requestTotalExecutors(
            Integer.MAX_VALUE, 0, (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.empty()
        );
    }}

    public void onBlockUpdated({SCHEDULER}.SparkListenerBlockUpdated event) {{
        if (!event.blockUpdatedInfo().blockId().isShuffle()) return;  // what is shuffled is told of when it has moved
        {SCHEDULER}.TaskSchedulerImpl scheduler = ({SCHEDULER}.TaskSchedulerImpl) context.taskScheduler();
        scheduler.mapOutputTracker().incrementEpoch();
        long epoch = scheduler.mapOutputTracker().getEpoch();
        synchronized (scheduler) {{
            scala.collection.Iterator sets = scheduler.rootPool().getSortedTaskSetQueue().iterator();
            while (sets.hasNext()) {{
                {SCHEDULER}.Task[] tasks = (({SCHEDULER}.TaskSetManager) sets.next()).tasks();
                for (int number = 0; number < tasks.length; number++) tasks[number].epoch_$eq(epoch);
            }}
        }}
    }}
}}
"""


def replace_executors(spark: SparkSession, *, dynamic: bool) -> None:
    """Do so from now on. `dynamic`: Spark says itself how many it wants."""
    try:
        compiled(spark, NAME, SOURCE).watch(spark.sparkContext._jsc.sc(), dynamic)
    except Exception as error:  # noqa: BLE001  # any error of Java or py4j
        log.warning("Executors that leave may have no successor until something else happens in the cluster: %s", error)
