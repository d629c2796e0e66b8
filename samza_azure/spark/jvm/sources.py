"""Sources in Python, registered so that queries can start side by side, and at once.

Spark's planner puts variables into the environment of a source's function when a query starts, while another query's
tasks, which have the same function, may be sent: a `HashMap` that is written while it grows cannot be read. The task,
and so the batch, failed with an `OptionalDataException`. Here the environment is a map that may be changed meanwhile.

Before it registers one, Spark looks for a class and for a Python package that has a source of this name already. For
the first it raises an error of its own, for whose text it reads all texts of its errors; for the second it starts a
Python process. Here the class is not looked for, and the process starts only where there is such a package.
"""

import sys
from pathlib import Path
from pkgutil import iter_modules

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.udf import _wrap_function

from samza_azure.spark.jvm.session import java_class, java_object, private_field

PYTHON = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"
MANAGER = "org.apache.spark.sql.execution.datasources.DataSourceManager$"
ENVIRONMENT = "java.util.concurrent.ConcurrentHashMap"
#: How the names of the packages begin in which Spark looks for sources.
PACKAGES = "pyspark_"


def register(spark: SparkSession, source: type[DataSource], *folders: Path) -> None:
    """As `spark.dataSource.register` does it, with such an environment. No class may have its name.

    `folders` are those from which Python will import too.
    """
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
    if not any(each.name.startswith(PACKAGES) for each in iter_modules([*sys.path, *map(str, folders)])):
        none = java_object(spark, "scala.collection.immutable.Map$", "MODULE$").empty()
        private_field(spark, MANAGER, "dataSourceBuilders").set(None, java_class(spark, "scala.Some")(none))
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    sources.registerDataSource(source.name(), java_class(spark, PYTHON)(function))
