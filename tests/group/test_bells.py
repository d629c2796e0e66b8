"""Doorbells are hints: what a processor does after one, and what whoever forges them can cost."""

from dataclasses import replace

import pytest

from samza_azure.group import bells
from samza_azure.group.actions import (
    AcquireLease,
    BreakLease,
    MarkDead,
    ReadControl,
    ReadLeaderRow,
    ReadMember,
    ScanMembers,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import ControlRead, Trouble
from samza_azure.group.control import Control
from samza_azure.group.learn import heard_notice, learn, started
from samza_azure.group.notice import Notice
from samza_azure.group.rows import Bell, ProcessorState, columns, processor_row
from samza_azure.group.view import Doorbell, Lease, View
from samza_azure.outcomes import Refused
from tests.group.situation import (
    CONTROL,
    LEADER_ROW,
    NOW,
    ROWS,
    TIMING,
    decide,
    kinds,
    leader,
    life_of,
    member,
    row,
    view_of,
)

BELL = Bell("10.0.0.1", 8080, "ab" * 32)
TOKEN = f'"token": "{BELL.token}"'
HUNG = {name: replace(each, bell=BELL) for name, each in ROWS.items()}


def with_bells(view: View) -> View:
    view.settings = replace(view.settings, doorbell=Doorbell("10.0.0.9", 8080, b"secret"))
    view.others.members = HUNG
    return view


def test_successors_hold_a_connection_to_the_leader_and_the_leader_to_all() -> None:
    assert bells.wanted(with_bells(view_of("p2"))) == {life_of("p1"): BELL}
    assert bells.wanted(with_bells(leader())) == {life_of("p2"): BELL, life_of("p3"): BELL}
    third = with_bells(view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",))))
    assert bells.wanted(third) == {}
    assert bells.wanted(view_of("p2")) == {}, "its own is off"


def test_the_first_successor_of_a_leader_whose_process_has_ended_breaks_its_lease_at_once() -> None:
    view = with_bells(view_of("p2"))
    assert bells.heard_gone(view, life_of("p1"), NOW)
    assert BreakLease("control") in decide(view, NOW)
    assert bells.wanted(view) == {}, "what has ended needs no connection"


def test_the_second_successor_gives_the_first_one_a_scan() -> None:
    view = with_bells(view_of("p3"))
    bells.heard_gone(view, life_of("p1"), NOW)
    assert BreakLease not in kinds(decide(view, NOW))
    later = decide(with_bells(view_of("p3", gone={life_of("p1"): NOW - TIMING.scan_s - 0.1})), NOW)
    assert BreakLease in kinds(later)


def test_a_processor_that_is_no_successor_does_nothing_because_of_a_bell() -> None:
    view = with_bells(view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",))))
    bells.heard_gone(view, life_of("p1"), NOW)
    assert BreakLease not in kinds(decide(view, NOW + 1))


def test_after_a_bell_the_lease_and_the_etag_decide_as_ever() -> None:
    """Three calls: the blob is known, so nothing is read between the break and the write, whose ETag is the fence."""
    view = with_bells(view_of("p2"))
    bells.heard_gone(view, life_of("p1"), NOW)
    learn(view, BreakLease("control"), None, sent_at=NOW, now=NOW)
    assert AcquireLease("fresh", "control") in decide(view, NOW)
    learn(view, AcquireLease("fresh", "control"), None, sent_at=NOW, now=NOW)
    [write] = [each for each in decide(view, NOW) if isinstance(each, WriteControl)]
    assert (write.etag, write.lease_id, write.control.epoch, write.control.deposed) == (
        "control",
        "fresh",
        CONTROL.epoch + 1,
        member("p1"),
    )
    learn(view, write, Refused("ConditionNotMet"), sent_at=NOW, now=NOW)
    assert not view.leads
    assert BreakLease not in kinds(decide(view, NOW + 1)), "a bell is followed once"


def test_what_the_leader_wrote_after_its_last_heartbeat_is_read_before_the_lease_is_taken() -> None:
    view = with_bells(view_of("p2", control_read_at=NOW - 30))
    bells.heard_gone(view, life_of("p1"), NOW)
    learn(view, BreakLease("control"), Refused("ConditionNotMet"), sent_at=NOW, now=NOW)
    assert ReadControl(unless_etag="control") in decide(view, NOW)
    newer = replace(CONTROL, revision=10)
    learn(view, ReadControl(unless_etag="control"), ControlRead(newer, "newer"), sent_at=NOW + 0.2, now=NOW + 0.2)
    assert BreakLease("newer") in decide(view, NOW + 0.2)
    learn(view, BreakLease("newer"), Refused("ConditionNotMet"), sent_at=NOW + 0.2, now=NOW + 0.2)
    assert BreakLease not in kinds(decide(view, NOW + 0.3)), "the leader writes, so it lives"
    assert view.candidacy.hold_until > NOW + 0.2


def test_a_bell_that_was_followed_is_no_reason_to_read_after_a_later_break_is_refused() -> None:
    gone = {life_of("p1"): NOW - 60}
    view = with_bells(view_of("p2", gone=gone, followed=frozenset(gone), control_read_at=NOW - 1))
    learn(view, BreakLease("control"), Refused("ConditionNotMet"), sent_at=NOW, now=NOW)
    assert view.candidacy.hold_until > NOW


def test_who_takes_over_after_a_bell_says_that_it_leads_no_sooner_than_without() -> None:
    """The former leader may live, and say so until its claim ends."""
    view = with_bells(view_of("p2"))
    bells.heard_gone(view, life_of("p1"), NOW)
    taken = replace(CONTROL, revision=10, epoch=4, leader=member("p2"), deposed=member("p1"))
    learn(view, BreakLease("control"), None, sent_at=NOW, now=NOW)
    learn(view, AcquireLease("fresh", "control"), None, sent_at=NOW, now=NOW)
    learn(view, WriteControl(taken, "control", "fresh"), "etag", sent_at=NOW, now=NOW)
    assert view.leads
    view.others.leader_row = LEADER_ROW
    shown = WriteLeaderRow(replace(LEADER_ROW, epoch=4), LEADER_ROW.etag)
    learn(view, shown, "next", sent_at=NOW, now=NOW)
    assert not view.is_leader(NOW + TIMING.leader_timeout_s - 0.1)


def test_a_member_whose_process_has_ended_is_marked_dead_once_it_has_missed_a_heartbeat() -> None:
    silent = {name: Age(each.etag, 0.0, 0, NOW) for name, each in HUNG.items()}
    view = with_bells(leader(ages=silent))
    bells.heard_gone(view, life_of("p3"), NOW)
    assert MarkDead not in kinds(decide(view, NOW))
    due = NOW + bells.MISSED * TIMING.heartbeat_s
    view.others.scanned_at, view.own.accepted_at = due - 0.2, due
    assert ReadMember("p3") in decide(view, due + 0.1)
    view.others.ages = {**silent, "p3": Age("row of p3", bells.MISSED * TIMING.heartbeat_s, 1, due)}
    assert MarkDead("p3", "row of p3", CONTROL.epoch) in decide(view, due + 0.1)


def test_a_member_that_beats_is_not_marked_dead_because_of_a_bell() -> None:
    silent = {name: Age(each.etag, TIMING.heartbeat_s, 2, NOW) for name, each in HUNG.items()}
    view = with_bells(leader(ages=silent))
    bells.heard_gone(view, life_of("p3"), NOW)
    read = replace(HUNG["p3"], etag="beats")
    learn(view, ReadMember("p3"), read, sent_at=NOW + 0.5, now=NOW + 0.5)
    view.own.accepted_at = NOW + 1
    assert MarkDead not in kinds(decide(view, NOW + 1))


@pytest.mark.parametrize("by_scan", [True, False])
def test_a_member_that_beats_long_after_its_bell_is_connected_to_again(by_scan: bool) -> None:
    view = with_bells(leader())
    bells.heard_gone(view, life_of("p3"), NOW)

    def reads(etag: str, at: float) -> None:
        read = replace(HUNG["p3"], etag=etag)
        if by_scan:
            learn(view, ScanMembers(), (HUNG["p1"], HUNG["p2"], read), sent_at=at, now=at)
        else:
            learn(view, ReadMember("p3"), read, sent_at=at, now=at)

    reads("was under way", NOW + 0.5)
    reads("was under way", NOW + TIMING.heartbeat_s + 0.5)
    assert life_of("p3") not in bells.wanted(view)
    reads("beats", NOW + TIMING.heartbeat_s + 1)
    assert life_of("p3") in bells.wanted(view)
    assert bells.heard_gone(view, life_of("p3"), NOW + 60)


def test_a_member_is_not_marked_dead_because_of_a_bell_if_a_call_had_no_answer_meanwhile() -> None:
    """In a short outage of writes those who live miss a heartbeat, too."""
    silent = Age("row of p3", bells.MISSED * TIMING.heartbeat_s, 3, NOW)
    view = with_bells(leader(ages={name: Age(each.etag, 0.0, 0, NOW) for name, each in HUNG.items()} | {"p3": silent}))
    bells.heard_gone(view, life_of("p3"), NOW)
    assert MarkDead in kinds(decide(view, NOW))
    learn(view, WriteLeaderRow(LEADER_ROW, "leader row"), Trouble.UNAVAILABLE, sent_at=NOW - 1, now=NOW - 0.5)
    assert MarkDead not in kinds(decide(view, NOW))
    view.others.ages["p3"] = replace(silent, seconds=TIMING.heartbeat_timeout_s, reads=9)
    assert MarkDead in kinds(decide(view, NOW)), "its own silence decides, as ever"


def test_a_mark_that_is_refused_makes_deaf_for_an_hour() -> None:
    """The member beat at that moment: the bell was wrong."""
    view = with_bells(leader())
    bells.heard_gone(view, life_of("p3"), NOW)
    learn(view, MarkDead("p3", "row of p3", 3), Refused("UpdateConditionNotSatisfied"), sent_at=NOW, now=NOW)
    assert not bells.heard_gone(view, life_of("p2"), NOW + bells.WINDOW_S - 1)
    assert bells.heard_gone(view, life_of("p2"), NOW + bells.WINDOW_S)
    assert life_of("p3") in bells.wanted(view), "it lives"


def test_who_deposed_a_leader_that_lives_because_of_a_bell_is_deaf_for_an_hour() -> None:
    deposed = replace(CONTROL, leader=member("p2"), deposed=member("p1"))
    view = with_bells(view_of("p2", deposed, gone={life_of("p1"): NOW}))
    wrong = WriteControl(replace(deposed, revision=10, deposed=None, churn=1), "control", "lease")
    learn(view, wrong, "etag", sent_at=NOW, now=NOW)
    assert view.others.deaf_until == NOW + bells.WINDOW_S
    assert life_of("p1") not in view.others.gone, "it lives"


def test_while_a_wrong_suspicion_is_remembered_no_bell_counts() -> None:
    view = with_bells(view_of("p2", replace(CONTROL, churn=1)))
    assert not bells.heard_gone(view, life_of("p1"), NOW)


def test_a_bell_of_a_stranger_or_a_second_one_does_not_count() -> None:
    view = with_bells(view_of("p2"))
    assert not bells.heard_gone(view, "nobody's", NOW)
    assert bells.heard_gone(view, life_of("p1"), NOW)
    assert not bells.heard_gone(view, life_of("p1"), NOW + 1)


def test_only_so_many_ends_count_in_an_hour() -> None:
    view = with_bells(leader())
    heard = 0
    for number in range(200):
        view.others.members = {"p3": row("p3", incarnation=f"life {number}")}
        heard += bells.heard_gone(view, f"life {number}", NOW + number * 18)
    assert bells.BELIEVED < heard <= 2 * bells.BELIEVED


def test_the_end_of_members_that_leave_uses_up_none_of_these() -> None:
    view = with_bells(leader())
    rows = [row(f"m{number}", state=ProcessorState.LEAVING) for number in range(3 * bells.BELIEVED)]
    view.others.members = {each.processor: each for each in (*rows, *HUNG.values())}
    assert all(bells.heard_gone(view, each.incarnation, NOW) for each in rows)
    assert bells.heard_gone(view, life_of("p3"), NOW)


def test_a_ring_costs_one_read_and_only_so_many_count_in_an_hour() -> None:
    view = with_bells(view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",))))
    assert ReadLeaderRow not in kinds(decide(view, NOW))
    assert bells.heard_ring(view, NOW)
    assert not bells.heard_ring(view, NOW)
    assert ReadLeaderRow() in decide(view, NOW)
    started(view, ReadLeaderRow(), NOW)
    learn(view, ReadLeaderRow(), LEADER_ROW, sent_at=NOW, now=NOW)
    assert ReadLeaderRow not in kinds(decide(view, NOW))
    count = 1
    for number in range(10_000):
        count += bells.heard_ring(view, NOW + number * 0.36)
        started(view, ReadLeaderRow(), NOW)
    assert bells.RINGS < count <= 2 * bells.RINGS


def test_a_leader_hears_no_ring() -> None:
    assert not bells.heard_ring(with_bells(leader()), NOW)


def test_each_incarnation_has_another_token() -> None:
    assert bells.token_of(b"secret", "one") != bells.token_of(b"secret", "two") != bells.token_of(b"other", "two")
    view = with_bells(view_of("p2"))
    assert bells.own_bell(view) == Bell("10.0.0.9", 8080, bells.token_of(b"secret", life_of("p2")))


def test_a_row_says_where_the_bell_is() -> None:
    assert processor_row("p1", "", columns(HUNG["p1"])).bell == BELL
    assert "bell" not in columns(ROWS["p1"])


@pytest.mark.parametrize(
    "text",
    [
        *(f'{{"host": "169.254.169.254", "port": 80, {TOKEN}}}', f'{{"host": "20.1.2.3", "port": 80, {TOKEN}}}'),
        *(f'{{"host": "db.internal", "port": 80, {TOKEN}}}', f'{{"host": "10.0.0.1", "port": 0, {TOKEN}}}'),
        *(f'{{"host": "::ffff:169.254.169.254", "port": 80, {TOKEN}}}', f'{{"host": "::", "port": 80, {TOKEN}}}'),
        *(f'{{"host": "::1%x]@[2001:db8::1", "port": 80, {TOKEN}}}', f'{{"host": "2002:a9fe::", "port": 8, {TOKEN}}}'),
        *('{"host": "10.0.0.1", "port": 80, "token": "\\ud800"}', '{"host": "10.0.0.1", "port": 80, "token": "ab"}'),
        *('{"host": "10.0.0.1", "port": 80}', "[]", "x" * 9000, 7),
    ],
)
def test_a_row_cannot_make_a_processor_call_what_is_no_neighbour(text: object) -> None:
    assert processor_row("p1", "", {"incarnation": "one", "bell": text}).bell is None


def test_a_row_names_an_address_in_one_form() -> None:
    text = f'{{"host": "::ffff:10.0.0.1", "port": 80, {TOKEN}}}'
    assert processor_row("p1", "", {"incarnation": "one", "bell": text}).bell == Bell("10.0.0.1", 80, BELL.token)


def test_a_processor_that_ends_holds_no_connection() -> None:
    view = with_bells(view_of("p2"))
    heard_notice(view, "an event", Notice("scale-in", None))
    assert bells.wanted(view), "it may yet have to lead"
    view.ending = object()  # type: ignore[assignment]
    assert bells.wanted(view) == {}


def test_a_leader_holds_a_bounded_number_of_connections() -> None:
    view = with_bells(leader())
    view.others.members = {f"m{number}": row(f"m{number}", bell=BELL) for number in range(300)}
    assert len(bells.wanted(view)) == bells.PEERS
    mute = {f"a{number}": row(f"a{number}") for number in range(300)}
    view.others.members = mute | {"m1": row("m1", bell=BELL)}
    assert len(bells.wanted(view)) == 1, "those without a bell take no place"


def test_a_campaign_without_a_bell_reads_the_blob_under_its_lease() -> None:
    view = with_bells(view_of("p2"))
    learn(view, BreakLease("control"), None, sent_at=NOW, now=NOW)
    learn(view, AcquireLease("fresh", "control"), None, sent_at=NOW, now=NOW)
    assert view.candidacy.campaign is not None
    assert view.candidacy.campaign.lease == Lease("fresh", NOW)
    assert ReadControl(lease_id="fresh") in decide(view, NOW)
    assert isinstance(view.control, Control)
