"""The Spark settings that the container relies on, and its defaults: a job file may set what `OWN` does not name.

`OWN` is in `config/spark.py`.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from samza_azure.config.spark import address_towards, on_cluster, on_kubernetes
from samza_azure.machine.memory import memory
from samza_azure.spark.jvm.java import FOR_ROWS

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
#: Spark refuses a longer one when the first Python function is called. With the names of its sockets, 42 bytes, the
#: path is shorter than what Java (106 bytes) and the kernel (107) take. tests/spark/test_limits.py asks all of them.
SOCKET_DIRECTORY_MAX = 61
#: The name of a header, which executors send to the container's server of state: the only thing that Hadoop's client
#: takes from a setting and sends with each request. It has a secret. Spark shows no value with this word.
STATE_HEADER = "spark.hadoop.dfs.webhdfs.rest-csrf.custom-header"
#: Where an executor that is told to leave puts shuffled rows if there is no other executor.
FALLBACK = "spark.storage.decommission.fallbackStorage.path"
#: After which time without a task dynamic allocation gives an executor back.
IDLE_TIMEOUT = "spark.dynamicAllocation.executorIdleTimeout"
#: Each value is needed for a promise of the container, or was measured to matter.
BASE = {
    "spark.master": "local[*,4]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.rdd.compress": "false",  # rows leave Spark through blocks on the disk, see output.py
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What Spark keeps for the disabled UI: by default the last thousand jobs, stages and plans each.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.scheduler.mode": "FAIR",  # one pool per task
    "spark.python.unix.domain.socket.enabled": "true",  # saves 40 ms per batch
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    # It plans the shuffles of a batch in threads of their own. Two that read the same input would ask its source's only
    # process at the same time, and wait forever.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.minBatchesToRetain": "4",  # the log keeps the history; the directory stays small
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # ticks of the source do that, see watermark.py
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",  # saves a look-up per removed row
    # One cache and its write buffers for all stores of the JVM. Without it each store has its own, and a join has four.
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.samza_azure.exchanges.removed": "true",  # see exchanges.py
    "spark.samza_azure.searches.left_out": "true",  # see searches.py
}

#: The right to create, watch and delete pods is enough with these: see infra/kubernetes/cluster/rights.yaml.
ON_KUBERNETES = {
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    # preStop decommissions, and waits: a task that runs ends, and blocks move.
    "spark.kubernetes.executor.terminationGracePeriodSeconds": "60s",
    # More than twice as many failures as executors end the application: in this time, and not since it has started.
    "spark.executor.failuresValidityInterval": "10m",
}


def settings_of(chosen: Mapping[str, str], directory: Path) -> dict[str, str]:
    """All settings of a session of this process with this working directory. The user's own take precedence."""
    own = {
        "spark.driver.memory": f"{memory().heap_mib}m",
        "spark.local.dir": str(directory / "spark"),
        SOCKET_DIRECTORY: _socket_directory(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    if on_cluster(chosen):
        own |= _on_cluster(chosen, own.pop(SOCKET_DIRECTORY)) | (ON_KUBERNETES if on_kubernetes(chosen) else {})
        chosen = {name: value for name, value in chosen.items() if name not in (EXECUTOR_OPTIONS, DRIVER_OPTIONS)}
    return {**BASE, **own, **chosen}


def _on_cluster(chosen: Mapping[str, str], sockets: str) -> dict[str, str]:
    """What executors need that are other processes: the container's own JVM and environment have it already. Each
    process has its `sockets` in its own temporary folder, since a setting would be that of all machines.
    """
    here = chosen.get("spark.driver.host")
    here = here or address_towards(chosen["spark.master"], "spark.driver.host in the job file")
    return {
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
        DRIVER_OPTIONS: f"-Djava.io.tmpdir={sockets} {chosen.get(DRIVER_OPTIONS, '')}".strip(),
        EXECUTOR_OPTIONS: " ".join([*FOR_ROWS, chosen.get(EXECUTOR_OPTIONS, "")]).strip(),
        "spark.executorEnv.TZ": "UTC",
        "spark.executorEnv.PYTHONHASHSEED": "0",
        # What spreads a batch has one input: else all parts would wait for the executor that has read it.
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.replicationReattemptInterval": "1s",  # an executor leaves no sooner than this
        # Else an executor with shuffled rows of a failed batch stays until Java collects what names them, half an hour.
        "spark.dynamicAllocation.shuffleTracking.timeout": chosen.get(IDLE_TIMEOUT, "60s"),
        "spark.files.useFetchCache": "false",  # each executor asks for the file that says its Java: tasks/same_java.py
        **state_client(),
    }


def state_client() -> dict[str, str]:
    """What lets executors see the state of this container's tasks, with a new secret."""
    return {
        "spark.hadoop.dfs.webhdfs.rest-csrf.enabled": "true",
        "spark.hadoop.dfs.webhdfs.rest-csrf.methods-to-ignore": "TRACE",  # the header comes with all others
        STATE_HEADER: f"X-Secret-{secrets.token_hex(16)}",
    }


def analysed(chosen: Mapping[str, str]) -> dict[str, str]:
    """The settings for a session that only analyses, which needs no cluster."""
    return {name: value for name, value in chosen.items() if name != "spark.master" or not on_cluster(chosen)}


def _socket_directory(directory: Path) -> str:
    """A folder of the container's directory, which the next container empties. The JVM ends with its container, killed,
    and so deletes no socket.

    A folder with a long path is named by a descriptor, which this process keeps open for as long as it lives, and the
    JVM lives no longer.
    """
    folder = directory.absolute() / "sockets"
    folder.mkdir(parents=True, exist_ok=True)
    if len(os.fsencode(folder)) <= SOCKET_DIRECTORY_MAX and " " not in str(folder):
        return str(folder)
    return f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"
