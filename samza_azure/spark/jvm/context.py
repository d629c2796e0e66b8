"""Spark's context, without work that it repeats for each batch and that changes nothing.

Spark looks at each function that it gives to its tasks: whether it refers to what a shell for Scala has left in it, to
null that, and whether it can be serialised. For that it reads compiled classes of its own anew, and serialises the
function once more. Here all these functions are Spark's own, and none comes from a shell. It also sends Hadoop's
thousand settings to its tasks several times a batch, although they are the same in each.
Promised: a function that Spark would change is given to it as before. Settings are sent again when one has changed, and
by each run of a query: its tasks write the run's id into theirs, by which Spark finds what reads rows of state in
RocksDB.
If this cannot be compiled, the context is Spark's own: it costs time, and the rows are the same.
Without Spark's UI, nothing is noted of jobs and plans that only the UI and the status tracker show.
`tests/spark/test_context.py` pins all of it.
"""

import logging
import uuid
from contextlib import suppress
from itertools import chain
from typing import Any

from py4j.java_gateway import java_import
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from samza_azure.spark.jvm.janino import compiled_in

log = logging.getLogger(__name__)

NAME = "Contexts"
SPARK = "org.apache.spark"
CONTEXT, SETTINGS = f"{SPARK}.SparkContext", f"{SPARK}.SparkConf"
BROADCAST = f"{SPARK}.broadcast.Broadcast"
HADOOP = f"{SPARK}.util.SerializableConfiguration"
CONFIGURATION = "org.apache.hadoop.conf.Configuration"
#: So many broadcasts of settings are kept: each task's query has its own.
KEPT = 32
#: Of the thread that runs a query: the id of the run.
RUN = "spark.jobGroup.id"
PLUGINS = "spark.plugins"
#: Classes that pyspark names without their packages. For one that is not imported by name, py4j searches all of Spark's
#: jars once for each package that it might be in.
LOOKED_UP = tuple(
    f"{SPARK}.{name}" for name in ("api.python.PythonUtils", "sql.api.python.PythonSQLUtils", "sql.functions")
)
SOURCE = f"""
public class {NAME} {{
    public {SPARK}.api.java.JavaSparkContext of({SETTINGS} settings) {{
        return new {SPARK}.api.java.JavaSparkContext(new Context(settings));
    }}

    public {SETTINGS} settings(String all, String between) {{
        {SETTINGS} settings = new {SETTINGS}(true);
        String[] parts = all.split(between, -1);
        for (int i = 0; i + 1 < parts.length; i += 2) settings.set(parts[i], parts[i + 1]);
        return settings;
    }}

    public String text({SETTINGS} settings, String between) {{
        scala.Tuple2[] all = settings.getAll();
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < all.length; i++) {{
            text.append(i > 0 ? between : "").append(all[i]._1()).append(between).append(all[i]._2());
        }}
        return text.toString();
    }}

    public static class Context extends {CONTEXT} {{
        private final java.util.Map sent = new java.util.LinkedHashMap(16, 0.75f, true) {{
            protected boolean removeEldestEntry(java.util.Map.Entry eldest) {{
                return size() > {KEPT};
            }}
        }};

        public Context({SETTINGS} settings) {{
            super(settings);
        }}

        // Of compiled code, Spark cleans classes with this in their names only, and not Java's lambdas.
        public Object clean(Object function, boolean isChecked) {{
            return function.getClass().getName().contains("$anonfun$") ? super.clean(function, isChecked) : function;
        }}

        public {BROADCAST} broadcast(Object value, scala.reflect.ClassTag tag) {{
            String run = sent == null ? null : getLocalProperty("{RUN}");
            if (run == null || !(value instanceof {HADOOP})) return super.broadcast(value, tag);
            {CONFIGURATION} all = (({HADOOP}) value).value();
            java.util.Map settings = new java.util.HashMap();
            for (java.util.Iterator each = all.iterator(); each.hasNext();) {{
                java.util.Map.Entry entry = (java.util.Map.Entry) each.next();
                settings.put(entry.getKey(), entry.getValue());
            }}
            Object key = new java.util.AbstractMap.SimpleEntry(run, settings);
            synchronized (sent) {{
                {BROADCAST} before = ({BROADCAST}) sent.get(key);
                if (before != null && before.isValid()) return before;
                {BROADCAST} now = super.broadcast(new {HADOOP}(new {CONFIGURATION}(all)), tag);  // a copy, to keep
                sent.put(key, now);
                return now;
            }}
        }}
    }}
}}
"""


class Context(SparkContext):
    """pyspark's context, around ours."""

    def _do_init(self, *given: Any, **named: Any) -> None:
        with suppress(Exception):  # of Java or py4j: pyspark sends them, and `_initialize_context` says why
            for name in LOOKED_UP:
                java_import(self._jvm, name)
            contexts = compiled_in(self._jvm, NAME, SOURCE)
            given = tuple(Sent(each, contexts) if type(each) is SparkConf else each for each in given)
        super()._do_init(*given, **named)

    def _initialize_context(self, jconf: Any) -> Any:
        try:
            contexts = compiled_in(self._jvm, NAME, SOURCE)
        except Exception as error:  # noqa: BLE001  # any error of Java or py4j: a release has moved what this uses
            log.warning("Spark checks its own functions in each batch, which costs processor time only: %s", error)
            return super()._initialize_context(jconf)
        return contexts.of(jconf)


class Sent(SparkConf):
    """The same settings in Java, sent in one call and read in one. pyspark needs four for each of them."""

    def __init__(self, settings: SparkConf, contexts: Any) -> None:
        self._contexts, self._between = contexts, uuid.uuid4().hex
        sent = self._between.join(chain.from_iterable(settings.getAll()))
        super().__init__(_jconf=contexts.settings(sent, self._between))

    def getAll(self) -> list[tuple[str, str]]:
        """Also those that Java has had before."""
        parts = self._contexts.text(self._jconf, self._between).split(self._between)
        return [*zip(parts[::2], parts[1::2], strict=True)]


def note_nothing(spark: SparkSession) -> None:
    """Keep no record of the jobs, stages, tasks and plans that run from now on, unless there is Spark's UI or a plugin,
    which may read it.
    """
    context = spark.sparkContext._jsc.sc()
    if spark.sparkContext.uiWebUrl is not None or spark.conf.get(PLUGINS, ""):
        return
    try:
        for store in (context.statusStore(), spark._jsparkSession.sharedState().statusStore()):
            context.removeSparkListener(store.listener().get())
    except Py4JError as error:
        log.warning("Spark keeps a record of what has run, which costs processor time only: %s", error)
