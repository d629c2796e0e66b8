"""What a drain waits for, and where it ends."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from samza_azure.group import (
    drain,
)
from samza_azure.group.control import (
    Assignment,
    Control,
    Owner,
    RunPhase,
)
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.view import (
    View,
)
from samza_azure.messages import (
    DrainStep,
    Phase,
    Plan,
    TaskReport,
)

from .drawn import LIVES, TASKS, Drawn, same


def word(control: Control, task: str, rows: Mapping[str, ProcessorRow]) -> TaskReport | None:
    """What the owner of a task says of it."""
    owner = control.tasks[task].owner if task in control.tasks else None
    row = rows.get(owner.processor) if owner is not None else None
    if owner is None or row is None or row.incarnation != owner.incarnation or task not in row.tasks:
        return None
    return row.tasks[task] if row.tasks[task].generation == owner.generation else None


def check_drain(drawn: Drawn, view: View, control: Control) -> None:
    dice = drawn.dice
    rows = {name: row for name, row in view.others.members.items() if row.incarnation}
    if dice.random() < 0.7:  # all that is still missing is one thing, or nothing
        control, rows = _almost_drained(drawn, control)
    after = drain.progress(control, rows, view.work.plan)
    going = control.drain
    if control.phase != "DRAINING" or going is None:
        same("a drain that is none", after, control)
        return
    words = {task: word(control, task, rows) for task in control.tasks}
    if going.step == "FREEZE":
        ends = _drain_ends(control, words, going.uuid, view.work.plan)
        if ends is None:
            same("a drain before all stand still", after, control)
            return
        moved = replace(going, step=DrainStep.FLUSH, ends=ends, history=(*going.history, "FLUSH"))
        same("FLUSH", after, replace(control, drain=moved))
        return
    if not all(word is not None and word.phase == "DRAINED" for word in words.values()):
        same("a drain before all are drained", after, control)
        return
    finished = [each for each in control.finished if each != control.fingerprint]
    wanted = replace(
        control,
        phase=RunPhase.DRAINED,
        given_up={},
        positions=going.ends,
        past=(*control.past, control.run_id),
        finished=(*finished, control.fingerprint),
        uncleaned=(*control.uncleaned, control.run_id),
        drain=replace(going, history=(*going.history, "DRAINED")),
    )
    same("DRAINED", after, wanted)


def _almost_drained(drawn: Drawn, control: Control) -> tuple[Control, dict[str, ProcessorRow]]:
    dice = drawn.dice
    step = dice.choice([DrainStep.FREEZE, DrainStep.FLUSH])
    phase = Phase.RUNNING if step is DrainStep.FREEZE else Phase.DRAINED
    odd = dice.choice([None, *TASKS])
    reports = {}
    for task in TASKS:
        number = int(task[-1])
        ends = {f"flights/{each}": (0, dice.randrange(2, 5)) for each in range(number, 3, 2)}
        report = TaskReport(
            task, 2, 1, phase, ends=ends, frozen_for="u", read=drawn.often({"flights/0": (0, 3)}, None, 0.2)
        )
        reports[task] = drawn.report(task) if task == odd else report
    rows = {"p1": replace(drawn.row("p1", 1.0), incarnation=LIVES[0], tasks=reports)}
    begun = {task: Assignment(Owner("p1", LIVES[0], 2)) for task in TASKS}
    drain_ = DrainNotification("u", "r2", step=step, ends={"flights/0": (0, 3)}, history=("FREEZE",))
    return replace(control, phase=RunPhase.DRAINING, drain=drain_, tasks=begun), rows


def _drain_ends(
    control: Control, words: Mapping[str, TaskReport | None], uuid: str, plan: Plan | None
) -> dict[str, tuple[int, int]] | None:
    streams: Mapping[str, Any] = control.readers
    if not streams and control.sources:
        if plan is None or plan.fingerprint != control.fingerprint:
            return None
        streams = {"clean": ("flights",)}
    ends = dict(control.positions)
    for task in [task for task in control.tasks if task.rpartition("-")[0] in streams]:
        word = words[task]
        wanted = {f"flights/{each}" for each in range(int(task[-1]), control.sources["flights"], 2)}
        if word is None or word.ends is None or word.frozen_for != uuid or wanted - word.ends.keys():
            return None
        for partition, at in word.ends.items():
            ends[partition] = max(at, ends.get(partition, (0, 0)))
    for word in words.values():
        for partition, at in ((word.read or {}) if word is not None else {}).items():
            if at > ends.get(partition, (0, 0)):
                return None
    return ends
