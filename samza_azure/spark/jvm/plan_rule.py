"""A rule of our own that Spark asks for each physical plan, and that counts what it has left out of plans.

If a rule cannot be compiled, or fails on a plan, the plan stays as it was, and what that means is logged once.
"""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.session import compiled

log = logging.getLogger(__name__)

PLAN = "org.apache.spark.sql.execution.SparkPlan"
NODE = "org.apache.spark.sql.catalyst.trees.TreeNode"
RULE = "org.apache.spark.sql.catalyst.rules.Rule"
COLUMNAR = "org.apache.spark.sql.execution.ColumnarRule"


@dataclass(frozen=True, slots=True)
class PlanRule:
    """One such rule."""

    name: str  # of its class
    kept: str  # what is logged once if it fails
    body: str  # members of the class, in Java, with a method `changed(SparkPlan)`; LEFT_OUT counts
    setting: str = ""  # queries that start have it applied while this is "true"; always without one

    @property
    def source(self) -> str:
        """The class."""
        asked = f'if (!conf().getConfString("{self.setting}", "false").equals("true")) return plan;'
        return f"""
public class {self.name} extends scala.runtime.AbstractFunction1 {{
    static final java.util.concurrent.atomic.AtomicLong LEFT_OUT = new java.util.concurrent.atomic.AtomicLong();
    static final java.util.concurrent.atomic.AtomicBoolean FAILED = new java.util.concurrent.atomic.AtomicBoolean();

    public Object apply(Object session) {{
        return new AfterRequirements();
    }}

    public long leftOut() {{
        return LEFT_OUT.get();
    }}

    static void failed(Throwable error) {{
        if (FAILED.compareAndSet(false, true)) {{
            org.slf4j.LoggerFactory.getLogger("{self.name}").warn("{self.kept}", error);
        }}
    }}

    public static class AfterRequirements extends {COLUMNAR} {{
        public {RULE} preColumnarTransitions() {{
            return new Without();
        }}
    }}

    public static class Without extends {RULE} {{
        public {NODE} apply({NODE} plan) {{
            {asked if self.setting else ""}
            try {{
                return changed(({PLAN}) plan);
            }} catch (RuntimeException error) {{
                failed(error);
            }} catch (LinkageError error) {{
                failed(error);
            }}
            return plan;
        }}
{self.body}
    }}
}}
"""

    def install(self, spark: SparkSession) -> None:
        """Apply it to queries of this session that start from now on. A failure is logged."""
        try:
            spark._jsparkSession.extensions().injectColumnar(_made(spark, self))
        except Exception as error:  # noqa: BLE001  # any error of Java or py4j
            log.warning("%s: %s", self.kept, error)

    def left_out(self, spark: SparkSession) -> int:
        """How many of what it leaves out the plans of this JVM have done without."""
        return int(_made(spark, self).leftOut())


@cache
def _made(spark: SparkSession, rule: PlanRule) -> Any:
    return compiled(spark, rule.name, rule.source)
