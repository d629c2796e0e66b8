"""A smaller case that is wrong in the same way: fewer stages, operators, inputs, rows, partitions, moves.

Each step makes the case smaller and keeps it only if it is still wrong, and if its batch does not depend on the order
of rows: what is left of a pipeline may have no single right answer, and would be wrong for that reason alone.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from .case import Begin, Call, Case, DrawnStage, Join, Move, Node, Read, StreamLines, Union, children, nodes
from .run import Bench, Outcome

#: Each case takes seconds.
MOST_SECONDS = 400.0


def shrunk(ready: Bench, case: Case, outcome: Outcome, seconds: float = MOST_SECONDS) -> Case:
    """The smallest case found in that time; the case itself where nothing smaller is wrong."""
    end = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < end:
        improved = False
        for smaller in candidates(case):
            if time.monotonic() > end:
                break
            if _is_wrong(ready, smaller, outcome):
                case, improved = smaller, True
                break
    return case


def _is_wrong(ready: Bench, case: Case, outcome: Outcome) -> bool:
    try:
        if ready.batch(case) != ready.batch(case, backwards=True):
            return False
    except Exception:  # noqa: BLE001  # Spark does not know such a pipeline
        return False
    return ready.run(case).kind == outcome.kind


def candidates(case: Case) -> Iterator[Case]:
    """Cases that are a step smaller, the large steps first."""
    yield from _fewer_stages(case)
    for number, stage in enumerate(case.stages):
        for node in _smaller(stage.node):
            if made := _with_stage(case, number, replace(stage, node=node)):
                yield made
    yield from _fewer_actions(case)
    for number, each in enumerate(case.inputs):
        for rows in _fewer(each.rows):
            inputs = (*case.inputs[:number], replace(each, rows=rows), *case.inputs[number + 1 :])
            yield replace(case, inputs=inputs)
    yield from _plainer(case)


def _fewer_stages(case: Case) -> Iterator[Case]:
    """Without the last stage, or the first one read in place of its output."""
    if len(case.stages) < 2:
        return
    last = case.stages[-2]
    yield _without_unread(
        replace(case, stages=(*case.stages[:-2], replace(last, stream=StreamLines(), partition_by=())))
    )
    first, second = case.stages[:2]
    if len(first.inputs) == 1:
        inputs = tuple(first.inputs[0] if name == first.output else name for name in second.inputs)
        yield _without_unread(replace(case, stages=(replace(second, inputs=inputs), *case.stages[2:])))


def _smaller(node: Node) -> Iterator[Node]:
    """Trees with one operator less."""
    yield from children(node)
    match node:
        case Call(below=below):
            yield from (replace(node, below=each) for each in _smaller(below))
        case Join(left=left, right=right):
            yield from (replace(node, left=each) for each in _smaller(left))
            yield from (replace(node, right=each) for each in _smaller(right))
            if node.how != "inner":
                yield replace(node, how="inner")
        case Union(parts=parts):
            for number, part in enumerate(parts):
                if len(parts) > 2:
                    yield replace(node, parts=(*parts[:number], *parts[number + 1 :]))
                yield from (
                    replace(node, parts=(*parts[:number], each, *parts[number + 1 :])) for each in _smaller(part)
                )


def _with_stage(case: Case, number: int, stage: DrawnStage) -> Case | None:
    """With another stage in that place, which may have lost an input."""
    read = sorted({node.number for node in nodes(stage.node) if isinstance(node, Read)})
    new = {old: place for place, old in enumerate(read)}
    stage = replace(
        stage,
        inputs=tuple(stage.inputs[old] for old in read),
        node=_each(stage.node, lambda leaf: Read(new[leaf.number])),
    )
    made = replace(case, stages=(*case.stages[:number], stage, *case.stages[number + 1 :]))
    return _without_unread(made)


def _each(node: Node, change: Callable[[Read], Node]) -> Node:
    match node:
        case Read():
            return change(node)
        case Call():
            return replace(node, below=_each(node.below, change))
        case Join():
            return replace(node, left=_each(node.left, change), right=_each(node.right, change))
        case Union():
            return replace(node, parts=tuple(_each(part, change) for part in node.parts))


def _without_unread(case: Case) -> Case:
    """Without stages and inputs that lead nowhere."""
    needed = {case.stages[-1].output}
    stages = []
    for stage in reversed(case.stages):
        if stage.output in needed:
            needed.update(stage.inputs)
            stages.append(stage)
    return replace(
        case,
        inputs=tuple(each for each in case.inputs if each.name in needed),
        stages=tuple(reversed(stages)),
        actions=tuple(action for action in case.actions if getattr(action, "stream", None) in (None, *needed)),
    )


def _fewer_actions(case: Case) -> Iterator[Case]:
    if case.moved_in_flush is not None:
        yield replace(case, moved_in_flush=None)
    moves = [action for action in case.actions if isinstance(action, Move)]
    if moves:
        yield replace(case, actions=tuple(action for action in case.actions if not isinstance(action, Move)))
        for move in moves if len(moves) > 1 else []:
            yield replace(case, actions=tuple(action for action in case.actions if action is not move))
    begun = (Begin(None), *(action for action in case.actions if not isinstance(action, Begin)))
    if begun != case.actions:
        yield replace(case, actions=begun)


def _fewer(rows: tuple[tuple[object, ...], ...]) -> Iterator[tuple[tuple[object, ...], ...]]:
    """Without a half, a quarter, an eighth; without one row where few are left."""
    size = len(rows) // 2
    while size:
        for start in range(0, len(rows), size):
            if len(rows) // size <= 8:
                yield rows[:start] + rows[start + size :]
        size //= 2


def _plainer(case: Case) -> Iterator[Case]:
    """The same pipeline with plainer settings."""
    for count in (1, 2):
        if any(each.partitions > count for each in case.inputs):
            yield replace(
                case,
                inputs=tuple(replace(each, partitions=count) for each in case.inputs),
                stages=tuple(
                    replace(stage, stream=replace(stage.stream, partitions=count if stage.partition_by else 1))
                    for stage in case.stages
                ),
            )
    if case.task_count is not None:
        yield replace(case, task_count=None)
    if any(stage.tasks for stage in case.stages):
        yield replace(case, stages=tuple(replace(stage, tasks=None) for stage in case.stages))
    for number, each in enumerate(case.inputs):
        used = set(
            " ".join(_text(case)).replace("'", " ").replace("(", " ").replace(")", " ").replace(",", " ").split()
        )
        kept = [place for place, (name, _) in enumerate(each.columns) if name in used or name == each.event_time]
        if 0 < len(kept) < len(each.columns) and set(each.key) <= {each.columns[place][0] for place in kept}:
            fewer = replace(
                each,
                columns=tuple(each.columns[place] for place in kept),
                rows=tuple(tuple(row[place] for place in kept) for row in each.rows),
            )
            yield replace(case, inputs=(*case.inputs[:number], fewer, *case.inputs[number + 1 :]))


def _text(case: Case) -> Iterator[str]:
    for stage in case.stages:
        yield from stage.partition_by
        for node in nodes(stage.node):
            match node:
                case Call():
                    yield node.code
                case Join():
                    yield node.condition
                case _:
                    pass
