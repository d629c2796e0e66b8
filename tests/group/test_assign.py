"""The assignment of tasks. A second implementation, slow and simple on purpose, computes the fewest possible moves."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from samza_azure.group.assign import assign

TASKS = [f"clean-{number}" for number in range(40)]
MEMBERS = ["a", "b", "c", "d", "e", "f", "g"]

tasks = st.integers(0, 40).map(lambda count: TASKS[:count])
members = st.sets(st.sampled_from(MEMBERS))
owners = st.dictionaries(st.sampled_from(TASKS), st.sampled_from(MEMBERS))


def sizes(assigned: dict[str, str], living: set[str]) -> list[int]:
    return [list(assigned.values()).count(member) for member in sorted(living)]


def moves(assigned: dict[str, str], current: dict[str, str]) -> int:
    return sum(assigned[task] != current.get(task) for task in assigned)


def fewest_moves(asked: list[str], living: set[str], current: dict[str, str]) -> int:
    """Try every assignment."""
    every = (dict(zip(asked, choice, strict=True)) for choice in product(sorted(living), repeat=len(asked)))
    balanced = (each for each in every if max(sizes(each, living)) - min(sizes(each, living)) <= 1)
    return min(moves(each, current) for each in balanced)


@given(tasks, members, owners)
def test_every_task_has_an_owner_and_the_shares_differ_by_at_most_one(
    asked: list[str], living: set[str], current: dict[str, str]
) -> None:
    assigned = assign(asked, living, current)
    assert set(assigned) == (set(asked) if living else set())
    assert set(assigned.values()) <= living
    if living:
        assert max(sizes(assigned, living)) - min(sizes(assigned, living)) <= 1


@given(tasks, members, owners)
def test_equal_questions_have_equal_answers(asked: list[str], living: set[str], current: dict[str, str]) -> None:
    again = dict(sorted(current.items(), reverse=True))
    assert assign(asked, sorted(living, reverse=True), again) == assign(asked, living, current)


@given(tasks, members, owners)
def test_assigning_twice_moves_no_task(asked: list[str], living: set[str], current: dict[str, str]) -> None:
    assigned = assign(asked, living, current)
    assert assign(asked, living, assigned) == assigned


@given(
    st.integers(0, 6).map(lambda count: TASKS[:count]),
    st.sets(st.sampled_from(MEMBERS[:3]), min_size=1),
    st.dictionaries(st.sampled_from(TASKS[:6]), st.sampled_from(MEMBERS[:4])),
)
def test_no_assignment_needs_fewer_moves(asked: list[str], living: set[str], current: dict[str, str]) -> None:
    known = {task: owner for task, owner in current.items() if task in asked}
    assert moves(assign(asked, living, known), known) == fewest_moves(asked, living, known)


@given(tasks, members, owners)
def test_while_draining_only_orphans_move(asked: list[str], living: set[str], current: dict[str, str]) -> None:
    assigned = assign(asked, living, current, balance=False)
    kept = {task: owner for task, owner in current.items() if task in asked and owner in living}
    assert {task: assigned[task] for task in kept} == kept
    assert set(assigned) == (set(asked) if living else set())


def test_a_fourth_takes_a_share_and_nothing_else_moves() -> None:
    before = assign(TASKS[:16], ["a", "b", "c"], {})
    after = assign(TASKS[:16], ["a", "b", "c", "d"], before)
    assert sizes(after, {"a", "b", "c", "d"}) == [4, 4, 4, 4]
    assert {after[task] for task in after if after[task] != before[task]} == {"d"}


def test_more_members_than_tasks_leaves_standbys() -> None:
    assert assign(TASKS[:2], ["a", "b", "c", "d"], {"clean-0": "d", "clean-1": "c"}) == {
        "clean-0": "d",
        "clean-1": "c",
    }


def test_without_members_no_task_has_an_owner() -> None:
    assert assign(TASKS, [], {"clean-0": "a"}) == {}


# Tasks that a member gave up.


@given(tasks, members, owners, owners, st.booleans())
def test_a_task_returns_to_the_processor_that_gave_it_up_only_if_alone(
    asked: list[str], living: set[str], current: dict[str, str], given_up: dict[str, str], balance: bool
) -> None:
    assigned = assign(asked, living, current, balance=balance, given_up=given_up)
    assert set(assigned) == (set(asked) if living else set())
    assert set(assigned.values()) <= living
    back = [task for task in assigned if assigned[task] == given_up.get(task) and assigned[task] != current.get(task)]
    assert not back or len(living) == 1


@given(tasks, members, owners, owners, st.booleans())
def test_a_second_assignment_moves_nothing(
    asked: list[str], living: set[str], current: dict[str, str], given_up: dict[str, str], balance: bool
) -> None:
    assigned = assign(asked, living, current, balance=balance, given_up=given_up)
    assert assign(asked, living, assigned, balance=balance, given_up=given_up) == assigned


@given(tasks, members, owners, st.sets(st.sampled_from(TASKS)))
def test_nothing_else_moves_when_tasks_are_given_up(
    asked: list[str], living: set[str], current: dict[str, str], failed: set[str]
) -> None:
    before = assign(asked, living, current)
    given_up = {task: before[task] for task in before if task in failed}
    others = {task: owner for task, owner in before.items() if task not in failed}
    after = assign(asked, living, others, given_up=given_up)
    assert {task: after[task] for task in others} == others


def test_a_machine_that_gave_everything_up_is_not_filled_with_what_runs_elsewhere() -> None:
    before = assign(TASKS[:6], ["a", "b", "c"], {})
    bad = {task: owner for task, owner in before.items() if owner == "a"}
    well = {task: owner for task, owner in before.items() if owner != "a"}
    after = assign(TASKS[:6], ["a", "b", "c"], well, given_up=bad)
    assert sizes(after, {"a", "b", "c"}) == [0, 3, 3]
    assert sizes(assign(TASKS[:6], ["a", "b", "c"], after), {"a", "b", "c"}) == [2, 2, 2]


def test_a_processor_that_began_alone_keeps_tasks_of_all_stages() -> None:
    """It kept all tasks of the first stage, which reads the sources, so that its death stopped all reading."""
    asked = [f"{stage}-{number}" for stage in ("clean", "daily") for number in range(4)]
    after = assign(asked, ["a", "b"], dict.fromkeys(asked, "a"))
    assert {task for task, owner in after.items() if owner == "a"} == {"clean-0", "clean-1", "daily-0", "daily-1"}
    after = assign(asked, ["a", "b", "c"], dict.fromkeys(asked, "a"))
    for member in ("a", "b", "c"):
        assert len({task.partition("-")[0] for task in after if after[task] == member}) == 2
