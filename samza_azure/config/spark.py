"""The settings of Spark that a job file cannot change, and what its master says."""

import os
import re
import socket
from collections.abc import Iterator, Mapping

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.machine.addresses import own_address

#: The settings that the container makes itself, with the reason why a job file may not. `check.py:_spark` refuses them
#: there, `spark/pipeline/module.py:_settings_kept` where the module sets them.
OWN = {
    "spark.sql.session.timeZone": (
        "event time is UTC everywhere; in another zone a processor would cut other windows. For a local "
        'time, write F.from_utc_timestamp("ts", "Europe/Berlin") in a stage'
    ),
    "spark.sql.timestampType": "a timestamp in the job file has a zone; write timestamp_ntz for one without",
    "spark.sql.streaming.stateStore.providerClass": "set task.state to 'memory' or 'rocksdb' instead",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "the task log carries state files of version 1",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "the task log carries the changelog",
    "spark.sql.streaming.multipleWatermarkPolicy": "the container owns the watermark and needs the policy 'min'",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "it refuses plans whose rows would be wrong",
    "spark.sql.constraintPropagation.enabled": "without it null would equal null in joins of streams",
    "spark.sql.optimizer.excludedRules": "rows would be wrong without some rules: in joins null would equal null",
    "spark.sql.streaming.statefulOperator.allowMultiple": "the analysis of the plan depends on it",
    "spark.sql.maxPlanStringLength": "the analysis reads plans as text, and needs all of it",
    "spark.sql.parser.quotedRegexColumnNames": "a key with a space in its name would be a regular expression",
    "spark.sql.timestampNanosTypes.enabled": "the logs store times in microseconds",
    "spark.sql.streaming.offsetLog.formatVersion": "the container reads the offsets of each batch in version 1",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "the sources of a task have no names",
    "spark.sql.streaming.disabledV2MicroBatchReaders": "the streams are read by such a source",
    "spark.hadoop.fs.defaultFS": "the files of a task are on the local disk; in its log they are durable",
    "spark.sql.streaming.join.stateFormatVersion": "in version 1 of the state of joins rows would be wrong",
    "spark.sql.adaptive.streaming.stateless.enabled": "a stage that reads an input twice would wait forever",
    "spark.sql.streaming.noDataMicroBatches.enabled": "the container decides when a batch without rows runs",
    "spark.sql.streaming.checkpointLocation": "the checkpoint of a task is its log",
    "spark.sql.streaming.checkpointFileManagerClass": "the container reads and writes checkpoints as local files",
    "spark.rdd.compress": "rows leave Spark through blocks on the disk, which are read uncompressed",
    "spark.scheduler.mode": "the tasks of a container share it fairly",
    "spark.python.unix.domain.socket.enabled": "rows come through such a socket; without it each batch waits 40 ms",
    "spark.python.use.daemon": "the processes of sources run without it, and what they leave is told apart by that",
    "spark.sql.shuffle.partitions": "stages.<name>.partitions says it, for each stage by itself",
}
#: Spark in the container's own JVM.
LOCAL = r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?"
#: A standalone cluster, of one master or of several of which one leads.
CLUSTER = r"spark://[^\s/,:]+:[1-9]\d*(,[^\s/,:]+:[1-9]\d*)*"
#: The API server of Kubernetes. Not over plain HTTP, where the token of the service account could be read.
KUBERNETES = r"k8s://(https://)?(?P<host>[^\s/,:@]+)(:(?P<port>[1-9]\d*))?(/[^\s,]*)?"
#: The port at which executors on a cluster find the state of a container's tasks, or the first that is tried.
STATE_PORT = "spark.samza_azure.state.port"
#: On a cluster: what would make rows wrong or cannot work, with the only value that is allowed and the reason.
_ON_CLUSTER = {
    "spark.submit.deployMode": ("client", "the container is the driver, since it alone appends"),
    "spark.speculation": ("false", "two attempts of a task would write the same files of its state"),
    "spark.io.encryption.enabled": ("false", "rows leave Spark through blocks, which are read unencrypted"),
    "spark.serializer": (
        "org.apache.spark.serializer.JavaSerializer",
        "rows leave Spark through blocks, which are read as Spark writes them by default",
    ),
    "spark.decommission.enabled": ("true", "a worker or a pod that leaves tells its executors so"),
    "spark.storage.decommission.enabled": ("true", "an executor that leaves hands on the rows that it has shuffled"),
    "spark.files.useFetchCache": ("false", "an executor is asked for its Java when it fetches a file"),
    "spark.executorEnv.TZ": ("UTC", "functions would read times without a zone otherwise than in the container"),
    "spark.executorEnv.PYTHONHASHSEED": ("0", "functions would have other hashes of a text on each executor"),
}
#: On Kubernetes: what has to be there, why, and what to write.
_ON_KUBERNETES = {
    "spark.kubernetes.container.image": (
        "executors are containers, of an image with the processor's Spark and Python. For the processor's own image",
        'kubernetes.container.image = "flights.azurecr.io/flights:1"',
    ),
    "spark.kubernetes.namespace": (
        "executors have to be in the namespace of the processor's pod, or they are not deleted with it",
        'kubernetes.namespace = "samza-azure"',
    ),
    "spark.kubernetes.driver.pod.name": (
        "executors belong to the processor's pod, so that Kubernetes deletes them with it. With its name in POD_NAME",
        'kubernetes.driver.pod.name = "${POD_NAME}"',
    ),
}
_AS_FILE = (
    'write under [spark]: "authenticate.secret.file" = "/secret/spark" and '
    '"kubernetes.executor.secrets.spark" = "/secret"'
)
#: Whole numbers from 1 on, there.
_COUNTS = ("spark.executor.instances", "spark.executor.cores", "spark.dynamicAllocation.maxExecutors")
_INSTANCES, _CORES, _MOST = _COUNTS
_LEAST = "spark.dynamicAllocation.minExecutors"


def on_cluster(settings: Mapping[str, str]) -> bool:
    """Whether the executors are other processes than the container, perhaps on other machines."""
    return re.fullmatch(f"{CLUSTER}|{KUBERNETES}", settings.get("spark.master", "local")) is not None


def on_kubernetes(settings: Mapping[str, str]) -> bool:
    """Whether the executors are pods."""
    return re.fullmatch(KUBERNETES, settings.get("spark.master", "local")) is not None


def is_dynamic(settings: Mapping[str, str]) -> bool:
    """Whether Spark takes executors as it has tasks for them, and gives them back."""
    return settings.get("spark.dynamicAllocation.enabled", "").strip().lower() == "true"  # as Spark reads it


def mistakes_on_cluster(settings: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the settings of a job whose master is a cluster, as sentences."""
    yield from (_mistakes_on_kubernetes if on_kubernetes(settings) else _mistakes_on_standalone)(settings)
    if is_dynamic(settings):
        yield from _mistakes_of_allocation(settings)
    port = settings.get(STATE_PORT, "0")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:
        yield f"{STATE_PORT} = {port!r} is no port: write a number up to 65535, or remove the line for any free one."
    for key, (value, why) in _ON_CLUSTER.items():
        if settings.get(key, value) != value:
            yield f"{key} = {settings[key]!r} cannot be used with a cluster: {why}. Remove the line."
    for key in settings:
        name = key.removeprefix("spark.executorEnv.")
        if name != key and re.search(r"SAMZA_AZURE_|CONNECTION_STRING|CONNECT(ION)?$", name, re.IGNORECASE):
            yield (
                f"{key} cannot be set: Spark shows it on its pages, and executors need no access to the account. "
                "Remove the line."
            )


def _mistakes_on_standalone(settings: Mapping[str, str]) -> Iterator[str]:
    if not re.fullmatch(r"[1-9]\d*", settings.get("spark.cores.max", "")):
        yield (
            "spark.cores.max is missing, or no number: without it the first processor would take all cores of the "
            "cluster. Write under [spark], for two cores per processor: cores.max = 2"
        )
    if is_dynamic(settings) and not re.fullmatch(r"[1-9]\d*", settings.get(_CORES, "")):
        yield (
            f"{_CORES} is missing, or no number: with dynamic allocation Spark would take a whole worker for each "
            "task. Write under [spark], for one core per executor: executor.cores = 1"
        )
    if settings.get("spark.authenticate") == "true" and not settings.get("spark.authenticate.secret"):
        yield (
            "spark.authenticate = true needs the secret of the cluster, from the environment: write under [spark] "
            '"authenticate.secret" = "${SAMZA_AZURE_SPARK_SECRET}"'
        )


def _mistakes_on_kubernetes(settings: Mapping[str, str]) -> Iterator[str]:
    for key, (why, line) in _ON_KUBERNETES.items():
        if not settings.get(key) and not settings.get(key.replace("container.image", "executor.container.image")):
            yield f"{key} is missing: {why}, write under [spark]: {line}"
    if "spark.cores.max" in settings:
        yield (
            "spark.cores.max means nothing on Kubernetes, where a processor has executor.instances pods of "
            "executor.cores cores each. Write these under [spark] and remove the line."
        )
    for key in _COUNTS:
        if key in settings and not re.fullmatch(r"[1-9]\d*", settings[key]):
            yield f"{key} = {settings[key]!r} is no whole number from 1 on: write one."
    if is_dynamic(settings) and _MOST not in settings:
        yield (
            f"{_MOST} is missing: without it a processor would ask for more and more pods. "
            "Write under [spark], for four: dynamicAllocation.maxExecutors = 4"
        )
    if "spark.authenticate.secret" in settings:
        yield (
            "spark.authenticate.secret cannot be set on Kubernetes: Spark would write it into the pods of executors, "
            f"where who lists pods reads it. Mount a Secret into both instead, and {_AS_FILE}"
        )
    elif settings.get("spark.authenticate") == "true" and not settings.get("spark.authenticate.secret.file"):
        yield (
            "spark.authenticate = true needs a file with the secret, or Spark would write one into the pods of "
            f"executors. With a Secret named spark that is mounted at /secret, {_AS_FILE}"
        )


def _mistakes_of_allocation(settings: Mapping[str, str]) -> Iterator[str]:
    """What Spark would find only when a processor starts, or not at all."""
    if _INSTANCES in settings:
        yield (
            f"{_INSTANCES} cannot be set with dynamic allocation: each processor would begin with so many, also "
            "one without a task. Remove the line."
        )
    least, most = settings.get(_LEAST, "0"), settings.get(_MOST, "1")
    if not re.fullmatch(r"\d+", least, re.ASCII):
        yield f"{_LEAST} = {least!r} is no whole number: write one, such as 0, or remove the line for none."
    elif not re.fullmatch(r"[1-9]\d*", most, re.ASCII):
        if not on_kubernetes(settings):  # said there
            yield f"{_MOST} = {most!r} is no whole number from 1 on: write one, or remove the line for cores.max."
    elif _MOST in settings and int(least) > int(most):
        yield f"{_LEAST} = {least} is more than {_MOST} = {most}: write a smaller number, or remove the line for none."


def address_towards(master: str, option: str) -> str:
    """The address of this machine from which it reaches a cluster, by which the cluster finds it.

    Raise ConfigError if there is none, and SamzaAzureError if that may pass, as when no server of names answers.
    `option` is what the user can write instead.
    """
    if found := re.fullmatch(KUBERNETES, master):
        host, port = found["host"], found["port"] or "443"
    else:
        host, _, port = master.removeprefix("spark://").partition(",")[0].rpartition(":")
    try:
        return own_address(host, int(port))
    except OSError as error:
        may_pass = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        raise (SamzaAzureError if may_pass else ConfigError)(
            f"From which address this machine reaches {host} is not known ({error.strerror}), so nobody could be told "
            f"where to find it. Write the address of {host} instead of its name, or that of this machine as {option}."
        ) from error


def cores_of(settings: Mapping[str, str]) -> int:
    """How many threads run Spark's tasks. `defaultParallelism` is another number where `default.parallelism` is set."""
    if on_kubernetes(settings):
        pods = settings.get(_MOST if is_dynamic(settings) else _INSTANCES, "2")  # as Spark has it
        return int(pods) * int(settings.get(_CORES, "1"))
    if on_cluster(settings):
        cores = int(settings["spark.cores.max"])
        bounded = is_dynamic(settings) and _MOST in settings
        return min(cores, int(settings[_MOST]) * int(settings[_CORES])) if bounded else cores
    found = re.fullmatch(LOCAL, settings.get("spark.master", "local"))
    number = found.group(2) if found is not None else None
    return os.cpu_count() or 1 if number == "*" else int(number or 1)
