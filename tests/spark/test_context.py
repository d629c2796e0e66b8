"""Spark's context without the checks of Spark's own functions, and with settings that are sent once."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from samza_azure.spark.jvm import context, sink
from samza_azure.spark.jvm.output import BatchOutput
from samza_azure.spark.jvm.session import compiled, java_class

CLEANER = "org.apache.spark.util.SparkClosureCleaner"
#: Functions that refer to something that cannot be serialised. The name of the first is one of those that Scala gave to
#: the classes of functions, and gives to those of partial functions.
FUNCTIONS = """
public class Functions {
    public static class Of$anonfun$0 extends scala.runtime.AbstractFunction1 implements java.io.Serializable {
        private final Object kept = new Object();

        public Object apply(Object value) {
            return kept;
        }
    }

    public Object ofScala() {
        return new Of$anonfun$0();
    }

    public Object compiledToLambda() {
        return scala.collection.immutable.Set$.MODULE$.empty().andThen(new Of$anonfun$0());
    }
}
"""


def context_of(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc()


def test_it_gives_lambdas_on_as_they_are(spark: SparkSession) -> None:
    """Spark would refuse this one now. Here its job would fail, when its tasks are sent."""
    function = compiled(spark, "Functions", FUNCTIONS).compiledToLambda()
    assert "$$Lambda" in function.getClass().getName()
    with pytest.raises(Py4JJavaError, match="Task not serializable"):
        java_class(spark, CLEANER).clean(function, True, True)
    assert context_of(spark).clean(function, True).equals(function)


def test_it_lets_spark_look_at_all_functions_that_spark_cleans(spark: SparkSession) -> None:
    """It reads the file of a class, and this one has none."""
    with pytest.raises(Py4JJavaError, match=r"ClosureCleaner.*getClassReader"):
        context_of(spark).clean(compiled(spark, "Functions", FUNCTIONS).ofScala(), True)


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[str]:
    """Of the session, and so of Hadoop's settings for what a query runs."""
    name = "spark.sql.test.context"
    spark.sparkContext.setLocalProperty(context.RUN, "a run")
    yield name
    spark.sparkContext.setLocalProperty(context.RUN, None)  # type: ignore[arg-type]
    spark.conf.unset(name)


def sent(spark: SparkSession, session: Any = None) -> Any:
    """Hadoop's settings, as each operator with state sends them to its tasks. `session`: that of a batch."""
    settings = (session or spark._jsparkSession).sessionState().newHadoopConf()
    return java_class(spark, context.HADOOP).broadcast(context_of(spark), settings)


def test_it_sends_settings_of_hadoop_again_when_one_has_changed(spark: SparkSession, setting: str) -> None:
    before = sent(spark)
    assert sent(spark).id() == before.id()

    spark.conf.set(setting, "1")
    changed = sent(spark)
    assert changed.id() != before.id()
    assert (before.value().value().get(setting), changed.value().value().get(setting)) == (None, "1")

    spark.conf.unset(setting)
    assert sent(spark).id() == before.id()
    before.destroy()
    assert sent(spark).id() not in (before.id(), changed.id())


def test_it_keeps_the_settings_of_so_many_queries(spark: SparkSession, setting: str) -> None:
    def sent_with(value: int) -> int:
        spark.conf.set(setting, str(value))
        return int(sent(spark).id())

    first = [sent_with(value) for value in range(context.KEPT)]
    assert [sent_with(value) for value in range(context.KEPT)] == first
    assert sent_with(-1) not in first
    assert sent_with(1) == first[1]
    assert sent_with(0) != first[0]


def test_each_run_of_a_query_has_settings_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Its tasks write the run's id into them. By that and an operator's number Spark keeps what reads rows of state, so
    with the settings of another run a task could read them as that one's.
    """
    (tmp_path / "rows").mkdir()
    for key in "ab":
        (tmp_path / "rows" / f"{key}.json").write_text(f'{{"key": "{key}"}}')
    rows = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1).json(str(tmp_path / "rows"))
    outlet, found = BatchOutput(), {}
    for checkpoint in ("one", "other"):
        batches = []

        def keep(frame: DataFrame, batch: int, batches: list[Any] = batches) -> None:
            with outlet.run(frame) as out:
                list(out)
            batches.append(sent(spark, frame._jdf.sparkSession()))

        to = str(tmp_path / checkpoint)
        query = sink.start(
            rows.dropDuplicates(["key"]), keep, name=checkpoint, checkpoint=to, output_mode="append", trigger_ms=10
        )
        query.processAllAvailable()
        query.stop()
        assert len(batches) == 2
        assert {each.value().value().get("sql.streaming.runId") for each in batches} == {query.runId}
        (found[checkpoint],) = {each.id() for each in batches}
    assert found["one"] != found["other"]


def test_without_a_query_each_job_has_settings_of_its_own(spark: SparkSession) -> None:
    assert sent(spark).id() != sent(spark).id()


def test_without_it_there_is_a_context_of_sparks_own(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is made: Spark refuses it only because there is one."""
    monkeypatch.setattr(context, "SOURCE", context.SOURCE.replace("super.clean(", "super.cleaned("))
    with caplog.at_level(logging.WARNING), pytest.raises(Py4JJavaError) as raised:
        spark.sparkContext._initialize_context(context_of(spark).getConf())  # type: ignore[operator]
    assert "Only one SparkContext" in str(raised.value)
    assert "has no method named" in caplog.text  # and which: another test may have it logged as JSON


def test_it_notes_nothing_of_what_has_run(spark: SparkSession) -> None:
    assert spark.range(3).count() == 3
    context_of(spark).listenerBus().waitUntilEmpty()
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup()) == []
    assert spark._jsparkSession.sharedState().statusStore().executionsCount() == 0


WITH_UI = """
import sys
from pathlib import Path
from samza_azure.spark.jvm.session import start_session
spark = start_session("ui", {"spark.ui.enabled": "true", "spark.ui.port": "0"}, Path(sys.argv[1]))
spark.range(3).count()
spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup())
print(jobs, spark._jsparkSession.sharedState().statusStore().executionsCount())
spark.stop()
"""


@pytest.mark.long  # a JVM of its own
def test_with_sparks_ui_it_notes_all_that_the_ui_shows(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITH_UI, tmp_path], capture_output=True, text=True, timeout=120)
    jobs, executions = map(int, done.stdout.split())
    assert jobs > 0
    assert executions == 1
