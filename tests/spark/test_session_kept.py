"""What a stage's function creates in the session, which all stages share: it lasts for one call of the function.

Every function is called twice in the analysis and once for each task that starts, in any order.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.udtf import UserDefinedTableFunction

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.spark.pipeline.pipeline import analyse_pipeline

from .task_driver import Fleet, config_of

STREAMS = """
[streams.session-numbers]
schema = "n long"
"""
SCHEMA = pa.schema([("n", pa.int64())])
Function = Callable[[DataFrame], DataFrame]
Analyse = Callable[..., Pipeline]


@pytest.fixture(autouse=True)
def nothing_left(spark: SparkSession) -> Iterator[None]:
    """After each test the session has the names that it had before."""
    before = names(spark)
    yield
    assert names(spark) == before


def names(spark: SparkSession) -> list[str]:
    """The temporary views and functions that Spark lists."""
    views = [each.name for each in spark.catalog.listTables("global_temp")]  # and those of the session
    return sorted(views + [row[0] for row in spark.sql("SHOW USER FUNCTIONS").collect()])


class Twice:
    """A function that returns a table."""

    def eval(self, n: int) -> Iterator[tuple[int]]:
        """The same row, and once more."""
        yield (n,)
        yield (n,)


def pipeline_of(**functions: Function) -> Application:
    """Stages over the same stream, each with an output of its own."""
    application = Application()
    for name, function in functions.items():
        function.__name__ = name
        application.stage("session-numbers", output=f"{name}-rows")(function)
    return application


@pytest.fixture
def analyse(spark: SparkSession, tmp_path: Path) -> Analyse:
    """Analyses stages, of which the last is called `last`."""

    def run(*functions: Function) -> Pipeline:
        named = {f"stage_{number}": each for number, each in enumerate(functions[:-1])}
        application = pipeline_of(**named, last=functions[-1])
        return analyse_pipeline(spark, application, config_of(tmp_path, STREAMS), tmp_path / "analysis")

    return run


def test_a_name_that_two_stages_create_has_two_meanings(
    fleet: Callable[[Application, str], Fleet], spark: SparkSession
) -> None:
    """Tasks of a stage use its own views, functions and variables, whichever stage was called last."""

    def adding(more: int) -> Function:
        def stage(rows: DataFrame) -> DataFrame:
            spark.udf.register("added", lambda n: n + more, "long")
            spark.sql(f"CREATE TEMPORARY FUNCTION plus(n BIGINT) RETURNS BIGINT RETURN n + {more}")
            spark.sql(f"DECLARE VARIABLE least = {more}")
            spark.udtf.register("twice", UserDefinedTableFunction(Twice, returnType="n long"))
            spark.range(more, more + 1).createTempView("lookup")
            rows.createGlobalTempView("all_rows")
            return spark.sql(
                "SELECT n, added(n) AS a, plus(n) AS b, least AS c, (SELECT max(id) FROM lookup) AS d "
                "FROM global_temp.all_rows"
            )

        return stage

    run = fleet(pipeline_of(first=adding(10), second=adding(20)), STREAMS)
    writer = run.writer("session-numbers", 1, flush_rows=10, event_time=None)
    writer.write(pa.table({"n": [1, 2]}, SCHEMA))
    writer.close()
    run.start("second-0", "first-0")
    run.until(lambda: len(run.rows("first-rows")) == len(run.rows("second-rows")) == 2)
    for name, more in (("first", 10), ("second", 20)):
        found = sorted(tuple(row.values()) for row in run.rows(f"{name}-rows"))
        assert found == [(n, n + more, n + more, more, more) for n in (1, 2)]


def test_a_task_finds_the_active_session(fleet: Callable[[Application, str], Fleet], spark: SparkSession) -> None:
    """Libraries ask for it. A container starts its tasks in other threads than its main one."""
    found = []

    def stage(rows: DataFrame) -> DataFrame:
        found.append(SparkSession.getActiveSession())
        return rows

    run = fleet(pipeline_of(active=stage), STREAMS)
    starting = threading.Thread(target=run.start, args=["active-0"])
    starting.start()
    starting.join()
    assert found == [spark] * 3


#: Each has a meaning at the module's top, is used by a stage, and is replaced by another one.
SHARED = {
    "function": (
        "CREATE TEMPORARY FUNCTION shared(n BIGINT) RETURNS BIGINT RETURN n",
        "CREATE OR REPLACE TEMPORARY FUNCTION shared(n BIGINT) RETURNS BIGINT RETURN n + 1",
        "DROP TEMPORARY FUNCTION shared",
    ),
    "temporary view": (
        "CREATE TEMPORARY VIEW shared AS SELECT 1 AS n",
        "CREATE OR REPLACE TEMPORARY VIEW shared AS SELECT 2 AS n",
        "DROP VIEW shared",
    ),
    "global temporary view": (
        "CREATE GLOBAL TEMPORARY VIEW shared AS SELECT 1 AS n",
        "CREATE OR REPLACE GLOBAL TEMPORARY VIEW shared AS SELECT 2 AS n",
        "DROP VIEW global_temp.shared",
    ),
    "variable": ("DECLARE VARIABLE shared = 1", "SET VARIABLE shared = 2", "DROP TEMPORARY VARIABLE shared"),
}


@pytest.mark.parametrize("kind", SHARED)
def test_what_the_module_created_is_not_replaced(kind: str, analyse: Analyse, spark: SparkSession) -> None:
    """Other stages use it. After the refusal it is what it was."""
    create, replace, drop = SHARED[kind]
    spark.sql(create)
    before = meaning(kind, spark)
    try:
        for change in (replace, drop):

            def stage(rows: DataFrame, change: str = change) -> DataFrame:
                spark.sql(change)
                return rows

            with pytest.raises(PipelineRefused) as caught:
                analyse(stage)
            assert str(caught.value) == (
                f"Stage last replaces or drops the {kind} shared, which all stages share. Choose another name, or "
                "create it at the top of the module only."
            )
            assert meaning(kind, spark) == before
    finally:
        spark.sql(drop)


def meaning(kind: str, spark: SparkSession) -> object:
    """What it stands for now."""
    said = {"function": "SELECT shared(1)", "variable": "SELECT shared", "temporary view": "SELECT n FROM shared"}
    return spark.sql(said.get(kind, "SELECT n FROM global_temp.shared")).first()


def test_what_another_stage_created_is_not_there(analyse: Analyse, spark: SparkSession) -> None:
    """It would be there or not, by the order in which the functions are called."""

    def first(rows: DataFrame) -> DataFrame:
        spark.udf.register("clean", lambda n: n, "long")
        rows.createTempView("numbers")
        return rows

    for used in ("SELECT clean(n) FROM {rows}", "SELECT rows.n FROM {rows} AS rows, numbers"):
        with pytest.raises(PipelineRefused) as caught:
            analyse(first, lambda rows, used=used: spark.sql(used, rows=rows))
        said = str(caught.value)
        assert said.startswith("Stage last cannot be analysed: ")
        assert said.endswith(
            "If a stage creates it: that lasts for one call of the stage's function. What several calls or stages use "
            "is created at the top of the module."
        )


def test_a_stage_that_keeps_the_dataframes_of_its_first_call(analyse: Analyse, spark: SparkSession) -> None:
    """Its tasks would read the stand-ins of the analysis, so nothing."""
    kept: list[DataFrame] = []

    def stage(rows: DataFrame) -> DataFrame:
        kept.append(rows)
        return kept[0]

    with pytest.raises(PipelineRefused) as caught:
        analyse(stage)
    assert str(caught.value) == (
        "Stage last keeps a DataFrame of an earlier call. It is called again for each task, with other DataFrames: "
        "build everything from those, in each call."
    )

    def once(rows: DataFrame) -> DataFrame:
        if not spark.catalog.tableExists("once"):
            rows.createTempView("once")
        return spark.table("once")

    analyse(once)


def test_a_dataframe_of_another_session(analyse: Analyse, spark: SparkSession) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        rows.createGlobalTempView("everywhere")
        return spark.newSession().table("global_temp.everywhere")

    with pytest.raises(PipelineRefused) as caught:
        analyse(stage)
    assert str(caught.value) == (
        "Stage last returns a DataFrame of another session, which has other settings. Build it from the DataFrames "
        "that the function gets, without newSession()."
    )
