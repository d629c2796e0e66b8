"""The graph of a run: its sources, stages and sinks, and who reads what from whom. Pure.

Each node has a layer, behind all that it reads from, and a place in it. A stream that crosses layers passes through
places of its own, so that it is not drawn across a node. The page turns layers into columns, on a narrow screen into
rows.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["MOST", "graph"]

#: A larger graph is not drawn: nobody could read it. The table of stages has all.
MOST = 60
#: How often the places are sorted by those of their neighbours.
SWEEPS = 4

#: One end of a stream in a layer: the name of a node, or a stream that passes through.
_Spot = str | tuple[int, int]


def graph(
    pipeline: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]], behind: Mapping[tuple[str, str], int]
) -> dict[str, Any] | None:
    """Nodes and edges, None for more nodes than `MOST`. `behind` has the backlogs by stream and stage."""
    shown = {each["name"]: each for each in stages}
    writers = {each["output"]: each["stage"] for each in pipeline if each["output"]}
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[dict[str, Any]] = []
    read = {stream for each in pipeline for stream in each["inputs"]}
    for each in pipeline:
        stage = shown[each["stage"]]
        nodes[f"stage {stage['name']}"] = {
            "kind": "added shuffle" if each["added_for"] else each["kind"],
            "name": stage["name"] if each["output"] else each["target"] or stage["name"],
            **{figure: stage[figure] for figure in ("tasks", "running", "drained", "pace")},
        }
    for each in pipeline:
        to, inputs = f"stage {each['stage']}", dict.fromkeys(each["inputs"])
        for stream in inputs:
            writer = writers.get(stream)
            source = f"stage {writer}" if writer else f"stream {stream}"
            nodes.setdefault(source, {"kind": "source", "name": stream})
            # What a stage reads of one of several streams is not counted: then it is what their writers emit.
            pace = shown[each["stage"]]["pace"] if len(inputs) == 1 else writer and shown[writer]["pace_out"]
            edges.append(_edge(source, to, stream, pace, behind.get((stream, each["stage"]))))
        if each["output"] and each["output"] not in read:
            nodes[f"stream {each['output']}"] = {"kind": "stream", "name": each["output"]}
            edges.append(_edge(to, f"stream {each['output']}", each["output"], shown[each["stage"]]["pace_out"], None))
    if len(nodes) > MOST:
        return None
    layers = _layers(nodes, edges)
    places = _places(layers, edges)
    for name, node in nodes.items():
        node |= {"id": name, "layer": layers[name], "place": places[name]}
    for number, edge in enumerate(edges):
        between = range(layers[edge["from"]] + 1, layers[edge["to"]])
        edge["via"] = [[layer, places[number, layer]] for layer in between]
    return {"nodes": list(nodes.values()), "edges": edges}


def _edge(source: str, to: str, stream: str, pace: float | None, behind: int | None) -> dict[str, Any]:
    return {"from": source, "to": to, "stream": stream, "pace": pace, "behind": behind}


def _layers(nodes: Mapping[str, Any], edges: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Each node behind all that it reads from. A pipeline has no circle; what claims to have one gets any layers."""
    layers = dict.fromkeys(nodes, 0)
    for _ in nodes:
        before = dict(layers)
        for edge in edges:
            layers[edge["to"]] = min(max(layers[edge["to"]], layers[edge["from"]] + 1), len(nodes))
        if layers == before:
            break
    return layers


def _places(layers: Mapping[str, int], edges: Sequence[Mapping[str, Any]]) -> dict[_Spot, float]:
    """The place of each node and of each stream in the layers between its ends, from the middle: -0.5, 0.5."""
    rows: list[list[_Spot]] = [[] for _ in range(max(layers.values(), default=0) + 1)]
    neighbours: dict[_Spot, list[_Spot]] = {}
    for name, layer in layers.items():
        rows[layer].append(name)
    for number, edge in enumerate(edges):
        way: list[_Spot] = [edge["from"]]
        for layer in range(layers[edge["from"]] + 1, layers[edge["to"]]):
            rows[layer].append((number, layer))
            way.append((number, layer))
        way.append(edge["to"])
        for one, other in pairwise(way):
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)
    places: dict[_Spot, float] = {}
    for _ in range(SWEEPS):
        for row in rows:
            row.sort(key=lambda spot: _middle(spot, neighbours, places))
            places |= {spot: at - (len(row) - 1) / 2 for at, spot in enumerate(row)}
    return places


def _middle(spot: _Spot, neighbours: Mapping[_Spot, Sequence[_Spot]], places: Mapping[_Spot, float]) -> float:
    known = [places[each] for each in neighbours.get(spot, ()) if each in places]
    return sum(known) / len(known) if known else 0.0
