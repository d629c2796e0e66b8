"""Another call of the function makes the same plan, of what it is given then.

Each processor calls it when it analyses the stage, and for each task that it starts.
"""

from collections.abc import Iterator

from samza_azure.spark.jvm.catalyst import input_of, items, kind_of
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.fingerprint import fingerprint_of
from samza_azure.spark.pipeline.operators import described
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse a plan that reads what an earlier call was given, as the stand-ins of this analysis; or that has other
    names or keys: because of a random seed, or of a value that Python works out, as `datetime.now()`."""
    stage, again = facts.stage.name, facts.again
    yield from map(Refusal, again.done)
    for leaf in items(again.plan.collectLeaves()):
        if leaf.isStreaming() and kind_of(leaf) == "StreamingRelation" and input_of(leaf, again.directory) is None:
            yield Refusal(
                f"Stage {stage} keeps a DataFrame of an earlier call. It is called again for each task, with other "
                "DataFrames: build everything from those, in each call."
            )
            return
    if not facts.drifts:
        return
    cause, name, remedy = (
        ("a random seed", "random", "Set the seed yourself, as in F.rand(7)")
        if facts.is_random
        else ("a value that your code works out", "value", "Write the value down, or take it from a column")
    )
    for one, other in zip(facts.root.names, again.root.names, strict=False):
        if one != other:
            yield Refusal(
                f"Stage {stage}: Spark calls a column {one}, after {cause}, which differs from start to start. Name "
                f'the column yourself, with .alias("{name}").'
            )
    for node, same in zip(facts.operators, again.operators, strict=False):
        if fingerprint_of(node, facts.origins) != fingerprint_of(same, facts.origins):
            yield facts.refused(
                node,
                f"the {described(node)} depends on {cause}, which differs from start to start. So no processor could "
                f"go on with the state of another. {remedy}.",
            )
