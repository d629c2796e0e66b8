"""Aggregations compare event times with the watermark by code that is compiled once, and not for each watermark.

Spark writes the watermark into the text of that code, so each batch compiles a class of its own, which Java loads,
interprets and drops again. `Predicates` puts in its place a constant of a kind that Spark's code reads from a field:
the same comparison of the same two numbers, and the same text in each batch, which Spark finds in its cache.
If this cannot look at a plan, the plan stays as it is: it costs time, and the rows are the same.
`tests/spark/test_sink.py` pins that later batches compile nothing.
"""

import logging
from functools import lru_cache
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.session import compiled

log = logging.getLogger(__name__)

NAME = "Predicates"
SQL = "org.apache.spark.sql"
PLAN = f"{SQL}.execution.SparkPlan"
SAVE = f"{SQL}.execution.streaming.operators.stateful.StateStoreSaveExec"
EXPRESSION, LITERAL = f"{SQL}.catalyst.expressions.Expression", f"{SQL}.catalyst.expressions.Literal"
AT_MOST = f"{SQL}.catalyst.expressions.LessThanOrEqual"
UNSCALED = f"{SQL}.catalyst.expressions.UnscaledValue"
DECIMAL = f"{SQL}.types.Decimal"
#: What is logged once if this fails.
ANEW = (
    "Spark compiles a comparison with the watermark in each batch, which costs processor time and changes nothing else"
)
SOURCE = f"""
public class {NAME} extends scala.runtime.AbstractFunction1 {{
    static final java.util.concurrent.atomic.AtomicBoolean FAILED = new java.util.concurrent.atomic.AtomicBoolean();

    public Object apply(Object plan) {{
        try {{
            look(({PLAN}) plan);
        }} catch (Exception error) {{
            failed(error);
        }} catch (LinkageError error) {{
            failed(error);
        }}
        return plan;
    }}

    private static void failed(Throwable error) {{
        if (FAILED.compareAndSet(false, true)) {{
            org.slf4j.LoggerFactory.getLogger("{NAME}").warn("{ANEW}", error);
        }}
    }}

    private static void look({PLAN} plan) throws Exception {{
        if (plan instanceof {SAVE}) {{
            {SAVE} operator = ({SAVE}) plan;
            replace(operator, "watermarkExpressionForLateEvents", operator.watermarkExpressionForLateEvents());
            replace(operator, "watermarkExpressionForEviction", operator.watermarkExpressionForEviction());
        }}
        for (int i = 0; i < plan.children().size(); i++) look(({PLAN}) plan.children().apply(i));
    }}

    // The comparison is a lazy value of Scala's, in a field of its name, which has been computed for this call.
    private static void replace({SAVE} operator, String name, scala.Option found) throws Exception {{
        if (found.isEmpty() || !(found.get() instanceof {AT_MOST})) return;
        {AT_MOST} comparison = ({AT_MOST}) found.get();
        if (!(comparison.right() instanceof {LITERAL})) return;
        Object watermark = (({LITERAL}) comparison.right()).value();
        if (!(watermark instanceof Long)) return;
        {EXPRESSION} constant = constant(((Long) watermark).longValue());
        java.lang.reflect.Field field = {SAVE}.class.getDeclaredField(name);
        field.setAccessible(true);
        field.set(operator, new scala.Some(new {AT_MOST}(comparison.left(), constant)));
    }}

    public static {EXPRESSION} constant(long value) {{
        return new {UNSCALED}(new {LITERAL}({DECIMAL}.apply(value), new {SQL}.types.DecimalType(20, 0)));
    }}
}}
"""


@lru_cache(maxsize=1)
def predicates(spark: SparkSession) -> Any:
    """A function of Java's, for the plan of each batch. None if it cannot be compiled."""
    try:
        return compiled(spark, NAME, SOURCE)
    except Exception as error:  # noqa: BLE001  # any error of Java or py4j
        log.warning("%s: %s", ANEW, error)
        return None
