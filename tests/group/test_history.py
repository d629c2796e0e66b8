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
from samza_azure.group.learn import heard_leave
from samza_azure.group.notice import Availability, Going, Left
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import OwnIncarnation, Settings, View
from samza_azure.messages import DrainStep

A, B, C = Member("a", "1"), Member("b", "1"), Member("c", "1")
TASKS = {"t-0": Assignment(Owner("a", "1", 5)), "t-1": Assignment(Owner("b", "1", 5))}
BEFORE = Control(
    "g", revision=9, epoch=2, version=5, leader=A, run_id="r", phase=RunPhase.RUNNING, members=(A, B), tasks=TASKS
)
DRAIN = DrainNotification("d", "r", step=DrainStep.FREEZE)


def view_of(**rows: ProcessorRow) -> View:
    view = View(Settings("b", PROFILES["default"]), OwnIncarnation("1"))
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
        (changed(epoch=3, leader=B), [("leader", "b took over from a, which sent no heartbeat in time.")]),
        (changed(members=(A, B, C)), [("joined", "c joined.")]),
        (changed(members=(A, Member("b", "2"))), [("joined", "b rejoined as a new incarnation.")]),
        (
            changed(members=(B,), version=10, tasks=MOVED),
            [("died", "a was marked dead: no heartbeat for 8 s."), ("moved", "t-0 from a to b.")],
        ),
        (changed(drain=DRAIN, phase=RunPhase.DRAINING), [("drain", "The drain reached FREEZE.")]),
        (changed(phase=RunPhase.DRAINED), [("drain", "Run r is drained.")]),
        (changed(stop=Stop("s", (A, B))), [("stop", "All members were asked to stop.")]),
        (changed(run_id="s"), [("run", "Run s began.")]),
        (changed(given_up={"t-0": GivenUp(Owner("a", "1", 5), "no disk")}), [("given up", "a gave up t-0: no disk")]),
        (
            changed(phase=RunPhase.FAILED, failure=Failure("t", "t-0", "a bug", "")),
            [("failed", "The run failed in t-0: a bug")],
        ),
        (
            changed(barrier=Barrier(5, BarrierState.TIMEOUT)),
            [("slow", "Not all members adopted version 5 in time; the others go on without them.")],
        ),
        (changed(nonce="n", revision=10), []),
    ],
)
def test_each_change_is_noted_with_its_cause(after: Control, events: list[tuple[str, str]]) -> None:
    assert noted(after) == events


def test_a_give_up_is_noted_once() -> None:
    before = changed(given_up={"t-0": GivenUp(Owner("a", "1", 5), "no disk")})
    again = dataclasses.replace(before, given_up={"t-0": GivenUp(Owner("a", "1", 9), "no disk")})
    assert noted(dataclasses.replace(before, revision=10), before) == []
    assert noted(again, before) == [("given up", "a gave up t-0: no disk")]


def test_a_drain_that_is_cancelled_is_no_new_drain() -> None:
    assert noted(BEFORE, changed(drain=DRAIN, phase=RunPhase.DRAINING)) == [("drain", "The drain was cancelled.")]


@pytest.mark.parametrize(
    ("state", "kind"), [(ProcessorState.LEFT, "left"), (ProcessorState.LEAVING, "left"), (ProcessorState.DEAD, "died")]
)
def test_a_processor_that_left_is_not_noted_as_dead(state: ProcessorState, kind: str) -> None:
    assert [each for each, _ in noted(changed(members=(B,)), a=ProcessorRow("a", "1", state=state))] == [kind]


def test_the_history_says_what_a_processor_that_left_by_a_signal_could_not_hand_over() -> None:
    """All had left, so the first that starts again notes it."""
    went = Going(Availability.DECOMMISSIONING, "it was asked to leave", 0, 2, 1, {"t-0": str(Left.NOBODY)})
    row = ProcessorRow("a", "1", state=ProcessorState.LEFT, going=went)
    text = "a left, with 1 of 2 tasks handed over (t-0: no other processor can take it)."
    assert noted(changed(members=(B,)), a=row) == [("left", text)]


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (changed(leader=None, epoch=0), "b is the first leader."),
        (changed(leader=None), "b leads; its predecessor handed over."),
        (changed(leader=Member("b", "0")), "b leads again, as a new incarnation."),
    ],
)
def test_the_history_says_why_a_processor_leads(before: Control, text: str) -> None:
    assert noted(changed(epoch=3, leader=B), before) == [("leader", text)]


@pytest.mark.parametrize("state", [ProcessorState.LEAVING, ProcessorState.LEFT, ProcessorState.DEAD])
def test_the_history_has_the_exit_code_and_reason_of_a_processor_that_gave_up(state: ProcessorState) -> None:
    gave_up = ProcessorRow("a", "1", state=state, ending="1 The container ended 3 times in a row (exit code 7).")
    said = "a ends with exit code 1: The container ended 3 times in a row (exit code 7)."
    assert noted(changed(members=(B,)), a=gave_up) == [("ended", said)]
    stopped = dataclasses.replace(
        gave_up, state=ProcessorState.LEFT, ending="0 Run r is stopped. The next start resumes it."
    )
    assert noted(changed(members=(B,)), a=stopped) == [("left", "a left.")]
    garbage = dataclasses.replace(gave_up, state=ProcessorState.LEFT, ending="x" * 500)
    assert noted(changed(members=(B,)), a=garbage) == [("left", "a left.")]


def test_a_leader_that_gives_up_adds_it_to_the_history_before_its_row_shows_it() -> None:
    view, after = view_of(b=ProcessorRow("b", "1", state=ProcessorState.ACTIVE)), changed(members=(A,))
    heard_leave(view, "No disk.")
    assert with_events(view, BEFORE, after).events[-1].text == "b ends with exit code 1: No disk."


def test_the_history_says_that_a_member_could_not_reach_the_control_blob() -> None:
    row = ProcessorRow("a", "1", state=ProcessorState.DEAD, cut_off=True)
    assert noted(changed(members=(B,)), a=row) == [("died", "a was marked dead: it could not reach the control blob.")]


def test_the_history_says_that_a_member_was_restarted() -> None:
    """Its new life is not able yet, so it is no member; it was killed two seconds ago, not eight."""
    again = ProcessorRow("a", "2", state=ProcessorState.UNASSIGNED)
    assert noted(changed(members=(B,)), a=again) == [
        ("died", "a came back as a new incarnation, which is not a member yet.")
    ]


def test_the_history_says_that_a_member_did_not_adopt_a_version() -> None:
    timeout = changed(barrier=Barrier(5, BarrierState.TIMEOUT))
    after, row = (
        dataclasses.replace(timeout, members=(B,)),
        ProcessorRow("a", "1", state=ProcessorState.DEAD, adopted=4),
    )
    assert noted(after, timeout, a=row) == [("died", "a was marked dead: it did not adopt version 5 in time.")]
    view = view_of(a=row)
    view.others.ages = {"a": Age("e", view.timing.heartbeat_timeout_s, 5, 100.0)}
    silent = with_events(view, timeout, after).events
    assert [each.text for each in silent] == ["a was marked dead: no heartbeat for 8 s."]
    adopted = dataclasses.replace(row, adopted=5)
    assert noted(after, timeout, a=adopted)[0][1] == "a was marked dead: no heartbeat for 8 s."


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
