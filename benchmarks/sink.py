"""What a table costs the pipeline whose stream it is: the example with its sinks running and not, in one container.

The rows come in parts. For each part the sinks run, or they do not, in the order off, on, on, off; so both ways meet
the same Java, as warm as it is. Measured is the processor time of a part, from its first row until the second stage has
read all of it and the sinks, if they run, have published all that there is. All its rows are in the source before.

The output of the example is small beside its input, as that of most jobs. All rows are of two years, and the table is
divided by years: an interval a publish, or two, as in a job whose event time goes by like the clock. It is published
every second; the default is a minute.
"""

import time

import pyarrow as pa
import pyarrow.compute as pc
from common import EXAMPLE, PATIENCE_S, Claim, Container, cpu_s, flights, main, middle, say, world
from drain_backlog import started
from throughput import Speed, kept, produce

from samza_azure.messages import Phase, StagePlan

#: A sink may take so much of the pipeline's throughput.
MORE = 0.03
#: This part of the rows goes before, so that Java has compiled what there is to compile.
WARM = 0.25
ORDER = (False, True, True, False) * 2

DAY = '.withColumn("day", F.col("window.start"))'
OUTPUT = """
[streams.daily-delays]
table.time = "day"
table = "daily_delays"
table.granularity = "year"
table.flush = "1 second"
"""


def measure(quick: bool) -> list[Claim]:
    """Several containers, one after the other."""
    years, rounds = (8, 1) if quick else (32, 3)
    rows, job = squeezed(flights(years), years / 2), (EXAMPLE / "job.toml").read_text() + OUTPUT
    found = [in_parts(job, rows) for _ in range(rounds)]
    more = middle([cost(each) for each in found])
    claims = []
    for runs in (False, True):
        speeds = [speed for each in found for speed in each[runs]]
        clock, processor = (middle([getattr(speed, by) for speed in speeds]) for by in ("by_clock", "by_processor"))
        name = f"both stages, the sinks of their output {'run' if runs else 'do not run'}"
        claims.append(Claim(name, f"{clock:,.0f} rows/s, {processor:,.0f} per CPU second"))
    each = ", ".join(f"{cost(each):+.1%}" for each in found)
    return [
        *claims,
        Claim(f"sinks take of the CPU time (containers: {each})", f"{more:+.1%}", f"{MORE:.0%}", more <= MORE),
    ]


def cost(speeds: dict[bool, list[Speed]]) -> float:
    """How much more processor time a row takes in a container while the sinks run: its parts have one size."""
    off, on = (sum(1 / speed.by_processor for speed in speeds[runs]) for runs in (False, True))
    return on / off - 1


def squeezed(rows: pa.Table, times: float) -> pa.Table:
    """The same rows in so many times less event time."""
    at, place = rows["ts"], rows.column_names.index("ts")
    first = pc.min(at).cast(pa.int64()).as_py()
    since = pc.subtract(at.cast(pa.int64()), first)
    fewer = pc.add(pc.floor(pc.divide(since.cast(pa.float64()), times)).cast(pa.int64()), first)
    return rows.set_column(place, "ts", fewer.cast(at.type))


class Sinks:
    """The sinks of a container, and what they have published."""

    def __init__(self, container: Container, stages: tuple[StagePlan, ...]) -> None:
        self._container = container
        self._stage = next(stage for stage in stages if stage.table)
        self._source = next(stage for stage in stages if stage.output == self._stage.inputs[0])
        self.tasks = names(self._stage)
        self._life, self._before = 1, 0

    def has_published(self) -> bool:
        """Whether all rows of their stream are in the table. A life of theirs counts its own rows."""
        return self._rows_out(self._stage) == self._rows_out(self._source) - self._before

    def start(self) -> None:
        """Another life; it has published what came meanwhile when this returns."""
        self._life += 1
        for task in self.tasks:
            self._container.start(task, self._life, first=False)
        self._container.until("sinks run", lambda: self._are(Phase.RUNNING))
        self._container.until("sinks have published", self.has_published, PATIENCE_S)

    def release(self) -> None:
        """They have published all that there is, and end."""
        self._container.until("sinks have published", self.has_published, PATIENCE_S)
        for task in self.tasks:
            self._container.release(task)
        self._container.until("sinks are released", lambda: self._are(Phase.RELEASED))
        self._before += self._rows_out(self._stage)

    def _are(self, phase: Phase) -> bool:
        return all(self._container.phase(task, self._life) is phase for task in self.tasks)

    def _rows_out(self, stage: StagePlan) -> int:
        progress = (self._container.reports[task].progress for task in names(stage))
        return sum(known.rows_out for known in progress if known is not None)


def names(stage: StagePlan) -> list[str]:
    """Its tasks."""
    return [f"{stage.name}-{number}" for number in range(stage.tasks)]


def in_parts(job: str, rows: pa.Table) -> dict[bool, list[Speed]]:
    """One container that reads all these rows; how fast, with its sinks running and not."""
    pipeline = (EXAMPLE / "pipeline.py").read_text()
    pipeline = pipeline.replace('F.avg("dep_delay").alias("delay"))', 'F.avg("dep_delay").alias("delay"))' + DAY)
    found: dict[bool, list[Speed]] = {False: [], True: []}
    with world(job, pipeline) as around:
        container = around.container("container")
        plan = container.ready()
        started(around, plan.tasks(), container)
        sinks = Sinks(container, plan.stages)
        second = names(plan.stage_of("daily_delays-0"))

        def rows_read() -> int:
            progress = (container.reports[task].progress for task in second)
            return sum(known.rows for known in progress if known is not None)

        done = int(rows.num_rows * WARM)
        produce(around, rows.slice(0, done))
        container.until("all is read", lambda: rows_read() == kept(rows.slice(0, done)))
        sinks.release()
        size = (rows.num_rows - done) // len(ORDER)
        for runs in ORDER:
            if runs:
                sinks.start()
            container.permit(0)
            produce(around, rows.slice(done, size))
            done += size
            container.permit()
            begun, cpu = time.monotonic(), cpu_s(container.pid, around.emulator.pid)
            expected = kept(rows.slice(0, done))
            container.until("all is read", lambda expected=expected: rows_read() == expected)
            if runs:
                container.until("sinks have published", sinks.has_published, PATIENCE_S)
            seconds, cpu = time.monotonic() - begun, cpu_s(container.pid, around.emulator.pid) - cpu
            say(f"sinks {'on' if runs else 'off'}: {size:,} rows, {seconds:.2f} s, CPU {cpu:.2f} s")
            found[runs].append(Speed(size / seconds, size / cpu))
            if runs:
                sinks.release()
    return found


if __name__ == "__main__":
    main(measure, __doc__)
