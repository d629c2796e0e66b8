"""Stories of replicas: where the leader places them, who gets a task because of one, and until when one is kept."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_azure.group.assign import assign
from samza_azure.group.control import Assignment
from samza_azure.group.replicas import kept, place, with_replicas
from samza_azure.messages import KeepReplicas, Phase, Plan, StagePlan
from tests.group.situation import CONTROL, NOW, PLAN, ROWS, TIMING, leader, owner, report, row, view_of

TASKS = [f"count-{number}" for number in range(12)]


def owners_of(names: str) -> dict[str, str]:
    """Twelve tasks, shared evenly."""
    return {task: names[number % len(names)] for number, task in enumerate(TASKS)}


def test_the_replicas_of_an_owner_are_spread_over_all_others() -> None:
    placed = place(owners_of("abc"), "abc", {}, {}, 1)
    for each_owner in "abc":
        others = [placed[task][0] for task, each in owners_of("abc").items() if each == each_owner]
        assert each_owner not in others
        assert sorted(map(others.count, {"a", "b", "c"} - {each_owner})) == [2, 2]


def test_a_processor_without_a_task_keeps_replicas_too() -> None:
    placed = place({"count-0": "a"}, "ab", {}, {}, 1)
    assert placed == {"count-0": ("b",)}


def test_alone_there_is_none() -> None:
    assert place(owners_of("a"), "a", {}, {}, 1) == {}


def test_a_replica_is_on_another_machine_if_there_is_one() -> None:
    hosts = {"a": "one", "b": "one", "c": "two"}
    placed = place(owners_of("ab"), "abc", hosts, {}, 1)
    assert set(placed.values()) == {("c",)}
    assert place(owners_of("ab"), "ab", hosts, {}, 1)["count-0"] == ("b",)
    kept = dict.fromkeys(TASKS, ("b",))
    assert set(place(owners_of("ab"), "abc", hosts, kept, 1).values()) == {("c",)}


def test_replicas_stay_where_they_are_when_an_owner_dies() -> None:
    before = place(owners_of("abc"), "abc", {}, {}, 1)
    warm = {task: list(each) for task, each in before.items()}
    current = {task: owner for task, owner in owners_of("abc").items() if owner != "a"}
    owners = assign(TASKS, "bc", current, warm=warm)
    assert all(owners[task] == before[task][0] for task, owner in owners_of("abc").items() if owner == "a")
    after = place(owners, "bc", {}, before, 1)
    assert all(
        after[task] == before[task] for task in TASKS if owners[task] not in before[task] and before[task] != ("a",)
    )


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_warm_members_change_who_gets_a_task_and_neither_shares_nor_moves(data: st.DataObject) -> None:
    members = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
    current = data.draw(st.dictionaries(st.sampled_from(TASKS), st.sampled_from("abcdefxy")))
    warm = data.draw(st.dictionaries(st.sampled_from(TASKS), st.lists(st.sampled_from("abcdefxy"), max_size=3)))
    balance = data.draw(st.booleans())
    cold = assign(TASKS, members, current, balance=balance)
    found = assign(TASKS, members, current, balance=balance, warm=warm)
    sizes = [sorted(list(each.values()).count(member) for member in members) for each in (cold, found)]
    assert sizes[0] == sizes[1] or not balance
    assert set(found) == set(TASKS)
    stays = [task for task in TASKS if cold[task] == current.get(task)]
    assert [found[task] for task in stays] == [cold[task] for task in stays]
    assert assign(TASKS, members, current, balance=balance, warm={}) == cold


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_replicas_are_shared_evenly_and_placing_them_again_moves_none(data: st.DataObject) -> None:
    members = data.draw(st.lists(st.sampled_from("abcdef"), min_size=2, unique=True))
    owners = {task: data.draw(st.sampled_from(members)) for task in TASKS}
    count = data.draw(st.integers(1, 2))
    before = {task: (data.draw(st.sampled_from("abcdefxy")),) for task in TASKS}
    placed = place(owners, members, {}, before, count)
    assert all(owners[task] not in each and len(set(each)) == len(each) for task, each in placed.items())
    assert all(len(each) == min(count, len(members) - 1) for each in placed.values())
    assert place(owners, members, {}, placed, count) == placed


#: p1, p2 and p3 have clean-0, clean-1 and daily-0.
PLACED = replace(CONTROL, replicas={"daily-0": ("p2",)})


def test_no_replica_is_kept_of_what_is_ours_or_no_task_at_all() -> None:
    """A leader of an earlier release leaves replicas as they were, whoever gets the tasks, and an account may say
    anything.
    """
    assert kept(view_of("p2", PLACED)) == KeepReplicas("run", CONTROL.group_id, ("daily-0",))
    strange = replace(PLACED, replicas={"clean-1": ("p2",), "daily-9": ("p2",), "../other-0": ("p2",)})
    assert kept(view_of("p2", strange)) == KeepReplicas()


@pytest.mark.parametrize(
    "plan", [None, Plan((StagePlan("daily", ("flights",), "out", 1),), {"flights": 2}, "e" * 64)], ids=["none", "other"]
)
def test_a_leader_without_the_plan_of_the_run_leaves_replicas_where_they_are(plan: Plan | None) -> None:
    view = leader(PLACED, plan=plan, free_from=0.0)
    view.settings = replace(view.settings, replicas=1)
    assert with_replicas(view, PLACED, ROWS, {}, CONTROL.version - 1, NOW) is PLACED
    view.work.plan = replace(PLAN, stages=(replace(PLAN.stages[1], stateful=("count",)),))
    assert with_replicas(view, PLACED, ROWS, {}, CONTROL.version - 1, NOW).replicas == PLACED.replicas
    view.settings = replace(view.settings, replicas=0)
    assert with_replicas(view, PLACED, ROWS, {}, CONTROL.version - 1, NOW).replicas == {}


def test_no_replica_begins_while_tasks_are_taken_over() -> None:
    """Copies of large states would take storage and processors from the tasks that stand still."""
    plan = replace(PLAN, stages=(PLAN.stages[0], replace(PLAN.stages[1], stateful=("count",))))

    def replicas(phase: Phase, appended_at: float | None, since: float, version: int = CONTROL.version) -> object:
        its_report = replace(report("daily-0", phase), appended_at=appended_at)
        members = {**ROWS, "p3": row("p3", {"daily-0": its_report})}
        view = leader(plan=plan, members=members, published_at=since, free_from=0.0)
        view.settings = replace(view.settings, replicas=1)
        found = [
            with_replicas(view, replace(CONTROL, replicas=before), members, {}, version, NOW).replicas
            for before in ({"daily-0": ("p3", "p9")}, {})  # what names nobody else is dropped, and then there is none
        ]
        assert found[0] == found[1]
        return found[0]

    long_ago, lately = NOW - TIMING.barrier_timeout_s, NOW - TIMING.debounce_s
    placed = {"daily-0": ("p1",)}
    assert replicas(Phase.RUNNING, NOW - 1, lately) == placed
    assert replicas(Phase.RUNNING, None, lately) == replicas(Phase.STARTING, None, lately) == {}
    assert replicas(Phase.RUNNING, None, long_ago) == placed  # it has no input
    assert replicas(Phase.RUNNING, None, long_ago, CONTROL.version - 1) == {}  # it is given away with this write
    assert replicas(Phase.FAILED, None, lately) == placed


def test_a_task_that_ran_before_and_has_no_input_keeps_no_replica_from_others() -> None:
    plan = replace(PLAN, stages=tuple(replace(stage, stateful=("count",)) for stage in PLAN.stages))
    later = replace(
        CONTROL, version=9, tasks={**CONTROL.tasks, "clean-1": Assignment(owner("p2", 9), first=False)}, replicas={}
    )
    moved = replace(report("clean-1"), generation=9, appended_at=NOW)
    view = leader(later, plan=plan, members={**ROWS, "p2": row("p2", {"clean-1": moved})}, published_at=NOW - 2)
    view.settings = replace(view.settings, replicas=1)
    assert with_replicas(view, later, view.others.members, {}, 9, NOW).replicas.keys() == later.tasks.keys()
