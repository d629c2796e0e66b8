"""Sources whose function is sent with tasks while another query starts."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from samza_azure.spark.jvm import sources
from samza_azure.spark.jvm.session import compiled

#: Spark's serialiser writes and reads the function, while variables come and go, as at the start of other queries.
STRAIN = """
public class Strain {
    public String of(final Object function, final java.util.Map environment, int times) throws Exception {
        final java.util.concurrent.atomic.AtomicBoolean isOver = new java.util.concurrent.atomic.AtomicBoolean();
        Thread other = new Thread() {
            public void run() {
                for (int i = 0; !isOver.get(); i++) {
                    environment.put("VARIABLE_" + i % 20, "value");
                    environment.remove("VARIABLE_" + (i + 10) % 20);
                }
            }
        };
        other.start();
        try {
            for (int i = 0; i < times; i++) {
                java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();
                java.io.ObjectOutputStream out = new java.io.ObjectOutputStream(bytes);
                out.writeObject(function);
                out.writeObject("the end");
                out.close();
                java.io.ObjectInputStream in =
                    new java.io.ObjectInputStream(new java.io.ByteArrayInputStream(bytes.toByteArray()));
                in.readObject();
                in.readObject();
            }
            return "";
        } catch (Exception error) {
            return error.toString();
        } finally {
            isOver.set(true);
            other.join();
        }
    }
}
"""
TIMES = 2_000


class Nothing(DataSource):
    """A source that nobody reads."""

    @classmethod
    def name(cls) -> str:
        return "samza-azure-nothing"


def strained(spark: SparkSession, register: Callable[[type[DataSource]], None]) -> str:
    """The error, if there is one."""
    register(Nothing)
    found = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(Nothing.name())
    function: Any = found.dataSourceCls()
    return str(compiled(spark, "Strain", STRAIN).of(function, function.envVars(), TIMES))


def test_its_function_can_be_sent_while_a_query_starts(spark: SparkSession) -> None:
    assert strained(spark, lambda source: sources.register(spark, source)) == ""


def test_that_of_spark_cannot_always(spark: SparkSession) -> None:
    """If this fails, Spark has mended it, and `sources.py` can go."""
    assert strained(spark, spark.dataSource.register) != ""
