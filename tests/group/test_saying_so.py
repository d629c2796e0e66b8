"""Who says that it leads, and until when: never two at once, although two may act as leaders for a moment."""

from dataclasses import replace

import pytest

from samza_azure.group import decide as deciding
from samza_azure.group.actions import MergeOwnRow, ReadLeaderRow, WriteControl, WriteLeaderRow
from samza_azure.group.age import Age
from samza_azure.group.answers import Answer, Trouble
from samza_azure.group.control import Control, signal
from samza_azure.group.learn import learn, started
from samza_azure.group.rows import LeaderRow
from samza_azure.group.timing import PROFILES, SELF_STOP, Timing
from samza_azure.group.view import Campaign, Lease, View
from tests.group.situation import CONTROL, LEADER_ROW, NOW, ROWS, TIMING, leader, member, view_of

TIMEOUT_S = TIMING.leader_timeout_s
LET_GO = replace(CONTROL, revision=10, leader=None, successor="p3", nonce="bye")


def shows(view: View, at: float, answer: Answer = "shown", *, etag: str | None = "leader row") -> None:
    """The view's leader writes its row at this time, and has the answer a tenth of a second later."""
    control = view.control
    assert isinstance(control, Control)
    row = LeaderRow(control.epoch, control.version, signal(control), "control", 71, ("p2", "p3"))
    action = WriteLeaderRow(row, etag)
    started(view, action, at)
    learn(view, action, answer, sent_at=at, now=at + 0.1)


def beats(view: View, at: float) -> None:
    learn(view, MergeOwnRow(replace(ROWS["p1"], beat=6), "row of p1"), "beat", sent_at=at, now=at)


def elected(age: Age, row: LeaderRow, before: Control = CONTROL) -> View:
    """p2 has just won the next epoch, and has read the leader row."""
    view = view_of("p2", before, leader_age=age)
    view.candidacy.campaign = Campaign("control", lease=Lease("won", NOW), read=True)
    won = replace(before, revision=before.revision + 1, epoch=4, leader=member("p2"), deposed=before.leader)
    learn(view, WriteControl(won, "control", "won"), "won", sent_at=NOW, now=NOW)
    learn(view, ReadLeaderRow(), row, sent_at=NOW, now=NOW)
    return view


@pytest.mark.parametrize("name", PROFILES)
def test_it_ends_before_the_others_suspect_the_leader_and_with_its_permit(name: str) -> None:
    timing: Timing = PROFILES[name]
    view = leader()
    view.settings = replace(view.settings, timing=timing)
    until = NOW + SELF_STOP * min(timing.leader_timeout_s, timing.heartbeat_timeout_s)
    assert view.leader_until == until < NOW + timing.leader_timeout_s
    assert view.is_leader(until - 0.01)
    assert not view.is_leader(until)
    beats(view, NOW + 60)
    assert not view.is_leader(NOW + 60), "its own row may be written, and the others do not read that"
    view.calls.denied_at = NOW + 0.3
    view.own.accepted_at = NOW
    assert view.leader_until == NOW + 0.3, "no longer than the permit"


def test_the_host_is_told_in_time() -> None:
    assert deciding.decide(leader(), NOW + 2).wake_at <= NOW + SELF_STOP * TIMEOUT_S
    waits = elected(Age("leader row", 1.0, 3, NOW), LEADER_ROW)
    shows(waits, NOW)
    at = NOW + 0.1 + TIMEOUT_S
    waits.calls.beat_sent_at = waits.calls.leader_row_sent_at = waits.others.scanned_at = at - 0.1
    assert deciding.decide(waits, at - 0.1).wake_at <= at


def test_after_an_outage_for_all_it_says_so_again_under_the_same_epoch() -> None:
    view = leader()
    late = NOW + 20
    assert not view.is_leader(late)
    beats(view, late)
    shows(view, late)
    assert view.is_leader(late + 0.1), "nobody has written the leader row since"


def test_who_follows_a_silent_leader_says_so_once_it_has_written_the_leader_row() -> None:
    view = elected(Age("leader row", TIMEOUT_S, 5, NOW), LEADER_ROW)
    assert view.leads
    assert not view.is_leader(NOW), "the old leader may still write that row"
    shows(view, NOW)
    assert view.is_leader(NOW + 0.1)


@pytest.mark.parametrize(
    ("age", "row"),
    [
        (Age("leader row", TIMEOUT_S, 5, NOW), replace(LEADER_ROW, beat=71, etag="a sign of life")),
        (Age("leader row", TIMEOUT_S - 1, 5, NOW), LEADER_ROW),
        (Age("leader row", TIMEOUT_S, 2, NOW), LEADER_ROW),
    ],
    ids=["it wrote meanwhile", "not silent for long", "not read often"],
)
def test_who_follows_a_leader_that_may_live_waits_until_that_one_no_longer_says_so(age: Age, row: LeaderRow) -> None:
    view = elected(age, row)
    shows(view, NOW, etag=row.etag)
    for at in (1, 2, 3, 4):
        shows(view, NOW + at, "shown", etag="shown")
        beats(view, NOW + at)
        assert not view.is_leader(NOW + at + 0.1)
    beats(view, NOW + 5)
    assert view.is_leader(NOW + 0.1 + TIMEOUT_S)


def test_who_follows_one_that_handed_over_says_so_at_once() -> None:
    vacated = replace(LEADER_ROW, signal=signal(LET_GO), etag="vacated")
    fresh = Age("vacated", 0.0, 0, NOW)
    view = elected(fresh, vacated, LET_GO)
    shows(view, NOW, etag="vacated")
    assert view.is_leader(NOW + 0.1)
    for row in (replace(vacated, epoch=2), replace(vacated, signal=signal(CONTROL))):
        view = elected(fresh, row, LET_GO)
        shows(view, NOW, etag="vacated")
        assert not view.is_leader(NOW + 0.1), "that leader has not said that it let go"


def test_the_first_leader_of_all_says_so_at_once() -> None:
    view = elected(Age("", 0.0, 0, NOW), LEADER_ROW, replace(LET_GO, epoch=0))
    control = view.control
    assert isinstance(control, Control)
    view.own.control, view.others.leader_row = replace(control, epoch=1), None
    shows(view, NOW, etag=None)
    assert view.is_leader(NOW + 0.1)


def test_a_leader_that_hands_over_says_so_no_more_before_it_has_the_answer() -> None:
    view = leader()
    let_go = WriteControl(LET_GO, "control", "lease")
    started(view, let_go, NOW)
    assert view.leads
    assert not view.is_leader(NOW)
    learn(view, let_go, Trouble.UNAVAILABLE, sent_at=NOW, now=NOW + 0.1)
    assert view.is_leader(NOW + 0.1), "nothing was written"
    started(view, let_go, NOW)
    learn(view, let_go, Trouble.UNSETTLED, sent_at=NOW, now=NOW + 0.1)
    again = WriteControl(replace(LET_GO, leader=member("p1"), nonce="stays"), "control", "lease")
    learn(view, again, Trouble.UNAVAILABLE, sent_at=NOW, now=NOW + 0.2)
    assert not view.is_leader(NOW + 0.2), "the successor may have read the write whose answer was lost"
    view.calls.unsettled = None
    learn(view, again, "stays", sent_at=NOW, now=NOW + 0.3)
    assert view.is_leader(NOW + 0.3), "an accepted write keeps the earlier one out"


def test_a_write_of_the_leader_row_whose_answer_was_lost_is_recognised() -> None:
    view = leader()
    shows(view, NOW + 1, Trouble.UNSETTLED)
    ours = view.calls.leader_row_unsettled
    assert ours is not None
    learn(view, ReadLeaderRow(), replace(ours, etag="ours"), sent_at=NOW + 2, now=NOW + 2)
    shows(view, NOW + 3, etag="ours")
    assert view.is_leader(NOW + 3.1), "nobody else has written it"
    learn(view, ReadLeaderRow(), replace(ours, beat=99, etag="theirs"), sent_at=NOW + 4, now=NOW + 4)
    shows(view, NOW + 5, etag="theirs")
    assert not view.is_leader(NOW + 5.1), "somebody else has"
