"""Rewrite Spark's errors about a stage for the person who wrote the stage, and say what to write instead.

A clear message of Spark's is kept, without its error class, SQLSTATE and plan. What to write instead hangs on the
condition that Spark gives an error, or on the operator that it refuses, and never on its English.
"""

import re
import traceback
from pathlib import Path
from pickle import PicklingError

import pyspark

from samza_azure.application import Stage
from samza_azure.pipeline.names import nearest
from samza_azure.pipeline.packages import needs
from samza_azure.spark.jvm.catalyst import Node, in_sql, kind_of, literal
from samza_azure.spark.jvm.errors import condition_of, is_of_java, message_of, parameters_of, plan_of_error
from samza_azure.spark.jvm.reducers import NotForWorkers
from samza_azure.spark.pipeline import remedies
from samza_azure.spark.pipeline.advice import Advice, count_in_windows
from samza_azure.spark.pipeline.remedies import instead_of, instead_of_call

_PYSPARK = str(Path(pyspark.__file__).parent)
#: The condition of most of what Spark's check of streaming queries refuses. Only the operator says what it is about.
_UNNAMED = "_LEGACY_ERROR_TEMP_3102"
_ACTION, _ATTRIBUTE = "CALL_ON_STREAMING_DATASET_UNSUPPORTED", "ATTRIBUTE_NOT_SUPPORTED"
_PACKAGES = frozenset({"PACKAGE_NOT_INSTALLED", "UNSUPPORTED_PACKAGE_VERSION"})
_NO_TIMESTAMP, _STAR = "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE", "INVALID_USAGE_OF_STAR_OR_REGEX"
_INTERVAL = "CANNOT_PARSE_INTERVAL"
#: What a stage names and nothing has created.
_UNKNOWN = frozenset({"UNRESOLVED_ROUTINE", "UNRESOLVABLE_TABLE_VALUED_FUNCTION", "TABLE_OR_VIEW_NOT_FOUND"})
_WINDOW = "NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING"
_OUTPUT_MODE, _ON_CLAUSE = "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION", "UNSUPPORTED_FEATURE.PYTHON_UDF_IN_ON_CLAUSE"
_NO_ACTION = (
    "{method}a stage must not run an action (count, collect, show, toPandas, foreach, cache or write). Return the "
    "DataFrame instead; to count the rows of each hour, aggregate them: {count}."
)
_CREATE = (
    "If a stage creates it: that lasts for one call of the stage's function. What several calls or stages use is "
    "created at the top of the module."
)
_SEND = (
    "Functions that Spark calls run in other processes, and what they use is pickled for those. Create it inside the "
    "function, or put it into a module beside the pipeline, which they import."
)
#: What Spark calls errors by; a test finds each of them in this Spark.
CONDITIONS = frozenset(
    {_UNNAMED, _ACTION, _INTERVAL, _NO_TIMESTAMP, _STAR, _OUTPUT_MODE, _ON_CLAUSE, _WINDOW}
    | _UNKNOWN
    | remedies.CONDITIONS
)
#: What pyspark calls its own.
CONDITIONS_OF_PYTHON = frozenset({_ATTRIBUTE, *_PACKAGES})
_APPEND = 'Use output mode append: remove output_mode="update" from @app.stage.'
#: What a pipeline usually imports, by its usual name.
_IMPORTS = {
    "Application": "from samza_azure import Application",
    "DataFrame": "from pyspark.sql import DataFrame",
    "F": "from pyspark.sql import functions as F",
    "SparkSession": "from pyspark.sql import SparkSession",
    "Window": "from pyspark.sql import Window",
}
_OTHERWISE = (
    "If Spark refuses a combination of operators, split them into separate stages. If it refuses one operator, remove "
    "it from the stage and apply it where the output is read."
)


def said_by_stage(error: BaseException, columns: list[str], time: str | None = None) -> str:
    """Describe an error that a stage's function raised. `columns` are those of its inputs, `time` is an event time."""
    text, condition, about = str(error), condition_of(error), parameters_of(error)
    if condition == _ACTION or (condition == _UNNAMED and _is_of_stream(error)):
        return _NO_ACTION.format(method=_called(error), count=count_in_windows(time))
    if condition == _ATTRIBUTE:
        return _no_column(about["attr_name"], columns)
    if condition in _PACKAGES and about["package_name"].lower() == "pandas":
        return f"{_operator(error)} needs the package pandas ({_plain(text).rstrip('.')}). {needs('pandas')}"
    if condition == _NO_TIMESTAMP and about["eventType"] in ('"TIMESTAMP_NTZ"', '"DATE"'):
        name = about["eventName"].strip("`").replace("``", "`")
        cast = f'.withColumn({literal(name)}, F.col({literal(in_sql(name))}).cast("timestamp"))'
        return f"{_plain(text)} Make it one before withWatermark, {cast}."
    if condition == _INTERVAL:
        return f'{about["intervalString"]} is no length of time. Write a number and a unit, as in "30 minutes".'
    if condition.partition(".")[0] in _UNKNOWN:
        return f"{_plain(text)} {_CREATE}"
    if isinstance(error, NameError) and error.name in _IMPORTS:
        return f"NameError: {text}. Write at the top: {_IMPORTS[error.name]}."
    if isinstance(error, NotForWorkers):
        return text
    if isinstance(error, PicklingError):
        return f"{text.rstrip('.')}. {_SEND}"
    if is_of_java(error):
        return _plain(message_of(error))
    if type(error).__module__.startswith("pyspark."):
        remedy = instead_of_call(condition)
        if condition == _STAR and about["prettyName"] == "Pivot":
            remedy = "Write F.count(F.lit(1)) instead."
        return f"{_plain(text).rstrip('.')}. {remedy}" if remedy else _plain(text)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def said_at_start(error: Exception, root: Node, advice: Advice, stage: Stage) -> str:
    """Describe what Spark would refuse when the query of this plan starts, and the remedy."""
    reason = _plain(message_of(error)).rstrip(".")
    return f"{reason}. {_instead_at_start(error, root, advice, stage) or _OTHERWISE}"


def _instead_at_start(error: Exception, root: Node, advice: Advice, stage: Stage) -> str:
    condition, operator = condition_of(error), plan_of_error(error)
    if condition == _ON_CLAUSE:
        return (
            "Write the condition with SQL expressions, or compute a column of one side with the function before the "
            "join."
        )
    if condition == _OUTPUT_MODE:
        return _APPEND if stage.output_mode == "update" else ""
    if "monotonically_increasing_id()" in message_of(error):  # its condition is that of many errors
        return (
            "It numbers rows by where and when they are read, which no other run repeats. Make an id of what the row "
            'holds, F.sha2(F.to_json(F.struct("*")), 256): rows that are equal in each column have one id.'
        )
    kind = kind_refused(error)
    if kind != "Join":
        return instead_of(kind, advice, root)
    is_of_streams = operator.left().isStreaming() and operator.right().isStreaming()
    if not is_of_streams or str(operator.joinType().toString()) == "LeftAnti":
        return advice.with_table(root)
    if stage.output_mode == "update":
        return _APPEND
    return (
        "Give both inputs of such a join withWatermark, and let its condition bound the time between the rows"
        f"{advice.in_time(root)}"
    )


def kind_refused(error: Exception) -> str:
    """The kind of the operator that Spark refuses; empty if it does not say that. Of a window it says no more."""
    if (operator := plan_of_error(error)) is None:
        return "Window" if condition_of(error) == _WINDOW else ""
    return kind_of(operator)


#: What Spark says of operators that it refuses at the start, of which it tells the lowest only.
_REASONS = {
    "Intersect": "Intersect of streaming DataFrames is not supported",
    "Offset": "Offset is not supported on a stream",
    "Sort": "Sorting is not supported on a stream",
    "Window": "Window function is not supported on a stream",
}


def said_of_kind(kind: str, root: Node, advice: Advice) -> str:
    """Describe an operator that Spark would refuse when the query starts. Empty: it is none of these."""
    if (reason := _REASONS.get(kind)) is None:
        return ""
    return f"{reason}. {instead_of(kind, advice, root)}"


def _is_of_stream(error: BaseException) -> bool:
    """Whether an error is about an operator over a stream."""
    operator = plan_of_error(error)
    return operator is not None and bool(operator.isStreaming())


def _plain(text: str) -> str:
    """Spark's sentence without its error class, SQLSTATE and plan."""
    sentence = text.strip().partition("\n")[0]
    sentence = re.sub(r"^\[[A-Z0-9_.]+\] ", "", sentence)
    sentence = re.sub(r"#\d+L?\b", "", sentence)  # the number of a column
    sentence = re.sub(r"\b_pyspark_[0-9a-f]{32}\.", "", sentence)  # what spark.sql calls a DataFrame
    return re.sub(r" ?SQLSTATE: \w+|; line \d+ pos -?\d+", "", sentence).rstrip(" ;")


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
