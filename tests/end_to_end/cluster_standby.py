"""Two processors on a Spark cluster with dynamic allocation: one has the task, the other one waits without an executor.

The one with the task is killed (kill -9) in the midst of a batch. The other one computes on the same worker, gives its
executor back when there are no rows, takes it again, and goes to another worker when that one leaves.
"""

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from . import clusters

STREAMS = """
[streams.flights]
schema = "carrier string, ts timestamp, dep_delay double"
event_time = "ts"
[stages.clean]
partitions = 2
"""
#: One executor for two parts of a batch: when it has computed one of them and leaves, the other one waits for the next.
ALLOCATION = """
dynamicAllocation.enabled = true
dynamicAllocation.maxExecutors = 1
dynamicAllocation.executorIdleTimeout = "2s"
"""
NAMES = ("p0", "p1")


class Standby(clusters.Trial):
    """A trial with two processors, of which one has the only task."""

    def apps(self) -> list[dict[str, Any]]:
        """The applications that the master has, the oldest first."""
        return sorted(self.cluster.asked().get("activeapps", []), key=lambda each: each["starttime"])

    def cores(self) -> list[int]:
        """How many cores each of them has."""
        return [each["cores"] for each in self.apps()]

    def decommission_daemon(self, number: int) -> None:
        """Tell a worker to leave as one of Spark's own is told: it gets no more executors, and its process stays."""
        below = psutil.Process(self.cluster.workers[number].pid).children(recursive=True)
        [daemon] = [each for each in below if "org.apache.spark.deploy.worker.Worker" in each.cmdline()]
        daemon.send_signal(signal.SIGPWR)
        self.cluster.until("decommissioned", lambda: self.cluster.know_that_leave({f"127.0.0.{number}"}))

    def is_idle(self) -> bool:
        """Whether the only application has no executor."""
        return self.cores() == [0]


def play(folder: Path, flights: pa.Table, rows: int) -> None:
    """One run, from the start to a drain."""
    trial = Standby(folder, flights, "memory", more=ALLOCATION)
    module = clusters.PIPELINE.partition('\n\n@app.stage("by-carrier"')[0]
    trial.world.carries(STREAMS, module.replace("HOLD", repr(str(folder / "hold"))))
    cluster, world, part = trial.cluster, trial.world, rows // 3
    try:
        cluster.add(2)
        world.start("p0")
        world.fleet.start("p1")
        world.settled(lambda shown: sum(each["ready"] for each in shown["processors"]) == 2)
        trial.say("one processor has the task, the other one stands by")
        trial.hold_batch(part)
        assert trial.cores() == [1, 0]
        at = time.monotonic()
        world.signal_tree("p0", signal.SIGKILL)
        trial.free_batch()
        cluster.until("an executor of the standby's", lambda: trial.cores() == [1])
        trial.say(
            f"kill -9 of the processor with the task: the other one has its core after {time.monotonic() - at:.1f} s"
        )
        world.exact()
        trial.say(f"exact after {time.monotonic() - at:.1f} s")
        cluster.until("no executor without rows", trial.is_idle)
        trial.driver = clusters.Driver(trial.page + 1)  # of two on a machine, the second one
        trial.hold_batch(part)
        cluster.add(3)
        trial.decommission_daemon(2)
        trial.free_batch()
        world.exact()
        trial.say(f"the worker of a batch has left; {trial.driver.failed()} tasks and stages failed")
        cluster.until("no executor without rows", trial.is_idle)
        world.produce(part)
        world.exact()
        assert world.drained() == {"p0": -signal.SIGKILL, "p1": 0}
    finally:
        trial.close()
