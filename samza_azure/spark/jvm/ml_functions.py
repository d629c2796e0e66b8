"""A session that registers the SQL functions of Spark's machine learning when one of them is used.

Each session of Spark's does that in its constructor, which loads Scala's reflection: a tenth of a container's start.
Promised: the same functions are found as in a session of Spark's, with the same results, and extensions of others are
applied as before. If this cannot be compiled, the session is Spark's own: it costs time at the start.
`tests/spark/test_ml_functions.py` pins it.
"""

import logging
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from samza_azure.spark.jvm.janino import compiled_in

log = logging.getLogger(__name__)

#: `pyspark.ml.functions` and `pyspark.ml.stat` call them.
FUNCTIONS = ("vector_to_array", "array_to_vector", "aggregate_metrics")
SQL = "org.apache.spark.sql"
SERVICE = f"META-INF/services/{SQL}.SparkSessionExtensionsProvider"
REGISTRY, IDENTIFIER = f"{SQL}.catalyst.analysis.FunctionRegistry", f"{SQL}.catalyst.FunctionIdentifier"
NAME = "Sessions"
SOURCE = f"""
public class {NAME} {{
    private static final String[] FUNCTIONS = {{{", ".join(f'"{name}"' for name in FUNCTIONS)}}};

    public Object session(org.apache.spark.SparkContext context) {{
        Thread thread = Thread.currentThread();
        ClassLoader before = thread.getContextClassLoader();
        thread.setContextClassLoader(new Without(before));
        try {{
            Object made = new {SQL}.classic.SparkSession(context, new java.util.HashMap());
            for (int i = 0; i < FUNCTIONS.length; i++) {{
                {IDENTIFIER} name = new {IDENTIFIER}(FUNCTIONS[i]);
                {REGISTRY}$.MODULE$.internal().registerFunction(name, new Later(name), "internal");
            }}
            return made;
        }} finally {{
            thread.setContextClassLoader(before);
        }}
    }}

    // The constructor asks the thread's loader for extensions.
    public static class Without extends ClassLoader {{
        Without(ClassLoader all) {{
            super(all);
        }}

        public java.util.Enumeration getResources(String name) throws java.io.IOException {{
            java.util.Enumeration all = super.getResources(name);
            if (!name.equals("{SERVICE}")) return all;
            java.util.Vector others = new java.util.Vector();
            while (all.hasMoreElements()) {{
                Object each = all.nextElement();
                if (!each.toString().contains("/spark-mllib_")) others.add(each);
            }}
            return others.elements();
        }}
    }}

    // In the place of a function: the first use of any registers them all.
    public static class Later extends scala.runtime.AbstractFunction1 {{
        private final {IDENTIFIER} name;

        Later({IDENTIFIER} name) {{
            this.name = name;
        }}

        public Object apply(Object arguments) {{
            {SQL}.ml.InternalFunctionRegistration$.MODULE$.apply();
            Object found = {REGISTRY}$.MODULE$.internal().lookupFunctionBuilder(name).get();
            if (found == this) throw new IllegalStateException("spark.ml has no function " + name.funcName());
            return ((scala.Function1) found).apply(arguments);
        }}
    }}
}}
"""


def session_of(context: SparkContext) -> SparkSession:
    """The context's session, with its settings. Raise Py4JError if Spark's own cannot be made, either."""
    made: Any = None
    why: Exception | None = None
    try:
        sessions = compiled_in(context._jvm, NAME, SOURCE)
        made = sessions.session(context._jsc.sc())
    except Exception as error:  # noqa: BLE001  # any of Java or py4j: a release has moved what this uses
        why = error
    if made is not None:
        made.sessionState()  # now, since a setting may be wrong, or the context stopped meanwhile
    session = SparkSession(context, made)  # of a context that is stopped there is none
    if why is not None:
        log.warning("Spark registers the functions of spark.ml now, which costs time only: %s", why)
    return session
