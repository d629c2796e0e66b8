"""A pipeline as facts that people can compare: short descriptions of each stage and stream.

A run stores them, so that a processor with a different pipeline can say what differs. The fingerprint decides whether
it differs, also by what no fact shows (the slide of a window, the schema of a function's state).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from samza_azure.config.values import in_words
from samza_azure.spark.jvm.catalyst import (
    Node,
    identity,
    is_window,
    kind_of,
    spelled,
    text,
)
from samza_azure.spark.pipeline.bounds import Bounds
from samza_azure.spark.pipeline.operators import keys_of, state_of


def operator_facts(node: Node, bounds: Bounds) -> dict[str, str]:
    """An operator with state: its keys, windows, functions, condition."""
    what = state_of(node) or node.kind
    found = {}
    plain = []
    for keys in keys_of(node):
        window = next((each for each in keys if is_window(each)), None)
        length = None if window is None else bounds.window_us(node.child, identity(window))
        if length is None:
            plain.append(" = ".join(spelled(node, each) for each in keys))
        else:
            found["window"] = in_words(length / 1_000_000)
    found[f"keys of the {what}"] = ", ".join(plain) or "none"
    if node.kind == "Aggregate":
        made = (each for each in node.makers if kind_of(each) != "AttributeReference")
        found["functions"] = ", ".join(spelled(node, each) for each in made)
    if node.kind == "Join" and node.plan.condition().isDefined():
        found["condition of the join"] = spelled(node, node.plan.condition().get())
    if node.kind == "GlobalLimit":
        found["limit"] = text(node.plan.limitExpr())
    return found


def stage_facts(
    operators: Sequence[Mapping[str, str]], delays: Mapping[str, int], fingerprint: object, sources: Sequence[str]
) -> dict[str, str]:
    """The facts of a stage's state. `delays` are those of its watermarks in milliseconds, by input; `sources` are the
    streams that Spark's sources read."""
    found = {f"delay of {stream}": in_words(delay / 1000) for stream, delay in delays.items()}
    if len(sources) > 1:
        found["order of its sources"] = ", ".join(sources)
    for facts in operators:
        for name, value in facts.items():
            number = sum(each == name or each.startswith(f"{name} (") for each in found)
            found[name if not number else f"{name} ({number + 1})"] = value
    if operators:
        canonical = json.dumps(fingerprint, sort_keys=True, default=str)
        found["state"] = hashlib.sha256(canonical.encode()).hexdigest()[:8]
    return found
