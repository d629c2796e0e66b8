"""What the leader notes of what happened: each kind once, within a bound, and never at the price of the job model."""

import dataclasses

import pytest

from samza_azure.errors import ModelTooLarge
from samza_azure.group.age import Age
from samza_azure.group.control import (
    Assignment,
    Barrier,
    BarrierState,
    Control,
    DrainNotification,
    Event,
    Failure,
    GivenUp,
    Member,
    Owner,
    RunPhase,
    Stop,
    decode,
    encode,
)
from samza_azure.group.history import KEPT, TEXT_LIMIT, with_events
from samza_azure.group.rows import ProcessorRow, State
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import Life, Settings, View
from samza_azure.messages import DrainStep

A, B, C = Member("a", "1"), Member("b", "1"), Member("c", "1")
TASKS = {"t-0": Assignment(Owner("a", "1", 5)), "t-1": Assignment(Owner("b", "1", 5))}
BEFORE = Control(
    "g", revision=9, epoch=2, version=5, leader=A, run_id="r", phase=RunPhase.RUNNING, members=(A, B), tasks=TASKS
)
DRAIN = DrainNotification("d", "r", step=DrainStep.FREEZE)


def view_of(**rows: ProcessorRow) -> View:
    view = View(Settings("b", PROFILES["default"]), Life("1"))
    view.wall_ms, view.others.members = 1_000, rows
    return view


def noted(after: Control, before: Control = BEFORE, **rows: ProcessorRow) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in with_events(view_of(**rows), before, after).events]


def changed(**fields: object) -> Control:
    return dataclasses.replace(BEFORE, **fields)  # type: ignore[arg-type]


MOVED = {"t-0": Assignment(Owner("b", "1", 10)), "t-1": TASKS["t-1"]}


@pytest.mark.parametrize(
    ("after", "events"),
    [
        (changed(epoch=3, leader=B), [("leader", "b leads. a had given no sign of life.")]),
        (changed(members=(A, B, C)), [("joined", "c joined.")]),
        (changed(members=(A, Member("b", "2"))), [("joined", "b is back as another life.")]),
        (
            changed(members=(B,), version=10, tasks=MOVED),
            [("died", "a gave no sign of life for 8 s."), ("moved", "t-0 from a to b.")],
        ),
        (changed(drain=DRAIN, phase=RunPhase.DRAINING), [("drain", "The drain has reached FREEZE.")]),
        (changed(phase=RunPhase.DRAINED), [("drain", "Run r is drained.")]),
        (changed(stop=Stop("s", (A, B))), [("stop", "Everybody was asked to stop.")]),
        (changed(run_id="s"), [("run", "Run s begins.")]),
        (changed(given_up={"t-0": GivenUp(Owner("a", "1", 5), "no disk")}), [("given up", "a gave up t-0: no disk")]),
        (
            changed(phase=RunPhase.FAILED, failure=Failure("t", "t-0", "a bug", "")),
            [("failed", "The run failed with t-0: a bug")],
        ),
        (
            changed(barrier=Barrier(5, BarrierState.TIMEOUT)),
            [("slow", "Not everybody adopted version 5 in time; the others went on without them.")],
        ),
        (changed(nonce="n", revision=10), []),
    ],
)
def test_each_change_is_noted_with_its_cause(after: Control, events: list[tuple[str, str]]) -> None:
    assert noted(after) == events


def test_a_drain_that_is_cancelled_is_no_new_drain() -> None:
    assert noted(BEFORE, changed(drain=DRAIN, phase=RunPhase.DRAINING)) == [("drain", "The drain was cancelled.")]


@pytest.mark.parametrize(("state", "kind"), [(State.LEFT, "left"), (State.LEAVING, "left"), (State.DEAD, "died")])
def test_who_left_has_not_died(state: State, kind: str) -> None:
    assert [each for each, _ in noted(changed(members=(B,)), a=ProcessorRow("a", "1", state=state))] == [kind]


def test_one_that_was_restarted_has_not_been_silent() -> None:
    """Its new life is not able yet, so it is no member; it was killed two seconds ago, not eight."""
    again = ProcessorRow("a", "2", state=State.UNASSIGNED)
    assert noted(changed(members=(B,)), a=again) == [("died", "a was restarted; its new life is not a member yet.")]


def test_one_that_beats_and_does_not_adopt_has_not_been_silent() -> None:
    timeout = changed(barrier=Barrier(5, BarrierState.TIMEOUT))
    after, row = dataclasses.replace(timeout, members=(B,)), ProcessorRow("a", "1", state=State.DEAD, adopted=4)
    assert noted(after, timeout, a=row) == [("died", "a did not adopt version 5 in time.")]
    view = view_of(a=row)
    view.others.ages = {"a": Age("e", view.timing.heartbeat_timeout_s, 5, 100.0)}
    silent = with_events(view, timeout, after).events
    assert [each.text for each in silent] == ["a gave no sign of life for 8 s."]
    assert noted(after, timeout, a=dataclasses.replace(row, adopted=5))[0][1] == "a gave no sign of life for 8 s."


def test_the_last_ones_are_kept_and_a_long_cause_is_cut() -> None:
    control = BEFORE
    for number in range(KEPT + 5):
        control = with_events(view_of(), control, dataclasses.replace(control, run_id=f"r{number}" + "x" * 1_000))
    assert len(control.events) == KEPT
    assert control.events[-1].text.startswith(f"Run r{KEPT + 4}")
    assert {len(each.text) for each in control.events} == {TEXT_LIMIT}
    assert decode(encode(control)) == control


def test_a_blob_that_is_too_large_goes_without_its_history() -> None:
    events = tuple(Event(number, "run", f"{number * 7919:x}" * 20) for number in range(KEPT))
    small = len(encode(BEFORE))
    assert decode(encode(changed(events=events), limit=small)) == BEFORE
    with pytest.raises(ModelTooLarge):
        encode(changed(events=events), limit=small - 1)
