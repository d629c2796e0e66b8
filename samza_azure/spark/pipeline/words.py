"""Rewrite Spark's errors about a stage for the person who wrote the stage, and say what to write instead.

A clear message of Spark's is kept, without its error class, SQLSTATE and plan.
"""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from pickle import PicklingError

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkAttributeError, PySparkImportError

from samza_azure.spark.pipeline.advice import Advice, count_in_windows
from samza_azure.spark.pipeline.catalyst import Node, in_sql, literal
from samza_azure.spark.pipeline.names import nearest
from samza_azure.spark.pipeline.packages import needs
from samza_azure.spark.pipeline.reducers import NotForWorkers

_PYSPARK = str(Path(pyspark.__file__).parent)
#: Spark's message for any action on a streaming DataFrame.
_RUNS = "Queries with streaming sources must be executed with writeStream"
_NO_ACTION = (
    "{method}a stage must not run an action (count, collect, show, toPandas, foreach, cache or write). Return the "
    "DataFrame instead; to count rows, aggregate them: {count}."
)
_CREATE = (
    "If a stage creates it: that lasts for one call of the stage's function. What several calls or stages use is "
    "created at the top of the module."
)
_SEND = (
    "Functions that Spark calls run in other processes, and what they use is pickled for those. Create it inside the "
    "function, or put it into a module beside the pipeline, which they import."
)
_SEEN = (
    "where the output is read, or write one stage over both streams with transformWithState, which remembers what it "
    "has seen."
)
#: What to write instead of what Spark refuses when a stage's function is called, by a part of Spark's message.
_INSTEAD_OF_CALLS = {
    "pivot is not supported": 'Name the values, as in .pivot("kind", ["a", "b"]).',
    "Streaming query is not allowed in subquery": "Write it as a join, or as a left semi join.",
    "Cannot have MAP type columns in": "Make a text of the map first, with F.to_json.",
}
#: What to write instead of what Spark refuses when a query starts, by a part of Spark's message.
_INSTEAD: dict[str, Callable[[Advice, Node], str]] = {
    "Sorting is not supported": lambda advice, root: (
        f"randomSplit sorts the rows. {_share(root)}"
        if any(node.kind == "Sample" and node.child.kind == "Sort" for node in root.walk())
        else "Remove orderBy and sort: a stream never ends, so it has no final order. Sort where the output is read"
        f"{advice.greatest(root)}."
    ),
    "Sampling is not supported": lambda _advice, root: _share(root),
    "Except on a streaming": lambda _advice, _root: f"Subtract {_SEEN}",
    "Intersect of streaming": lambda _advice, _root: f"Intersect {_SEEN}",
    "Union between streaming and batch": lambda _advice, _root: (
        "Produce the rows of the table into a stream, and name it in @app.stage."
    ),
    "only in Append output mode": lambda _advice, _root: (
        'Use output mode append: remove output_mode="update" from @app.stage.'
    ),
    "session window streaming aggregations": lambda _advice, _root: (
        'Use output mode append: remove output_mode="update" from @app.stage.'
    ),
    "Window function is not supported": lambda advice, root: (
        "row_number, rank and lag need all rows of a group at once. Use an aggregate per F.window (F.max_by, F.first), "
        f"dropDuplicatesWithinWatermark, or transformWithState to remember the previous row.{advice.first(root)}"
    ),
    "Distinct aggregations": lambda advice, root: advice.distinct(root),
    "Python UDF in the ON clause": lambda _advice, _root: (
        "Write the condition with SQL expressions, or compute a column of one side with the function before the join."
    ),
    "without watermark": lambda advice, root: advice.watermark_before(root),
    "Offset is not supported": lambda _advice, _root: (
        "Remove offset: the rows of a stream have no order, so any of them would be skipped. Skip rows where the "
        "output is read."
    ),
    "a static Data": lambda advice, root: advice.with_table(root),
    "joins with a streaming DataFrame/Dataset on the right": lambda advice, root: advice.with_table(root),
    "Stream-stream": lambda advice, root: (
        "Give both inputs of such a join withWatermark, and let its condition bound the time between the rows"
        f"{advice.in_time(root)}"
    ),
}
_OTHERWISE = (
    "If Spark refuses a combination of operators, split them into separate stages. If it refuses one operator, remove "
    "it from the stage and apply it where the output is read."
)


def said_by_stage(error: BaseException, columns: list[str], time: str | None = None) -> str:
    """Describe an error that a stage's function raised. `columns` are those of its inputs, `time` is an event time."""
    text = str(error)
    if _RUNS in text or "CALL_ON_STREAMING_DATASET_UNSUPPORTED" in text:
        return _NO_ACTION.format(method=_called(error), count=count_in_windows(time))
    if isinstance(error, PySparkAttributeError) and (found := re.search(r"Attribute `(.*)` is not supported", text)):
        return _no_column(found[1], columns)
    if isinstance(error, PySparkImportError) and "pandas" in text.lower():
        return f"{_operator(error)} needs the package pandas ({text.rstrip('.')}). {needs('pandas')}"
    if found := re.search(r"The event time `(.*)` has the invalid type \"(?:TIMESTAMP_NTZ|DATE)\"", text):
        cast = f'.withColumn({literal(found[1])}, F.col({literal(in_sql(found[1]))}).cast("timestamp"))'
        return f"{_plain(text)} Make it one before withWatermark, {cast}."
    if re.match(r"\[(UNRESOLVED_ROUTINE|UNRESOLVABLE_TABLE_VALUED_FUNCTION|TABLE_OR_VIEW_NOT_FOUND)\b", text):
        return f"{_plain(text)} {_CREATE}"
    if isinstance(error, NotForWorkers):
        return text
    if isinstance(error, PicklingError):
        return f"{text.rstrip('.')}. {_SEND}"
    if type(error).__module__.startswith("pyspark."):
        remedy = next((instead for part, instead in _INSTEAD_OF_CALLS.items() if part in text), "")
        return f"{_plain(text).rstrip('.')}. {remedy}" if remedy else _plain(text)
    if isinstance(error, Py4JJavaError):
        return _plain(_message(error))
    return f"{type(error).__name__}: {text}"


def said_at_start(error: BaseException, root: Node, advice: Advice) -> str:
    """Describe what Spark would refuse when the query of this plan starts, and the remedy."""
    reason = _plain(_message(error))
    remedy = next((instead(advice, root) for part, instead in _INSTEAD.items() if part in reason), _OTHERWISE)
    return f"{reason.rstrip('.')}. {remedy}"


def _message(error: BaseException) -> str:
    """What an error says. The text of an error of Java names a call of py4j first, and goes on with Java's stack."""
    if not isinstance(error, Py4JJavaError):
        return str(error)
    return str(error.java_exception.getMessage() or error.java_exception)


def _plain(text: str) -> str:
    """Spark's sentence without its error class, SQLSTATE and plan."""
    sentence = text.strip().partition("\n")[0]
    sentence = re.sub(r"^\[[A-Z0-9_.]+\] ", "", sentence)
    sentence = re.sub(r"#\d+L?\b", "", sentence)  # the number of a column
    sentence = re.sub(r"\b_pyspark_[0-9a-f]{32}\.", "", sentence)  # what spark.sql calls a DataFrame
    return re.sub(r" ?SQLSTATE: \w+|; line \d+ pos \d+", "", sentence).rstrip(" ;")


def _share(root: Node) -> str:
    """A filter that keeps some of the rows, for a stage that draws them at random."""
    sample = next(node for node in root.walk() if node.kind == "Sample")
    hashed = f"pmod(xxhash64({in_sql(str(sample.output[0].name()))}), 10) < 3"
    return f"Use a filter by the hash of columns instead, for three of ten rows .where({literal(hashed)})."


def _no_column(name: str, columns: list[str]) -> str:
    meant = nearest(name, columns)
    return f"one of its DataFrames has no column {name!r}.{meant} The columns are {', '.join(columns)}."


def _operator(error: BaseException) -> str:
    """The pyspark method that the stage called."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.name for frame in frames if frame.filename.startswith(_PYSPARK)), "a function")


def _called(error: BaseException) -> str:
    name = _operator(error)
    return "" if name in ("a function", "deco", "wrapped") else f"{name}() was called, but "
