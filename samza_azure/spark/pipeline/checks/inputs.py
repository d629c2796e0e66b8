"""The stage uses its inputs, and what they have, and leaves everything else as it was."""

from collections.abc import Iterator

from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse what the call did besides, a column that only files have, and an input that is not read."""
    stage = facts.stage
    yield from map(Refusal, facts.done)
    leaves = facts.root.leaves()
    for leaf in leaves:
        assert leaf.reads is not None
        read = facts.inputs[leaf.reads]
        if "_metadata" in leaf.names and "_metadata" not in read.schema.names:
            yield Refusal(
                f"Stage {stage.name} uses _metadata, which only files have. Stream {read.stream!r} has the columns "
                f"{', '.join(read.schema.names)}."
            )
    used = {leaf.reads for leaf in leaves}
    for number, each in enumerate(facts.inputs):
        if number not in used:
            yield Refusal(
                f"Stage {stage.name} does not use its input {each.stream!r}. Use it, or remove it from @app.stage."
            )
