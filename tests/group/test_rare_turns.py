"""What happens so seldom that no other story comes there."""

from copy import deepcopy
from dataclasses import replace

import pytest

from samza_azure.group.actions import (
    AcquireLease,
    BreakLease,
    CleanRun,
    DeleteRequest,
    RenewLease,
    ScanMembers,
    StorageAction,
    Tell,
)
from samza_azure.group.age import Age
from samza_azure.group.control import Assignment, GivenUp
from samza_azure.group.learn import demote, heard_drain_asked, heard_task, learn
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.timing import DRAINING_LOOK_S, NEWS_EXPECTED_S
from samza_azure.group.view import Campaign, Lease
from samza_azure.messages import Phase, StartTask
from samza_azure.outcomes import Refused
from tests.group.situation import CONTROL, NOW, ROWS, SILENT, TIMING, decide, leader, owner, report, row, view_of


def test_a_task_that_comes_back_to_us_does_not_wait_for_ourselves() -> None:
    again = Assignment(owner("p1", 9), (owner("p1", 2),), first=False)
    view = view_of("p1", replace(CONTROL, tasks={**CONTROL.tasks, "clean-1": again}))
    told = [each.command for each in decide(view, NOW) if isinstance(each, Tell)]
    assert [(each.task, each.generation) for each in told if isinstance(each, StartTask)] == [("clean-1", 9)]


def test_a_report_of_an_earlier_attempt_is_ignored() -> None:
    view = view_of("p1")
    view.work.tasks["clean-0"] = replace(view.work.tasks["clean-0"], attempt=2)
    heard_task(view, report("clean-0", Phase.FAILED), NOW)
    assert view.work.tasks["clean-0"].report == report("clean-0")


def test_a_leader_is_demoted_before_it_has_read_its_own_row() -> None:
    view = leader(leader_age=None)
    demote(view, NOW)
    assert (view.leads, view.others.leader_age) == (False, None)
    assert view.candidacy.hold_until > NOW


def test_a_task_that_was_given_up_runs_well_only_under_its_present_owner() -> None:
    given_up = {"clean-1": GivenUp(owner("p3"), "no")}
    view = leader(replace(CONTROL, given_up=given_up))
    for generation, well in ((1, []), (2, ["clean-1"])):
        seen = row("p2", {"clean-1": report("clean-1", generation=generation)})
        learn(view, ScanMembers(), (seen,), sent_at=NOW, now=NOW)
        assert list(view.others.seen_running) == well


@pytest.mark.parametrize("call", [RenewLease("lease"), DeleteRequest("d", "etag"), CleanRun("older")], ids=type)
def test_the_answer_to_a_former_leaders_call_changes_nothing(call: StorageAction) -> None:
    view = leader()
    demote(view, NOW)
    before = deepcopy(view)
    learn(view, call, None, sent_at=NOW, now=NOW + 1)
    assert view == before


def test_the_renewal_of_an_earlier_lease_does_not_prolong_the_present_one() -> None:
    view = leader()
    learn(view, RenewLease("earlier"), None, sent_at=NOW + 1, now=NOW + 1)
    assert view.as_leader.lease == Lease("lease", NOW)


def test_a_candidate_that_finds_no_lease_to_break_acquires_it() -> None:
    """Another candidate may have broken it and died, or the leader has released it."""
    view = view_of("p2", leader_age=SILENT)
    learn(view, BreakLease("control"), Refused("LeaseNotPresentWithLeaseOperation"), sent_at=NOW, now=NOW)
    assert view.candidacy.campaign == Campaign("control")
    assert AcquireLease("fresh", "control") in decide(view, NOW)


def test_a_follower_that_learns_of_a_requested_drain_reads_more_often_for_a_while() -> None:
    view = view_of("p2")
    gaps = [view.look_gap()]
    heard_drain_asked(view, NOW)
    gaps.append(view.look_gap())
    view.turn_at = NOW + NEWS_EXPECTED_S
    gaps.append(view.look_gap())
    assert gaps == [view.read_interval(), DRAINING_LOOK_S, view.read_interval()]


def test_an_observer_expects_news_when_a_member_leaves_or_nears_its_end() -> None:
    """It takes some of its tasks over as soon as the leader has given them to it."""

    def gap_after(member: ProcessorRow, silent_s: float, at: float = NOW + 1) -> float:
        view = view_of("p2")
        view.others.ages["p3"] = Age(ROWS["p3"].etag, silent_s, 5, NOW)
        learn(view, ScanMembers(), (ROWS["p1"], ROWS["p2"], member), sent_at=NOW + 1, now=NOW + 1)
        view.turn_at = at
        return view.look_gap()

    leaves = replace(ROWS["p3"], state=ProcessorState.LEAVING, etag="leaves")
    nearly_s = TIMING.heartbeat_timeout_s - TIMING.heartbeat_s - 0.5
    assert gap_after(leaves, 0.0) == gap_after(ROWS["p3"], nearly_s) == DRAINING_LOOK_S
    usual = view_of("p2").look_gap()
    assert gap_after(ROWS["p3"], 0.0) == gap_after(replace(ROWS["p3"], etag="lives"), nearly_s) == usual
    assert gap_after(leaves, 0.0, NOW + 1 + NEWS_EXPECTED_S) == usual
    assert gap_after(ROWS["p3"], TIMING.heartbeat_timeout_s) == usual  # it was told before
