"""What a table costs the pipeline whose stream it is: the example with its sinks running and not, in one container.

The rows come in parts. For each part the sinks run, or they do not, in the order off, on, on, off; so both ways meet
the same Java, as warm as it is. All rows of a part are in the source when it begins. The clock runs until the second
stage has read them all; the processor time is counted for as long as the sinks take to publish as well. Java alone
takes a fifth more for one part than for another. So the share of the sinks is what the processes take more in which
they work: the container's Python and the emulator.

The output of the example is small beside its input, as that of most jobs. All rows are of two years, and the table is
divided by years: an interval a publish, or two, as in a job whose event time goes by like the clock. A sink publishes
every ten seconds; the default is a minute. A publish costs the same whatever it holds, if it is small.
"""

import time
from functools import partial
from typing import NamedTuple

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from common import EXAMPLE, BenchJob, Claim, Container, Written, bench_job, cpu_s, flights, main, say
from drain_backlog import tell
from throughput import POLL_S, TASKS, has_read, kept, produce

from samza_azure.messages import Drain, DrainStep, Phase, StagePlan, TaskKind

#: A sink may take this part of the pipeline's throughput.
MORE = 0.03
#: This part of the rows goes before, so that Java has compiled what there is to compile.
WARM = 0.1
ORDER = (False, True, True, False)
FLUSH_S = 10.0
#: Rows are published at most this many seconds after they were read.
PUBLISHED_S = FLUSH_S + 1

DAY = '.withColumn("day", F.col("window.start"))'
OUTPUT = f"""
[streams.daily-delays]
table.time = "day"
table = "daily_delays"
table.granularity = "year"
table.flush = "{FLUSH_S:.0f} seconds"
"""


class Part(NamedTuple):
    """Some rows: until they are read by the clock; processor time of all, and of the processes that sinks work in."""

    rows: int
    seconds: float
    cpu_s: float
    python_s: float


Parts = dict[bool, list[Part]]


def measure(quick: bool) -> list[Claim]:
    """Several containers, one after the other."""
    years, rounds = (8, 1) if quick else (128, 2)
    rows, job = squeezed(flights(years), years / 2), (EXAMPLE / "job.toml").read_text() + OUTPUT
    each = [in_parts(job, rows) for _ in range(rounds)]
    found = {runs: [part for parts in each for part in parts[runs]] for runs in (False, True)}
    off, on = (Part(*map(sum, zip(*found[runs], strict=True))) for runs in (False, True))
    containers = ", ".join(f"{share(parts):+.1%}" for parts in each)
    return [
        *(
            Claim(
                f"both stages, the sinks of their output {'run' if part is on else 'do not run'}",
                f"{part.rows / part.seconds:,.0f} rows/s, {part.rows / part.cpu_s:,.0f} per CPU second",
            )
            for part in (off, on)
        ),
        Claim("  that is more of the clock", f"{on.seconds / off.seconds - 1:+.1%}"),
        Claim("  and of all processor time", f"{on.cpu_s / off.cpu_s - 1:+.1%}"),
        Claim(
            f"sinks take of the processor time (containers: {containers})",
            f"{share(found):+.1%}",
            f"{MORE:.0%}",
            share(found) <= MORE,
        ),
    ]


def share(parts: Parts) -> float:
    """What is taken more in the sinks' processes while they run, of all that is taken while they do not."""
    more = sum(part.python_s for part in parts[True]) - sum(part.python_s for part in parts[False])
    return more / sum(part.cpu_s for part in parts[False])


def squeezed(rows: pa.Table, times: float) -> pa.Table:
    """The same rows in an event time that is shorter by this factor."""
    at, place = rows["ts"], rows.column_names.index("ts")
    first = pc.min(at).cast(pa.int64()).as_py()
    since = pc.subtract(at.cast(pa.int64()), first)
    fewer = pc.add(pc.floor(pc.divide(since.cast(pa.float64()), times)).cast(pa.int64()), first)
    return rows.set_column(place, "ts", fewer.cast(at.type))


def is_over(end: float) -> bool:
    """Whether this moment is over."""
    return time.monotonic() > end


class Pipeline:
    """The example's two stages in a container, and the sinks of their output, which run or do not."""

    def __init__(self, around: BenchJob, container: Container, stages: tuple[StagePlan, ...]) -> None:
        self._container, self._emulator = container, around.emulator.pid
        self._between, self._out = (Written(around, stage, TASKS) for stage in ("clean", "daily_delays"))
        self._sinks = next(
            [f"{stage.name}-{number}" for number in range(stage.tasks)]
            for stage in stages
            if stage.kind is TaskKind.TABLE
        )
        self._life, self._before = 1, 0

    def read(self, expected: int) -> None:
        """Wait until the second stage has appended a batch that has read this many rows."""

        def all_read() -> bool:
            if self._between.reaches(expected) and all(
                has_read(self._container, f"daily_delays-{number}", self._between.ends) for number in range(TASKS)
            ):
                return True
            time.sleep(POLL_S)
            return False

        self._container.until("all is read", all_read)

    def freeze(self, uuid: str) -> None:
        """The first stage reads nothing more until the drain is called off."""
        tasks = [f"clean-{number}" for number in range(TASKS)]
        tell(self._container, Drain(DrainStep.FREEZE, uuid))
        reports = self._container.reports
        self._container.until("all stand still", lambda: all(reports[task].frozen_for == uuid for task in tasks))

    def start(self) -> None:
        """Another life of the sinks; it has published what came meanwhile when this returns."""
        self._life += 1
        for task in self._sinks:
            self._container.start(task, self._life, first=False)
        self._container.until("sinks run", lambda: self._are(Phase.RUNNING))
        self.publish()

    def publish(self) -> None:
        """Until all rows of their stream are in the table. A life of theirs counts its own rows."""
        self._out.reaches(self._out.rows + 1)
        self._container.until("sinks have published", lambda: self._before + self._published() >= self._out.rows)

    def release(self) -> None:
        """They have published all that there is, and end."""
        self.publish()
        for task in self._sinks:
            self._container.release(task)
        self._container.until("sinks are released", lambda: self._are(Phase.RELEASED))
        self._before += self._published()

    def python_s(self) -> float:
        """Processor time so far of the processes in which sinks work."""
        times = (psutil.Process(number).cpu_times() for number in (self._container.pid, self._emulator))
        return sum(time.user + time.system for time in times)

    def _are(self, phase: Phase) -> bool:
        return all(self._container.phase(task, self._life) is phase for task in self._sinks)

    def _published(self) -> int:
        reports = (self._container.reports[task] for task in self._sinks)
        return sum(report.progress.rows_out for report in reports if report.progress is not None)


def in_parts(job: str, rows: pa.Table) -> Parts:
    """One container that reads all these rows; how fast, with its sinks running and not."""
    pipeline = (EXAMPLE / "pipeline.py").read_text()
    pipeline = pipeline.replace('F.avg("dep_delay").alias("delay"))', 'F.avg("dep_delay").alias("delay"))' + DAY)
    found: Parts = {False: [], True: []}
    with bench_job(job, pipeline) as around:
        container = around.container("container")
        plan = container.ready()
        container.run(plan.tasks())
        stages = Pipeline(around, container, plan.stages)
        done = int(rows.num_rows * WARM)
        produce(around, rows.slice(0, done))
        stages.read(kept(rows.slice(0, done)))
        stages.release()
        size = (rows.num_rows - done) // len(ORDER)
        for number, runs in enumerate(ORDER):
            if runs:
                stages.start()
            stages.freeze(f"part {number}")
            produce(around, rows.slice(done, size))
            done += size
            expected = kept(rows.slice(0, done))
            tell(container, Drain(None))
            begun, cpu, python = time.monotonic(), cpu_s(container.pid, around.emulator.pid), stages.python_s()
            stages.read(expected)
            seconds = time.monotonic() - begun
            container.until("sinks would have published", partial(is_over, time.monotonic() + PUBLISHED_S))
            if runs:
                stages.publish()
            cpu, python = cpu_s(container.pid, around.emulator.pid) - cpu, stages.python_s() - python
            way = "on" if runs else "off"
            say(f"sinks {way}: {size:,} rows, {seconds:.2f} s, CPU {cpu:.2f} s, Python and emulator {python:.2f} s")
            found[runs].append(Part(size, seconds, cpu, python))
            if runs:
                stages.release()
    return found


if __name__ == "__main__":
    main(measure, __doc__)
