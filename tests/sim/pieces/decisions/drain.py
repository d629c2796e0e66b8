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
    DrainPhase,
    DrainStep,
    Phase,
    Plan,
    Progress,
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
    check_rest(drawn, control)
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


def check_rest(drawn: Drawn, control: Control) -> None:
    """How much a task has to read before it flushes, and which runs are forgotten."""
    dice = drawn.dice
    behind = {"flights": 7, **({"between": dice.choice([0, 900])} if dice.random() < 0.7 else {})}
    done = dice.choice([None, Progress(rows=10, size=dice.choice([0, 100]), behind=behind)])
    drain_phase = dice.choice([None, None, *DrainPhase])
    read = dice.choice([None, {}, {"flights/0": (0, dice.choice([0, 2, 3, 300])), "flights/9": (0, 0)}])
    report = replace(drawn.report("clean-0"), read=read, progress=done, drain=drain_phase)
    asked = control.drain and replace(control.drain, ends={"flights/0": (0, 203)})
    control = replace(control, drain=asked)
    wanted: int | None = None
    if asked is not None and (report.phase == "DRAINED" or drain_phase in ("COMMITTED", "DRAINED")):
        wanted = 0
    elif asked is not None:
        sizes = [behind["between"]] if done is not None and "between" in behind else []
        sizes += [7] if done is not None and not control.sources else []
        if asked.step == "FLUSH" and read:
            sizes.append(max(203 - read["flights/0"][1], 0))
        if sizes and sum(sizes) == 0:
            wanted = 0
        elif sizes and done is not None and done.size:
            wanted = sum(sizes) * 10 // 100
    same("what a task has to read", drain.rows_to_drain(control, report, 1 << 20), wanted)
    same("what a task has to read without a blob", drain.rows_to_drain(None, report, 1 << 20), None)
    if dice.random() < 0.2:
        count = dice.choice([364, 365, 366])
        made = [f"{1_700_000_000_000 + number}-0123abcd" for number in range(1, count + 1)]
        for run_id in (made[0], "0", "by-hand", "1700000000000-0123abcd"):
            forgotten = count >= 365 and run_id == "1700000000000-0123abcd"
            same(f"whether {run_id} is forgotten", drain.is_forgotten(["by-hand", *made], run_id), forgotten)


def _almost_drained(drawn: Drawn, control: Control) -> tuple[Control, dict[str, ProcessorRow]]:
    dice = drawn.dice
    step = dice.choice([DrainStep.FREEZE, DrainStep.FLUSH])
    phase = Phase.RUNNING if step is DrainStep.FREEZE else Phase.DRAINED
    odd = dice.choice([None, *TASKS])
    reports = {}
    for task in TASKS:
        number = int(task[-1])
        ends = {f"flights/{each}": (0, dice.randrange(2, 5)) for each in range(number, 3, 2)}
        ends |= drawn.often({"of a stranger": (1, 2)}, {}, 0.1)
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
        for partition in wanted:
            ends[partition] = max(word.ends[partition], ends.get(partition, (0, 0)))
    for word in words.values():
        for partition, at in ((word.read or {}) if word is not None else {}).items():
            if at > ends.get(partition, (0, 0)):
                return None
    return ends
