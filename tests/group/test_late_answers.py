"""Answers that come late: what is known of a row is as new as the call that was sent last, not as the last answer."""

from dataclasses import replace

from samza_azure.group.actions import (
    DeleteMember,
    MarkDead,
    ReadControl,
    ReadMember,
    Rejoin,
    ScanMembers,
    WriteControl,
)
from samza_azure.group.answers import ControlRead
from samza_azure.group.control import Assignment, Barrier, Member, Owner
from samza_azure.group.learn import learn, perform_locally, started
from samza_azure.group.publish import next_control
from samza_azure.group.view import Campaign, Lease, View
from tests.group.situation import CONTROL, NOW, ROWS, decide, kinds, leader, member, view_of

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
    view.life.control = GIVEN_BACK
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
    assert view.life.older_copy
