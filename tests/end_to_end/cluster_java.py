"""Executors with another Java than the processor's compute nothing, whether they are the first ones or come later."""

import os
from pathlib import Path

import pyarrow as pa

from samza_azure.spark.jvm.java import Java, find_java

from . import clusters

#: A stage without state and one with it, which read the same stream. Neither calls a function of Python.
PIPELINE = """from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure import Application

app = Application()


@app.stage("flights", output="by-carrier")
def clean(flights: DataFrame) -> DataFrame:
    return flights.where("dep_delay IS NOT NULL")


@app.stage("flights", output="daily-delays")
def daily_delays(flights: DataFrame) -> DataFrame:
    return (
        flights.where("dep_delay IS NOT NULL")
        .withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 day"), "carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay"))
    )
"""


def play(folder: Path, flights: pa.Table, rows: int, other: Java) -> None:
    """First the only worker has the other Java. One comes that has the processor's, and all goes on. It leaves, and the
    executor that takes the place of its own has the other one again.
    """
    needed = find_java(os.environ).major
    trial = clusters.Trial(folder, flights, "memory", cores=1, shown=False)
    trial.world.carries(clusters.WINDOWS_STREAMS, PIPELINE)
    job = trial.world.fleet.job
    job.write_text(job.read_text().replace("[task]", "[task]\nrestart.limit = 100", 1))  # a worker takes long to start

    def refuses(worker: int) -> None:
        said: dict[str, str] = {}

        def is_said() -> bool:
            assert "p0" in trial.world.fleet.alive()
            told = trial.errors_by_stage().items()
            said.update({stage: message for stage, message in told if f" (127.0.0.{worker} executor " in message})
            return said.keys() >= {"clean", "daily_delays"}

        before = trial.world.stream("by-carrier").num_rows if trial.world.produced else 0
        trial.world.produce(rows // 2)
        trial.cluster.until("errors of both stages", is_said)
        for stage, message in said.items():
            trial.say(f"{stage}: {message}")
            assert message.startswith(f"An executor has Java {other.major}, and the processor has Java {needed}. ")
        assert trial.world.stream("by-carrier").num_rows == before

    def computes(worker: int) -> None:
        trial.world.exact()
        trial.all_is_read()  # by the other stage, too, which emits less
        trial.say(f"worker {worker}, with the processor's Java, has computed all")

    try:
        trial.cluster.add(2, java=other)
        trial.world.fleet.start("p0")
        refuses(2)
        trial.cluster.add(3)
        trial.cluster.kill(2)
        computes(3)
        trial.cluster.add(4, java=other)
        trial.cluster.kill(3)
        refuses(4)
        trial.cluster.add(5)
        trial.cluster.kill(4)
        computes(5)
        trial.drained()
    finally:
        trial.close()
