"""Who leads, and who leads next: suspicion, the campaign, successors."""

from dataclasses import replace

import pytest

from samza_azure.group.actions import (
    AcquireLease,
    BreakLease,
    CreateControl,
    Finish,
    ReadControl,
    ReadLeaderRow,
    ReleaseLease,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import ControlRead, Trouble
from samza_azure.group.control import (
    Control,
    RunPhase,
)
from samza_azure.group.election import successors_of
from samza_azure.group.learn import learn
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorState
from samza_azure.group.timing import RETRY_S
from samza_azure.group.view import Campaign, Lease, View
from samza_azure.outcomes import Missing, Refused
from tests.group.situation import (
    CONTROL,
    LEADER_ROW,
    NOW,
    ROWS,
    SILENT,
    TIMING,
    decide,
    kinds,
    leader,
    member,
    row,
    view_of,
    without_blob,
)
from tests.group.transcript import Story


def test_the_first_of_all_creates_the_control_blob_without_a_leader() -> None:
    view = without_blob("p3", group_id="", leader_row=Missing(), tasks={})
    assert decide(view, NOW) == [CreateControl(Control(group_id="fresh", nonce="fresh"))]


def test_without_a_leader_the_named_successor_acquires_at_once() -> None:
    control = replace(CONTROL, leader=None, successor="p2")
    assert AcquireLease("fresh", "control") in decide(view_of("p2", control, leaderless_since=NOW), NOW)
    assert AcquireLease not in kinds(decide(view_of("p3", control, leaderless_since=NOW), NOW))


def test_without_a_leader_the_control_blob_is_read_again_although_the_leader_row_is_unchanged() -> None:
    """The answer to one's own write as leader was lost, and the former leader's last words to the row were too."""
    vacant = replace(CONTROL, leader=None, successor="p3")
    view = view_of("p2", vacant, control_read_for=LEADER_ROW.etag, hold_until=NOW + 60)
    learn(view, AcquireLease("fresh", "control"), Refused("ConditionNotMet"), sent_at=NOW, now=NOW)
    assert ReadControl(unless_etag="control") in decide(view, NOW)


def test_a_follower_that_sees_the_leader_silent_asks_the_control_blob_before_it_breaks_the_lease() -> None:
    view = view_of("p2", leader_age=SILENT, control_read_at=NOW - 30)
    assert ReadControl(unless_etag="control") in decide(view, NOW)
    view = view_of("p2", leader_age=SILENT)
    assert BreakLease("control") in decide(view, NOW)


def test_a_processor_whose_own_heartbeats_fail_suspects_no_leader() -> None:
    view = view_of("p2", leader_age=SILENT, accepted_at=NOW - 5, beat_sent_at=NOW)
    assert BreakLease not in kinds(decide(view, NOW))


def test_wrong_suspicions_make_more_patient() -> None:
    patient = replace(CONTROL, churn=2)
    almost = Age("leader row", 4 * TIMING.leader_timeout_s - 0.1, 30, NOW)
    enough = Age("leader row", 4 * TIMING.leader_timeout_s, 30, NOW)
    assert BreakLease not in kinds(decide(view_of("p2", patient, leader_age=almost), NOW))
    assert BreakLease in kinds(decide(view_of("p2", patient, leader_age=enough), NOW))


def test_a_campaign_breaks_acquires_reads_and_writes_each_step_for_the_blob_it_was_begun_for(story: Story) -> None:
    view = view_of("p2", leader_age=SILENT)
    story.turn(view, NOW, {BreakLease: None})
    story.turn(view, NOW, {AcquireLease: None})
    story.turn(view, NOW, {ReadControl: ControlRead(CONTROL, "control")})
    story.turn(view, NOW, {WriteControl: "written"})
    assert view.leads
    assert isinstance(view.control, Control)
    assert (view.control.epoch, view.control.leader, view.control.tasks) == (4, member("p2"), CONTROL.tasks)
    story.turn(view, NOW + 0.1, {ReadLeaderRow: LEADER_ROW})
    story.turn(view, NOW + 0.2)


@pytest.mark.parametrize("refused", [BreakLease("control"), AcquireLease("fresh", "control")])
def test_a_changed_etag_is_a_sign_of_life(refused: BreakLease | AcquireLease) -> None:
    view = view_of("p2", leader_age=SILENT, campaign=Campaign("control"))
    learn(view, refused, Refused("ConditionNotMet"), sent_at=NOW, now=NOW)
    assert view.candidacy.campaign is None
    assert view.candidacy.hold_until == NOW + 1.5 * TIMING.leader_timeout_s


def campaigning(**more: object) -> View:
    """p2 has acquired the lease, read the blob with it, and may write."""
    going = Campaign("control", lease=Lease("won", NOW), read=True)
    return view_of("p2", leader_age=SILENT, campaign=going, **more)


def test_a_lost_answer_to_the_take_over_write_is_settled_by_its_nonce_and_the_leadership_is_kept() -> None:
    view = campaigning()
    [write] = [action for action in decide(view, NOW) if isinstance(action, WriteControl)]
    learn(view, write, Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    after = NOW + RETRY_S
    assert [action for action in decide(view, after) if isinstance(action, ReadControl | WriteControl)] == [
        ReadControl(lease_id="won")
    ]
    learn(view, ReadControl(lease_id="won"), ControlRead(write.control, "newer"), sent_at=after, now=after)
    assert (view.lease, view.candidacy.campaign, view.control, view.own.control_etag) == (
        Lease("won", NOW),
        None,
        write.control,
        "newer",
    )


def test_a_take_over_write_that_did_not_happen_is_made_again() -> None:
    view = campaigning()
    [write] = [action for action in decide(view, NOW) if isinstance(action, WriteControl)]
    learn(view, write, Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    learn(view, ReadControl(lease_id="won"), ControlRead(CONTROL, "control"), sent_at=NOW, now=NOW)
    assert [action for action in decide(view, NOW) if isinstance(action, WriteControl)] == [write]


def test_a_candidate_whose_lease_runs_out_before_it_has_written_gives_it_up() -> None:
    view = campaigning()
    view.candidacy.campaign = Campaign("control", lease=Lease("won", NOW - 50.1), read=True)
    asked = [action for action in decide(view, NOW) if isinstance(action, ReleaseLease | WriteControl)]
    assert asked == [ReleaseLease("won")]


def test_a_lease_whose_grant_was_not_answered_is_requested_again_under_the_same_id() -> None:
    view = view_of("p2", leader_age=SILENT, campaign=Campaign("control"))
    learn(view, AcquireLease("asked", "control"), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    again = AcquireLease("asked", "control")
    assert [action for action in decide(view, NOW + RETRY_S) if isinstance(action, AcquireLease)] == [again]
    view.ending, view.ending_since, view.work.tasks = Finish(0, "Left."), NOW, {}
    view.own.written = replace(ROWS["p2"], state=ProcessorState.LEFT)
    assert decide(view, NOW)[-1] == ReleaseLease("asked")


def test_a_lost_answer_to_breaking_the_lease_keeps_the_suspicion() -> None:
    view = view_of("p2", leader_age=SILENT)
    learn(view, BreakLease("control"), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    assert BreakLease("control") in decide(view, NOW + RETRY_S)


def test_a_followers_own_write_of_the_leader_row_is_no_sign_of_life_of_the_leader() -> None:
    ours = replace(LEADER_ROW, beat=71, successors=("p3",), etag="")
    view = view_of("p3", leader_age=SILENT)
    learn(view, WriteLeaderRow(ours, LEADER_ROW.etag), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    learn(view, ReadLeaderRow(), replace(ours, etag="newer"), sent_at=NOW, now=NOW)
    assert BreakLease("control") in decide(view, NOW)


def test_a_deposed_leader_that_shows_life_raises_the_churn_and_a_long_term_resets_it() -> None:
    suspected = replace(CONTROL, deposed=member("p3"))
    view = leader(suspected, deposed_etag="row of p3")
    assert next_control(view, suspected, NOW) == suspected
    view.as_leader.deposed_etag = "row of p3 before"
    assert next_control(view, suspected, NOW) == replace(CONTROL, churn=1)

    view = leader(replace(CONTROL, churn=1), since=NOW - 100)
    assert next_control(view, replace(CONTROL, churn=1), NOW) == replace(CONTROL, churn=0)
    assert next_control(leader(since=NOW - 99), replace(CONTROL, churn=1), NOW).churn == 1


def test_successors_are_standbys_first_and_never_one_that_leaves() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p4": row("p4")}
    view.others.members = {**view.others.members, "p0": row("p0", state=ProcessorState.LEAVING)}
    assert successors_of(view, CONTROL) == ("p4", "p2", "p3")


def test_a_processor_that_has_not_read_the_blob_is_the_last_choice() -> None:
    """It may have come back because it cannot reach it, and says so only after several calls have failed."""
    back = row("p0", adopted=0, state=ProcessorState.UNASSIGNED)
    view = leader(members={**ROWS, "p0": back})
    assert successors_of(view, CONTROL) == ("p2", "p3", "p0")


def test_successors_are_first_those_that_can_lead_then_those_without_tasks() -> None:
    """A newcomer has the least to do, but its container may not be up yet, or have another pipeline."""
    standby, starting, misfit = row("p7"), row("p0", fingerprint=""), row("p4", fingerprint="0" * 64)
    view = leader(members={**ROWS, "p7": standby, "p0": starting, "p4": misfit})
    assert successors_of(view, CONTROL) == ("p7", "p2", "p3")
    view.others.members = {"p0": starting, "p2": ROWS["p2"], "p4": misfit}
    assert successors_of(view, CONTROL) == ("p2", "p0", "p4")
    drained = replace(CONTROL, phase=RunPhase.DRAINED, tasks={})
    assert successors_of(view, drained) == ("p4", "p0", "p2"), "of another pipeline is who begins the next run"
    assert successors_of(view, Control("g")) == ("p2", "p4", "p0")


def test_without_successors_the_first_to_write_the_leader_row_campaigns_alone(
    story: Story,
) -> None:
    """A break does not change the blob's ETag: a hundred survivors would break each other's leases."""
    unnamed = replace(LEADER_ROW, successors=("p9",))
    first, late = (view_of(each, leader_age=SILENT, leader_row=unnamed) for each in ("p2", "p3"))
    [named] = story.turn(first, NOW, {WriteLeaderRow: ...})
    [refused] = story.turn(late, NOW, {WriteLeaderRow: ...})
    assert isinstance(named, WriteLeaderRow)
    assert isinstance(refused, WriteLeaderRow)
    story.hears(first, named, "ours", NOW + 0.1)
    story.hears(late, refused, Refused("UpdateConditionNotSatisfied"), NOW + 0.1)
    assert kinds(story.turn(first, NOW + 0.1)) == [BreakLease]
    story.turn(late, NOW + 0.1, {ReadLeaderRow: replace(named.row, etag="ours")})
    assert BreakLease not in kinds(story.turn(late, NOW + 5))
