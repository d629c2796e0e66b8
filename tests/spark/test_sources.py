"""Sources whose function is sent with tasks while another query starts."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from samza_azure.spark.jvm import sources
from samza_azure.spark.jvm.session import compiled

from .child import PATIENCE_S, QUICK_JAVA

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


#: What Spark finds by itself: a package with a name that begins so, and a source in it.
PACKAGE = """
from pyspark.sql.datasource import DataSource, DataSourceReader

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "found"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Reader()

class Reader(DataSourceReader):
    def read(self, partition):
        yield (7,)
"""
SESSION = """
import os, sys
from pathlib import Path
from samza_azure.spark.jvm import java, sources
from samza_azure.spark.jvm.session import connect_session
from samza_azure.spark.jvm.settings import settings_of
from samza_azure.spark.query.source import LogSource

here, known = Path(sys.argv[1]), Path(sys.argv[2])
settings = settings_of({}, here)
jvm = java.launch(settings, {**os.environ, "PYTHONPATH": str(known)}, here)
spark = connect_session("test", settings, jvm)
sources.register(spark, LogSource, known)
print(spark.read.format("found").load().collect()[0].n)
spark.stop()
jvm.end()
"""


def test_a_source_in_a_package_is_found_as_before(tmp_path: Path) -> None:
    """A static table may be read by it. Spark looks for such packages when it first needs a source in Python."""
    known = tmp_path / "known"
    known.mkdir()
    (known / "pyspark_found.py").write_text(PACKAGE)
    command = [sys.executable, "-c", SESSION, str(tmp_path), str(known)]
    done = subprocess.run(command, env={**os.environ, **QUICK_JAVA}, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["7"], done.stderr


def test_another_source_of_its_name_is_replaced(spark: SparkSession) -> None:
    """As `spark.dataSource.register` does it. There is no error, for whose text Spark would read a large file."""
    sources.register(spark, Nothing)
    sources.register(spark, Nothing)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    assert manager.dataSourceExists(Nothing.name())
