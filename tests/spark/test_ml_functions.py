"""Sessions that register the functions of spark.ml when one is used."""

import logging
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import Vectors
from pyspark.ml.stat import Summarizer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from samza_azure.spark.jvm import ml_functions
from samza_azure.spark.jvm.session import compiled, java_class, java_object

OF_SPARK = "org.apache.spark.sql.ml.InternalFunctionRegistration"


def test_each_function_computes_what_it_does_in_spark(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(2, [1], [4.0]),)], ["features"])
    arrays = [row[0] for row in rows.select(vector_to_array("features")).collect()]
    assert arrays == [[1.0, 2.0], [0.0, 4.0]]

    back = spark.createDataFrame([([1.0, 2.0],)], ["values"]).select(array_to_vector("values")).collect()
    assert back[0][0] == Vectors.dense([1.0, 2.0])

    mean = rows.select(Summarizer.mean(F.col("features"))).collect()
    assert mean[0][0] == Vectors.dense([0.5, 3.0])


def test_these_are_all_that_spark_registers(spark: SparkSession) -> None:
    def names() -> set[str]:
        found = internal(spark).listFunction()
        return {found.apply(number).funcName() for number in range(found.size())}

    before = names()
    java_object(spark, f"{OF_SPARK}$", "MODULE$").apply()
    assert names() == before
    assert before >= {*ml_functions.FUNCTIONS}


def internal(spark: SparkSession) -> Any:
    return java_object(spark, f"{ml_functions.REGISTRY}$", "MODULE$").internal()


def test_a_function_that_spark_no_longer_has_is_an_error_and_no_endless_search(spark: SparkSession) -> None:
    other = "SessionsOfATest"  # py4j knows classes by their names
    source = ml_functions.SOURCE.replace(ml_functions.NAME, other).replace("vector_to_array", "absent")
    sessions = compiled(spark, other, source)
    sessions.session(spark.sparkContext._jsc.sc())
    try:
        with pytest.raises(Py4JJavaError, match=r"spark\.ml has no function absent"):
            lookup(spark, "absent")
    finally:
        internal(spark).dropFunction(identifier(spark, "absent"))


def identifier(spark: SparkSession, name: str) -> Any:
    return java_class(spark, ml_functions.IDENTIFIER)(name)


def lookup(spark: SparkSession, name: str) -> Any:
    nothing = java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq([])
    return internal(spark).lookupFunction(identifier(spark, name), nothing)


def test_without_it_there_is_a_session_of_sparks_own(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ml_functions, "SOURCE", ml_functions.SOURCE.replace("registerFunction(", "registerFunctions("))
    with caplog.at_level(logging.WARNING):
        made = ml_functions.session_of(spark.sparkContext)
    assert "registerFunctions" in caplog.text
    assert made.range(3).count() == 3


STOPPED = """
import sys
from pathlib import Path
from py4j.protocol import Py4JError
from samza_azure.spark.jvm import ml_functions
from samza_azure.spark.jvm.session import start_session
context = start_session("stopped", {}, Path(sys.argv[1])).sparkContext
context._jsc.sc().stop()
other = "SessionsOfATest"  # py4j knows classes by their names
ml_functions.SOURCE, ml_functions.NAME = ml_functions.SOURCE.replace(ml_functions.NAME, other), other
try:
    ml_functions.session_of(context)
except Py4JError as error:
    print("stopped SparkContext" in str(error))
"""


def test_of_a_stopped_context_it_says_nothing_of_functions(tmp_path: Path) -> None:
    """Spark stops one that no master takes."""
    done = subprocess.run([sys.executable, "-c", STOPPED, tmp_path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "registers the functions of spark.ml" not in done.stderr


#: An extension of somebody else's, as a jar of theirs has it.
OTHERS = """
public class Others extends scala.runtime.AbstractFunction1
        implements org.apache.spark.sql.SparkSessionExtensionsProvider {
    public Object apply(Object extensions) {
        System.setProperty("others", "applied");
        return scala.runtime.BoxedUnit.UNIT;
    }
}
"""
ALONE = """
import sys
from pathlib import Path
from pyspark.ml.functions import array_to_vector
from samza_azure.spark.jvm.session import jvm_of, start_session
here = Path(sys.argv[1])
settings = {
    "spark.driver.extraClassPath": str(here / "others.jar"),
    "spark.driver.extraJavaOptions": f"-Xlog:class+load:file={here}/loaded",
}
def reflects():
    return "scala.reflect.runtime.JavaMirrors$" in (here / "loaded").read_text()
spark = start_session("extensions", settings, here)
spark.range(3).selectExpr("array(1.0d * id) AS values").createOrReplaceTempView("rows")
print(jvm_of(spark).java.lang.System.getProperty("others"), reflects())
print(spark.table("rows").select(array_to_vector("values")).count(), reflects())
spark.stop()
"""


def test_extensions_of_others_are_applied_and_that_of_spark_when_it_is_used(
    spark: SparkSession, tmp_path: Path
) -> None:
    compiler = java_class(spark, "org.codehaus.janino.SimpleCompiler")()
    compiler.cook(OTHERS)
    with zipfile.ZipFile(tmp_path / "others.jar", "w") as jar:
        jar.writestr("Others.class", bytes(compiler.getBytecodes()["Others"]))
        jar.writestr(ml_functions.SERVICE, "Others\n")
    done = subprocess.run([sys.executable, "-c", ALONE, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["applied", "False", "3", "True"], done.stderr
