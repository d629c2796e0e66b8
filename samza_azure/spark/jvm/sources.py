"""Sources in Python, registered so that queries can start side by side.

Spark's planner puts variables into the environment of a source's function when a query starts, while another query's
tasks, which have the same function, may be sent: a `HashMap` that is written while it grows cannot be read. The task,
and so the batch, failed with an `OptionalDataException`. Here the environment is a map that may be changed meanwhile.
"""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.udf import _wrap_function

from samza_azure.spark.jvm.session import java_class

SOURCE_CLASS = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"
ENVIRONMENT = "java.util.concurrent.ConcurrentHashMap"


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """As `spark.dataSource.register` does it, with such an environment."""
    made = _wrap_function(spark.sparkContext, source)
    function = made.copy(
        made.command(),
        java_class(spark, ENVIRONMENT)(made.envVars()),
        made.pythonIncludes(),
        made.pythonExec(),
        made.pythonVer(),
        made.broadcastVars(),
        made.accumulator(),
    )
    spark._jsparkSession.dataSource().registerPython(source.name(), java_class(spark, SOURCE_CLASS)(function))
