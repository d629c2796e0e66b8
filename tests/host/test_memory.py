"""How much memory a processor takes unasked: what its cgroup allows, wherever that is written."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samza_azure.commands.run import said_of_memory
from samza_azure.config import Config
from samza_azure.host.supervisor import why_it_ended
from samza_azure.machine.memory import (
    LEAST_HEAP_MIB,
    UNDIVIDED_HEAP_MIB,
    Memory,
    RecentKills,
    memory,
    memory_kills,
    use_of_session,
)
from samza_azure.messages import APPLICATION_ENDED, OUT_OF_MEMORY
from samza_azure.pipeline.quick_check import mentions_spark

GIB = 1 << 30
#: Version 2: one tree. Version 1: a tree for each controller. Both: a machine on its way from one to the other.
V2, V1, BOTH = "0::{path}\n", "4:memory:{path}\n3:cpu,cpuacct:/\n", "4:memory:{path}\n1:name=systemd:/\n0::/\n"


def machine(root: Path, cgroup: str, limits: dict[str, str], total_gib: int = 16) -> Memory:
    """What is found on a machine with these files."""
    for name, text in {
        "proc/meminfo": f"MemTotal:       {total_gib << 20} kB\n",
        "proc/self/cgroup": cgroup,
        **limits,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory(root)


@pytest.mark.parametrize(
    ("cgroup", "limits"),
    [
        pytest.param(V2.format(path="/"), {"sys/fs/cgroup/memory.max": "2147483648\n"}, id="a container, version 2"),
        pytest.param(
            V2.format(path="/system.slice/one.service"),
            {
                "sys/fs/cgroup/system.slice/memory.max": "max\n",
                "sys/fs/cgroup/system.slice/one.service/memory.max": "2147483648\n",
            },
            id="a unit",
        ),
        pytest.param(
            V2.format(path="/pods/one"),
            {"sys/fs/cgroup/pods/memory.max": "2147483648\n", "sys/fs/cgroup/pods/one/memory.max": "4294967296\n"},
            id="a limit further up",
        ),
        pytest.param(
            V1.format(path="/docker/4f2a"),
            {"sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n"},
            id="a container, version 1, which sees its host's path",
        ),
        pytest.param(
            BOTH.format(path="/one"),
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/one/memory.limit_in_bytes": "2147483648\n",
            },
            id="both versions",
        ),
    ],
)
def test_half_of_the_limit_is_for_the_heap(tmp_path: Path, cgroup: str, limits: dict[str, str]) -> None:
    found = machine(tmp_path, cgroup, limits)
    assert found == Memory(2 * GIB, is_set=True)
    assert str(found) == "Java's heap of at most 1024 MiB, of the 2048 MiB of the container or unit"


@pytest.mark.parametrize("said", ["max", "9223372036854771712", "68719476736", ""])
def test_a_limit_above_the_machines_memory_is_ignored(tmp_path: Path, said: str) -> None:
    found = machine(tmp_path, V2.format(path="/"), {"sys/fs/cgroup/memory.max": f"{said}\n"})
    assert found == Memory(16 * GIB, is_set=False)


def test_a_machine_that_is_not_divided_may_run_several_processors(tmp_path: Path) -> None:
    assert machine(tmp_path, V2.format(path="/"), {}).heap_mib == UNDIVIDED_HEAP_MIB
    assert machine(tmp_path, V2.format(path="/"), {}, total_gib=2).heap_mib == 1_024


def test_a_small_container_leaves_enough_outside_the_heap() -> None:
    """In 1 GiB half of it was too much: the kernel killed the JVM as soon as its state grew."""
    heaps = {mib: Memory(mib << 20, is_set=True).heap_mib for mib in (1_280, 1_408, 1_536, 2_048, 4_096)}
    assert heaps == {1_280: 512, 1_408: 640, 1_536: 768, 2_048: 1_024, 4_096: 2_048}


def test_a_heap_is_never_too_small_to_start() -> None:
    """Spark wants 450 MiB; with 256 MiB the container ended six times in a row."""
    assert Memory(100 << 20, is_set=True).heap_mib == LEAST_HEAP_MIB


def test_a_memory_limit_that_is_too_low_is_reported_with_a_remedy() -> None:
    """In 1 GiB the kernel killed the JVM, and nothing had warned of it."""
    assert not Memory(1_280 << 20, is_set=True).is_short
    assert Memory(1_279 << 20, is_set=True).is_short
    assert str(Memory(1 << 30, is_set=True)) == (
        "Java's heap of at most 512 MiB, of the 1024 MiB of the container or unit. This is too little, and the kernel "
        "may kill the processor: give it at least 1280 MiB"
    )


def test_the_heap_of_this_machine_is_within_its_memory() -> None:
    assert 0 < memory().heap_mib << 20 <= memory().limit


@pytest.mark.parametrize(
    ("cgroup", "name", "text"),
    [
        (V2.format(path="/pods/one"), "sys/fs/cgroup/pods/one/memory.events", "low 0\noom 3\noom_kill {}\n"),
        (V2.format(path="/host/one"), "sys/fs/cgroup/memory.events", "oom 3\noom_kill {}\noom_group_kill 9\n"),
        (V1.format(path="/one"), "sys/fs/cgroup/memory/one/memory.oom_control", "under_oom 0\noom_kill {}\n"),
    ],
)
def test_kills_by_the_kernel_are_counted_in_each_layout_of_cgroups(
    tmp_path: Path, cgroup: str, name: str, text: str
) -> None:
    for kills in (0, 2):
        machine(tmp_path, cgroup, {name: text.format(kills)})
        assert memory_kills(tmp_path) == kills


@pytest.mark.parametrize(
    ("cgroup", "above", "own"),
    [
        (V2.format(path="/pods/one"), "sys/fs/cgroup/pods/memory.events", "sys/fs/cgroup/pods/one/memory.events"),
        (
            BOTH.format(path="/pods/one"),
            "sys/fs/cgroup/memory/pods/memory.oom_control",
            "sys/fs/cgroup/memory/pods/one/memory.oom_control",
        ),
    ],
)
def test_a_kill_beside_us_in_the_cgroup_above_is_none_of_ours(
    tmp_path: Path, cgroup: str, above: str, own: str
) -> None:
    machine(tmp_path, cgroup, {above: "oom_kill 5\n", own: "oom_kill 1\n"})
    assert memory_kills(tmp_path) == 1


def test_a_kill_is_recent_for_one_reading_and_no_longer_than_two(tmp_path: Path) -> None:
    """A worker's kill hours ago is not the reason why the container ends now. The JVM's is, though a reading came in
    between."""

    def count(kills: int) -> None:
        machine(tmp_path, V2.format(path="/one"), {"sys/fs/cgroup/one/memory.events": f"oom_kill {kills}\n"})

    count(1)
    kills = RecentKills(tmp_path)
    assert not kills.any, "before we began"
    count(2)
    assert kills.any
    kills.look()
    assert kills.any
    kills.look()
    assert not kills.any


def test_a_container_that_was_killed_says_its_last_error_too() -> None:
    in_here = Memory(2 * GIB, is_set=True)
    assert why_it_ended(1, None, "", None) == "it exited with code 1"
    assert why_it_ended(1, None, "ValueError: no", None) == "it exited with code 1: ValueError: no"
    assert why_it_ended(OUT_OF_MEMORY, OUT_OF_MEMORY, "", None).startswith("its JVM ran out of memory")
    call = "ConnectionRefusedError: [Errno 111] Connection refused"
    assert why_it_ended(1, APPLICATION_ENDED, call, None).startswith("Spark has ended its application: ")
    killed = why_it_ended(-9, None, "ValueError: no", in_here)
    assert killed.startswith(
        "it was killed by signal 9 (SIGKILL): the kernel killed it or its JVM, because the 2048 MiB of the container"
    )
    assert killed.endswith(". The last error in its log: ValueError: no")
    assert why_it_ended(OUT_OF_MEMORY, 3, "", in_here).endswith("or run more processors")


def test_a_container_whose_jvm_ended_first_says_how_that_ended_and_not_which_call_failed_then() -> None:
    """`kill -9` of the JVM read "exit code 1: py4j.protocol.Py4JError: An error occurred while calling o2154"."""
    call = "py4j.protocol.Py4JError: An error occurred while calling o2154.isActive"
    assert why_it_ended(1, -9, call, None) == "its JVM was killed by signal 9 (SIGKILL)"
    assert why_it_ended(1, -6, call, None) == "its JVM was killed by signal 6 (SIGABRT)"
    assert why_it_ended(-11, None, call, None) == "it was killed by signal 11 (SIGSEGV)"
    assert why_it_ended(-40, None, "", None) == "it was killed by signal 40"
    assert why_it_ended(1, 7, "java.lang.Exception: no", None) == "its JVM exited with code 7: java.lang.Exception: no"
    assert why_it_ended(1, -9, call, Memory(2 * GIB, is_set=True)).startswith(
        "its JVM was killed by signal 9 (SIGKILL): the kernel killed it"
    )


def test_a_machine_that_tells_nothing_of_it_has_killed_nothing(tmp_path: Path) -> None:
    assert memory_kills(tmp_path) == 0


def test_pages_that_processes_share_are_counted_once() -> None:
    """As by the cgroup: Python's workers are forked from one process, and have most of its pages in common."""
    fork = (
        "import os, sys; held = os.urandom(64 << 20); "
        "os.fork() and os.fork() and print('held', flush=True); "  # the children fork no more: that would take a while
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", fork], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert 64 << 20 < use_of_session(process.pid)[0] < 128 << 20
        os.killpg(process.pid, signal.SIGKILL)


def test_the_memory_of_a_session_is_that_of_all_its_processes() -> None:
    hold = "import sys; held = b'x' * (64 << 20); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        assert use_of_session(process.pid)[0] > 64 << 20
        assert 0 < use_of_session(process.pid)[1] < 60, "seconds of CPU"
        process.kill()
    assert use_of_session(process.pid)[0] == 0


@pytest.mark.parametrize(
    ("module", "spark", "level", "said"),
    [
        ("import pyspark", "", logging.WARNING, "too little"),
        ("import pyspark", '[spark]\ndriver.memory = "1g"\n', logging.INFO, "of at most 1g"),
        ("import json", "", logging.INFO, "1024 MiB of memory"),
    ],
)
def test_java_is_mentioned_where_a_job_has_a_query(
    tmp_path: Path, module: str, spark: str, level: int, said: str
) -> None:
    """Small machines are enough for a job of handlers alone, which starts no Java."""
    (tmp_path / "pipeline.py").write_text(module)
    job = f'[app]\nname = "a"\nmain = "pipeline:app"\n[azure.storage]\nconnect = "UseDevelopmentStorage=true"\n{spark}'
    logged = said_of_memory(Config.parse(job, path=tmp_path / "job.toml"), Memory(GIB, is_set=True))
    assert logged[0] == level and said in logged[1]
    assert ("Java" in logged[1]) == ("pyspark" in module)


@pytest.mark.parametrize(
    ("main", "mentions"),
    [
        ("import stages", True),
        ("from stages import clean", True),
        ("import jobs.daily", True),
        ("from jobs import daily", True),
        ("from jobs.hourly import stage", True),
        ('@app.stage("a", output="b")\ndef b(a): return a', True),
        ("import jobs", False),
        ("def later():\n    import stages", True),
        ("import json, azure.storage.blob", False),
        ("import main\nfrom . import stages", True),
        ("import (", False),
    ],
)
def test_a_module_beside_the_main_one_mentions_spark(tmp_path: Path, main: str, mentions: bool) -> None:
    """The main module may only collect stages that others define. Then nothing was said of the heap, and the JVM
    started late."""
    (tmp_path / "jobs").mkdir()
    for name, text in {
        "main.py": main,
        "stages.py": "import pyspark\nimport main",
        "unused.py": "import pyspark",
        "jobs/__init__.py": "",
        "jobs/daily.py": "from pyspark.sql import functions",
        "jobs/hourly.py": "from .daily import stage",
    }.items():
        (tmp_path / name).write_text(text)
    job = '[app]\nname = "a"\nmain = "main:app"\n[azure.storage]\nconnect = "UseDevelopmentStorage=true"\n'
    assert mentions_spark(Config.parse(job, path=tmp_path / "job.toml")) is mentions
