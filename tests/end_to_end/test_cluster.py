"""A processor whose Spark is on a cluster, through the death of an executor and the departure of a worker.

`tests/prove/cluster.py` does the same at length, with other deaths and with state in RocksDB.
"""

from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from tests.spark.another_java import another_java

from . import cluster_java, cluster_standby, cluster_told, clusters


def test_a_worker_leaves_and_an_executor_is_killed_in_mid_batch(tmp_path: Path, flights: pa.Table) -> None:
    """Without Spark's page, as processors run."""
    clusters.play_quickly(tmp_path, flights, 2_000, late=100)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_rows_and_state_on_a_cluster_are_those_of_the_batch(tmp_path: Path, flights: pa.Table) -> None:
    clusters.play(tmp_path, flights, 6_000, "rocksdb", short=True)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_standby_holds_no_executor_and_computes_where_the_killed_driver_did(
    tmp_path: Path, flights: pa.Table
) -> None:
    cluster_standby.play(tmp_path, flights, 3_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_workers_that_leave_take_no_block_along_and_are_no_failures(tmp_path: Path, flights: pa.Table) -> None:
    cluster_told.play(tmp_path, flights, 6_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_workers_without_python_compute_what_needs_none_and_say_so_of_the_rest(
    tmp_path: Path, flights: pa.Table
) -> None:
    clusters.play_without_python(tmp_path, flights, 2_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_executors_with_another_java_compute_nothing_and_the_processors_goes_on(
    tmp_path: Path, flights: pa.Table
) -> None:
    cluster_java.play(tmp_path, flights, 2_000, another_java(executes=True))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_master_that_takes_no_application_is_named(tmp_path: Path, flights: pa.Table) -> None:
    """As one of another release of Spark takes none."""
    trial = clusters.Trial(tmp_path, flights, "memory")
    try:
        trial.cluster.master.kill()
        fleet = trial.world.fleet
        fleet.start("p0")
        said = f"No master of Spark {pyspark.__version__} at {trial.cluster.url} took this application"
        trial.cluster.until("an error", lambda: said in fleet.log_file("p0").read_text())
    finally:
        trial.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_module_that_stops_the_session_is_refused_there_too(tmp_path: Path, flights: pa.Table) -> None:
    """Not taken for an application that the master has removed, which would end container after container."""
    trial = clusters.Trial(tmp_path, flights, "memory")
    try:
        pipeline = trial.world.directory / "pipeline.py"
        stop = "from pyspark.sql import SparkSession\nSparkSession.getActiveSession().stop()\n"
        pipeline.write_text(pipeline.read_text() + stop)
        fleet = trial.world.fleet
        fleet.start("p0")
        assert fleet.processes["p0"].wait(clusters.PATIENCE_S) == 2
        assert "stops the session, which the stages need" in fleet.log_file("p0").read_text()
    finally:
        trial.close()
