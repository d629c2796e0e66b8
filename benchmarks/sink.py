"""What a table costs the pipeline whose stream it is: the example with and without, in one container.

The output of the example is small beside its input, as that of most jobs. The stream between its stages has every row.
The tables are published every five seconds: with the minute of the default a run would be over before the first
publish. All rows are of two years, and a table is divided by years: an interval a publish, or two, as in a job whose
event time goes by like the clock.
"""

import pyarrow as pa
import pyarrow.compute as pc
from common import EXAMPLE, Claim, flights, main, middle
from throughput import Speed, kept, speed_of

#: A sink may take so much of the pipeline's throughput.
MORE = 0.03

DAY = '.withColumn("day", F.col("window.start"))'
PUBLISHED = 'table.granularity = "year"\ntable.flush = "5 seconds"\n'
OUTPUT = f'\n[streams.daily-delays]\ntable.time = "day"\ntable = "daily_delays"\n{PUBLISHED}'
BETWEEN = f'table.time = "ts"\ntable = "rows"\n{PUBLISHED}'


def squeezed(rows: pa.Table, times: float) -> pa.Table:
    """The same rows in so many times less event time."""
    at, place = rows["ts"], rows.column_names.index("ts")
    first = pc.min(at).cast(pa.int64()).as_py()
    since = pc.subtract(at.cast(pa.int64()), first)
    fewer = pc.add(pc.floor(pc.divide(since.cast(pa.float64()), times)).cast(pa.int64()), first)
    return rows.set_column(place, "ts", fewer.cast(at.type))


def measure(quick: bool) -> list[Claim]:
    """Each way in turn, several times."""
    years, rounds = (8, 1) if quick else (16, 5)
    rows, job = squeezed(flights(years), years / 2), (EXAMPLE / "job.toml").read_text()
    pipeline = (
        (EXAMPLE / "pipeline.py")
        .read_text()
        .replace('F.avg("dep_delay").alias("delay"))', 'F.avg("dep_delay").alias("delay"))' + DAY)
    )
    ways = {
        "no table": job,
        "its output as a table": job + OUTPUT,
        "every row of the stream between as a table": job.rstrip() + "\n" + BETWEEN,
    }
    found: dict[str, list[Speed]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            found[name].append(speed_of(name, ways[name], pipeline, rows, "clean", kept))
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


if __name__ == "__main__":
    main(measure, __doc__)
