"""What a table costs the pipeline whose stream it is: the example with and without, in one container.

Measured is the processor time from the first row until a drain has ended, in which everything is published. A quarter
of the rows goes before; the others are all in the source then. The output of the example is small beside its input, as
that of most jobs; the stream between its stages has every row, and no goal. All rows are of two years, and a table is
divided by years: an interval a publish, or two, as in a job whose event time goes by like the clock. It is published
every second.
"""

import time

import pyarrow as pa
import pyarrow.compute as pc
from common import EXAMPLE, PATIENCE_S, Claim, Container, cpu_s, flights, main, middle, say, world
from drain_backlog import all_drained, freeze, run, tell, wait_until_written
from throughput import WARM, Speed, batches, kept, produce, wait_for

from samza_azure.messages import Drain, DrainStep, Plan, StagePlan

#: A sink may take so much of the pipeline's throughput.
MORE = 0.03

DAY = '.withColumn("day", F.col("window.start"))'
PUBLISHED = 'table.granularity = "year"\ntable.flush = "1 second"\n'
OUTPUT = f'\n[streams.daily-delays]\ntable.time = "day"\ntable = "daily_delays"\n{PUBLISHED}'
BETWEEN = f'table.time = "ts"\ntable = "rows"\n{PUBLISHED}'
EVERY = "every row of the stream between as a table"


def measure(quick: bool) -> list[Claim]:
    """Each way in turn, several times."""
    years, rounds = (8, 1) if quick else (24, 4)
    rows, job = squeezed(flights(years), years / 2), (EXAMPLE / "job.toml").read_text()
    pipeline = (
        (EXAMPLE / "pipeline.py")
        .read_text()
        .replace('F.avg("dep_delay").alias("delay"))', 'F.avg("dep_delay").alias("delay"))' + DAY)
    )
    ways = {"no table": job, "its output as a table": job + OUTPUT, EVERY: job.rstrip() + "\n" + BETWEEN}
    found: dict[str, list[Speed]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            if name != EVERY or number == 0:
                found[name].append(until_drained(name, ways[name], pipeline, rows))
    clock = {name: middle([speed.by_clock for speed in speeds]) for name, speeds in found.items()}
    processor = {name: middle([speed.by_processor for speed in speeds]) for name, speeds in found.items()}
    plain, small, every = (processor[name] for name in ways)
    return [
        *(
            Claim(f"both stages, {name}", f"{clock[name]:,.0f} rows/s, {processor[name]:,.0f} per CPU second")
            for name in ways
        ),
        Claim(
            "a sink of the output takes of the CPU time",
            f"{plain / small - 1:+.1%}",
            f"{MORE:.0%}",
            plain / small - 1 <= MORE,
        ),
        Claim("a sink of every row", f"{plain / every - 1:+.1%}"),
    ]


def squeezed(rows: pa.Table, times: float) -> pa.Table:
    """The same rows in so many times less event time."""
    at, place = rows["ts"], rows.column_names.index("ts")
    first = pc.min(at).cast(pa.int64()).as_py()
    since = pc.subtract(at.cast(pa.int64()), first)
    fewer = pc.add(pc.floor(pc.divide(since.cast(pa.float64()), times)).cast(pa.int64()), first)
    return rows.set_column(place, "ts", fewer.cast(at.type))


def until_drained(what: str, job: str, pipeline: str, rows: pa.Table) -> Speed:
    """One container that reads all these rows, and drains."""
    with world(job, pipeline) as around:
        container = around.container("container")
        plan = container.ready()
        run(container, plan.tasks())
        warm = rows.slice(0, int(rows.num_rows * WARM))
        produce(around, warm)
        wait_for(around, container, "clean", kept(warm))
        # A sink ends if it loses the permit while it publishes.
        container.until("sinks have published", lambda: has_published(container, plan))
        container.permit(0)
        produce(around, rows.slice(warm.num_rows))
        container.permit()
        begun, cpu = time.monotonic(), cpu_s(container.pid, around.emulator.pid)
        wait_until_written(around, container, "clean", kept(rows))
        ends = freeze(container, [task for task in plan.tasks() if task.startswith("clean-")])
        tell(container, Drain(DrainStep.FLUSH, "u", ends))
        container.until("all is drained", lambda: all_drained(container, plan.tasks()), 10 * PATIENCE_S)
        seconds, cpu = time.monotonic() - begun, cpu_s(container.pid, around.emulator.pid) - cpu
        say(f"{what}: {seconds:.2f} s, CPU {cpu:.1f} s, batches {batches(container)}")
        counted = rows.num_rows - warm.num_rows
        return Speed(counted / seconds, counted / cpu)


def has_published(container: Container, plan: Plan) -> bool:
    """Whether each sink has published all rows that its stream has."""

    def rows_out(stage: StagePlan) -> int:
        progress = (container.reports[f"{stage.name}-{number}"].progress for number in range(stage.tasks))
        return sum(known.rows_out for known in progress if known is not None)

    sources = {stage.output: stage for stage in plan.stages}
    return all(rows_out(stage) == rows_out(sources[stage.inputs[0]]) for stage in plan.stages if stage.table)


if __name__ == "__main__":
    main(measure, __doc__)
