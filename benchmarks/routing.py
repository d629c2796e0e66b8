"""What a stream costs that the system puts in front of a stage, beside the same stage written by hand.

One stage groups flights by their carrier, and the source stream is not produced by it. Either the system routes the
rows, or a stage of the user's own does. Both have the same tasks on one container, and the same rows.
"""

from common import EXAMPLE, Claim, flights, main, middle
from throughput import Speed, speed_of

#: The added stream may cost this much more than the hand-written stage.
MORE = 0.05

HEAD = """
from pyspark.sql import functions as F
from samza_azure import Application

app = Application()
"""
BY_HAND = """
@app.stage("flights", output="by-carrier", partition_by="carrier")
def routed(flights):
    return flights
"""
COUNT = """
@app.stage("{stream}", output="daily-delays")
def daily_delays(rows):
    days = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "carrier")
    return days.agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay"))
"""
#: The pipeline and the stage that passes the rows on, by its author.
WAYS = {
    "the system": (HEAD + COUNT.format(stream="flights"), "daily_delays-flights"),
    "by hand": (HEAD + BY_HAND + COUNT.format(stream="by-carrier"), "routed"),
}


def measure(quick: bool) -> list[Claim]:
    """Each way in turn, several times."""
    years, rounds = (2, 1) if quick else (8, 5)
    rows, job = flights(years), (EXAMPLE / "job.toml").read_text()
    found: dict[str, list[Speed]] = {name: [] for name in WAYS}
    for number in range(rounds):
        for name in WAYS if number % 2 == 0 else reversed(WAYS):
            pipeline, first = WAYS[name]
            needed = job if first == "routed" else job[: job.index("[streams.by-carrier]")]
            found[name].append(speed_of(name, needed, pipeline, rows, first, kept=lambda part: part.num_rows))
    clock = {name: middle([speed.by_clock for speed in speeds]) for name, speeds in found.items()}
    processor = {name: middle([speed.by_processor for speed in speeds]) for name, speeds in found.items()}
    more = processor["by hand"] / processor["the system"] - 1
    return [
        *(
            Claim(
                f"one stage over an unkeyed source, routed by {'hand' if name == 'by hand' else name}",
                f"{clock[name]:,.0f} rows/s, {processor[name]:,.0f} per CPU second",
            )
            for name in WAYS
        ),
        Claim("the system's way costs more CPU time by", f"{more:+.1%}", f"{MORE:.0%}", more <= MORE),
    ]


if __name__ == "__main__":
    main(measure, __doc__)
