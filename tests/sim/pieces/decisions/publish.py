"""What the leader writes."""

from collections.abc import Mapping
from dataclasses import replace

from samza_azure.errors import CorruptState
from samza_azure.group import (
    publish,
)
from samza_azure.group.control import (
    Barrier,
    BarrierState,
    Control,
    GivenUp,
    Member,
    Owner,
    RunPhase,
)
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.view import LocalTask, View
from samza_azure.messages import Phase
from samza_azure.sim.ledger import demand

from .drain import word
from .drawn import LIVES, NAMES, NOW, Drawn, present, same
from .membership import candidates
from .tasks import closed, has_released


def check_publish(drawn: Drawn, view: View, control: Control) -> None:
    rows = present(view)
    after = publish.with_births(view, control, control)
    everybody = {**view.others.members, **rows}
    owned = [task for task, each in control.tasks.items() if each.first and each.owner is not None]
    words = {task: word(control, task, everybody) for task in owned}
    born = {
        task
        for task, word in words.items()
        if word is not None and (word.phase in ("RUNNING", "DRAINED") or word.batch >= 0)
    }
    if not born or len(born) < len(owned):
        same("births alone", after, control)
    else:
        same(
            "who is born",
            {task for task, each in after.tasks.items() if each.first},
            {task for task, each in control.tasks.items() if each.first} - born,
        )
    with_more = publish.with_births(view, control, replace(control, churn=control.churn + 1))
    firsts = {task for task, each in control.tasks.items() if each.first}
    same("births along", {task for task, each in with_more.tasks.items() if each.first}, firsts - born)
    pardoned = publish.with_pardon(view, control, NOW).given_up
    kept = {}
    for task, each in control.given_up.items():
        row, well, owner = rows.get(each.owner.processor), view.others.well.get(task), control.tasks[task].owner
        lives = row is not None and row.incarnation == each.owner.incarnation
        runs = (
            well is not None and owner is not None and well.generation == owner.generation and well.since + 600.0 <= NOW
        )
        if lives and not runs:
            kept[task] = each
    same("who gave what up", dict(pardoned), kept)
    _check_failures(view, control, rows)
    _check_failures(view, _failing(drawn, control, rows), rows)
    if view.leadership is not None:
        _check_assignment(view, control, rows)
        _check_assignment(view, settled(drawn, view, control), rows)
        _check_fitting(drawn, view, control)
    _check_checked(drawn, control)
    other = replace(control, run_id="r9", churn=control.churn + 1)
    same("births in another run", publish.with_births(view, control, other), other)


def _check_fitting(drawn: Drawn, view: View, control: Control) -> None:
    """Of newcomers with whom the job model was too large of late, half are let in, and of these half."""
    dice, rows, tried = drawn.dice, present(view), dict[tuple[Member, ...], float]()
    control = replace(control, members=dice.choice([control.members, ()]))
    able = candidates(view, control)
    lives = {name: Member(name, rows[name].incarnation) for name in able}
    new = sorted(name for name in able if lives[name] not in control.members)
    wanted: int | None = None
    for count in (len(new), len(new) // 2, len(new) // 4, 0):
        until = NOW + dice.choice([-1.0, 0.0, 1.0, 1.0])
        members = tuple(sorted(lives[name] for name in able if name not in new[count:]))
        until = tried.setdefault(members, until)
        if wanted is None and (until <= NOW or count == 0):
            wanted = count
    before, view.office.too_large = view.office.too_large, tried
    same("who is let in", set(publish.fitting(view, control, NOW)), {*able} - {*new[wanted:]})
    view.office.too_large = before


def settled(drawn: Drawn, view: View, control: Control) -> Control:
    """The same, where each task has an owner that can run it, but perhaps one of them has them all."""
    rows, able = present(view), candidates(view, control)
    names = drawn.dice.sample(able, drawn.dice.randrange(1, len(able) + 1)) if able else []
    owners = {name: Owner(name, rows[name].incarnation, 5) for name in names}
    tasks = {
        task: replace(each, owner=owners[drawn.dice.choice(names)] if names else each.owner)
        for task, each in control.tasks.items()
    }
    return replace(control, tasks=tasks, given_up={}, phase=RunPhase.RUNNING)


def _failing(drawn: Drawn, control: Control, rows: Mapping[str, ProcessorRow]) -> Control:
    """The same, where tasks belong to processors that give them up now; some of these tasks were given up before."""
    owned, given_up = dict(control.tasks), {}
    for name, row in rows.items():
        for task, report in row.tasks.items():
            if report.phase == "FAILED" and task in owned:
                owned[task] = replace(owned[task], owner=Owner(name, row.incarnation, report.generation))
                earlier = drawn.dice.choice([name, name, *NAMES, None])
                given_up[task] = earlier and GivenUp(Owner(earlier, row.incarnation, 1), "earlier")
    return replace(control, tasks=owned, given_up={task: each for task, each in given_up.items() if each})


def _check_failures(view: View, control: Control, rows: Mapping[str, ProcessorRow]) -> None:
    able = {name: rows[name] for name in candidates(view, control)}
    after = publish.with_failures(view, control, able)
    given_up = dict(control.given_up)
    for name, row in rows.items():
        for task, report in row.tasks.items():
            if report.phase != "FAILED" or word(control, task, {name: row}) is not report:
                continue
            before = given_up.get(task)
            elsewhere = before is not None and before.owner.processor != name
            if elsewhere or not set(able) - {name}:
                same("a run that fails", (after.phase, dict(after.given_up)), ("FAILED", {}))
                told = after.failure
                told_of = told is not None and (told.stage, told.task, told.traceback) == (task[:-2], task, "trace")
                told_who = told is not None and name in told.message and told.message.startswith("no\n")
                told_where = told is not None and (not elsewhere or before.owner.processor in told.message)  # type: ignore[union-attr]
                demand(told_of and told_who and told_where, f"Plain: {task} failed on {name}, and {told} is said")
                return
            owner = control.tasks[task].owner
            assert owner is not None
            given_up[task] = GivenUp(owner, "no")
    same("what is given up", after, replace(control, given_up=given_up))


def _is_over(view: View, task: str, local: LocalTask | None, owner: Owner) -> bool:
    """Nothing of this task of ours can run here, now or before the next version is known."""
    if local is None or local.generation != owner.generation:
        return view.ending is not None and (local is None or closed(local))
    may_start = local.phase is Phase.RESTART or (local.phase is Phase.FAILED and local.failures < view.tries(task)[0])
    return closed(local) and (view.ending is not None or not may_start)


def _comes_up(view: View, control: Control, owner: Owner | None) -> bool:
    """The owner was restarted before it was marked dead, and has its time to become a candidate."""
    assert owner is not None
    row, (life, since) = present(view).get(owner.processor), view.others.back.get(owner.processor, ("", 0.0))
    if row is None or row.state == "LEAVING" or row.incarnation != life or life == owner.incarnation:
        return False
    return row.fingerprint in ("", control.fingerprint) and since + 8.0 > NOW


def _check_assignment(view: View, control: Control, rows: Mapping[str, ProcessorRow]) -> None:
    """What holds of every new assignment, whatever it is."""
    able = {name: rows[name] for name in candidates(view, control)}
    after = publish.with_assignment(view, control, able, NOW)
    given = {task: each.owner for task, each in control.given_up.items()}
    owners = {task: each.owner for task, each in control.tasks.items() if each.owner not in (None, given.get(task))}
    stay = all(
        task in owners
        and (row := able.get(owners[task].processor)) is not None  # type: ignore[union-attr]
        and row.incarnation == owners[task].incarnation  # type: ignore[union-attr]
        for task in control.tasks
    )
    assert view.leadership is not None
    if after is control or (stay and view.leadership.published_at + 2.0 > NOW):
        same("a new version before its time", after, control)
        return
    same("the version", (after.version, after.barrier), (7, Barrier(7, BarrierState.START)))
    members = tuple(sorted(Member(name, row.incarnation) for name, row in able.items()))
    same("the members", after.members, members)
    for task, now in after.tasks.items():
        before = control.tasks[task]
        if task in owners and owners[task].processor not in able:  # type: ignore[union-attr]
            same(
                f"whether {task} waits for its owner's next life", now == before, _comes_up(view, control, owners[task])
            )
        if now == before:
            continue
        same(f"whether {task} is first", now.first, before.first)
        if now.owner is not None:
            row = able.get(now.owner.processor)
            demand(row is not None, f"Plain: {task} is given to {now.owner.processor}, which cannot run it")
            assert row is not None
            same(f"the owner of {task}", now.owner, Owner(row.processor, row.incarnation, 7))
        waits = [each for each in before.after if not has_released(view, task, each)]
        owner = before.owner
        if owner is not None and owner.processor in rows and rows[owner.processor].incarnation == owner.incarnation:
            local = view.work.tasks.get(task)
            ours = (owner.processor, owner.incarnation) == ("p0", LIVES[0])
            if not ours or not _is_over(view, task, local, owner):
                waits.append(owner)
        same(f"whom {task} waits for", list(now.after), waits)


def _check_checked(drawn: Drawn, control: Control) -> None:
    """What may follow each other."""
    after = replace(control, revision=control.revision + 1)
    change = drawn.dice.choice(
        ["", "revision", "epoch", "version", "own version", "phase", "ends", "no drain", "before", "owner"]
    )
    flushes = control.phase == "DRAINING" and (control.drain is None or control.drain.step != "FREEZE")
    wrong = change in ("revision", "epoch", "version")
    match change:
        case "revision":
            after = replace(after, revision=control.revision + 2)
        case "epoch":
            after = replace(after, epoch=control.epoch + drawn.dice.choice([1, -1]))
        case "version":
            after = replace(after, version=control.version + 1)
            wrong = after.version != after.revision
        case "own version":
            after = replace(after, version=after.revision)
        case "owner":
            member, generation = drawn.dice.choice([*control.members, Member("p9", "x")]), drawn.dice.choice([6, 7, 8])
            given = replace(control.tasks["clean-0"], owner=Owner(member.processor, member.incarnation, generation))
            after = replace(after, version=after.revision, tasks={**control.tasks, "clean-0": given})
            wrong = generation != 7 or member not in control.members
        case "phase":
            after = replace(after, phase=RunPhase.RUNNING)
            wrong = control.phase == "DRAINED"
        case "ends" if control.drain is not None:
            after = replace(after, drain=replace(control.drain, ends={"flights/0": (1, 9)}))
            wrong = flushes
        case "no drain":
            after = replace(after, drain=None)
            wrong = flushes
        case "before" if control.drain is not None:
            after = replace(after, run_id="r3", drain=replace(control.drain, ends={}))
            wrong = flushes and bool(control.positions)
    if change in ("", "revision", "epoch", "version", "own version", "owner") and flushes:
        ends = control.drain.ends if control.drain is not None else None
        wrong = wrong or ends is None  # a drain that flushes without any drain
        short = ends is not None and any(at > ends.get(name, (0, 0)) for name, at in control.positions.items())
        wrong = wrong or short
    if change == "ends" and control.drain is None and flushes:
        wrong = True
    if change == "before" and control.drain is None and flushes:
        wrong = True
    if change == "phase" and flushes:
        wrong = control.drain is None
    try:
        publish.checked(control, after)
    except CorruptState:
        demand(wrong, f"Plain: a leader may not change {change or 'nothing'}: {control.phase}, {control.drain}")
        return
    demand(not wrong, f"Plain: a leader may change {change}")
