"""End the JVM with its Spark application, on a cluster.

Spark ends an application whose executors have failed too often, or that its master has removed. The JVM goes on, and
every query in it fails from then on: that would be the failure of tasks, and so of the run, for what may be wrong with
this processor, or with the cluster, and passes. So the JVM ends, and its container: the next one is tried later, its
tasks run elsewhere meanwhile, and a processor whose containers end again and again leaves the group.
"""

from pyspark.sql import SparkSession

from samza_azure.messages import APPLICATION_ENDED
from samza_azure.spark.jvm.session import compiled

NAME = "ApplicationEnd"
SCHEDULER = "org.apache.spark.scheduler"
SOURCE = f"""
public class {NAME} extends {SCHEDULER}.SparkListener {{
    public void onApplicationEnd({SCHEDULER}.SparkListenerApplicationEnd event) {{
        org.slf4j.LoggerFactory.getLogger("{NAME}").warn("Spark has ended its application; so ends this container");
        Runtime.getRuntime().halt({APPLICATION_ENDED});  // at once: tasks would fail meanwhile
    }}
}}
"""


def end_with_application(spark: SparkSession) -> None:
    """Do so from now on."""
    spark.sparkContext._jsc.sc().addSparkListener(compiled(spark, NAME, SOURCE))
