"""Spark's context without the checks of Spark's own functions, and with settings that are sent once."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from samza_azure.spark.jvm import context
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
    """Of the session, and so of Hadoop's settings for what it runs."""
    name = "spark.sql.test.context"
    yield name
    spark.conf.unset(name)


def test_it_sends_settings_of_hadoop_again_when_one_has_changed(spark: SparkSession, setting: str) -> None:
    def sent() -> Any:
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        return java_class(spark, context.HADOOP).broadcast(context_of(spark), settings)

    before = sent()
    assert sent().id() == before.id()

    spark.conf.set(setting, "1")
    changed = sent()
    assert changed.id() != before.id()
    assert (before.value().value().get(setting), changed.value().value().get(setting)) == (None, "1")

    spark.conf.unset(setting)
    assert sent().id() == before.id()
    before.destroy()
    assert sent().id() not in (before.id(), changed.id())


def test_it_keeps_the_settings_of_so_many_queries(spark: SparkSession, setting: str) -> None:
    def sent(value: int) -> int:
        spark.conf.set(setting, str(value))
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        return int(java_class(spark, context.HADOOP).broadcast(context_of(spark), settings).id())

    first = [sent(value) for value in range(context.KEPT)]
    assert [sent(value) for value in range(context.KEPT)] == first
    assert sent(-1) not in first
    assert sent(1) == first[1]
    assert sent(0) != first[0]


def test_without_it_there_is_a_context_of_sparks_own(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is made: Spark refuses it only because there is one."""
    monkeypatch.setattr(context, "SOURCE", context.SOURCE.replace("super.clean(", "super.cleaned("))
    with caplog.at_level(logging.WARNING), pytest.raises(Py4JJavaError) as raised:
        spark.sparkContext._initialize_context(context_of(spark).getConf())  # type: ignore[operator]
    assert "Only one SparkContext" in str(raised.value)
    assert '"cleaned"' in caplog.text


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
