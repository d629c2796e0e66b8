"""Which processors keep replicas of which tasks, and who is ready to take a task over because of that.

The leader places them, since only it sees all processors: those without a task are not in the control blob. A replica
is no owner and no promise: it makes a take-over faster, and no fail-over waits for it; moves for balance do, see
`warm_up`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from samza_azure.group import warm_up
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.moment import reached
from samza_azure.group.reports import report_of
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.view import View
from samza_azure.logs.names import stage_of
from samza_azure.messages import KeepReplicas, Phase, Plan, TaskReport


def place(
    owners: Mapping[str, str],
    able: Collection[str],
    hosts: Mapping[str, str],
    before: Mapping[str, Sequence[str]],
    count: int,
) -> dict[str, tuple[str, ...]]:
    """The processors that keep a replica of each task: up to `count`, never its owner, and on other machines than that
    one if there are any.

    They stay where they are, unless one processor has more than its share. The tasks of one owner are spread over all
    others, so that these are loaded evenly when it dies. Ties are broken by names.
    """
    names = sorted(able)
    load, beside = Counter[str](), Counter[tuple[str, str]]()
    placed: dict[str, list[str]] = {}

    def others(owner: str) -> list[str]:
        here = hosts.get(owner)
        elsewhere = [name for name in names if name != owner and (not here or hosts.get(name) != here)]
        return elsewhere or [name for name in names if name != owner]

    def put(task: str, processor: str, number: int = 1) -> None:
        load[processor] += number
        beside[owners[task], processor] += number

    possible = {owner: others(owner) for owner in {*owners.values()}}
    for task, owner in owners.items():
        placed[task] = [each for each in before.get(task, ()) if each in possible[owner]][:count]
        for processor in placed[task]:
            put(task, processor)
    for task, owner in owners.items():
        free = [name for name in possible[owner] if name not in placed[task]]
        for _ in range(min(count - len(placed[task]), len(free))):
            processor = min(free, key=lambda name: (beside[owner, name], load[name], name))
            free.remove(processor)
            placed[task].append(processor)
            put(task, processor)
    moves = True
    while moves:  # each makes the loads more even, so there is an end
        moves = False
        for task, owner in owners.items():
            for processor in list(placed[task]):
                free = [name for name in possible[owner] if name not in placed[task]]
                least = min(free, key=lambda name: (load[name], name), default=processor)
                if load[processor] > load[least] + 1:
                    placed[task][placed[task].index(processor)] = least
                    put(task, processor, -1)
                    put(task, least)
                    moves = True
    return {task: tuple(processors) for task, processors in placed.items() if processors}


def with_replicas(
    view: View,
    control: Control,
    able: Mapping[str, ProcessorRow],
    warm_ups: Mapping[str, str],
    version: int,
    now: float,
) -> Control:
    """Place the replicas of tasks with state, and those of `warm_ups`, tasks with their next owners, beside them.
    `version` is the one before this write: a new one says at once where they are, otherwise the debounce has to be
    over."""
    count = view.settings.replicas
    if not count and not control.replicas:
        return control
    plan = view.work.plan
    if count and (plan is None or plan.fingerprint != control.fingerprint):
        return control  # this leader does not know which tasks have state, and replicas are not dropped for that
    stateful = _stateful(plan) if count else set()
    owners = {
        task: each.owner.processor
        for task, each in control.tasks.items()
        if each.owner is not None and stage_of(task) in stateful
    }
    if count and (busy := taken_over(view, control, owners, version, now)):
        if any(_is_starting(view, control, task) for task in busy):  # one without input runs, and appends nothing
            warm_ups = {task: to for task, to in warm_ups.items() if to in control.replicas.get(task, ())}
        placed = {
            task: found
            for task, before in control.replicas.items()
            if (found := tuple(each for each in before if each in able and each != owners.get(task)))
        }
    else:
        hosts = ((processor, row.machine.host) for processor, row in able.items())
        placed = _placed(tuple(owners.items()), tuple(hosts), tuple(control.replicas.items()), count)
    for task, processor in warm_up.begun(warm_ups, control.replicas).items():
        if processor not in placed.get(task, ()):
            placed = {**placed, task: (*placed.get(task, ()), processor)}
    if placed == control.replicas:
        return control
    if control.version == version and not reached(view.as_leader.published_at + view.timing.debounce_s, now):
        return control
    return replace(control, replicas=placed)


def taken_over(view: View, control: Control, tasks: Iterable[str], version: int, now: float) -> set[str]:
    """Those of these tasks that are being taken over. No replica begins meanwhile: copies of states would take the
    storage, the disk and the processors from tasks that stand still. Nor does such a task move on: it would stand still
    twice. A barrier's time after the last version it makes no difference any more. `version` is the one before this
    write.
    """
    since = max(view.as_leader.published_at, view.as_leader.since)
    found = {task for task in tasks if _is_taken_over(view, control, task)}
    if found and control.version == version and reached(since + view.timing.barrier_timeout_s, now):
        return set()
    return found


def _is_taken_over(view: View, control: Control, task: str) -> bool:
    """Whether a task has an owner that has yet to append, or to run it. One that ran before the last version has no
    input, if it has not appended."""
    owner = control.tasks[task].owner
    report = report_of(task, owner, view.present)
    if owner is None or report is None:
        return owner is not None
    is_new = report.phase is Phase.RUNNING and owner.generation == control.version
    return report.appended_at is None and (report.phase is Phase.STARTING or is_new)


def _is_starting(view: View, control: Control, task: str) -> bool:
    """Whether a task has an owner that does not run it yet."""
    owner = control.tasks[task].owner
    report = report_of(task, owner, view.present)
    return owner is not None and (report is None or report.phase is Phase.STARTING)


@lru_cache(maxsize=1)
def _placed(
    owners: tuple[tuple[str, str], ...],
    hosts: tuple[tuple[str, str], ...],
    before: tuple[tuple[str, tuple[str, ...]], ...],
    count: int,
) -> dict[str, tuple[str, ...]]:
    """A leader asks for the same at each turn, and for 2,000 tasks of 20 processors that takes 40 ms."""
    return place(dict(owners), dict(hosts), dict(hosts), dict(before), count)


def _stateful(plan: Plan | None) -> set[str]:
    """The stages whose tasks have state."""
    stages = plan.stages if plan is not None else ()
    return {stage.name for stage in stages if stage.keeps_state}


def warm(control: Control, able: Mapping[str, ProcessorRow]) -> dict[str, list[str]]:
    """The processors that say that they have a replica of a task, the one that is the least behind first."""
    found: dict[str, list[tuple[int, str]]] = {}
    for processor, row in able.items():
        for task, state in (row.replicas or {}).items():
            if task in control.tasks:
                found.setdefault(task, []).append((-state.batch, processor))
    return {task: [processor for _, processor in sorted(each)] for task, each in found.items()}


def near(control: Control, able: Mapping[str, ProcessorRow]) -> dict[str, list[str]]:
    """Those of them that have little to read until the end of its log, and are still to keep it."""
    return {
        task: found
        for task, processors in warm(control, able).items()
        if (found := [each for each in processors if _is_near(task, each, control, able[each])])
    }


def _is_near(task: str, processor: str, control: Control, row: ProcessorRow) -> bool:
    behind = (row.replicas or {})[task].behind
    return behind <= warm_up.NEAR_BYTES and processor in control.replicas.get(task, ())


def heavy(view: View, control: Control) -> set[str]:
    """The tasks that move after a warm-up only: those with a state that has begun. Without replicas there is none."""
    if not view.settings.replicas:
        return set()
    plan = view.work.plan
    is_known = plan is not None and plan.fingerprint == control.fingerprint
    stateful = _stateful(plan) if is_known else {stage_of(task) for task in control.replicas}
    return {
        task
        for task, each in control.tasks.items()
        if stage_of(task) in stateful and not _is_empty(report_of(task, each.owner, view.present), first=each.first)
    }


def _is_empty(report: TaskReport | None, *, first: bool) -> bool:
    """Whether a task runs and has appended no batch. The blob may still say that it is the `first` start."""
    return first if report is None else report.batch < 0 and (first or report.phase is Phase.RUNNING)


def overdue(view: View, control: Control, now: float) -> set[tuple[str, str]]:
    """The replicas, by task and processor, that have had the time of a warm-up."""
    placed, since = view.as_leader.placed, view.as_leader.since
    return {
        (task, processor)
        for task, processors in control.replicas.items()
        for processor in processors
        if reached(placed.get(task, {}).get(processor, since) + warm_up.WARM_UP_S, now)
    }


def kept(view: View) -> KeepReplicas:
    """The replicas that our container has to keep: also of a task that is ours now, until it starts here.

    A leader of an earlier release leaves them as they were when it began to lead, also those of tasks that are ours.
    """
    control = view.control
    if not isinstance(control, Control) or view.departs or view.ending is not None or view.too_old_for:
        return KeepReplicas()
    if control.phase not in (RunPhase.RUNNING, RunPhase.DRAINING):
        return KeepReplicas()
    placed = {
        task
        for task, processors in control.replicas.items()
        if view.me in processors and task in control.tasks and task not in view.given
    }
    placed |= {task for task in view.work.replicas_sent.tasks if _starts_soon(view, task)}
    return KeepReplicas(control.run_id, control.group_id, tuple(sorted(placed))) if placed else KeepReplicas()


def _starts_soon(view: View, task: str) -> bool:
    owner, local = view.given.get(task), view.work.tasks.get(task)
    return owner is not None and (local is None or local.generation != owner.generation)
