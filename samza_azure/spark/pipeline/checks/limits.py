"""Each batch has rows for a limit: Spark leaves it out of one that has none, and then misses that batch's state."""

from collections.abc import Iterator

from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse a limit of some inputs beside others."""
    for node in facts.operators:
        inputs, all_inputs = ({leaf.ids for leaf in each.leaves()} for each in (node, facts.root))
        if node.kind == "GlobalLimit" and inputs != all_inputs:
            yield Refusal(
                f"Stage {facts.stage.name} limits the rows of some inputs and reads others beside them. The query "
                "would fail after a batch without rows of the former. Limit them in an earlier stage, and read its "
                "stream here.",
                node.plan,
            )
