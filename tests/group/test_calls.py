"""What follows on the answer to a call: never the same call at once, and after each failure a longer wait."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

from samza_azure.group import actions, publish
from samza_azure.group.actions import (
    HOUSEKEEPING,
    SCAN,
    AcquireLease,
    Action,
    AnswerRequest,
    BreakLease,
    CleanRun,
    CreateControl,
    DeleteMember,
    DeleteRequest,
    Finish,
    InsertOwnRow,
    MarkDead,
    MergeOwnRow,
    ReadControl,
    ReadLeaderRow,
    ReadMember,
    ReadOwnRow,
    ReadRequests,
    ReleaseLease,
    RenewLease,
    ReplaceOwnRow,
    ScanMembers,
    StepDown,
    StorageAction,
    WriteControl,
    WriteLeaderRow,
    resource,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import ANSWERS, Answer, Busy, ControlRead, Denied, Kept, Later, TooLarge, Trouble
from samza_azure.group.control import Assignment, Control, RunPhase
from samza_azure.group.learn import learn, started, turn
from samza_azure.group.rows import LeaderRow, ProcessorRow, ProcessorState, Request, RequestKind
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import Campaign, Lease, OwnIncarnation, Settings, View
from samza_azure.host.processor import CALL_LEAST_S, answer_within_s, call_timeout_s
from samza_azure.outcomes import Missing, NotModified, Refused
from tests.group.situation import (
    CONTROL,
    LEADER_ROW,
    NOW,
    ROWS,
    TIMING,
    decide,
    leader,
    owner,
    put,
    row,
    view_of,
    without_blob,
)

SILENT = Age("leader row", 60.0, 30, NOW)
DRAINED = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
LEFT = {name: replace(ROWS[name], state=ProcessorState.LEFT, tasks={}) for name in ("p2", "p3")}
ASKED = Request("d", "etag", RequestKind.DRAIN, "run")
ENDING: dict[str, Any] = {"ending": Finish(0, "Left."), "ending_since": NOW, "tasks": {}}


def newcomer(**more: Any) -> View:
    view = View(Settings("p9", TIMING, boot="boot"), OwnIncarnation("new"))
    turn(view, NOW, random=0.5, fresh_id="fresh", wall_ms=1)
    put(view, more)
    return view


def all_left() -> View:
    view = leader(DRAINED, clean_done="run", **ENDING)
    view.others.members = LEFT
    return view


def waiting() -> View:
    """p3 has won clean-1, and p2 is to release it."""
    won = {**CONTROL.tasks, "clean-1": Assignment(owner("p3", 3), (owner("p2"),))}
    view = view_of("p3", replace(CONTROL, tasks=won), waiting_since={"clean-1": NOW - 10}, scanned_at=NOW - 10)
    view.others.leader_row = replace(LEADER_ROW, successors=())
    return view


def without_any() -> View:
    """p3 has not read the control blob yet."""
    view = view_of("p3")
    view.own.control = None
    return view


def ending() -> View:
    view = view_of("p2", written=replace(ROWS["p2"], state=ProcessorState.LEFT), **ENDING)
    view.candidacy.campaign = Campaign("control", lease=Lease("won", NOW))
    return view


#: Every kind of call, and a situation in which it is made.
CALLS: dict[type, Callable[[], View]] = {
    ReadOwnRow: newcomer,
    InsertOwnRow: lambda: newcomer(found=Missing()),
    ReplaceOwnRow: lambda: newcomer(found=replace(ROWS["p3"], processor="p9", state=ProcessorState.LEFT)),
    MergeOwnRow: lambda: view_of("p3", beat_sent_at=NOW - 10),
    ReadLeaderRow: lambda: view_of("p3", leader_read_at=NOW - 10),
    WriteLeaderRow: lambda: leader(leader_row_sent_at=NOW - 10),
    ReadControl: without_any,
    CreateControl: lambda: without_blob("p3", group_id="", leader_row=Missing(), tasks={}),
    BreakLease: lambda: view_of("p2", leader_age=SILENT),
    AcquireLease: lambda: view_of("p2", leader_age=SILENT, campaign=Campaign("control")),
    RenewLease: lambda: leader(lease=Lease("lease", NOW - 30)),
    ReleaseLease: ending,
    WriteControl: lambda: view_of("p2", campaign=Campaign("control", lease=Lease("won", NOW), read=True)),
    ScanMembers: lambda: leader(scanned_at=NOW - 10, since=NOW - 20),
    ReadMember: waiting,
    ReadRequests: lambda: leader(requests_read_at=NOW - 10),
    AnswerRequest: lambda: leader(DRAINED, requests=(ASKED,), **ENDING),
    MarkDead: lambda: leader(ages={"p3": Age("row of p3", 60.0, 30, NOW)}),
    DeleteMember: all_left,
    DeleteRequest: lambda: leader(
        CONTROL, requests=(ASKED,), request_ages={"d": Age("etag", 1e9, 1000, NOW)}, requests_read_at=NOW
    ),
    CleanRun: lambda: leader(replace(CONTROL, past=("older",), uncleaned=("older",))),
}


def with_newcomer() -> View:
    """p1 leads, and p4 has come, whose tasks the job model may have no room for."""
    view = leader(plan=None)
    view.own.control = replace(CONTROL, tasks={**CONTROL.tasks, "clean-2": Assignment(owner("p1"), first=False)})
    view.others.members = {**ROWS, "p4": row("p4")}
    return view


#: Where an answer comes only in another situation.
ONLY: dict[tuple[type, type], Callable[[], View]] = {
    (ReadControl, NotModified): lambda: view_of("p2", leader_age=SILENT, control_read_at=NOW - 10),
    (WriteControl, TooLarge): with_newcomer,
}
#: One answer of each kind. What is read is what stands there already, so nothing new is to be done about it.
ANSWERED: dict[type, Answer] = {
    type(None): None,
    str: "written",
    Refused: Refused("Refused"),
    Missing: Missing(),
    NotModified: NotModified(),
    Later: Later(99, "It needs a later release."),
    TooLarge: TooLarge("It is too large."),
    Kept: Kept(1, "BlobImmutableDueToPolicy"),
    ControlRead: ControlRead(CONTROL, "control"),
    ProcessorRow: ROWS["p2"],
    LeaderRow: LEADER_ROW,
    tuple: tuple(ROWS.values()),
}
ANY: list[Answer] = [Trouble.UNAVAILABLE, Trouble.UNSETTLED, Busy(1.0), Denied("The account refuses us.")]
PAIRS = [(call, answer) for call in CALLS for answer in (*(ANSWERED[kind] for kind in ANSWERS[call]), *ANY)]


def test_there_is_a_situation_for_every_call_and_it_is_stated_what_may_be_answered() -> None:
    assert set(CALLS) == set(get_args(StorageAction)) == set(ANSWERS)


@pytest.mark.parametrize(("call", "answer"), PAIRS)
def test_no_call_is_repeated_at_once_after_an_unchanged_answer(call: type, answer: Answer) -> None:
    only = ONLY.get((call, type(answer)))
    view, now = (only(), NOW + TIMING.debounce_s) if only is not None else (CALLS[call](), NOW)
    first = next(action for action in decide(view, now) if isinstance(action, call))
    started(view, first, now)
    learn(view, first, answer, sent_at=now, now=now + 0.001)
    assert first not in decide(view, now + 0.002)


def waits(view: View, action: StorageAction, times: int, random: float = 0.5) -> list[float]:
    """How long the resource is left alone after each of `times` failures in a row."""
    found, view.random = [], random
    for _ in range(times):
        learn(view, action, Trouble.UNAVAILABLE, sent_at=NOW, now=NOW)
        found.append(view.calls.failing[resource(action)].until - NOW)
    return found


def test_a_regular_read_that_failed_is_repeated_no_earlier_than_usual() -> None:
    assert waits(leader(), ScanMembers(), 5) == [1, 2, 4, 4, 4]
    assert waits(view_of("p2"), ReadLeaderRow(), 4) == [2, 4, 8, 8]


def test_heartbeats_do_not_back_off() -> None:
    """Sooner once, then as often as its heartbeat."""
    assert waits(view_of("p2"), MergeOwnRow(ROWS["p2"], "row of p2"), 4) == [1.5, 2, 2, 2]


def test_the_heartbeat_of_a_leader_comes_soon_again_and_does_not_back_off() -> None:
    beat = WriteLeaderRow(LEADER_ROW, "leader row")
    assert waits(leader(), beat, 5) == [0.25, 0.5, 1, 1.5, 1.5]
    assert waits(leader(settings=Settings("p1", PROFILES["fast"])), beat, 2) == [0.1875, 0.1875]


def beat_of(view: View, now: float) -> WriteLeaderRow | None:
    return next((action for action in decide(view, now) if isinstance(action, WriteLeaderRow)), None)


def beaten(answer: Answer) -> tuple[View, WriteLeaderRow]:
    """A leader whose heartbeat of now was answered so."""
    view = leader(leader_row_sent_at=NOW - TIMING.heartbeat_s)
    beat = beat_of(view, NOW)
    assert beat is not None
    started(view, beat, NOW)
    learn(view, beat, answer, sent_at=NOW, now=NOW)
    return view, beat


def test_a_heartbeat_of_a_leader_that_was_refused_does_not_wait_for_the_next_one() -> None:
    """It was sent again two seconds after it, and after a second failure four, so a third one came too late."""
    view, beat = beaten(Trouble.UNAVAILABLE)
    assert beat_of(view, NOW + 0.24) is None
    assert beat_of(view, NOW + 0.25) == beat


def test_a_heartbeat_of_a_leader_that_a_read_shows_to_be_undone_is_sent_at_once_and_waits_longer_each_time() -> None:
    """A read of the row has an answer each time, so the wait was always that of a first failure."""
    (view, beat), sent_at, found = beaten(Trouble.UNSETTLED), NOW, list[float]()
    for wait in (0.25, 0.5, 1, 1.5, 1.5):
        found.append(view.calls.failing[actions.LEADER_ROW].until - sent_at)
        assert ReadLeaderRow() not in decide(view, sent_at + wait - 0.01)
        sent_at += wait
        assert ReadLeaderRow() in decide(view, sent_at)
        learn(view, ReadLeaderRow(), LEADER_ROW, sent_at=sent_at, now=sent_at)
        assert beat_of(view, sent_at) == beat
        started(view, beat, sent_at)
        learn(view, beat, Trouble.UNSETTLED, sent_at=sent_at, now=sent_at)
    assert found == [0.25, 0.5, 1, 1.5, 1.5]


def test_a_heartbeat_of_a_leader_that_a_read_shows_to_be_done_is_not_repeated() -> None:
    view, beat = beaten(Trouble.UNSETTLED)
    learn(view, ReadLeaderRow(), replace(beat.row, etag="ours"), sent_at=NOW + 0.25, now=NOW + 0.25)
    assert view.calls.failing == {}
    assert beat_of(view, NOW + TIMING.heartbeat_s - 0.01) is None
    assert beat_of(view, NOW + TIMING.heartbeat_s) is not None


def test_a_write_of_the_control_blob_that_is_lost_again_and_again_waits_longer_each_time() -> None:
    """A read of the blob has an answer each time, so there were eight calls a second without end."""
    view, read, sent_at, found = leader(), ReadControl(lease_id="lease"), NOW, list[float]()
    lost = WriteControl(replace(CONTROL, revision=10, nonce="lost"), "control", "lease")
    for wait in (0.25, 0.5, 1, 2, 4, 4):
        started(view, lost, sent_at)
        learn(view, lost, Trouble.UNSETTLED, sent_at=sent_at, now=sent_at)
        found.append(view.calls.failing[actions.CONTROL].until - sent_at)
        assert of_control(view, sent_at + wait - 0.01) == []
        sent_at += wait
        assert of_control(view, sent_at) == [read]
        learn(view, read, ControlRead(CONTROL, "control"), sent_at=sent_at, now=sent_at)
        [again] = of_control(view, sent_at)
        assert isinstance(again, WriteControl), "at once, since it is not there"
        lost = again
    assert found == [0.25, 0.5, 1, 2, 4, 4]
    learn(view, lost, "newer", sent_at=sent_at, now=sent_at)
    assert actions.CONTROL not in view.calls.failing


def of_control(view: View, now: float) -> list[Action]:
    """What a leader does about the control blob."""
    assert isinstance(view.control, Control)
    return publish.write(view, view.as_leader.lease, view.control, now)


def test_calls_to_a_busy_service_obey_its_retry_after_and_heartbeats_do_not() -> None:
    """It may ask for more than the longest back-off, which is what counts then."""
    for view, action, after_s, wait in (
        (leader(), ScanMembers(), 3.0, 3.0),
        (leader(), ScanMembers(), 60.0, 5.0),
        (leader(), WriteLeaderRow(LEADER_ROW, "leader row"), 1.0, 1.0),
        (leader(), WriteLeaderRow(LEADER_ROW, "leader row"), 60.0, 1.875),
        (view_of("p2"), MergeOwnRow(ROWS["p2"], "row of p2"), 60.0, 1.5),
    ):
        learn(view, action, Busy(after_s), sent_at=NOW, now=NOW)
        assert view.calls.failing[resource(action)].until == NOW + wait


def test_a_leader_has_time_for_a_third_call_of_its_row_before_others_take_over() -> None:
    """It waited 2.67 s for each answer, and they for 5 s. A leader that was suspected wrongly waits for longer."""
    beat, suspected = WriteLeaderRow(LEADER_ROW, "leader row"), replace(CONTROL, churn=1)
    usual = call_timeout_s(TIMING)
    assert answer_within_s(leader(), beat) == answer_within_s(leader(), ReadLeaderRow()) == 5 / 3 < usual
    others = (leader(suspected), beat), (leader(), ScanMembers()), (view_of("p2"), ReadLeaderRow())
    assert [answer_within_s(view, call) for view, call in others] == [usual] * 3
    assert answer_within_s(leader(settings=Settings("p1", PROFILES["fast"])), beat) == CALL_LEAST_S


def test_calls_that_failed_together_are_repeated_at_different_times() -> None:
    assert waits(leader(), ScanMembers(), 1, random=0.0) == [0.75]
    assert waits(leader(), ScanMembers(), 1, random=0.999) == [pytest.approx(1.25, abs=0.01)]


def test_a_clean_up_that_cannot_end_is_tried_every_five_minutes_in_the_end_and_counted() -> None:
    view = leader(replace(CONTROL, past=("older",), uncleaned=("older",)))
    assert waits(view, CleanRun("older"), 11) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert view.calls.failing[HOUSEKEEPING].times == 11
    view.as_leader.lease = Lease("lease", NOW + 290)
    assert CleanRun("older") not in decide(view, NOW + 299)
    assert CleanRun("older") in decide(view, NOW + 300)


def test_data_of_a_later_release_is_read_again_less_and_less_often() -> None:
    """It was read again on the next turn, and on each turn after that. Only a later control blob makes us stand by."""
    view = leader()
    for times in (1, 2):
        learn(view, ScanMembers(), Later(2, "Needs a later release."), sent_at=NOW, now=NOW)
        assert view.calls.failing[SCAN].times == times
    learn(view, ReadControl(), Later(2, "Needs a later release."), sent_at=NOW, now=NOW)
    assert (view.too_old_for, actions.CONTROL in view.calls.failing) == (2, False)


def test_an_answer_ends_the_back_off() -> None:
    view = leader()
    waits(view, ScanMembers(), 5)
    learn(view, ScanMembers(), tuple(ROWS.values()), sent_at=NOW, now=NOW)
    assert view.calls.failing == {}


def blind(**more: Any) -> View:
    """p1 leads and sends heartbeats, and all its reads of the others have failed since it began to lead."""
    view = leader(since=NOW - 25, scanned_at=NOW - 26, **more)
    waits(view, ScanMembers(), 5)
    return view


def test_a_leader_whose_heartbeats_are_accepted_but_whose_scans_fail_steps_down() -> None:
    assert any(isinstance(action, StepDown) for action in decide(blind(), NOW))


def test_a_leader_whose_scan_never_ends_steps_down() -> None:
    """Page after page comes in time, and the last one does not come."""
    view = leader(since=NOW - 25, scanned_at=NOW - 26)
    patience = 3 * TIMING.heartbeat_timeout_s
    started(view, ScanMembers(), NOW - patience - 0.1)
    assert any(isinstance(action, StepDown) for action in decide(view, NOW))
    view.calls.busy[SCAN] = NOW - patience + 0.1
    assert not any(isinstance(action, StepDown) for action in decide(view, NOW))


@pytest.mark.parametrize(
    "view",
    [blind(accepted_at=NOW - 5), leader(since=NOW - 25, scanned_at=NOW - 26)],
    ids=["in an outage", "no look has failed"],
)
def test_a_leader_does_not_step_down_in_an_outage_or_before_its_first_scan(view: View) -> None:
    assert not any(isinstance(action, StepDown) for action in decide(view, NOW))
