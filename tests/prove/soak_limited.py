"""A processor in a cgroup of 2 GiB without swap joins two streams for a quarter of an hour: does its memory stay?

python tests/prove/soak_limited.py [--minutes 15] [--mib 2048]

`soak.py` shows what a task keeps, over many batches; this shows a whole processor under a memory limit, with the heap
that follows from the limit. Printed are, at intervals: what the cgroup has in use, with and without the page cache; the
memory of supervisor, container and Python workers, of the JVM's heap and of the rest of the JVM; what is alive in the
heap; and the size of the container's log. Java takes as much of its heap as it likes, up to the maximum that leaves
room in the limit. So what is alive in it is judged, not its size, and of the cgroup what is not heap. From the first
fourth on none of these may grow by more than a fixed amount and a small one per batch, by the median of what each two
samples say. The kernel must kill nothing, and no process may be replaced. Else the program ends with 1 or an error.
Needs root, a machine whose cgroups may be made, and a JDK for `jcmd`.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from samza_azure.spark.jvm.java import GATEWAY, SUBMIT

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from out_of_memory import MIB, Cgroup, Members, machine_kills, made  # noqa: E402
from soak import judged  # noqa: E402

from samza_azure.commands.azurite.emulator import Azurite  # noqa: E402
from samza_azure.commands.dev import VARIABLE  # noqa: E402
from samza_azure.storage.connection import Account  # noqa: E402
from samza_azure.stream_io.source_stream import SourceWriter  # noqa: E402

#: The streams are at most this many of their seconds ahead of the task.
SAMPLES, PATIENCE_S, PACE_S, AHEAD = 40, 180.0, 0.25, 20
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
MORE = """
[task]
commit.ms = 0
[streams.left]
partitions = 1
schema = "key string, ts timestamp"
event_time = "ts"
[streams.right]
partitions = 1
schema = "key string, ts timestamp"
event_time = "ts"
"""
PIPELINE = """
from pyspark.sql import functions as F
from samza_azure import Application

app = Application()


@app.stage("left", "right", output="pairs")
def match(left, right):
    ours = left.withWatermark("ts", "5 seconds").select("key", "ts")
    theirs = right.withWatermark("ts", "5 seconds").select(F.col("key").alias("their"), F.col("ts").alias("at"))
    near = F.expr("key = their AND at BETWEEN ts - INTERVAL 5 seconds AND ts + INTERVAL 5 seconds")
    return ours.join(theirs, near).select("key", F.col("ts").cast("string").alias("when"))
"""
#: By how much each may grow: at all, since collectors and allocators breathe, and per batch.
ALLOWED: dict[str, tuple[float, float]] = {
    "supervisor": (8 * MIB, 200),
    "container": (8 * MIB, 200),
    "JVM but heap": (64 * MIB, 1000),
    "alive": (8 * MIB, 300),
    "all but heap": (96 * MIB, 1500),
    "log": (1 * MIB, 0),  # the container's: it says nothing about single batches
}
SHOWN = (
    "supervisor",
    "container",
    "workers",
    "JVM but heap",
    "heap",
    "alive",
    "all but heap",
    "log",
    "cgroup",
    "with cache",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--mib", type=int, default=2048)
    chosen = parser.parse_args()
    before = machine_kills()
    with ExitStack() as stack:
        cgroup = stack.enter_context(Cgroup("soak", chosen.mib))
        emulator = stack.enter_context(Azurite())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet = Members(
            made(directory, PIPELINE, MORE),
            directory / "logs",
            {VARIABLE: emulator.connection_string},
            {"p0": cgroup},
        )
        stack.callback(fleet.stop)
        account = Account.from_config(fleet.config.storage)
        stack.callback(account.close)
        account.ensure_created()
        writers = [SourceWriter.of(fleet.config, account, stream) for stream in ("left", "right")]
        fleet.start("p0")
        fleet.wait_until("the task runs", lambda shown: [each["phase"] for each in shown["tasks"]] == ["RUNNING"], 180)
        print(*re.findall(r"Java's heap of at most.*", fleet.log_file("p0").read_text()), flush=True)
        found = soak(fleet, cgroup, writers, chosen.minutes * 60)
        fleet.send("p0", signal.SIGTERM)
        assert fleet.exit_codes(PATIENCE_S) == {"p0": 0}
        outside = machine_kills() - before - cgroup.kills
        print(f"killed by the kernel: {cgroup.kills} in the cgroup, {outside} elsewhere on the machine")
        assert cgroup.kills == 0
        return judged(found, ALLOWED)


def soak(
    fleet: Members, cgroup: Cgroup, writers: list[SourceWriter], seconds: float
) -> dict[str, list[tuple[int, float]]]:
    """Produce one second of both streams after the other, for `seconds`; return what was seen, by batch."""
    tree = processes(fleet)
    heap = heap_of(tree[2])
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in ALLOWED}
    print("".join(f"{name:>13}" for name in ("seconds", "batch", *SHOWN)), "MiB")
    begun, second, sampled, waits_for = time.monotonic(), 0, 0, 0
    while (after := time.monotonic() - begun) < seconds:
        if second >= waits_for + AHEAD:  # on a busy machine the streams wait, instead of making batches ever larger
            fleet.wait_until("the task has read", has_read, PATIENCE_S)
            waits_for = second
        rows = [{"key": f"key-{number}", "ts": START + timedelta(seconds=second)} for number in range(500)]
        for writer in writers:
            writer.write(pa.Table.from_pylist(rows, schema=SCHEMA))
            writer.flush()
        second += 1
        if after >= sampled * seconds / SAMPLES:
            sampled += 1
            [task] = fleet.status()["tasks"]
            assert task["phase"] == "RUNNING", task
            assert processes(fleet)[:3] == tree[:3], "a process was replaced"
            seen, batch = figures(fleet, cgroup, heap), task["batch"] or 0
            for name in ALLOWED:
                found[name].append((batch, seen[name]))
            print(f"{after:>13,.0f}{batch:>13,}" + "".join(f"{seen[name] / MIB:>13,.1f}" for name in SHOWN), flush=True)
        time.sleep(PACE_S)  # the pace of the streams
    return found


def has_read(shown: dict[str, Any]) -> bool:
    """Whether the task has read all of both streams."""
    [task] = shown["tasks"]
    behind = (task["progress"] or {}).get("behind", {})
    return len(behind) == 2 and not any(behind.values())


def processes(fleet: Members) -> list[psutil.Process]:
    """The supervisor, its container, the container's JVM, and their Python workers."""
    supervisor = psutil.Process(fleet.processes["p0"].pid)
    others = supervisor.children(recursive=True)
    container = next(each for each in others if "samza_azure.container" in each.cmdline())
    jvm = next(each for each in others if not {SUBMIT, GATEWAY}.isdisjoint(each.cmdline()))
    return [supervisor, container, jvm, *(each for each in others if each not in (container, jvm))]


def heap_of(jvm: psutil.Process) -> range:
    """The addresses that its heap may have."""
    told = jcmd(jvm, "GC.heap_info")
    ends = [int(end, 16) for both in re.findall(r"generation .*\[(0x\w+), 0x\w+, (0x\w+)\)", told) for end in both]
    assert len(ends) == 4, told
    return range(min(ends), max(ends))


def jcmd(jvm: psutil.Process, *command: str) -> str:
    """What the JVM answers."""
    program = [str(Path(jvm.exe()).with_name("jcmd")), str(jvm.pid), *command]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout


def figures(fleet: Members, cgroup: Cgroup, addresses: range) -> dict[str, float]:
    """What is in memory after a collection, in bytes."""
    supervisor, container, jvm, *workers = processes(fleet)
    alive = int(jcmd(jvm, "GC.class_histogram").split()[-1])  # its last line is the total
    maps = [(int(each.addr.split("-")[0], 16), each.rss) for each in jvm.memory_maps(grouped=False)]
    heap = sum(rss for address, rss in maps if address in addresses)
    used = cgroup.used
    return {
        "supervisor": supervisor.memory_info().rss,
        "container": container.memory_info().rss,
        "workers": sum(map(resident, workers)),
        "JVM but heap": sum(rss for _, rss in maps) - heap,
        "heap": heap,
        "alive": alive,
        "all but heap": used - heap,
        "log": sum(each.stat().st_size for each in fleet.job.parent.rglob("container.log*")),
        "cgroup": used,
        "with cache": cgroup.used_with_cache,
    }


def resident(worker: psutil.Process) -> int:
    """0 if it has ended: a worker that plans batches is one of its own each time."""
    with suppress(psutil.NoSuchProcess):
        return int(worker.memory_info().rss)
    return 0


if __name__ == "__main__":
    sys.exit(main())
