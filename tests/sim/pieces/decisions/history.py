"""What is remembered of what has happened."""

from dataclasses import replace

from samza_azure.group import (
    history,
)
from samza_azure.group.control import (
    Assignment,
    Control,
    Member,
    Owner,
)
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.view import (
    View,
)
from samza_azure.sim.ledger import demand

from .drawn import LIVES, Drawn, alive, same


def check_history(drawn: Drawn, view: View, control: Control) -> None:
    """One event for each thing that happened."""
    after = drawn.control()
    leader, epoch = drawn.dice.choice([control.leader, Member("p1", "x"), None]), drawn.dice.choice([0, 3, 3])
    many = {f"more-{number}": Assignment(Owner("p2", LIVES[0], 1)) for number in range(drawn.dice.choice([0, 0, 2, 4]))}
    control = replace(control, leader=leader, epoch=epoch, tasks={**control.tasks, **many})
    moved = {task: replace(each, owner=Owner("p3", LIVES[0], 2)) for task, each in many.items()}
    after = replace(after, tasks={**after.tasks, **moved})
    if drawn.dice.random() < 0.5:  # those that are no longer members are marked dead
        dead = {
            name: replace(row, state=ProcessorState.DEAD, ending="", cut_off=drawn.dice.random() < 0.5)
            for name, row in view.others.members.items()
        }
        view.others.members = dead
    if drawn.dice.random() < 0.5:
        after = replace(after, run_id=control.run_id, epoch=control.epoch, stop=control.stop, drain=control.drain)
    if drawn.dice.random() < 0.3:
        after = replace(control, epoch=4, leader=drawn.dice.choice([Member("p1", "x"), control.leader, None]))
    after = replace(after, version=drawn.dice.choice([control.version, 9]))
    found = history.with_events(view, control, after)
    said = [(each.kind, each.text) for each in found.events]
    wanted = _happened(view, control, after)
    same("what happened", said, [(kind, text if len(text) <= 240 else text[:239] + "…") for kind, text in wanted])
    demand(all(each.at_ms == 77 for each in found.events), "Plain: when it happened")
    long = replace(control, events=found.events * 40)
    kept = history.with_events(view, long, replace(after, events=())).events if wanted else ()
    same("how much is remembered", len(kept), min(len(found.events) * 41, 40) if wanted else 0)


def _happened(view: View, before: Control, after: Control) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    if after.epoch != before.epoch and after.leader is not None:
        who, former = after.leader.processor, before.leader.processor if before.leader is not None else None
        how = {
            "p0": f"{who} leads again, as a new incarnation.",
            None: f"{who} leads; its predecessor handed over." if before.epoch > 0 else f"{who} is the first leader.",
        }
        said.append(("leader", how.get(former, f"{who} took over from {former}, which sent no heartbeat in time.")))
    if after.run_id != before.run_id:
        said.append(("run", f"Run {after.run_id} began."))
    names, old = {each.processor for each in after.members}, {each.processor for each in before.members}
    said += [
        _gone(view, before, each)
        for each in sorted(set(before.members) - set(after.members))
        if each.processor not in names
    ]
    for each in sorted(set(after.members) - set(before.members)):
        said.append(
            ("joined", f"{each.processor} {'rejoined as a new incarnation' if each.processor in old else 'joined'}.")
        )
    for task, one in after.given_up.items():
        if before.given_up.get(task) != one:
            said.append(("given up", f"{one.owner.processor} gave up {task}: {one.message}"))
    if after.run_id == before.run_id and after.version != before.version:
        moved = []
        for task in after.tasks:
            a, b = before.tasks[task].owner, after.tasks[task].owner
            if a is not None and b is not None and (a.processor, a.incarnation) != (b.processor, b.incarnation):
                moved.append(f"{task} from {a.processor} to {b.processor}")
        if moved:
            more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
            said.append(("moved", f"{', '.join(moved[:3])}{more}."))
    if after.barrier.state == "TIMEOUT" and before.barrier != after.barrier:
        text = f"Not all members adopted version {after.version} in time; the others go on without them."
        said.append(("slow", text))
    if after.stop is not None and before.stop is None:
        said.append(("stop", "All members were asked to stop."))
    if after.phase == "DRAINED" and before.phase != "DRAINED":
        said.append(("drain", f"Run {after.run_id} is drained."))
    elif after.run_id == before.run_id and after.drain is None and before.drain is not None:
        said.append(("drain", "The drain was cancelled."))
    elif after.drain is not None and (before.drain is None or before.drain.step != after.drain.step):
        said.append(("drain", f"The drain reached {after.drain.step}."))
    if after.phase == "FAILED" and before.phase != "FAILED" and after.failure is not None:
        said.append(("failed", f"The run failed in {after.failure.task}: {after.failure.message}"))
    return said


def _gone(view: View, before: Control, member: Member) -> tuple[str, str]:
    who = member.processor
    row, age = view.others.members.get(who), view.others.ages.get(who)
    if who == "p0":
        row = ProcessorRow(
            "p0", LIVES[0], state=ProcessorState.LEAVING, ending=f"1 {view.gave_up}" if view.gave_up else ""
        )
    if row is not None and row.incarnation != member.incarnation:
        return "died", f"{who} came back as a new incarnation, which is not a member yet."
    if row is not None and row.ending not in ("", "0 bye"):
        return "ended", f"{who} ends with exit code {row.ending.replace(' ', ': ', 1)}"
    if row is not None and alive(row):
        return "left", f"{who} is leaving or standing by."
    if row is not None and row.state == "LEFT":
        return "left", f"{who} left."
    silent = age is not None and age.seconds >= 8.0 and age.reads >= 3
    if row is not None and row.cut_off and not silent:
        return "died", f"{who} was marked dead: it could not reach the control blob."
    if before.barrier.state == "TIMEOUT" and row is not None and row.adopted < before.version and not silent:
        return "died", f"{who} was marked dead: it did not adopt version {before.version} in time."
    return "died", f"{who} was marked dead: no heartbeat for 8 s."
