"""Answers that come late: what is known of a row is as new as the call that was sent last, not as the last answer."""

from dataclasses import replace

from samza_azure.group.actions import (
    Action,
    DeleteMember,
    Finish,
    MarkDead,
    ReadControl,
    ReadMember,
    ReadRequests,
    Rejoin,
    ScanMembers,
    WriteControl,
)
from samza_azure.group.answers import ControlRead, Trouble
from samza_azure.group.control import Assignment, Barrier, Member, Owner, RunPhase
from samza_azure.group.decide import lead
from samza_azure.group.ending import verdict
from samza_azure.group.learn import learn, perform_locally, started
from samza_azure.group.next_run import can_act, wanted_run
from samza_azure.group.publish import next_control
from samza_azure.group.rows import Request, RequestKind
from samza_azure.group.view import Campaign, Lease, Settings, View
from samza_azure.host import processor
from samza_azure.outcomes import Refused
from tests.group.situation import CONTROL, NOW, ROWS, TIMING, decide, kinds, leader, member, owner, view_of

#: p3 came back, and was given its task again.
BACK = replace(ROWS["p3"], incarnation="life 2 of p3", etag="row 2 of p3", tasks={})
GIVEN_BACK = replace(
    CONTROL,
    revision=10,
    version=10,
    members=(member("p1"), member("p2"), Member("p3", BACK.incarnation)),
    tasks={**CONTROL.tasks, "daily-0": Assignment(Owner("p3", BACK.incarnation, 10), first=False)},
    barrier=Barrier(10),
)


def seen_again(action: MarkDead | DeleteMember | ReadMember) -> View:
    """A leader that has sent this, and has seen since that p3 came back."""
    view = leader()
    started(view, action, NOW)
    learn(view, ScanMembers(), (ROWS["p1"], ROWS["p2"], BACK), sent_at=NOW + 0.5, now=NOW + 0.6)
    view.own.control = GIVEN_BACK
    return view


def test_marking_a_former_incarnation_dead_does_not_kill_the_next_one() -> None:
    view = seen_again(mark := MarkDead("p3", ROWS["p3"].etag, 3))
    learn(view, mark, "dead", sent_at=NOW, now=NOW + 1)
    assert view.others.members["p3"] == BACK
    assert next_control(view, GIVEN_BACK, NOW + 3).tasks == GIVEN_BACK.tasks


def test_deleting_a_former_row_does_not_forget_the_next_one() -> None:
    view = seen_again(delete := DeleteMember("p3", ROWS["p3"].etag))
    learn(view, delete, None, sent_at=NOW, now=NOW + 1)
    assert view.others.members["p3"] == BACK


def test_a_read_that_was_sent_before_a_scan_does_not_bring_a_former_incarnation_back() -> None:
    view = seen_again(read := ReadMember("p3"))
    learn(view, read, ROWS["p3"], sent_at=NOW, now=NOW + 1)
    assert view.others.members["p3"] == BACK


def test_a_scan_sent_before_a_dead_mark_does_not_revive_the_incarnation() -> None:
    view = leader()
    learn(view, MarkDead("p3", ROWS["p3"].etag, 3), "dead", sent_at=NOW, now=NOW + 0.1)
    learn(view, ScanMembers(), tuple(ROWS.values()), sent_at=NOW - 1, now=NOW + 1)
    assert not view.others.members["p3"].alive
    assert next_control(view, CONTROL, NOW + 1).tasks["daily-0"].owner != owner("p3")


def test_a_row_that_goes_on_after_it_was_marked_dead_is_believed_once_its_deletion_is_refused() -> None:
    """A foreign writer wrote it under the same incarnation. The leader kept the mark, and a fleet waited for its
    deletion."""
    view = leader()
    learn(view, MarkDead("p3", ROWS["p3"].etag, 3), "dead", sent_at=NOW, now=NOW + 0.1)
    strange = replace(ROWS["p3"], etag="strange")
    learn(view, ScanMembers(), (strange,), sent_at=NOW + 1, now=NOW + 1)
    assert not view.others.members["p3"].alive
    learn(view, DeleteMember("p3", "dead"), Refused("UpdateConditionNotSatisfied"), sent_at=NOW + 2, now=NOW + 2)
    learn(view, ScanMembers(), (strange,), sent_at=NOW + 3, now=NOW + 3)
    assert view.others.members == {"p3": strange}


def test_a_version_that_lands_after_its_leader_gave_it_up_counts_from_when_it_is_read() -> None:
    """We had sent another one since. Its barrier counted from the version before, so it was overdue at once."""
    view = leader(barrier_since=NOW - 60, published_at=NOW - 60)
    first = replace(CONTROL, revision=10, version=10, nonce="first", barrier=Barrier(10))
    for nonce in ("first", "second"):
        learn(view, write := WriteControl(replace(first, nonce=nonce), "control", "lease", False), Trouble.UNSETTLED,
              sent_at=NOW, now=NOW)  # fmt: skip
    assert view.calls.unsettled == write
    learn(view, ReadControl("lease"), ControlRead(first, "landed"), sent_at=NOW + 1, now=NOW + 2)
    assert (view.as_leader.barrier_since, view.as_leader.published_at) == (NOW + 2, NOW + 2)


def of_control(view: View, now: float) -> list[Action]:
    """What a leader does about the control blob."""
    return [action for action in lead(view, now) if isinstance(action, ReadControl | WriteControl)]


def test_a_write_that_a_read_shows_undone_is_kept_out_even_without_a_reason_to_write() -> None:
    """It landed later. Leader and leader row stayed at the version before, so nobody read that it had moved a task."""
    view, lost = leader(), replace(CONTROL, revision=10, version=10, nonce="lost", barrier=Barrier(10))
    assert of_control(view, NOW) == []
    learn(view, WriteControl(lost, "control", "lease"), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    read, again = ReadControl(lease_id="lease"), WriteControl(CONTROL, "", "")
    for at in (NOW + 1, NOW + 2):  # the second time it is lost as well
        assert of_control(view, at) == [read]
        learn(view, read, ControlRead(CONTROL, "control"), sent_at=at, now=at)
        again = WriteControl(replace(CONTROL, revision=10, nonce="fresh"), "control", "lease")
        assert of_control(view, at) == [again], "the content as before, under another ETag"
        learn(view, again, Trouble.UNSETTLED, sent_at=at, now=at)
    learn(view, read, ControlRead(again.control, "newer"), sent_at=NOW + 3, now=NOW + 3)
    assert of_control(view, NOW + 4) == [], "one is enough"


def test_a_write_that_had_landed_when_it_was_read_is_not_followed_by_another() -> None:
    view, landed = leader(), replace(CONTROL, revision=10, nonce="landed")
    learn(view, WriteControl(landed, "control", "lease"), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    learn(view, ReadControl("lease"), ControlRead(landed, "newer"), sent_at=NOW + 1, now=NOW + 1)
    assert of_control(view, NOW + 1) == []


def test_a_leader_decides_nothing_by_a_scan_that_was_sent_before_it_led() -> None:
    """p3 joined and was given a task while the scan was under way."""
    view = view_of("p2", replace(CONTROL, leader=None))
    view.others.members = {name: ROWS[name] for name in ("p1", "p2")}
    started(view, ScanMembers(), NOW - 1.5)
    view.candidacy.campaign = Campaign("control", lease=Lease("lease", NOW - 0.1), read=True)
    won = replace(CONTROL, revision=10, epoch=4, leader=member("p2"))
    learn(view, WriteControl(won, "control", "lease", False), "newer", sent_at=NOW - 0.1, now=NOW)
    learn(view, ScanMembers(), (ROWS["p1"], ROWS["p2"]), sent_at=NOW - 1.5, now=NOW + 0.5)
    assert next_control(view, won, NOW + 0.5) == won
    assert ScanMembers in kinds(decide(view, NOW + 0.5)), "the next one is sent at once"


def test_a_task_does_not_start_by_a_row_that_was_read_before_it_was_awaited() -> None:
    view = view_of("p2", waiting_since={"clean-1": NOW})
    learn(view, ReadMember("p3"), ROWS["p3"], sent_at=NOW - 1, now=NOW + 1)
    assert view.seen_at("p3") == NOW
    view.others.scanned_at = NOW - 2
    learn(view, ReadMember("p3"), ROWS["p3"], sent_at=NOW - 1, now=NOW + 1)
    assert view.seen_at("p3") == NOW - 1


def test_an_older_control_blob_is_recognized_by_the_next_incarnation_too() -> None:
    view = view_of("p2")
    learn(view, ReadControl(), ControlRead(CONTROL, "control"), sent_at=NOW, now=NOW)
    perform_locally(view, Rejoin("it was marked dead"), NOW)
    learn(view, ReadControl(), ControlRead(replace(CONTROL, revision=8), "older"), sent_at=NOW, now=NOW)
    assert view.own.older_copy


def test_a_wish_for_a_new_run_is_granted_once_also_if_the_processor_rejoins() -> None:
    """It was marked dead in the run that it had asked for, and came back when that was drained."""
    view = view_of("p2", replace(CONTROL, phase=RunPhase.NONE, run_id=""), active_run="")
    view.settings = Settings("p2", TIMING, boot="boot", new_run=True)
    assert wanted_run(view) == "new"
    begun = replace(CONTROL, run_id="next", revision=10)
    learn(view, ReadControl(), ControlRead(begun, "begun"), sent_at=NOW, now=NOW)
    processor.perform_locally(view, Rejoin("it was marked dead"), NOW)
    drained = replace(begun, phase=RunPhase.DRAINED, revision=11)
    learn(view, ReadControl(), ControlRead(drained, "drained"), sent_at=NOW, now=NOW)
    assert (wanted_run(view), can_act(view, drained)) == ("", False)
    assert verdict(view) == Finish(0, f"Run {begun.run_id} is drained.", drained=True)


def test_requests_that_were_read_before_the_leadership_are_not_obeyed() -> None:
    """Another leader may have answered them since."""
    drain = Request("u", "e", RequestKind.DRAIN)
    view = leader(since=NOW)
    view.as_leader.requests_read_at = -1e9
    for sent_at, phase in ((NOW - 0.5, RunPhase.RUNNING), (NOW + 1, RunPhase.DRAINING)):
        learn(view, ReadRequests(), (drain,), sent_at=sent_at, now=NOW + 2)
        learn(view, ScanMembers(), tuple(ROWS.values()), sent_at=NOW + 1, now=NOW + 2)
        assert next_control(view, CONTROL, NOW + 2).phase is phase
