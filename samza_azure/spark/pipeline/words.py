"""What Spark says of a stage, in the words of somebody who writes one: the sentence, and what to write instead.

Spark's own message stays where it is clear; its error class, its SQLSTATE and the plan behind it go.
"""

import difflib
import re
import traceback
from pathlib import Path

import pyspark
from pyspark.errors import PySparkAttributeError, PySparkImportError

from samza_azure.spark.pipeline.packages import PANDAS

_PYSPARK = str(Path(pyspark.__file__).parent)
#: Says Spark of whatever runs the rows of a stream.
_RUNS = "Queries with streaming sources must be executed with writeStream"
_NO_ACTION = (
    "{method}a stage may not run its rows (count, collect, show, toPandas, foreach, cache, write, …). It returns the "
    'DataFrame that they are to become; to count them is an aggregation: .groupBy(F.window("ts", "1 hour")).count().'
)
#: What Spark refuses when a query starts, by a part of its sentence, and what to write instead.
_INSTEAD = {
    "Sorting is not supported": (
        "Leave orderBy and sort out: rows that never end have no last one. What reads the output sorts it; the "
        'greatest of a window is an aggregate, .groupBy(F.window("ts", "1 hour")).agg(F.max_by("id", "amount")).'
    ),
    "Non-time-based windows": (
        "A row_number, rank or lag needs all rows of its group at once. Use an aggregate per F.window "
        "(F.max_by, F.first), dropDuplicatesWithinWatermark, or transformWithState for the row before."
    ),
    "Distinct aggregations": (
        'Drop the duplicates first, .dropDuplicatesWithinWatermark(["id"]), and count in a stage behind it; or use '
        'F.approx_count_distinct("id").'
    ),
    "Stream-stream": (
        "Both inputs of such a join need withWatermark, and its condition has to bound the time between the rows: "
        '(left.id == right.id) & right.paid.between(left.ts, left.ts + F.expr("INTERVAL 1 HOUR")).'
    ),
}
_OTHERWISE = (
    "If it is the combination that Spark refuses, write its operators as stages of their own; if it is one operator, "
    "leave it out here and apply it to the output."
)


def said_by_stage(error: BaseException, columns: list[str]) -> str:
    """An error that came out of a stage's function. `columns` are those of its inputs."""
    text = str(error)
    if _RUNS in text:
        return _NO_ACTION.format(method=_called(error))
    if "CALL_ON_STREAMING_DATASET_UNSUPPORTED" in text:
        return _NO_ACTION.format(method=_called(error))
    if isinstance(error, PySparkAttributeError) and (found := re.search(r"Attribute `(.*)` is not supported", text)):
        return f"{_no_column(found[1], columns)}"
    if isinstance(error, PySparkImportError) and "pandas" in text.lower():
        return f"{_operator(error)} needs the package pandas ({text}) Run on each machine: pip install '{PANDAS}'"
    if type(error).__module__.startswith("pyspark."):
        return _plain(text)
    return f"{type(error).__name__}: {text}"


def said_at_start(error: BaseException) -> str:
    """What Spark would refuse when the query starts, and the remedy."""
    reason = _plain(str(error))
    remedy = next((instead for part, instead in _INSTEAD.items() if part in reason), _OTHERWISE)
    return f"{reason.rstrip('.')}. {remedy}"


def _plain(text: str) -> str:
    """Spark's sentence without its error class, SQLSTATE and plan."""
    sentence = text.strip().partition("\n")[0]
    sentence = re.sub(r"^\[[A-Z0-9_.]+\] ", "", sentence)
    return re.sub(r" ?SQLSTATE: \w+|; line \d+ pos \d+", "", sentence).rstrip(" ;")


def _no_column(name: str, columns: list[str]) -> str:
    near = difflib.get_close_matches(name, columns, n=1, cutoff=0.6)
    meant = f" Is {near[0]!r} meant?" if near else ""
    return f"a DataFrame of it has no column {name!r}.{meant} There are {', '.join(columns)}."


def _operator(error: BaseException) -> str:
    """The method of pyspark that the stage has called."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.name for frame in frames if frame.filename.startswith(_PYSPARK)), "a function")


def _called(error: BaseException) -> str:
    name = _operator(error)
    return "" if name in ("a function", "deco", "wrapped") else f"{name}() was called, but "
