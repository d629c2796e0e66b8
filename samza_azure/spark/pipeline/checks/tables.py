"""A static table is the same at each start: its rows are part of the program."""

from collections.abc import Iterator
from typing import Any

from samza_azure.spark.jvm.catalyst import class_of, items, kind_of
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.refusals import Refusal

#: Leaves whose rows are part of the program, so that they are the same in every execution.
CONSTANT = frozenset({"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"})


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse others, also in subqueries, and streams there."""
    stage = facts.stage.name
    for subquery in items(facts.root.plan.subqueriesAll()):  # also those inside of others
        if subquery.isStreaming():
            yield Refusal(
                f"Stage {stage} uses a stream inside a subquery. Write it as a join, or as a left semi join whose "
                "condition bounds the time."
            )
            continue
        for leaf in items(subquery.collectLeaves()):
            if wrong := _wrong(kind_of(leaf), leaf):
                yield Refusal(f"Stage {stage} {wrong}")
    for node in facts.root.walk():
        if not node.is_streaming and not node.children and (wrong := _wrong(node.kind, node.plan)):
            yield Refusal(f"Stage {stage} {wrong}", node.plan)


def _wrong(kind: str, leaf: Any) -> str:
    if kind in CONSTANT and (kind != "LogicalRDD" or _is_in_program(leaf.rdd())):
        return ""
    if kind == "UnionLoopRef":
        return (
            "uses a recursive query, whose rows Spark computes anew for each batch. Put them into the code, with "
            "spark.range or spark.createDataFrame."
        )
    if kind == "ResolvedInlineTable":
        return (
            "has VALUES with a value that is no constant, as the time or a random number, so each batch would have "
            "other rows. Write constants."
        )
    if kind == "LogicalRDD" and _is_kept(leaf.rdd()):
        return (
            "reads a table that localCheckpoint or checkpoint has computed (LogicalRDD). Its plan no longer shows "
            "whether the rows come from files, which may be others after a hand-over. Remove the call, and put a small "
            "table into the code, with spark.createDataFrame."
        )
    return (
        f"reads a table or files of its own ({kind}). A query lists the files when it starts, and the list may differ "
        "after a hand-over, so its rows would depend on restarts. Produce them into a stream and join with that, or "
        "put a small table into the code, with spark.createDataFrame."
    )


def _is_in_program(rdd: Any) -> bool:
    """Whether the rows come from the program, not from files or from a result computed from files."""
    below = [each.rdd() for each in items(rdd.dependencies())]
    return (
        all(_is_in_program(each) for each in below) if below else class_of(rdd) in ("ParallelCollectionRDD", "EmptyRDD")
    )


def _is_kept(rdd: Any) -> bool:
    """Whether rows come from a checkpoint of a DataFrame, behind which Spark forgets where they came from."""
    return class_of(rdd) in ("LocalCheckpointRDD", "ReliableCheckpointRDD") or any(
        _is_kept(each.rdd()) for each in items(rdd.dependencies())
    )
