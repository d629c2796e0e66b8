"""Spark can keep state by an operator's keys, and takes those for equal that a batch takes for equal."""

from collections.abc import Iterator
from typing import Any

from samza_azure.spark.jvm.catalyst import Node, in_sql, kind_of, literal, text
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described, keys_of
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse a key of another type."""
    for node in facts.operators:
        for (key,) in () if node.kind == "Join" else keys_of(node):
            if wrong := _wrong(node, key, str(key.dataType().sql())):
                yield facts.refused(node, f"the {described(node)} {wrong}")


def _wrong(node: Node, key: Any, kind: str) -> str:
    is_machine = node.kind == "TransformWithStateInPySpark"
    if (is_machine or node.kind == "FlatMapGroupsInPandasWithState") and ("DOUBLE" in kind or "FLOAT" in kind):
        return _of_zeros(key, kind)
    if is_machine and any(word in kind for word in ("ARRAY<", "INTERVAL", "MAP<")):
        return _of_a_list(key, kind)
    if "COLLATE" in kind:
        return _with_a_collation(key, kind)
    return _of_a_map(key, kind) if node.kind == "Aggregate" and "MAP<" in kind else ""


def _of_zeros(key: Any, kind: str) -> str:
    """A function with state gets a group for each sequence of bytes. Elsewhere Spark takes both zeros for one."""
    name = str(key.name())
    as_text = literal(f"CAST({in_sql(name)} + 0.0 AS STRING)")
    remedy = "Group by fields that are decimals, whole numbers or texts."
    if kind in ("DOUBLE", "FLOAT"):
        remedy = f"Make the key a text before groupBy, .withColumn({literal(name)}, F.expr({as_text}))."
    return f"would have one group for 0.0 and another for -0.0, which are equal in a batch. {remedy}"


def _of_a_list(key: Any, kind: str) -> str:
    """The Python process of transformWithState cannot read the type of such a key, nor the state store an interval."""
    name = str(key.name())
    column = literal(in_sql(name))
    # JSON would round times to milliseconds, and has the entries of a map in any order.
    exact = ', {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}' if "TIMESTAMP" in kind else ""
    entries = f"F.array_sort(F.map_entries({column}))" if kind.startswith("MAP<") else column
    made = f'F.col({column}).cast("string")' if kind.startswith("INTERVAL") else f"F.to_json({entries}{exact})"
    return (
        f"has a key of type {kind}, with which transformWithState fails at its first row. Make the key a text before "
        f"groupBy, .withColumn({literal(name)}, {made})."
    )


def _with_a_collation(key: Any, kind: str) -> str:
    """Spark keeps state by the bytes of a key, and refuses a text whose equal values have different bytes."""
    is_made = kind_of(key) == "Collate"
    as_text = f"F.expr({literal(text(key.child()))})" if is_made else f'F.expr({literal(text(key))}).cast("string")'
    is_plain = "UTF8_LCASE" in kind and "RTRIM" not in kind
    as_text = f"F.lower({as_text})" if is_plain else as_text
    differs = "" if is_plain else ", by which texts may differ that the collation takes for equal"
    return (
        "has a text with a collation as key, by which Spark cannot keep state. Use a text without one"
        f"{differs}: {as_text}."
    )


def _of_a_map(key: Any, kind: str) -> str:
    """Spark 4.3 takes a null in a map of numbers that is a key for 0, so two groups become one; also in a batch over
    a file."""
    is_column = kind_of(key) == "AttributeReference" and kind.startswith("MAP<")
    of = literal(in_sql(str(key.name()))) if is_column else "the map"
    return (
        "has a map in its key, and Spark takes a null in a map of numbers for 0. Group by its entries, "
        f"F.array_sort(F.map_entries({of}))."
    )
