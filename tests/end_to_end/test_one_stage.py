"""The first job that everybody writes: one stage that groups by a column which the source is not partitioned by."""

import re
import signal
import time
import urllib.request

import pytest

from .real_processes import PARTITIONS, PATIENCE_S, JobOnAzurite, daily, daily_rows

ONE_STAGE = """from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure import Application

spark = SparkSession.builder.appName("delays").getOrCreate()  # as every script has it
app = Application()


@app.stage("flights", output="daily-delays")
def daily_delays(flights: DataFrame) -> DataFrame:
    return (
        flights.where("dep_delay IS NOT NULL")
        .withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 day"), "carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay"))
    )
"""


def answer(world: JobOnAzurite, name: str, route: str) -> int:
    """The status that a processor answers with, at the port that it has named in its log."""
    port = re.findall(r"health on 127\.0\.0\.1, port (\d+)", world.fleet.log_file(name).read_text())[-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{route}", timeout=10) as said:
        return int(said.status)


@pytest.mark.long  # tests/spark routes its rows, tests/host asks for the health, test_faults kills a processor
def test_one_stage_on_three_processors_of_which_one_is_killed(world: JobOnAzurite) -> None:
    """Its rows are routed by carrier through an added stream, and each group is counted once."""
    (world.directory / "pipeline.py").write_text(ONE_STAGE)
    world.fleet.job.write_text(world.fleet.job.read_text() + "[processor]\nport = 0\n")
    shown = world.start("p0", "p1", "p2")
    for name in ("p0", "p1", "p2"):
        assert answer(world, name, "/livez") == answer(world, name, "/readyz") == 200
    names = {f"{stage}-{number}" for stage in ("daily_delays-flights", "daily_delays") for number in range(PARTITIONS)}
    assert {task["name"] for task in shown["tasks"]} == names
    assert "the rows of flights go to stage daily_delays through the stream daily_delays-flights, 2 partitions by" in (
        world.fleet.log_file("p0").read_text()
    )
    producer = world.producing(9_000, rate=1_500)
    world.fleet.send("p1", signal.SIGKILL)
    assert producer.wait(PATIENCE_S) == 0
    world.settled()
    deadline = time.monotonic() + PATIENCE_S
    while world.stream("daily_delays-flights").num_rows < world.produced:
        assert time.monotonic() < deadline, world.fleet.status()
        time.sleep(0.2)  # the pace of asking
    assert world.stream("daily_delays-flights").num_rows == world.produced
    assert {code for name, code in world.drained().items() if name != "p1"} == {0}
    assert daily_rows(world.stream("daily-delays")) == daily(world.flights.slice(0, world.produced))
