"""Workers of a Spark cluster leave, told beforehand, or die: between batches, in the midst, two at once, the last one.

What a departure must not cost is counted by Spark's own figures: tasks that failed, tasks and stages that ran again.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa

from . import clusters
from .cluster_stages import PIPELINE, STREAMS, Struck
from .real_processes import daily, daily_rows

#: The stage whose batch is under way: rows are read, shuffled into two partitions, and counted there.
STAGE = "daily_delays"


@dataclass(frozen=True, slots=True)
class Cost:
    """What Spark had to do twice."""

    failed: int  # tasks, without those that an executor that leaves has turned away: these had computed nothing
    killed: int  # tasks
    stages_again: int
    outputs_again: int  # computed again since their executor had taken them along

    def __sub__(self, before: "Cost") -> "Cost":
        return Cost(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(Cost)))


class Leaving(Struck):
    """A trial whose workers leave."""

    def cost(self) -> Cost:
        """So far."""
        stages = self.driver.asked("stages")
        ran = Counter(frozenset(each["rddIds"]) for each in stages if each["status"] == "COMPLETE")
        return Cost(
            sum(each["numFailedTasks"] for each in stages) - clusters.turned_away(self.failures()),
            sum(each["numKilledTasks"] for each in stages),
            sum(each["attemptId"] > 0 for each in stages),
            sum(number - 1 for number in ran.values()),
        )

    def case(self, what: str, rows: int, act: Callable[[int], None], *, held: bool, told: bool) -> None:
        """Do something to workers, in the midst of a batch if it is `held`. If they were told, nothing is lost."""
        before, known = self.cost(), self.failures()
        number = self.held(STAGE, rows) if held else self.at_work()
        begun = time.monotonic()
        act(number)
        self.free(STAGE)
        if not held:
            self.world.produce(rows)
        self.world.exact()
        self.all_is_read()
        cost = self.cost() - before
        self.say(f"{what}: all is appended after {time.monotonic() - begun:.0f} s; {cost}")
        failures = [str(each) for each in self.failures() if each not in known]
        for each in failures:
            self.say(each)
        assert not told or cost == Cost(0, 0, 0, 0), f"{what}: {cost}: {failures}"

    def at_work(self) -> int:
        """A worker that has an executor."""
        return next(number for number in self.cluster.workers if self.cluster.executors(number))

    def leave(self, *numbers: int) -> None:
        """Tell workers to leave, let their batches go on, and wait until they have gone."""
        workers = [self.cluster.workers.pop(number) for number in numbers]
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        addresses = {f"127.0.0.{number}" for number in numbers}
        self.cluster.until("decommissioned", lambda: self.cluster.know_that_leave(addresses))
        self.free(STAGE)
        assert [worker.wait(300) for worker in workers] == [0] * len(workers), self.cluster.said()

    def kill(self, *numbers: int) -> None:
        """Kill them instead."""
        for number in numbers:
            self.cluster.kill(number)

    def left_behind(self) -> int:
        """How many files the container keeps for executors that have left."""
        return sum(each.is_file() for each in self.world.directory.glob("**/shuffled/**/*"))


def play(folder: Path, flights: pa.Table, rows: int, state: str, *, hidden: bool = False) -> None:
    """Each case told beforehand and by kill -9, then a drain."""
    trial = Leaving(folder, flights, state, hidden=hidden)
    pipeline = PIPELINE.partition('\n\n@app.stage("by-carrier", output="sessions")')[0]
    streams = STREAMS.replace("[stages.joined]\npartitions = 2\n", "")
    trial.world.carries(streams, pipeline.replace("HOLD", repr(str(folder / "hold"))))
    cluster, part = trial.cluster, rows // 8
    try:
        trial.start()
        for told in (True, False):
            go = trial.leave if told else trial.kill
            how = "told beforehand" if told else "kill -9"
            trial.case(f"between batches, {how}", part, go, held=False, told=told)
            cluster.add(max(cluster.numbers) + 1)
            trial.case(f"in mid-batch, {how}", part, go, held=True, told=told)
            cluster.add(*(max(cluster.numbers) + each for each in (1, 2, 3)))
            first, second = [number for number in cluster.workers if cluster.executors(number)][:2]
            trial.case(
                f"two at once in mid-batch, {how}",
                part,
                lambda _, two=(first, second), go=go: go(*two),
                held=True,
                told=told,
            )
            go(*[*cluster.workers][1:])  # between batches: one is left
            trial.cluster.until("one executor", lambda: len(trial.driver.executors()) == 1)

            def last(number: int, go: Callable[[int], None] = go, told: bool = told) -> None:
                go(number)
                assert not cluster.workers
                left = trial.left_behind()
                trial.say(f"{left} files were left with the container")
                assert bool(left) == told
                cluster.add(max(cluster.numbers) + 1)

            trial.case(f"the last worker in mid-batch, {how}", part, last, held=True, told=told)
            cluster.until("nothing of it is left", lambda: not trial.left_behind())
            cluster.add(max(cluster.numbers) + 1)
        assert trial.world.drained() == {"p0": 0}
        assert daily_rows(trial.world.stream("daily-delays")) == daily(flights.slice(0, trial.world.produced))
        trial.say(f"drained: {trial.world.produced:,} rows with state in {state} are equal to the batch")
    finally:
        trial.close()
