"""Sessions are merged as a batch merges them, and Spark can run their aggregation."""

from collections.abc import Iterator, Sequence
from typing import Any

from samza_azure.spark.jvm.catalyst import (
    SESSION_MARK,
    Node,
    conjuncts,
    contains,
    identity,
    in_sql,
    items,
    kind_of,
    literal,
    parts_of,
    references,
    without_alias,
)
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described, has_sessions, is_session, keys_of
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse sessions that would be emitted in parts, or never."""
    for node in facts.operators:
        if node.kind == "Aggregate" or node.kind.startswith("Deduplicate"):
            yield from _in_parts(facts, node)
    before, after = (
        [each for each in top.walk() if each.is_streaming and has_sessions(each)]
        for top in (facts.root, facts.optimised)
    )
    if any(not keys_of(node) for node in after):  # the optimiser drops constants
        yield _without_a_key(facts, before)
    for sessions, moved in zip(before, after, strict=False):
        # Spark takes a session for a key like any other. A batch has the same wrong rows.
        if len(_conditions_below(moved)) > len(_conditions_below(sessions)):
            yield facts.refused(
                sessions,
                f"a filter or join after the {described(sessions)} has a condition on the session that Spark would "
                "apply to the single rows, before it merges them into sessions. Write it in the next stage: write "
                "the session's start or end, and declare the end as event_time of the stream between.",
            )


def _in_parts(facts: Facts, node: Node) -> Iterator[Refusal]:
    """A batch merges sessions wherever it groups rows by them, also to remove duplicates. On a stream only the first
    aggregation merges them: behind it each is complete, and before it each is that of one row."""
    keys = list(items(node.plan.groupingExpressions() if node.kind == "Aggregate" else node.plan.keys()))
    for session in filter(is_session, keys):
        merged = _put_out_by(node.child, identity(session))
        if merged is None and node.kind != "Aggregate":
            by = ", ".join(literal(in_sql(str(key.name()))) for key in keys)
            yield facts.refused(
                node,
                f"the {described(node)} compares sessions that are not merged yet, of one row each; a batch would "
                f"merge them. Group by them instead, and leave other columns out: .groupBy({by}).count().",
            )
        if merged is not None and not _has_all_keys(node, keys, merged[0]):
            yield facts.refused(
                node,
                f"the {described(node)} groups sessions that an earlier aggregation has written. A batch would merge "
                "those that overlap, but on a stream the first is complete before the next one comes. Use one "
                "aggregation by these keys; instead of a pivot, give it an aggregate with a FILTER clause for each "
                "value.",
            )


def _put_out_by(node: Node, wanted: int) -> tuple[Node, Any] | None:
    """The aggregation that puts a column out, and what it computes it from; or the union of several of them."""
    if node.kind == "Aggregate":
        return node, node.maker(wanted)
    if node.kind in ("Project", "Expand"):
        made = node.maker(wanted) if node.kind == "Project" else _expanded(node, wanted)
        return _put_out_by(node.child, identity(made)) if kind_of(made) == "AttributeReference" else None
    if node.kind == "Union":
        index = node.ids.index(wanted)
        is_merged = any(_put_out_by(child, child.ids[index]) for child in node.children)
        return (node, None) if is_merged else None
    below = next((child for child in node.children if wanted in child.ids), None)
    return None if below is None else _put_out_by(below, wanted)


def _expanded(node: Node, wanted: int) -> Any:
    """What an Expand makes a column from in the first of the rows that it makes of each row."""
    return without_alias(node.plan.projections().apply(0).apply(node.ids.index(wanted)))


def _has_all_keys(node: Node, keys: Sequence[Any], below: Node) -> bool:
    """Whether the sessions of one group are those of one key of the aggregation below, so that none overlap."""
    if below.kind == "Union":
        return False
    columns = [key for key in keys if kind_of(key) == "AttributeReference"]
    found = [made for made in (_put_out_by(node.child, identity(key)) for key in columns) if made is not None]
    known = [expression for by, expression in found if by is below]
    return all(any(each.semanticEquals(key) for each in known) for (key,) in keys_of(below))


def _without_a_key(facts: Facts, sessions: Sequence[Node]) -> Refusal:
    """Spark has no plan for sessions without another key on a stream."""
    fewest = min(sessions, key=lambda node: len(keys_of(node)))
    columns = [each for each in fewest.child.output if _has_hash(each)]
    zero = f"F.pmod(F.hash({literal(in_sql(str(columns[0].name())))}), F.lit(1))" if columns else "the hash of a column"
    return facts.refused(
        fewest,
        "the aggregation by session windows has no key besides, and Spark cannot run it on a stream. Group by another "
        f"column as well, or by a number that is 0 in each row, and drop it behind: {zero}.",
    )


def _conditions_below(sessions: Node) -> list[Any]:
    """The conditions on sessions, or on a time that windows are made of, below their aggregation."""
    found = []
    for node in sessions.child.walk():
        parts = parts_of(node) if node.kind == "Join" else []
        parts += conjuncts(node.plan.condition()) if node.kind == "Filter" else []
        marked = {each for child in node.children for each in child.marked(SESSION_MARK)}
        found += [part for part in parts if references(part) & marked or contains(part, "PreciseTimestampConversion")]
    return [part for part in found if kind_of(part) != "IsNotNull"]


def _has_hash(column: Any) -> bool:
    """Whether Spark computes a hash of this column's type."""
    kind = str(column.dataType().sql())
    return not is_session(column) and not any(word in kind for word in ("COLLATE", "MAP<", "VARIANT"))
