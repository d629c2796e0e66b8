"""A group of one as processes: drained before its start, refused to a second processor, killed and started again."""

import signal

import pyarrow as pa
import pytest

from .real_processes import PATIENCE_S, JobOnAzurite, cleaned, rows_of

RUN_ID = 'run.id = "DrainTestId"\n'
WITHOUT_SHUFFLE = """
from pyspark.sql import DataFrame

from samza_azure import Application

app = Application()


@app.stage("flights", output="kept")
def keep(flights: DataFrame) -> DataFrame:
    return flights.where("dep_delay IS NOT NULL").select("carrier", "ts", "dep_delay")
"""


@pytest.mark.long  # without processes: tests/spark/test_drain_integration.py and tests/sim/test_alone.py
def test_a_group_of_one_from_a_drain_before_its_start_to_the_end_of_its_next_run(
    tmp_path_factory: pytest.TempPathFactory, flights: pa.Table
) -> None:
    world = JobOnAzurite(tmp_path_factory.mktemp("alone"), flights)
    try:
        text = world.fleet.job.read_text().replace("AzureJobCoordinatorFactory", "PassthroughJobCoordinatorFactory")
        world.fleet.job.write_text(text.replace("[app]\n", f"[app]\n{RUN_ID}", 1))
        (world.directory / "pipeline.py").write_text(WITHOUT_SHUFFLE)
        world.produce(1_000)
        asked = world.command("drain", "--run-id", "DrainTestId")
        assert (asked.returncode, "Drain of run DrainTestId requested." in asked.stderr) == (0, True)
        world.fleet.start("p0")
        assert world.fleet.exit_codes(PATIENCE_S) == {"p0": 0}
        shown = world.fleet.status()
        assert (shown["run_id"], shown["phase"], world.stream("kept").num_rows) == ("DrainTestId", "DRAINED", 0)

        world.fleet.job.write_text(text)
        world.fleet.start("p0", "--new-run")
        world.settled(lambda shown: shown["phase"] == "RUNNING")
        world.fleet.start("p1")
        assert world.fleet.processes["p1"].wait(PATIENCE_S) == 2
        assert "p0 runs this job" in world.fleet.log_file("p1").read_text()
        world.fleet.send("p0", signal.SIGKILL)
        world.fleet.processes["p0"].wait(PATIENCE_S)
        world.produce(500)
        world.start("p0")
        drained = world.command("drain", "--when-caught-up", "--wait", "--timeout", str(PATIENCE_S))
        assert drained.returncode == 0, drained.stderr
        assert world.fleet.exit_codes(PATIENCE_S)["p0"] == 0
        assert rows_of(world.stream("kept")) == rows_of(cleaned(flights.slice(0, 1_500)))
    finally:
        world.close()
