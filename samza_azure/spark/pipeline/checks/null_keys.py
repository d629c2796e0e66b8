"""Null keys do not meet where a batch would keep them apart: in a join of streams, and in a state machine of pandas."""

from collections.abc import Iterator, Sequence
from typing import Any

from samza_azure.spark.jvm.catalyst import Node, equalities, in_sql, items, join_type, kind_of, literal, text
from samza_azure.spark.pipeline.advice import without_nulls
from samza_azure.spark.pipeline.destination import INTEGERS
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.nulls import Nulls, keeps_values
from samza_azure.spark.pipeline.operators import described, keys_of
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse an operator in which they would."""
    for node in facts.operators:
        if node.kind == "Join" and (wrong := matched(node, equalities(node, ["EqualTo"]), facts.nulls)):
            yield facts.refused(node, wrong)
        is_machine = node.kind == "TransformWithStateInPySpark"
        if is_machine and "pandas" in str(node.plan.userFacingDataType().toString()):
            yield from (facts.refused(node, said) for said in _in_pandas(node, facts.nulls))


def _in_pandas(node: Node, nulls: Nulls) -> Iterator[str]:
    """pandas has no null beside whole numbers: it makes fractions of a chunk's keys if one is null, and Spark takes
    each fraction for a null. So the groups would share one state. A null time cannot be converted at all."""
    for (key,) in keys_of(node):
        kind, name = str(key.dataType().simpleString()), str(key.name())
        if kind not in (*INTEGERS, "timestamp", "timestamp_ntz") or nulls.never(nulls.of(node.child, key)):
            continue
        consequence = "would put the groups beside it into the state of the null" if kind in INTEGERS else "would fail"
        column = in_sql(name)
        yield (
            f"where {name} is null, transformWithStateInPandas {consequence}. Remove such rows before groupBy, "
            f"{without_nulls(column)}. If you need them, use transformWithState, or make the key a text, "
            f".withColumn({literal(name)}, F.expr({literal(f'CAST({column} AS STRING)')}))."
        )


def matched(join: Node, keys: Sequence[tuple[Any, Any]], nulls: Nulls) -> str:
    """Say which keys of a join would match nulls. Empty: none.

    A stream join compares keys as bytes, so null equals null; in a batch null equals nothing. The result is right if
    one side has no nulls. Spark itself removes them from a side that emits no rows without a partner, if the key is a
    column there.
    """
    kind = join_type(join)
    taken_out = {"Inner": (0, 1), "LeftSemi": (0, 1), "LeftOuter": (1,), "RightOuter": (0,)}.get(kind, ())
    for pair in keys:
        if any(_is_column(pair[side]) for side in taken_out):
            continue
        sides = list(zip(join.children, pair, strict=True))
        if any(_is_filtered(side, key) for side, key in sides):
            continue
        if nulls.never(*(nulls.of(side, key) for side, key in sides)):
            continue
        left, right = (text(each) for each in pair)
        number = 1 if kind in ("LeftOuter", "LeftAnti") else 0  # of the other the output has such rows
        line, key = without_nulls((left, right)[number]), pair[number]
        if kind_of(key) not in ("AttributeReference", "GetStructField"):
            made = f'.withColumn("joined_by", F.expr({literal(text(key))})){without_nulls("joined_by")}'
            line = f'{made}, write joined_by instead in its condition, and .drop("joined_by") behind it'
        lost = "The output then lacks them; add them behind it with a union if you need them."
        return (
            f"the {described(join)} would match rows whose {left} and {right} are both null, which a batch does not. "
            f"Remove them on the {('left', 'right')[number]} side before the join, {line}. "
            f"{lost if kind == 'FullOuter' else 'They have no partner.'}"
        )
    return ""


def _is_filtered(side: Node, key: Any) -> bool:
    """Whether a filter removes the rows in which an expression is null."""
    known = items(side.plan.constraints().toSeq())
    return any(kind_of(each) == "IsNotNull" and each.child().semanticEquals(key) for each in known)


def _is_column(key: Any) -> bool:
    """Whether the key is a column, or a cast of one that is null only where the column is."""
    while kind_of(key) == "Cast" and keeps_values(key):
        key = key.child()
    return kind_of(key) == "AttributeReference"
