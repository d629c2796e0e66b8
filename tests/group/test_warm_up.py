"""Stories of warm-ups: a task with state waits until its next owner has a copy, and all shares are even in the end."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from samza_azure.group import warm_up
from samza_azure.group.assign import assign
from samza_azure.group.control import Assignment, Control, RunPhase
from samza_azure.group.publish import with_run
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.warm_up import AT_ONCE, NEAR_BYTES, WARM_UP_S, begun, waiting
from samza_azure.messages import ReplicaState
from tests.group.situation import CONTROL, NOW, PLAN, ROWS, TIMING, leader, owner, report, row

TASKS = [f"count-{number}" for number in range(12)]
NEAR = ReplicaState(7, NEAR_BYTES, 100)
#: All tasks of the run have state.
HEAVY = replace(PLAN, stages=tuple(replace(stage, stateful=("count",)) for stage in PLAN.stages))
#: p1 and p2 have all three tasks, p3 has none and keeps no replica.
OWNERS = {"clean-0": "p1", "clean-1": "p2", "daily-0": "p2"}
JOINED = replace(CONTROL, tasks={task: Assignment(owner(each), first=False) for task, each in OWNERS.items()})


def rows_of(control: Control, held: dict[str, dict[str, ReplicaState]]) -> dict[str, ProcessorRow]:
    """Rows in which each owner has appended a batch, and with these replicas."""
    tasks: dict[str, list[str]] = {}
    for task, each in control.tasks.items():
        if each.owner is not None:
            tasks.setdefault(each.owner.processor, []).append(task)
    return {
        name: row(name, {task: report(task, batch=8) for task in tasks.get(name, ())}, replicas=held.get(name, {}))
        for name in ROWS
    }


def next_of(
    control: Control, held: dict[str, dict[str, ReplicaState]] | None = None, now: float = NOW, **more: object
) -> Control:
    """What the leader makes of the run."""
    view = leader(control, plan=HEAVY, **more)
    view.settings = replace(view.settings, replicas=1)
    view.others.members = rows_of(control, held or {})
    return with_run(view, control, now, ())


def owners(control: Control) -> dict[str, str]:
    return {task: each.owner.processor for task, each in control.tasks.items() if each.owner is not None}


def test_a_task_waits_until_the_processor_that_has_joined_has_its_state() -> None:
    after = next_of(JOINED)
    assert owners(after) == OWNERS
    (waits,) = [task for task, processors in after.replicas.items() if "p3" in processors and OWNERS[task] == "p2"]
    far = next_of(after, {"p3": {waits: replace(NEAR, behind=NEAR_BYTES + 1)}})
    assert owners(far) == OWNERS
    near = next_of(after, {"p3": {waits: NEAR}})
    assert owners(near) == {**OWNERS, waits: "p3"}


def test_a_task_without_a_batch_waits_for_nobody() -> None:
    view = leader(JOINED, plan=HEAVY)
    view.settings = replace(view.settings, replicas=1)
    view.others.members = {
        **rows_of(JOINED, {}),
        "p2": row("p2", {task: report(task) for task in ("clean-1", "daily-0")}, replicas={}),
    }
    assert Counter(owners(with_run(view, JOINED, NOW, ())).values()) == {"p1": 1, "p2": 1, "p3": 1}


def test_a_replica_that_never_comes_is_not_waited_for_for_ever() -> None:
    after = next_of(JOINED)
    placed = {task: dict.fromkeys(processors, NOW) for task, processors in after.replicas.items()}
    late = NOW + WARM_UP_S
    assert owners(next_of(after, now=late - 0.1, leadership=leader().leadership, placed=placed)) == OWNERS
    moved = owners(next_of(after, now=late, leadership=leader().leadership, placed=placed))
    assert Counter(moved.values()) == {"p1": 1, "p2": 1, "p3": 1}


def test_a_processor_of_a_release_without_replicas_is_not_waited_for() -> None:
    view = leader(JOINED, plan=HEAVY)
    view.settings = replace(view.settings, replicas=1)
    view.others.members = {**rows_of(JOINED, {}), "p3": row("p3", replicas=None)}
    assert Counter(owners(with_run(view, JOINED, NOW, ())).values()) == {"p1": 1, "p2": 1, "p3": 1}


def test_tasks_move_to_a_processor_one_after_the_other() -> None:
    """Three were seen to be released at once for a container that started them within 16 s."""
    wanted, current = dict.fromkeys(TASKS[:3], "b"), dict.fromkeys(TASKS[:3], "a")
    near = {task: ["b"] for task in wanted}
    shares = waiting(wanted, current, near, heavy=set(wanted), follow=("b",), overdue=())
    assert [*shares.owners.values()] == ["b", "a", "a"]
    assert [*shares.warm_ups] == TASKS[1:3]


def test_an_orphan_goes_to_who_has_its_state_and_moves_on_from_there() -> None:
    """p2 is gone, p1 has no task, and p3, which has two, has followed that of p2."""
    busy = {"clean-0": "p3", "clean-1": "p2", "daily-0": "p3"}
    tasks = {task: Assignment(owner(each), first=False) for task, each in busy.items()}
    before = replace(CONTROL, tasks=tasks, replicas={"clean-1": ("p3",)})
    view = leader(before, plan=HEAVY)
    view.settings = replace(view.settings, replicas=1)
    view.others.members = rows_of(before, {"p3": {"clean-1": NEAR}})
    del view.others.members["p2"]
    view.own.written = row("p1", replicas={})
    after = with_run(view, before, NOW, ())
    assert set(owners(after).values()) == {"p3"}
    view.as_leader.published_at = NOW
    assert not after.replicas  # it stands still: no copy is made meanwhile, and it goes nowhere else
    view.own.written = row("p1", replicas=dict.fromkeys(busy, NEAR))
    everywhere = replace(after, replicas=dict.fromkeys(busy, ("p1",)))
    assert owners(with_run(view, everywhere, NOW + TIMING.debounce_s, ()))["clean-1"] == "p3"

    appended = {
        task: replace(report(task, batch=8), generation=each.owner.generation, appended_at=NOW)
        for task, each in after.tasks.items()
        if each.owner is not None
    }
    view.own.written, view.others.members = row("p1", replicas={}), {"p3": row("p3", appended)}
    warming = with_run(view, after, NOW + TIMING.debounce_s, ())
    assert {*warming.replicas.values()} == {("p1",)} and owners(warming) == owners(after)
    view.own.written = row("p1", replicas=dict.fromkeys(busy, NEAR))
    moved = with_run(view, warming, NOW + 2 * TIMING.debounce_s, ())
    assert Counter(owners(moved).values()) == {"p3": 2, "p1": 1}


def test_a_processor_that_comes_back_gets_its_task_when_it_has_its_state_again() -> None:
    """p2 was restarted before it was marked dead, and its next life is a candidate."""
    placed = replace(CONTROL, replicas={"clean-1": ("p3",)})
    view = leader(placed, plan=HEAVY)
    view.settings = replace(view.settings, replicas=1)
    back = row("p2", incarnation="the next", replicas={})
    view.others.members = {**rows_of(placed, {"p3": {"clean-1": NEAR}}), "p2": back}
    view.others.back = {"p2": (CONTROL.tasks["clean-1"].owner.incarnation, NOW)}  # type: ignore[union-attr]
    assert owners(with_run(view, placed, NOW, ()))["clean-1"] == "p3"
    view.others.members = {**rows_of(placed, {}), "p2": back}
    assert owners(with_run(view, placed, NOW, ()))["clean-1"] == "p2"


def test_a_drain_moves_no_task_and_warms_nobody_up() -> None:
    draining = replace(JOINED, phase=RunPhase.DRAINING)
    assert owners(next_of(draining)) == OWNERS


def test_a_few_tasks_warm_up_at_a_time_and_those_that_have_begun_go_on() -> None:
    wanted = dict.fromkeys(TASKS[:6], "p3") | dict.fromkeys(TASKS[6:], "p4")
    followed = {TASKS[5]: ("p3",), TASKS[0]: ("p2",)}
    chosen = begun(wanted, followed)
    assert Counter(chosen.values()) == {"p3": AT_ONCE, "p4": AT_ONCE}
    assert TASKS[5] in chosen


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_all_shares_are_even_once_each_warm_up_is_over(data: st.DataObject) -> None:
    """Whoever has which copy at first: no task is without an owner, and none moves to who has no copy."""
    members = data.draw(st.lists(st.sampled_from("abcde"), min_size=2, unique=True))
    current = {task: data.draw(st.sampled_from("abcdex")) for task in TASKS}
    near = {task: [data.draw(st.sampled_from(members))] for task in TASKS if data.draw(st.booleans())}
    followed: dict[str, tuple[str, ...]] = {}
    for _ in range(2 * len(TASKS) + 2):
        there = {task: each for task, each in current.items() if each in members}
        wanted = assign(TASKS, members, there, warm=near)
        shares = waiting(wanted, there, near, heavy=set(TASKS), follow=members, overdue=())
        assert shares.owners.keys() == set(TASKS)
        for task, each in shares.owners.items():
            assert each in members
            assert each in (there.get(task), *near.get(task, ())) or not (near.get(task) or task in there)
        begins = begun(shares.warm_ups, followed)
        assert len(begins) <= AT_ONCE * len(members) and (begins or not shares.warm_ups)
        current, followed = dict(shares.owners), {task: (each,) for task, each in begins.items()}
        near = {**near, **{task: [*near.get(task, ()), each] for task, each in begins.items()}}
    sizes = [[*current.values()].count(each) for each in members]
    assert max(sizes) <= min(sizes) + 1


def test_without_replicas_all_is_as_it_was() -> None:
    wanted, current = dict.fromkeys(TASKS, "a"), dict.fromkeys(TASKS, "b")
    assert waiting(wanted, current, {}, heavy=(), follow=(), overdue=()) == warm_up.Shares(wanted, {})
