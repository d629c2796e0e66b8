"""What to write instead of what Spark refuses: the only table of it.

A key is the condition of an error that Spark raises when a stage's function is called, or the kind of the operator that
cannot run on a stream. A remedy is a sentence, or is made of the plan; then a test pastes it (`test_advice.py`).
"""

from collections.abc import Callable

from samza_azure.spark.jvm.catalyst import Node, in_sql, literal
from samza_azure.spark.pipeline.advice import Advice

_COGROUP = "Use a join, or a union and then applyInPandasWithState."
_SEEN = (
    "where the output is read, or write one stage over both streams with transformWithState, which remembers what it "
    "has seen."
)


def _sorted(advice: Advice, root: Node) -> str:
    if any(node.kind == "Sample" and node.child.kind == "Sort" for node in root.walk()):
        return f"randomSplit sorts the rows. {_share(advice, root)}"
    return (
        "Remove orderBy and sort: a stream never ends, so it has no final order. Sort where the output is read"
        f"{advice.greatest(root)}."
    )


def _share(_: Advice, root: Node) -> str:
    """A filter that keeps some of the rows, for a stage that draws them at random."""
    sample = next(node for node in root.walk() if node.kind == "Sample")
    column = in_sql(str(sample.output[0].name()))
    return (
        f"Use a filter by the hash of a column instead, which keeps three of ten values of {column}: "
        f".where({literal(f'pmod(xxhash64({column}), 10) < 3')})."
    )


def _subtracted(_: Advice, root: Node) -> str:
    """Of a stream, or of a table."""
    if any(node.kind == "Except" and node.children[1].is_streaming for node in root.walk()):
        return f"Subtract {_SEEN}"
    return (
        "Subtract where the output is read. Where no column is null and each row is wanted once, dropDuplicates and "
        'then a join of kind "left_anti" do the same.'
    )


def _numbered(advice: Advice, root: Node) -> str:
    return (
        "row_number, rank and lag need all rows of a group at once. Use an aggregate per F.window (F.max_by, F.min_by)"
        f", dropDuplicatesWithinWatermark, or transformWithState to remember the previous row.{advice.first(root)}"
    )


REMEDIES: dict[str, str | Callable[[Advice, Node], str]] = {
    "_LEGACY_ERROR_TEMP_3063": 'Name the values, as in .pivot("kind", ["a", "b"]).',
    "INVALID_SUBQUERY_EXPRESSION.STREAMING_QUERY": (
        "Write it as a join, or as a left semi join whose condition bounds the time."
    ),
    "UNSUPPORTED_FEATURE.SET_OPERATION_ON_MAP_TYPE": "Make a text of the map first, with F.to_json.",
    "_LEGACY_ERROR_TEMP_3101": (
        "A window of an earlier stage is a column of its start and end. Let that stage write a time, "
        '.withColumn("at", F.window_time("window")), declare event_time = "at" for its stream, and use that time here.'
    ),
    "Aggregate": Advice.distinct,
    "DeduplicateWithinWatermark": Advice.watermark_before,
    "Except": _subtracted,
    "FlatMapCoGroupsInArrow": _COGROUP,
    "FlatMapCoGroupsInPandas": _COGROUP,
    "Intersect": f"Intersect {_SEEN}",
    "LateralJoin": (
        "Compute its columns with withColumn; for several rows of one, use F.explode or LATERAL VIEW explode(...). "
        "Instead of a Python table function over a stream, which would see one batch, use transformWithState."
    ),
    "Offset": (
        "Remove offset: the rows of a stream have no order, so any of them would be skipped. Skip rows where the "
        "output is read."
    ),
    "Sample": _share,
    "Sort": _sorted,
    "Union": "Produce the rows of the table into a stream, and name it in @app.stage.",
    "Window": _numbered,
}
#: Spark's conditions have capitals only.
CONDITIONS = frozenset(key for key in REMEDIES if key.isupper())
OPERATORS = REMEDIES.keys() - CONDITIONS


def instead_of_call(condition: str) -> str:
    """What to write instead of a call that raises this. Empty: nothing is known."""
    remedy = REMEDIES.get(condition)
    return remedy if isinstance(remedy, str) else ""


def instead_of(kind: str, advice: Advice, root: Node) -> str:
    """What to write instead of an operator of a stage's plan. Empty: nothing is known."""
    remedy = REMEDIES.get(kind, "")
    return remedy if isinstance(remedy, str) else remedy(advice, root)
