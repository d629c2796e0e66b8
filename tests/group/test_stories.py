"""A state written down, one call, the list expected: what a processor does next, and why."""

from dataclasses import replace

import pytest

from samza_azure.group import decide as deciding
from samza_azure.group.actions import (
    HOUSEKEEPING,
    AcquireLease,
    Action,
    BeginEnd,
    BreakLease,
    CleanRun,
    CreateControl,
    DeleteMember,
    Finish,
    InsertOwnRow,
    MarkDead,
    MergeOwnRow,
    ReadControl,
    ReadLeaderRow,
    ReadMember,
    ReadOwnRow,
    ReadRequests,
    Rejoin,
    ReleaseLease,
    RenewLease,
    ReplaceOwnRow,
    ScanMembers,
    StepDown,
    Tell,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import Absent, ControlRead, Denied, Kept, No, TooLarge, Trouble
from samza_azure.group.control import (
    Assignment,
    Barrier,
    BarrierState,
    Control,
    Event,
    Failure,
    GivenUp,
    Owner,
    RunPhase,
    signal,
)
from samza_azure.group.decide import lead
from samza_azure.group.drain import REMEMBERED, furthest, progress
from samza_azure.group.election import successors_of
from samza_azure.group.ending import GIVEN_UP, RESTORED, verdict
from samza_azure.group.learn import heard_container_lost, heard_task, learn, perform_locally, turn
from samza_azure.group.membership import own_row
from samza_azure.group.notification import DrainNotification
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorRow, Request, RequestKind, State
from samza_azure.group.tasks import retry_at
from samza_azure.group.timing import FORGIVE_AFTER_S, RETRY_S
from samza_azure.group.view import Campaign, Failing, Leadership, Lease, Life, LocalTask, Settings, View
from samza_azure.messages import (
    Drain,
    DrainStep,
    Permit,
    Phase,
    Plan,
    ReleaseTask,
    StagePlan,
    StartTask,
    TaskError,
    changes,
)
from tests.group.situation import (
    CONTROL,
    LEADER_ROW,
    NOW,
    OWNERS,
    PLAN,
    ROWS,
    TIMING,
    decide,
    leader,
    life_of,
    member,
    owner,
    report,
    row,
    view_of,
    without_blob,
)


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def starts(view: View, now: float) -> list[str]:
    return [command.task for command in told(decide(view, now)) if isinstance(command, StartTask)]


def told(actions: list[Action]) -> list[object]:
    return [action.command for action in actions if isinstance(action, Tell)]


SILENT = Age("leader row", 60.0, 30, NOW)
DEAD = Age("row of p3", 60.0, 30, NOW)


# Joining.


def newcomer() -> View:
    view = View(Settings("p9", TIMING, boot="boot"), Life("new"))
    turn(view, NOW, random=0.5, fresh_id="fresh", wall_ms=1)
    return view


def test_a_processor_looks_whether_its_id_is_taken_before_it_joins() -> None:
    assert decide(newcomer(), NOW) == [ReadOwnRow()]


def test_it_inserts_its_row_if_there_is_none() -> None:
    view = newcomer()
    learn(view, ReadOwnRow(), Absent(), sent_at=NOW, now=NOW)
    assert decide(view, NOW) == [InsertOwnRow(ProcessorRow("p9", "new", boot="boot"))]


@pytest.mark.parametrize("state", [State.DEAD, State.LEFT])
def test_it_replaces_a_row_that_is_dead_or_left(state: State) -> None:
    view = newcomer()
    learn(view, ReadOwnRow(), ProcessorRow("p9", "old", "etag", state=state), sent_at=NOW, now=NOW)
    assert decide(view, NOW) == [ReplaceOwnRow(ProcessorRow("p9", "new", boot="boot"), "etag")]


def test_it_replaces_its_predecessor_at_once_if_that_lived_on_this_boot_and_its_directory_is_free() -> None:
    view = newcomer()
    learn(view, ReadOwnRow(), ProcessorRow("p9", "old", "etag", boot="boot"), sent_at=NOW, now=NOW)
    assert kinds(decide(view, NOW)) == [ReplaceOwnRow]


def test_it_waits_for_a_predecessor_on_another_boot_until_that_was_silent_for_the_timeout() -> None:
    view, now = newcomer(), NOW
    decisions = []
    while now < NOW + 30 and ReplaceOwnRow not in decisions:
        if ReadOwnRow in kinds(decide(view, now)):
            learn(view, ReadOwnRow(), ProcessorRow("p9", "old", "etag", boot="other"), sent_at=now, now=now)
        now += 0.5
        decisions = kinds(decide(view, now))
    assert now - NOW == pytest.approx(TIMING.heartbeat_timeout_s, abs=1.5)


def test_a_second_live_processor_with_its_id_ends_it() -> None:
    view = newcomer()
    for number, etag in enumerate(["a", "b", "c"]):
        assert view.ending is None
        row_ = ProcessorRow("p9", "other", etag, beat=number, boot="other")
        learn(view, ReadOwnRow(), row_, sent_at=NOW + number, now=NOW + number)
    assert decide(view, NOW + 2) == [
        Finish(2, "A live processor has the id 'p9'. Start this one with another --id, or stop that one.")
    ]


def test_a_strangers_merges_into_the_row_of_a_dead_predecessor_are_not_a_rival_and_delay_nobody() -> None:
    view, now = newcomer(), NOW
    decisions = []
    while now < NOW + 30 and ReplaceOwnRow not in decisions:
        if ReadOwnRow in kinds(decide(view, now)):
            row_ = ProcessorRow("p9", "old", f"merged at {now}", beat=7, boot="other")
            learn(view, ReadOwnRow(), row_, sent_at=now, now=now)
        now += 0.5
        decisions = kinds(decide(view, now))
        assert Finish not in decisions
    assert now - NOW == pytest.approx(TIMING.heartbeat_timeout_s, abs=1.5)


def test_the_last_words_of_a_dead_predecessor_are_not_a_rival() -> None:
    view = newcomer()
    for number, etag in enumerate(["a", "b"]):
        row_ = ProcessorRow("p9", "old", etag, boot="other")
        learn(view, ReadOwnRow(), row_, sent_at=NOW + number, now=NOW + number)
    assert decide(view, NOW + 1.1) == []


def test_one_that_was_marked_dead_before_it_heard_that_it_had_joined_comes_back_as_another() -> None:
    view = newcomer()
    joins = InsertOwnRow(ProcessorRow("p9", "new", boot="boot"))
    learn(view, joins, Trouble.UNSETTLED, sent_at=NOW, now=NOW + 10)
    dead = ProcessorRow("p9", "new", "marked", boot="boot", state=State.DEAD)
    learn(view, ReadOwnRow(), dead, sent_at=NOW + 11, now=NOW + 11)
    assert kinds(decide(view, NOW + 11)) == [Rejoin]


# The heartbeat.


def test_a_follower_that_has_nothing_new_waits() -> None:
    assert decide(view_of("p3"), NOW + 0.05) == []


def test_a_heartbeat_is_conditional_on_the_row_seen_last() -> None:
    [beat] = [action for action in decide(view_of("p3"), NOW + 2) if isinstance(action, MergeOwnRow)]
    assert (beat.etag, beat.row.beat) == ("row of p3", 6)


def test_trouble_never_passes_for_an_etag() -> None:
    for trouble in Trouble:
        view = view_of("p3")
        beat = MergeOwnRow(ROWS["p3"], "row of p3")
        learn(view, beat, trouble, sent_at=NOW + 2, now=NOW + 3)
        assert (view.life.etag, view.life.accepted_at) == ("row of p3", NOW)


def test_after_a_lost_answer_it_reads_its_row_and_goes_on() -> None:
    view = view_of("p3")
    learn(view, MergeOwnRow(ROWS["p3"], "row of p3"), Trouble.UNSETTLED, sent_at=NOW + 2, now=NOW + 3)
    assert ReadOwnRow() in decide(view, NOW + 4)
    learn(view, ReadOwnRow(), replace(ROWS["p3"], etag="newer", beat=6), sent_at=NOW + 4, now=NOW + 4)
    [beat] = [action for action in decide(view, NOW + 4) if isinstance(action, MergeOwnRow)]
    assert (beat.etag, beat.row.beat) == ("newer", 7)


def test_one_that_was_marked_dead_stops_its_work_and_comes_back_as_another() -> None:
    view = view_of("p3")
    learn(view, MergeOwnRow(ROWS["p3"], "row of p3"), No("UpdateConditionNotSatisfied"), sent_at=NOW + 2, now=NOW + 2)
    assert ReadOwnRow() in decide(view, NOW + 3)
    learn(view, ReadOwnRow(), replace(ROWS["p3"], etag="marked", state=State.DEAD), sent_at=NOW + 3, now=NOW + 3)
    [rejoin] = [action for action in decide(view, NOW + 3) if isinstance(action, Rejoin)]
    perform_locally(view, rejoin, NOW + 3)
    assert view.incarnation == "fresh"
    assert told(decide(view, NOW + 3)) == [Permit(0.0), ReleaseTask("daily-0")]


def test_one_that_comes_back_has_adopted_nothing_before_it_has_read_the_control_blob_itself() -> None:
    """One that can beat and not read would be given tasks, time out, and come back for more."""
    view = view_of("p3")
    perform_locally(view, Rejoin("marked dead"), NOW)
    row = own_row(view)
    assert (row.incarnation, row.adopted, row.state) == ("fresh", 0, State.UNASSIGNED)


def test_the_permit_ends_at_three_quarters_of_the_timeout_after_the_accepted_beat_was_sent() -> None:
    view = view_of("p3")
    learn(view, MergeOwnRow(ROWS["p3"], "row of p3"), "newer", sent_at=NOW + 2, now=NOW + 2.9)
    assert told(decide(view, NOW + 3)) == [Permit(NOW + 2 + 0.75 * TIMING.heartbeat_timeout_s)]


# Leading: how one comes to it.


def test_the_first_of_all_creates_the_control_blob_without_a_leader() -> None:
    view = without_blob("p3", group_id="", leader_row=Absent(), tasks={})
    assert decide(view, NOW) == [CreateControl(Control(group_id="fresh", nonce="fresh"))]


def test_without_a_leader_the_named_successor_acquires_at_once() -> None:
    control = replace(CONTROL, leader=None, successor="p2")
    assert AcquireLease("fresh", "control") in decide(view_of("p2", control, leaderless_since=NOW), NOW)
    assert AcquireLease not in kinds(decide(view_of("p3", control, leaderless_since=NOW), NOW))


def test_without_a_leader_the_control_blob_is_read_again_also_while_the_leader_row_stands_still() -> None:
    """The answer to one's own write as leader was lost, and the former leader's last words to the row were too."""
    vacant = replace(CONTROL, leader=None, successor="p3")
    view = view_of("p2", vacant, control_read_for=LEADER_ROW.etag, hold_until=NOW + 60)
    learn(view, AcquireLease("fresh", "control"), No("ConditionNotMet"), sent_at=NOW, now=NOW)
    assert ReadControl(unless_etag="control") in decide(view, NOW)


def test_a_follower_that_sees_the_leader_silent_asks_the_control_blob_before_it_breaks_the_lease() -> None:
    view = view_of("p2", leader_age=SILENT, control_read_at=NOW - 30)
    assert ReadControl(unless_etag="control") in decide(view, NOW)
    view = view_of("p2", leader_age=SILENT)
    assert BreakLease("control") in decide(view, NOW)


def test_one_whose_own_beats_are_not_accepted_suspects_nobody() -> None:
    view = view_of("p2", leader_age=SILENT, accepted_at=NOW - 5, beat_sent_at=NOW)
    assert BreakLease not in kinds(decide(view, NOW))


def test_wrong_suspicions_make_more_patient() -> None:
    patient = replace(CONTROL, churn=2)
    almost = Age("leader row", 4 * TIMING.leader_timeout_s - 0.1, 30, NOW)
    enough = Age("leader row", 4 * TIMING.leader_timeout_s, 30, NOW)
    assert BreakLease not in kinds(decide(view_of("p2", patient, leader_age=almost), NOW))
    assert BreakLease in kinds(decide(view_of("p2", patient, leader_age=enough), NOW))


def test_a_campaign_breaks_acquires_reads_and_writes_each_step_for_the_blob_it_was_begun_for() -> None:
    view = view_of("p2", leader_age=SILENT)
    steps: list[Action] = []
    for answer in (None, None, ControlRead(CONTROL, "control"), "written"):
        [step] = [a for a in decide(view, NOW) if isinstance(a, BreakLease | AcquireLease | ReadControl | WriteControl)]
        steps.append(step)
        learn(view, step, answer, sent_at=NOW, now=NOW)
    noted = Event(view.wall_ms, "leader", "p2 leads. p1 had given no sign of life.")
    after = replace(
        CONTROL, revision=10, epoch=4, leader=member("p2"), deposed=member("p1"), nonce="fresh", events=(noted,)
    )
    assert steps == [
        BreakLease("control"),
        AcquireLease("fresh", "control"),
        ReadControl(lease_id="fresh"),
        WriteControl(after, "control", "fresh"),
    ]
    assert (view.leads, view.control) == (True, after)


@pytest.mark.parametrize("refused", [BreakLease("control"), AcquireLease("fresh", "control")])
def test_a_changed_etag_is_a_sign_of_life(refused: BreakLease | AcquireLease) -> None:
    view = view_of("p2", leader_age=SILENT, campaign=Campaign("control"))
    learn(view, refused, No("ConditionNotMet"), sent_at=NOW, now=NOW)
    assert view.candidacy.campaign is None
    assert view.candidacy.hold_until == NOW + 1.5 * TIMING.leader_timeout_s


def test_a_write_whose_answer_was_lost_is_settled_by_reading() -> None:
    won = replace(CONTROL, revision=10, nonce="ours")
    view = leader(unsettled=WriteControl(won, "control", "lease"))
    assert ReadControl(lease_id="lease") in decide(view, NOW)
    learn(view, ReadControl(lease_id="lease"), ControlRead(won, "newer"), sent_at=NOW, now=NOW)
    assert (view.leads, view.calls.unsettled, view.control, view.life.control_etag) == (True, None, won, "newer")


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
    assert (view.lease, view.candidacy.campaign, view.control, view.life.control_etag) == (
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


def test_a_lease_whose_grant_was_not_heard_is_asked_for_again_under_the_same_id() -> None:
    view = view_of("p2", leader_age=SILENT, campaign=Campaign("control"))
    learn(view, AcquireLease("asked", "control"), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    again = AcquireLease("asked", "control")
    assert [action for action in decide(view, NOW + RETRY_S) if isinstance(action, AcquireLease)] == [again]
    view.ending, view.ending_since, view.work.tasks = Finish(0, "Left."), NOW, {}
    view.life.written = replace(ROWS["p2"], state=State.LEFT)
    assert decide(view, NOW)[-1] == ReleaseLease("asked")


def test_a_lost_answer_to_breaking_the_lease_keeps_the_suspicion() -> None:
    view = view_of("p2", leader_age=SILENT)
    learn(view, BreakLease("control"), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    assert BreakLease("control") in decide(view, NOW + RETRY_S)


def test_our_own_name_in_the_leader_row_is_no_sign_of_the_leaders_life_although_its_answer_was_lost() -> None:
    ours = replace(LEADER_ROW, beat=71, successors=("p3",), etag="")
    view = view_of("p3", leader_age=SILENT)
    learn(view, WriteLeaderRow(ours, LEADER_ROW.etag), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    learn(view, ReadLeaderRow(), replace(ours, etag="newer"), sent_at=NOW, now=NOW)
    assert BreakLease("control") in decide(view, NOW)


# Leading: what it is.


def test_a_leader_with_nothing_to_do_waits() -> None:
    assert decide(leader(), NOW + 0.05) == []


def test_a_leader_renews_its_lease_and_stops_before_the_service_lets_go() -> None:
    assert RenewLease("lease") in decide(leader(), NOW + 20)
    assert StepDown in kinds(decide(leader(), NOW + 55))
    view = leader()
    learn(view, RenewLease("lease"), None, sent_at=NOW + 20, now=NOW + 23)
    assert view.lease == Lease("lease", NOW + 20)


def test_a_leader_whose_renewal_is_refused_leads_no_more_and_sends_nothing_as_leader() -> None:
    view = leader()
    learn(view, RenewLease("lease"), No("LeaseIsBrokenAndCannotBeRenewed"), sent_at=NOW, now=NOW)
    assert not view.leads
    as_leader = {RenewLease, WriteLeaderRow, WriteControl, MarkDead, ReadRequests, ReleaseLease}
    assert as_leader.isdisjoint(kinds(decide(view, NOW + 3)))


def test_a_leader_that_sees_a_later_epoch_in_the_leader_row_asks_whether_its_lease_still_holds() -> None:
    view = leader(leader_row=replace(LEADER_ROW, epoch=4))
    assert decide(view, NOW) == [ReadControl(lease_id="lease")]
    learn(view, ReadControl(lease_id="lease"), No("LeaseIdMismatchWithBlobOperation"), sent_at=NOW, now=NOW)
    assert not view.leads


def test_a_leader_row_that_lies_about_the_epoch_is_written_over() -> None:
    lie = replace(LEADER_ROW, epoch=1 << 40, etag="lie")
    view = leader(leader_row=lie)
    learn(view, ReadControl(lease_id="lease"), ControlRead(CONTROL, "control"), sent_at=NOW, now=NOW + 0.05)
    (written,) = [action for action in decide(view, NOW + 0.1) if isinstance(action, WriteLeaderRow)]
    assert (written.row.epoch, written.etag) == (3, "lie")


def test_a_silent_member_is_marked_by_the_etag_whose_age_was_measured() -> None:
    view = leader()
    view.others.ages["p3"] = DEAD
    assert MarkDead("p3", "row of p3", 3) in decide(view, NOW + 0.05)


def test_a_leader_that_is_cut_off_itself_marks_nobody() -> None:
    view = leader(accepted_at=NOW - 5)
    view.others.ages["p3"] = DEAD
    assert MarkDead not in kinds(decide(view, NOW + 0.05))


def test_a_leader_whose_beats_are_accepted_again_after_an_outage_forgets_whom_it_suspected() -> None:
    """Reads may have gone on while nobody could write: the others were silent, and well."""
    view = leader(accepted_at=NOW - 5)
    view.others.ages["p3"] = DEAD
    learn(view, MergeOwnRow(ROWS["p1"], "row of p1"), "newer", sent_at=NOW, now=NOW)
    assert MarkDead not in kinds(decide(view, NOW + 0.05))


def test_a_leader_that_was_frozen_forgets_whom_it_suspected() -> None:
    view = leader()
    view.others.ages["p3"] = DEAD
    turn(view, NOW + 60, random=0.5, fresh_id="fresh", wall_ms=1)
    assert view.others.ages["p3"] == Age("row of p3", 0.0, 0, NOW + 60)


def test_a_deaths_tasks_move_at_once_and_no_other_task_does() -> None:
    view = leader(published_at=NOW)  # within the debounce
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=State.DEAD)}
    after = next_control(view, CONTROL, NOW)
    assert after.version == 10
    assert {task: each.owner for task, each in after.tasks.items()} == {
        "clean-0": owner("p1"),
        "clean-1": owner("p2"),
        "daily-0": owner("p1", 10),
    }
    assert after.tasks["daily-0"].after == ()  # the dead need not be waited for
    assert after.barrier == Barrier(10, BarrierState.START)


FIRST = replace(CONTROL, tasks={task: replace(each, first=True) for task, each in CONTROL.tasks.items()})


def test_tasks_whose_logs_exist_are_first_no_more_and_that_is_one_write_for_all_of_them() -> None:
    view = leader(FIRST)
    view.others.members = {**view.others.members, "p3": row("p3", {"daily-0": report("daily-0", Phase.STARTING)})}
    assert next_control(view, FIRST, NOW) == FIRST
    view.others.members = {**view.others.members, "p3": ROWS["p3"]}
    assert next_control(view, FIRST, NOW) == CONTROL


def test_a_log_that_exists_is_not_created_again_by_its_next_owner_although_other_tasks_have_none_yet() -> None:
    view = leader(FIRST)
    view.others.members = {
        **view.others.members,
        "p3": row("p3", {"daily-0": report("daily-0", Phase.FAILED, batch=7)}, state=State.DEAD),
    }
    view.others.members = {**view.others.members, "p2": row("p2", {"clean-1": report("clean-1", Phase.STARTING)})}
    after = next_control(view, FIRST, NOW)
    assert after.tasks["daily-0"] == Assignment(owner("p1", 10), first=False)
    assert after.tasks["clean-1"] == Assignment(owner("p2"), first=True)


def test_nor_by_its_own_next_attempt() -> None:
    view = view_of("p3", FIRST)
    heard_task(view, report("daily-0", batch=7), NOW)
    heard_container_lost(view, NOW)
    view.work.container = True
    assert [command.first for command in told(decide(view, NOW)) if isinstance(command, StartTask)] == [False]


def test_a_join_waits_for_the_debounce() -> None:
    control = replace(CONTROL, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p1"), first=False)})
    view = leader(control, published_at=NOW - 1)
    view.work.tasks["daily-0"] = LocalTask(2, 1, NOW, report("daily-0"))
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], tasks={})}
    assert next_control(view, control, NOW) == control
    after = next_control(view, control, NOW + 1)
    assert after.tasks["daily-0"] == Assignment(owner("p3", 10), (owner("p1"),), first=False)


def test_one_that_leaves_loses_its_tasks_and_its_successor_waits_for_it() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=State.LEAVING)}
    after = next_control(view, CONTROL, NOW)
    assert after.tasks["daily-0"] == Assignment(owner("p1", 10), (owner("p3"),), first=False)


def test_one_with_other_code_or_without_the_control_blob_gets_no_task() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p4": row("p4", fingerprint="0" * 64)}
    view.others.members = {**view.others.members, "p5": row("p5", adopted=0)}
    assert next_control(view, CONTROL, NOW) == CONTROL


def test_the_barrier_ends_when_all_have_adopted_and_times_out_when_one_does_not() -> None:
    started = replace(CONTROL, version=9, barrier=Barrier(9, BarrierState.START))
    view = leader(started, barrier_since=NOW)
    view.others.members = {name: replace(each, adopted=9) for name, each in ROWS.items()}
    view.life.written = replace(ROWS["p1"], adopted=9)
    assert next_control(view, started, NOW).barrier == Barrier(9, BarrierState.END)

    view.others.members = {**view.others.members, "p3": ROWS["p3"]}
    assert next_control(view, started, NOW + 29).barrier == Barrier(9, BarrierState.START)
    overdue = next_control(view, started, NOW + 30)
    assert overdue.barrier == Barrier(9, BarrierState.TIMEOUT)
    view.life.control = overdue
    view.life.accepted_at = NOW + 30
    view.office.lease = Lease("lease", NOW + 30)
    assert [a for a in decide(view, NOW + 30) if isinstance(a, MarkDead)] == [MarkDead("p3", "row of p3", 3)]


def test_a_deposed_leader_that_shows_life_raises_the_churn_and_a_long_term_resets_it() -> None:
    suspected = replace(CONTROL, deposed=member("p3"))
    view = leader(suspected, deposed_etag="row of p3")
    assert next_control(view, suspected, NOW) == suspected
    view.office.deposed_etag = "row of p3 before"
    assert next_control(view, suspected, NOW) == replace(CONTROL, churn=1)

    view = leader(replace(CONTROL, churn=1), since=NOW - 100)
    assert next_control(view, replace(CONTROL, churn=1), NOW) == replace(CONTROL, churn=0)
    assert next_control(leader(since=NOW - 99), replace(CONTROL, churn=1), NOW).churn == 1


def test_successors_are_standbys_first_and_never_one_that_leaves() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p4": row("p4")}
    view.others.members = {**view.others.members, "p0": row("p0", state=State.LEAVING)}
    assert successors_of(view, CONTROL) == ("p4", "p2", "p3")


def test_a_failed_task_fails_the_run_only_if_its_present_owner_says_so() -> None:
    failed = report("daily-0", Phase.FAILED, error=TaskError("no", "Traceback"))
    view = leader()
    view.others.members = {**view.others.members, "p3": row("p3", {"daily-0": replace(failed, generation=1)})}
    assert next_control(view, CONTROL, NOW) == CONTROL
    view.others.members = {"p3": row("p3", {"daily-0": failed})}
    view.life.written = replace(ROWS["p1"], state=State.LEAVING)
    after = next_control(view, CONTROL, NOW)
    assert (after.phase, after.failure and after.failure.task) == (RunPhase.FAILED, "daily-0")


def test_a_log_with_a_later_owner_than_the_blob_knows_of_fails_its_task_with_the_way_out() -> None:
    """An older control.json was put back while nobody ran: the task was shown as STARTING for ever."""
    view = view_of("p3")
    view.work.tasks["daily-0"].report = report("daily-0", Phase.SUPERSEDED)
    told_of = own_row(view).tasks["daily-0"]
    assert told_of.phase is Phase.FAILED
    assert told_of.error is not None
    assert "restore the newest control.json" in told_of.error.message

    leads = leader(members={**ROWS, "p3": row("p3", {"daily-0": told_of})})
    assert next_control(leads, CONTROL, NOW).given_up["daily-0"].owner == owner("p3"), "it is tried elsewhere"
    leads.others.members = {"p3": row("p3", {"daily-0": told_of})}
    leads.life.written = replace(ROWS["p1"], state=State.LEAVING)
    failed = next_control(leads, CONTROL, NOW)
    assert (failed.phase, failed.failure and failed.failure.task) == (RunPhase.FAILED, "daily-0")


def test_one_that_has_not_heard_yet_who_has_its_task_now_fails_nothing() -> None:
    moved = replace(CONTROL, version=10, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p2", 10))})
    view = view_of("p3")
    view.work.tasks["daily-0"].report = report("daily-0", Phase.SUPERSEDED)
    leads = leader(moved, members={**ROWS, "p3": row("p3", own_row(view).tasks, adopted=10)})
    assert next_control(leads, moved, NOW).given_up == {}
    assert next_control(leads, moved, NOW).phase is RunPhase.RUNNING


# A task that one processor gave up.

FULL_DISK = TaskError("OSError: no space left on device", "Traceback of p3")
#: p3 has given its task up, and p1 has moved it to p2, or is about to.
GAVE_UP = {"daily-0": GivenUp(owner("p3"), FULL_DISK.message)}
MOVED = replace(
    CONTROL,
    revision=10,
    version=10,
    tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p2", 10), (owner("p3"),), first=False)},
    given_up=GAVE_UP,
    barrier=Barrier(10),
)


def failing(processor: str = "p3", *, generation: int = 2, error: TaskError = FULL_DISK) -> ProcessorRow:
    failed = report("daily-0", Phase.FAILED, generation=generation, error=error)
    return row(processor, {**ROWS[processor].tasks, "daily-0": failed}, adopted=10)


def others() -> dict[str, ProcessorRow]:
    """All have adopted version 10."""
    return {processor: replace(each, adopted=10) for processor, each in ROWS.items()}


def leads_after_it_moved(**rows: ProcessorRow) -> View:
    view = leader(MOVED)
    view.others.members, view.life.written = others() | rows, replace(ROWS["p1"], adopted=10)
    return view


@pytest.mark.parametrize("phase", [RunPhase.RUNNING, RunPhase.DRAINING])
def test_a_task_that_its_processor_gave_up_is_moved_at_once_and_no_other_task_is(phase: RunPhase) -> None:
    drain = DrainNotification("u", "run", step=DrainStep.FLUSH) if phase is RunPhase.DRAINING else None
    control = replace(CONTROL, phase=phase, drain=drain)
    view = leader(control, published_at=NOW)
    view.others.members = {**ROWS, "p3": failing()}
    after = next_control(view, control, NOW)
    assert (after.phase, after.failure, after.given_up) == (phase, None, GAVE_UP)
    moved = after.tasks["daily-0"]
    assert moved == Assignment(Owner("p1", life_of("p1"), 10), (owner("p3"),), first=False)
    assert {task: each for task, each in after.tasks.items() if task != "daily-0"} == {
        task: each for task, each in CONTROL.tasks.items() if task != "daily-0"
    }


def test_the_run_fails_when_a_second_processor_gives_it_up_and_says_where_it_was_tried() -> None:
    view = leads_after_it_moved(p2=failing("p2", generation=10, error=TaskError("ValueError: no", "Traceback of p2")))
    after = next_control(view, MOVED, NOW)
    assert (after.phase, after.given_up) == (RunPhase.FAILED, {})
    assert after.failure == Failure(
        "daily",
        "daily-0",
        "ValueError: no\nIt failed on p3 and on p2. On p3: OSError: no space left on device",
        "Traceback of p2",
    )


def test_the_run_fails_at_once_if_nobody_else_could_run_the_task() -> None:
    view = leader()
    leaves, other_code = replace(ROWS["p1"], state=State.LEAVING), row("p2", fingerprint="0" * 64)
    view.others.members, view.life.written = {"p2": other_code, "p3": failing()}, leaves
    after = next_control(view, CONTROL, NOW)
    assert after.phase is RunPhase.FAILED
    assert after.failure is not None and "failed on p3, and there is no other processor" in after.failure.message


def test_a_task_does_not_go_back_to_who_gave_it_up_while_another_is_there() -> None:
    view = leads_after_it_moved(p2=replace(ROWS["p2"], state=State.DEAD))
    after = next_control(view, MOVED, NOW)
    assert after.tasks["daily-0"].owner == Owner("p1", life_of("p1"), 11)
    view.life.written = replace(view.life.written, state=State.LEAVING)  # type: ignore[arg-type]
    last = next_control(view, MOVED, NOW)
    assert last.tasks["daily-0"].owner == Owner("p3", life_of("p3"), 11)
    assert last.given_up == GAVE_UP


def test_one_that_has_it_again_for_want_of_others_and_gives_it_up_again_passes_it_on_or_fails_the_run() -> None:
    again = replace(MOVED, tasks={**MOVED.tasks, "daily-0": Assignment(owner("p3", 10), first=False)})
    view = leader(again)
    view.others.members, view.life.written = others() | {"p3": failing(generation=10)}, replace(ROWS["p1"], adopted=10)
    after = next_control(view, again, NOW)
    assert (after.phase, after.tasks["daily-0"].owner) == (RunPhase.RUNNING, Owner("p1", life_of("p1"), 11))
    assert after.given_up["daily-0"].owner == owner("p3", 10)
    view.others.members, view.life.written = {"p3": failing(generation=10)}, replace(ROWS["p1"], state=State.LEAVING)
    assert next_control(view, again, NOW).phase is RunPhase.FAILED


@pytest.mark.parametrize(
    "gone", [replace(ROWS["p3"], incarnation="another"), replace(ROWS["p3"], state=State.DEAD), None]
)
def test_who_gave_a_task_up_is_forgotten_with_its_incarnation(gone: ProcessorRow | None) -> None:
    runs = row("p2", {"daily-0": report("daily-0", generation=10)}, adopted=10)
    view = leads_after_it_moved(p2=runs)
    assert next_control(view, MOVED, NOW).given_up == GAVE_UP
    view.others.members = {name: each for name, each in view.others.members.items() if name != "p3"} | (
        {"p3": gone} if gone else {}
    )
    assert next_control(view, MOVED, NOW).given_up == {}


def test_who_gave_a_task_up_is_forgotten_when_it_has_run_well_for_ten_minutes_elsewhere() -> None:
    view, view_of_attempt = leads_after_it_moved(), {"generation": 10, "attempt": 1}
    for now, phase, attempt in (
        (NOW, Phase.RUNNING, 1),
        (NOW + 300, Phase.FAILED, 1),
        (NOW + 310, Phase.RUNNING, 2),
        (NOW + 310 + FORGIVE_AFTER_S - 1, Phase.RUNNING, 2),
    ):
        said = report("daily-0", phase, **{**view_of_attempt, "attempt": attempt})
        rows = (*[each for name, each in others().items() if name != "p2"], row("p2", {"daily-0": said}, adopted=10))
        learn(view, ScanMembers(), rows, sent_at=now, now=now)
        assert next_control(view, MOVED, now).given_up == GAVE_UP
    assert next_control(view, MOVED, NOW + 310 + FORGIVE_AFTER_S).given_up == {}


def test_two_processors_share_the_tries_that_one_has_alone() -> None:
    limit = view_of("p3").settings.restart_limit
    alone = replace(CONTROL, members=(member("p3"),))
    assert view_of("p3", alone).tries("daily-0") == (limit + 1, 0)
    assert view_of("p3").tries("daily-0") == (3, 0)
    assert view_of("p2", MOVED).tries("daily-0") == (3, 3)
    for few, first, second in ((0, 1, 1), (1, 1, 1), (2, 2, 1)):
        settings = Settings("p2", TIMING, restart_limit=few)
        assert view_of("p2", settings=settings).tries("daily-0") == (first, 0)
        assert view_of("p2", MOVED, settings=settings).tries("daily-0")[0] == second


def test_the_second_processor_waits_between_its_tries_as_the_first_would_have_gone_on() -> None:
    view = view_of("p2", MOVED)
    view.work.tasks["daily-0"] = LocalTask(10, 1, NOW)
    heard_task(view, report("daily-0", Phase.FAILED, generation=10), NOW)
    assert retry_at(view, "daily-0", view.work.tasks["daily-0"]) == NOW + 4.0


def test_a_task_that_was_given_up_is_shown_as_failed_until_another_has_it_and_is_then_let_go_of() -> None:
    view = view_of("p3")
    failed = report("daily-0", Phase.FAILED, error=FULL_DISK)
    view.work.tasks["daily-0"] = LocalTask(2, 1, NOW, failed, failures=3)
    assert own_row(view).tasks == {"daily-0": failed}
    assert starts(view, NOW + 60) == []
    view.life.control = MOVED
    assert (own_row(view).tasks, own_row(view).released) == ({}, {"daily-0": 2})


# Tasks.


def test_a_task_starts_when_the_blob_gives_it_to_us_and_its_former_owner_has_let_go() -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    control = replace(CONTROL, version=9, tasks=moved)
    view = view_of("p2", control, waiting_since={"daily-0": NOW - 1})
    view.work.tasks.pop("daily-0", None)
    assert told(decide(view, NOW)) == []
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], released={"daily-0": 2})}
    assert told(decide(view, NOW)) == [StartTask("daily-0", 9, 1, False, "run", "ab" * 16)]


@pytest.mark.parametrize(
    "former",
    [
        replace(ROWS["p3"], state=State.DEAD),
        replace(ROWS["p3"], state=State.LEFT),
        replace(ROWS["p3"], incarnation="n"),
    ],
)
def test_a_former_owner_that_is_dead_left_or_replaced_is_not_waited_for(former: ProcessorRow) -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    view = view_of("p2", replace(CONTROL, version=9, tasks=moved), waiting_since={"daily-0": NOW - 1})
    view.work.tasks.pop("daily-0", None)
    view.others.members = {**view.others.members, "p3": former}
    assert [type(command) for command in told(decide(view, NOW))] == [StartTask]


def test_a_task_that_was_given_to_another_is_released_and_the_row_says_so() -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    view = view_of("p3", replace(CONTROL, version=9, tasks=moved))
    assert told(decide(view, NOW)) == [ReleaseTask("daily-0")]
    perform_locally(view, Tell(ReleaseTask("daily-0")), NOW)
    heard_task(view, report("daily-0", Phase.RELEASED), NOW + 0.2)
    [beat] = [action for action in decide(view, NOW + 0.2) if isinstance(action, MergeOwnRow)]
    assert (beat.row.released, beat.row.adopted, beat.row.tasks) == ({"daily-0": 2}, 9, {})


def test_a_task_that_does_not_move_is_not_touched() -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    assert told(decide(view_of("p1", replace(CONTROL, version=9, tasks=moved)), NOW)) == []


def test_after_the_container_died_its_tasks_start_again_under_a_higher_attempt() -> None:
    view = view_of("p3", attempts=4)
    heard_container_lost(view, NOW)
    assert told(decide(view, NOW)) == []
    view.work.container = True
    assert told(decide(view, NOW)) == [
        Permit(view.permit_until),
        StartTask("daily-0", 2, 5, False, "run", "ab" * 16),
    ]


def test_a_failed_task_is_tried_again_later_and_later_until_its_limit() -> None:
    view, waits = view_of("p3", replace(CONTROL, members=(member("p3"),))), []
    for _ in range(view.settings.restart_limit):
        heard_task(view, replace(report("daily-0", Phase.FAILED), attempt=view.work.tasks["daily-0"].attempt), NOW)
        waits.append(retry_at(view, "daily-0", view.work.tasks["daily-0"]) - NOW)
        view.life.accepted_at = NOW + waits[-1]
        *_, start = told(decide(view, NOW + waits[-1]))
        perform_locally(view, Tell(start), NOW)  # type: ignore[arg-type]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]
    heard_task(view, replace(report("daily-0", Phase.FAILED), attempt=view.work.tasks["daily-0"].attempt), NOW)
    assert StartTask not in map(type, told(decide(view, NOW + 60)))


# Ending.


def test_one_that_leaves_says_so_and_waits_for_the_leader_before_it_lets_go() -> None:
    view = view_of("p3", leaving=True)
    [begin] = [action for action in decide(view, NOW + 0.2) if isinstance(action, BeginEnd)]
    perform_locally(view, begin, NOW + 0.2)
    assert told(decide(view, NOW + 0.3)) == []
    assert told(decide(view, NOW + 6.3)) == [ReleaseTask("daily-0")]


def test_the_stopping_order_is_work_then_row_then_lease() -> None:
    verdict = Finish(0, "Run run is drained.")
    control = replace(CONTROL, phase=RunPhase.DRAINED)
    view = leader(control, ending=verdict, ending_since=NOW)
    view.work.tasks["clean-0"].report = report("clean-0", Phase.RUNNING)
    view.work.tasks["clean-0"].releasing_since = NOW
    assert MergeOwnRow not in kinds(decide(view, NOW))

    heard_task(view, report("clean-0", Phase.RELEASED), NOW)
    [last] = [action for action in decide(view, NOW + 0.2) if isinstance(action, MergeOwnRow)]
    assert last.row.state is State.LEFT
    learn(view, last, "left", sent_at=NOW, now=NOW)

    [handed] = [action for action in decide(view, NOW) if isinstance(action, WriteControl)]
    assert (handed.control.leader, handed.control.successor) == (None, "p2")
    learn(view, handed, "handed", sent_at=NOW, now=NOW)
    after = [action for action in decide(view, NOW) if not isinstance(action, Tell)]
    assert kinds(after) == [WriteLeaderRow, ReleaseLease]
    learn(view, after[0], "row", sent_at=NOW, now=NOW)  # type: ignore[arg-type]
    learn(view, after[1], None, sent_at=NOW, now=NOW)  # type: ignore[arg-type]
    assert decide(view, NOW)[-1] == verdict


def test_a_leader_whose_last_word_was_lost_looks_what_stands_there_and_gives_up_the_lease() -> None:
    view = leader(leaving=True, ending=Finish(0, "left"), ending_since=NOW - 1)
    view.life.control = replace(CONTROL, tasks={})
    view.work.tasks.clear()
    [last] = [action for action in decide(view, NOW) if isinstance(action, MergeOwnRow)]
    learn(view, last, Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    after = NOW + TIMING.heartbeat_s
    assert [kind for kind in kinds(decide(view, after)) if kind in (MergeOwnRow, ReadOwnRow)] == [ReadOwnRow]

    learn(view, ReadOwnRow(), replace(last.row, etag="left"), sent_at=after, now=after)
    [handed] = [action for action in decide(view, after) if isinstance(action, WriteControl)]
    assert (handed.control.leader, handed.control.successor) == (None, "p2")


def test_one_that_was_marked_dead_while_it_left_sends_nothing_further() -> None:
    view = view_of("p3", ending=Finish(0, "left"), ending_since=NOW - 1)
    view.work.tasks.clear()
    [last] = [action for action in decide(view, NOW) if isinstance(action, MergeOwnRow)]
    learn(view, last, No("UpdateConditionNotSatisfied"), sent_at=NOW, now=NOW)
    learn(view, ReadOwnRow(), replace(ROWS["p3"], state=State.DEAD), sent_at=NOW, now=NOW)
    [rejoin] = [action for action in decide(view, NOW) if isinstance(action, Rejoin)]
    perform_locally(view, rejoin, NOW)
    assert decide(view, NOW)[-1] == Finish(0, "left")


def test_one_that_ends_in_the_middle_of_its_campaign_gives_the_lease_back() -> None:
    view = view_of("p2", ending=Finish(0, "Left."), ending_since=NOW, tasks={})
    view.life.written = replace(ROWS["p2"], state=State.LEFT)
    view.candidacy.campaign = Campaign("control", lease=Lease("ours", NOW))
    assert decide(view, NOW)[-1] == ReleaseLease("ours")
    learn(view, ReleaseLease("ours"), None, sent_at=NOW, now=NOW)
    assert decide(view, NOW)[-1] == Finish(0, "Left.")


def test_another_pipeline_is_refused_with_the_way_out() -> None:
    view = view_of("p3", plan=replace(PLAN, fingerprint="0" * 64))
    [begin] = [action for action in decide(view, NOW) if isinstance(action, BeginEnd)]
    assert begin.verdict == Finish(
        2,
        "Run run has another pipeline than this processor (ffffffffffff there, 000000000000 here). "
        "Drain the run with the old code (samza-azure drain), then start the new: it begins the next run.",
    )


def test_a_refused_pipeline_says_what_changed_stage_by_stage_and_stream_by_stream() -> None:
    there = {"stage daily": {"window": "1 day", "state": "a"}, "stream sales": {"column n": "int"}, "stage old": {}}
    here = {
        "stage daily": {"window": "1 hour", "state": "b"},
        "stream sales": {"column n": "int", "column s": "string"},
    }
    view = view_of("p3", replace(CONTROL, described=there), plan=replace(WIDER, described=here))
    [begin] = [action for action in decide(view, NOW) if isinstance(action, BeginEnd)]
    assert begin.verdict == Finish(
        2,
        "Run run has another pipeline than this processor:\n"
        "  stage old is gone\n"
        "  stage daily: window 1 day became 1 hour\n"
        "  stream sales: gained column s (string)\n"
        "Drain the run with the old code (samza-azure drain), then start the new: it begins the next run.",
    )


def test_what_no_fact_shows_is_said_to_differ_all_the_same() -> None:
    assert changes({"stage daily": {"state": "a"}}, {"stage daily": {"state": "b"}}) == [
        "stage daily: what its state depends on differs (functions, the slide of a window, a schema)"
    ]


def test_a_control_blob_that_vanished_or_is_anothers_ends_it() -> None:
    gone = without_blob("p3")
    assert [a.verdict.code for a in decide(gone, NOW) if isinstance(a, BeginEnd)] == [1]
    other = view_of("p3", replace(CONTROL, group_id="cd" * 16), group_id=CONTROL.group_id)
    assert [a.verdict.code for a in decide(other, NOW) if isinstance(a, BeginEnd)] == [1]


# A barrier that has timed out.

OVERDUE = replace(CONTROL, barrier=Barrier(2, BarrierState.TIMEOUT))


def test_a_barrier_that_timed_out_ends_when_the_last_one_has_adopted_or_is_dead() -> None:
    """One without tasks is marked dead and nothing moves: no other version comes that would end it."""
    behind = row("p4", adopted=1)
    assert next_control(leader(OVERDUE, members={**ROWS, "p4": behind}), OVERDUE, NOW) == OVERDUE
    for later in (replace(behind, adopted=2), replace(behind, state=State.DEAD)):
        after = next_control(leader(OVERDUE, members={**ROWS, "p4": later}), OVERDUE, NOW)
        assert after.barrier == Barrier(2, BarrierState.END)


def test_who_joins_meanwhile_is_not_marked_for_what_it_had_no_time_to_adopt() -> None:
    fresh = {"p5": row("p5", adopted=0, state=State.UNASSIGNED)}
    back = {"p6": row("p6", incarnation="a later one", adopted=0)}
    view = leader(OVERDUE, members={**ROWS, "p4": row("p4", adopted=1), **fresh, **back})
    view.others.ages = {name: Age(each.etag, 0.0, 0, NOW) for name, each in view.others.members.items()}
    marked = [action.processor for action in decide(view, NOW + 0.05) if isinstance(action, MarkDead)]
    assert marked == ["p4"]


# The drain.

DRAINING = replace(
    CONTROL,
    phase=RunPhase.DRAINING,
    drain=DrainNotification("u", "run", step=DrainStep.FREEZE, history=("FREEZE",)),
    positions={"flights/0": (0, 3)},
)


def frozen(task: str, at: int, **more: object) -> ProcessorRow:
    ends = {f"flights/{task[-1]}": (0, at)}
    return row(OWNERS[task], {task: report(task, ends=ends, frozen_for="u")}, **more)


def test_flush_is_written_when_every_reader_of_a_source_stands_still() -> None:
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7)}
    assert progress(DRAINING, rows, PLAN) == DRAINING
    rows["p2"] = frozen("clean-1", 5)
    after = progress(DRAINING, rows, PLAN)
    assert after.drain == replace(
        DRAINING.drain,  # type: ignore[type-var]
        step=DrainStep.FLUSH,
        ends={"flights/0": (0, 7), "flights/1": (0, 5)},
        history=("FREEZE", "FLUSH"),
    )


#: The pipeline of an upgrade: a stage put in front of `clean`, which reads no source any more; or `clean` renamed.
IN_FRONT = Plan(
    (
        StagePlan("parsed", ("flights",), "parsed", 2),
        StagePlan("clean", ("parsed",), "by", 2),
        StagePlan("daily", ("by",), "out", 1),
    ),
    {"flights": 2},
    "0" * 64,
)
RENAMED = Plan(
    (StagePlan("tidy", ("flights",), "by", 2), StagePlan("daily", ("by",), "out", 1)), {"flights": 2}, "1" * 64
)


@pytest.mark.parametrize("plan", [IN_FRONT, RENAMED, None])
def test_a_drain_goes_by_what_the_run_reads_and_not_by_the_pipeline_of_its_leader(plan: Plan | None) -> None:
    """With the ends at which the run began, the next one would read every row again."""
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7)}
    assert progress(DRAINING, rows, plan) == DRAINING
    rows["p2"] = frozen("clean-1", 5)
    after = progress(DRAINING, rows, plan)
    assert after == progress(DRAINING, rows, PLAN)
    assert after.drain is not None
    assert after.drain.ends == {"flights/0": (0, 7), "flights/1": (0, 5)}


def test_a_run_that_an_earlier_version_began_is_drained_by_a_leader_that_has_its_pipeline() -> None:
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7), "p2": frozen("clean-1", 5)}
    earlier = replace(DRAINING, readers={})
    for plan in (IN_FRONT, RENAMED, None):
        assert progress(earlier, rows, plan) == earlier
    assert progress(earlier, rows, PLAN).drain == progress(DRAINING, rows, PLAN).drain


def test_a_run_says_from_its_beginning_which_stage_reads_which_source() -> None:
    begun = Control(group_id="ab" * 16, leader=member("p1"))
    view = leader(begun, plan=replace(IN_FRONT, fingerprint=PLAN.fingerprint), active_run="", tasks={})
    assert next_control(view, begun, NOW).readers == {"parsed": ("flights",)}


def test_no_end_is_below_what_a_task_says_it_has_read() -> None:
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7), "p2": frozen("clean-1", 5)}
    told = report("daily-0", read={"flights/1": (0, 6)})
    assert progress(DRAINING, rows | {"p3": row("p3", {"daily-0": told})}, PLAN) == DRAINING
    ahead = row(
        "p2", {"clean-1": report("clean-1", ends={"flights/1": (0, 5)}, frozen_for="u", read={"flights/1": (1, 0)})}
    )
    assert progress(DRAINING, rows | {"p2": ahead}, PLAN) == DRAINING


def test_nor_does_a_reader_that_names_no_end_of_what_it_reads_stand_still() -> None:
    rows = dict(ROWS) | {
        "p1": frozen("clean-0", 7),
        "p2": row("p2", {"clean-1": report("clean-1", ends={}, frozen_for="u")}),
    }
    assert progress(DRAINING, rows, PLAN) == DRAINING


def test_the_word_of_a_former_owner_does_not_count() -> None:
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7), "p2": frozen("clean-1", 5, incarnation="a later one")}
    assert progress(DRAINING, rows, PLAN) == DRAINING


def test_nor_does_the_answer_to_a_drain_that_was_cancelled() -> None:
    """Since then the task may have read on; a FLUSH with the ends of then would make the next run read rows again."""
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7), "p2": frozen("clean-1", 5)}
    assert DRAINING.drain is not None
    again = replace(DRAINING, drain=replace(DRAINING.drain, uuid="a later one"))
    assert progress(again, rows, PLAN) == again


def test_the_end_of_a_partition_is_the_greatest_that_anyone_has_read_to() -> None:
    assert furthest([{"a/0": (0, 9)}, {"a/0": (1, 2)}], {"a/0": (0, 1), "a/1": (0, 4)}) == {
        "a/0": (1, 2),
        "a/1": (0, 4),
    }


def test_drained_is_written_when_the_log_of_every_task_is_and_says_where_the_next_run_begins() -> None:
    assert DRAINING.drain is not None
    ends = {"flights/0": (0, 7), "flights/1": (0, 5)}
    flushing = replace(DRAINING, drain=replace(DRAINING.drain, step=DrainStep.FLUSH, ends=ends))
    rows = {processor: row(processor, {task: report(task, Phase.DRAINED)}) for task, processor in OWNERS.items()}
    after = progress(flushing, rows, PLAN)
    assert (after.phase, after.positions, after.past, after.uncleaned) == (RunPhase.DRAINED, ends, ("run",), ("run",))
    rows["p3"] = ROWS["p3"]
    assert progress(flushing, rows, PLAN) == flushing


def test_the_container_hears_of_each_step_once() -> None:
    view = view_of("p1", DRAINING)
    assert told(decide(view, NOW)) == [Drain(DrainStep.FREEZE, "u")]
    perform_locally(view, Tell(Drain(DrainStep.FREEZE, "u")), NOW)
    assert told(decide(view, NOW)) == []


def test_while_draining_nothing_moves_by_choice() -> None:
    view = leader(DRAINING)
    view.others.members = {**view.others.members, "p4": row("p4")}
    view.others.members = {**view.others.members, "p0": row("p0")}
    assert next_control(view, DRAINING, NOW + 60) == DRAINING


def test_who_is_in_a_drained_run_goes_and_who_comes_to_it_unchanged_goes_too() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",))
    assert [a.verdict.code for a in decide(view_of("p3", drained), NOW) if isinstance(a, BeginEnd)] == [0]
    comer = view_of("p3", drained, active_run="")
    assert [a.verdict.code for a in decide(comer, NOW) if isinstance(a, BeginEnd)] == [0]
    upgraded = view_of("p3", drained, active_run="", plan=replace(PLAN, fingerprint="0" * 64))
    assert BeginEnd not in kinds(decide(upgraded, NOW))


def test_who_comes_to_a_drained_run_that_nobody_has_cleaned_up_stays_and_would_lead() -> None:
    """Its leader may have died over it, and the others have gone: seed 168044708."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",), leader=None)
    comer = view_of("p3", drained, active_run="", tasks={}, leaderless_since=NOW - 4)
    found = decide(comer, NOW)
    assert BeginEnd not in kinds(found)
    assert AcquireLease in kinds(found)
    assert CleanRun("run") in decide(leader(drained, active_run="", tasks={}, members={"p1": ROWS["p1"]}), NOW)


def test_who_can_act_leads_next_and_of_those_who_has_no_task() -> None:
    """A newcomer has the least to do, but its container may not be up yet, or have another pipeline."""
    standby, starting, misfit = row("p7"), row("p0", fingerprint=""), row("p4", fingerprint="0" * 64)
    view = leader(members={**ROWS, "p7": standby, "p0": starting, "p4": misfit})
    assert successors_of(view, CONTROL) == ("p7", "p2", "p3")
    view.others.members = {"p0": starting, "p2": ROWS["p2"], "p4": misfit}
    assert successors_of(view, CONTROL) == ("p2", "p0", "p4")
    drained = replace(CONTROL, phase=RunPhase.DRAINED, tasks={})
    assert successors_of(view, drained) == ("p4", "p0", "p2"), "of another pipeline is who begins the next run"
    assert successors_of(view, Control("g")) == ("p2", "p4", "p0")


def test_a_leader_that_cannot_act_hands_over_to_one_that_can_and_was_just_heard() -> None:
    unable: dict[str, object] = {"plan": None, "since": NOW - 5}
    view = leader(**unable, seen_alive=frozenset({life_of("p3")}))
    [write] = [action for action in lead(view, NOW) if isinstance(action, WriteControl)]
    assert (write.control.leader, write.control.successor) == (None, "p3")
    assert lead(leader(**unable), NOW + 2), "nobody was heard: it goes on as well as it can"
    silent = {"p3": Age("row of p3", 5.0, 5, NOW)}
    for other in (
        leader(**unable),
        leader(plan=None, since=NOW - 4.9, seen_alive=view.others.seen_alive),
        leader(since=NOW - 5, seen_alive=view.others.seen_alive),
        leader(**unable, seen_alive=view.others.seen_alive, ages=silent),
    ):
        assert WriteControl not in kinds(lead(other, NOW))
    failing = {"control": Failing(1, NOW + 9)}
    away = leader(**unable, seen_alive=view.others.seen_alive, failing=failing, leader_row_sent_at=NOW - 2)
    assert WriteLeaderRow in kinds(lead(away, NOW)), "the blob is away: it beats on"
    lost = leader(**unable, seen_alive=view.others.seen_alive, unsettled=write)
    assert lead(lost, NOW) == [ReadControl(lease_id="lease")]


def test_one_that_handed_over_and_stays_releases_the_lease_and_lets_the_successor_lead() -> None:
    view = leader(plan=None, since=NOW - 5, seen_alive=frozenset({life_of("p3")}))
    [write] = [action for action in lead(view, NOW) if isinstance(action, WriteControl)]
    learn(view, write, "vacant", sent_at=NOW, now=NOW)
    assert ReleaseLease("lease") in decide(view, NOW)
    learn(view, ReleaseLease("lease"), None, sent_at=NOW, now=NOW)
    assert AcquireLease not in kinds(decide(view, NOW + 1.9))


def test_what_a_life_says_that_has_come_back_does_not_hold_up_the_clean_up() -> None:
    """It has no part in the drained run, and ends only when that is cleaned up; the leader must not wait for it."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",), leader=member("p1"))
    done = {"daily-0": report("daily-0", Phase.DRAINED)}
    others = {"p1": ROWS["p1"], "p2": row("p2", state=State.LEFT), "p3": row("p3", done)}
    assert CleanRun not in kinds(decide(leader(drained, members=others), NOW))
    for back in (
        row("p3", done, incarnation="a later one"),
        row("p3", {"daily-0": report("daily-0", Phase.DRAINED, generation=1)}),
        row("p3", {"clean-1": report("clean-1", Phase.DRAINED), "gone-7": report("gone-7", Phase.DRAINED)}),
    ):
        assert CleanRun("run") in decide(leader(drained, members=others | {"p3": back}), NOW)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RELEASED])
def test_who_comes_back_tells_of_no_task_that_an_earlier_life_was_given(phase: Phase) -> None:
    view = view_of("p3")
    view.work.tasks["daily-0"].report = report("daily-0", phase)
    perform_locally(view, Rejoin("declared dead"), NOW)
    assert own_row(view).tasks == {}
    learn(view, ReadControl(), ControlRead(CONTROL, "control"), sent_at=NOW, now=NOW)
    assert own_row(view).tasks == {}
    assert ("daily-0" in view.work.tasks) == (phase in (Phase.STARTING, Phase.RUNNING)), (
        "what may append is released first"
    )


@pytest.mark.parametrize("phase", [None, Phase.RESTART, Phase.FAILED, Phase.RELEASED])
def test_others_wait_for_what_a_leader_may_start_before_it_knows_that_it_gave_it_away(phase: Phase | None) -> None:
    """Its write took seconds to land, and in between it started the task that the write gave to another."""
    tasks = dict.fromkeys(("clean-0", "clean-1"), Assignment(owner("p1"), first=False))
    uneven = replace(CONTROL, tasks={**tasks, "daily-0": Assignment(owner("p2"), first=False)})
    ended = {} if phase is None else {task: LocalTask(2, 1, NOW, report(task, phase)) for task in tasks}
    for ending in (None, Finish(0, "told to leave")):
        view = leader(uneven, tasks=ended, ending=ending)
        after = next_control(view, uneven, NOW)
        moved = {each.after for each in after.tasks.values() if each.owner not in (owner("p1"), owner("p2"))}
        assert moved == {() if ending is not None or phase is Phase.RELEASED else (owner("p1"),)}


def test_when_a_row_was_read_is_remembered_while_somebody_waits_for_it() -> None:
    """In a group whose members come and go for months there would be thousands."""
    waits = replace(CONTROL, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p3", 9), (owner("p2"),))})
    view = view_of("p3", read_at={"p1": NOW, "p2": NOW, "left-long-ago": NOW - 9999})
    learn(view, ReadControl(), ControlRead(waits, "waits"), sent_at=NOW, now=NOW)
    assert view.others.read_at == {"p2": NOW}
    learn(view, ReadControl(), ControlRead(CONTROL, "control"), sent_at=NOW, now=NOW)
    assert view.others.read_at == {}


def test_a_task_that_is_closed_and_somebody_elses_is_told_and_remembered_no_more() -> None:
    moved = replace(
        CONTROL, version=10, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p2", 10), (owner("p3"),))}
    )
    for phase in (Phase.SUPERSEDED, Phase.DRAINED, Phase.RESTART, Phase.FAILED):
        view = view_of("p3", moved)
        view.work.tasks["daily-0"].report = report("daily-0", phase)
        assert own_row(view).tasks == {}
        assert own_row(view).released == {"daily-0": 2}
        learn(view, ReadControl(), ControlRead(moved, "moved"), sent_at=NOW, now=NOW)
        assert view.work.tasks == {}
        assert own_row(view).released == {"daily-0": 2}


def test_an_upgraded_pipeline_begins_the_next_run_where_the_last_one_ended() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), positions={"flights/0": (0, 7)})
    view = leader(drained, active_run="", plan=replace(PLAN, fingerprint="0" * 64))
    after = next_control(view, drained, NOW)
    assert (after.run_id, after.phase, after.fingerprint) == ("1-fresh", RunPhase.RUNNING, "0" * 64)
    assert (after.positions, after.past, set(after.tasks)) == (drained.positions, ("run",), set(PLAN.tasks()))
    assert {each.first for each in after.tasks.values()} == {True}


def test_a_run_id_of_a_drained_run_is_not_used_again() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",))
    settings = Settings("p1", TIMING, boot="boot", run_id="run")
    view = leader(drained, active_run="", plan=replace(PLAN, fingerprint="0" * 64), settings=settings)
    assert next_control(view, drained, NOW) == drained
    [begin] = [action for action in decide(view, NOW) if isinstance(action, BeginEnd)]
    assert begin.verdict == Finish(
        2, "app.run.id is 'run', a run that is drained for good. Name another one, or remove the line."
    )


def test_code_of_an_earlier_run_that_comes_late_does_not_begin_the_next_one() -> None:
    """What an orchestrator still has in its queue is not an upgrade. Going back on purpose takes --new-run."""
    old, present, new = "0" * 64, PLAN.fingerprint, "9" * 64
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("older", "run"), finished=(old, present))
    for fingerprint, code in ((old, 2), (present, 0)):
        comer = view_of("p3", drained, active_run="", plan=replace(PLAN, fingerprint=fingerprint))
        assert [a.verdict.code for a in decide(comer, NOW) if isinstance(a, BeginEnd)] == [code]
        leads = leader(drained, active_run="", plan=replace(PLAN, fingerprint=fingerprint))
        assert next_control(leads, drained, NOW) == drained
    leads = leader(drained, active_run="", plan=replace(PLAN, fingerprint=new))
    assert next_control(leads, drained, NOW).fingerprint == new

    back = leader(drained, active_run="", plan=replace(PLAN, fingerprint=old))
    back.settings = replace(back.settings, new_run=True)
    back.life.written = replace(ROWS["p1"], fingerprint=old, new_run="new")
    assert BeginEnd not in kinds(decide(back, NOW))
    assert next_control(back, drained, NOW).fingerprint == old


def test_a_drained_runs_fingerprint_is_remembered_once() -> None:
    assert DRAINING.drain is not None
    flushing = replace(
        DRAINING, drain=replace(DRAINING.drain, step=DrainStep.FLUSH), finished=("x", CONTROL.fingerprint)
    )
    rows = {processor: row(processor, {task: report(task, Phase.DRAINED)}) for task, processor in OWNERS.items()}
    assert progress(flushing, rows, PLAN).finished == ("x", CONTROL.fingerprint)


def test_of_very_many_drained_runs_the_latest_are_remembered_and_all_that_people_have_named() -> None:
    assert DRAINING.drain is not None
    made = tuple(f"{1_700_000_000_000 + number}-{number:08x}" for number in range(1000))
    flushing = replace(
        DRAINING,
        drain=replace(DRAINING.drain, step=DrainStep.FLUSH),
        past=("by-hand", *made),
        finished=tuple(f"{number:064}" for number in range(1000)),
    )
    rows = {processor: row(processor, {task: report(task, Phase.DRAINED)}) for task, processor in OWNERS.items()}
    after = progress(flushing, rows, PLAN)
    assert after.past == ("by-hand", *made[-REMEMBERED:], "run")
    assert after.finished == (*flushing.finished[-REMEMBERED + 1 :], CONTROL.fingerprint)


# The number of a source stream's partitions.

WIDER = Plan(
    (StagePlan("clean", ("flights",), "by", 4), StagePlan("daily", ("by",), "out", 1)), {"flights": 4}, "4" * 64
)


def test_a_processor_that_counts_other_partitions_is_refused_by_the_run_and_told_which() -> None:
    [begin] = [a for a in decide(view_of("p3", plan=WIDER), NOW) if isinstance(a, BeginEnd)]
    assert begin.verdict == Finish(
        2,
        "Run run has another pipeline than this processor (ffffffffffff there, 444444444444 here): "
        "flights has 2 partitions there, 4 here. "
        "Drain the run with the old code (samza-azure drain), then start the new: it begins the next run.",
    )


def test_the_leader_gives_it_no_task_and_the_run_goes_on_as_it_is() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p4": row("p4", fingerprint=WIDER.fingerprint)}
    assert next_control(view, CONTROL, NOW + 60) == CONTROL


def test_the_next_run_has_the_new_tasks_reads_old_partitions_on_and_new_ones_from_their_beginning() -> None:
    ends = {"flights/0": (0, 7), "flights/1": (0, 5)}
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), positions=ends)
    after = next_control(leader(drained, active_run="", plan=WIDER), drained, NOW)
    assert list(after.tasks) == ["clean-0", "clean-1", "clean-2", "clean-3", "daily-0"]
    assert (after.sources, after.positions) == ({"flights": 4}, ends)


def test_partitions_that_a_run_does_not_read_keep_their_place_for_a_later_one() -> None:
    assert furthest([{"flights/0": (0, 9)}], {"flights/0": (0, 7), "flights/1": (0, 5)})["flights/1"] == (0, 5)


def test_a_drained_run_is_cleaned_up_when_the_others_have_left_it_also_in_a_later_run() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    view = leader(drained)
    assert CleanRun not in kinds(decide(view, NOW + 0.05))
    view.others.members = {name: replace(each, state=State.LEFT) for name, each in ROWS.items()}
    assert CleanRun("run") in decide(view, NOW + 0.05)
    later = leader(replace(CONTROL, past=("older",), uncleaned=("older",)))
    assert CleanRun("older") in decide(later, NOW + 0.05)


def test_what_cannot_be_deleted_holds_nobody_up_and_is_tried_again_ever_more_rarely() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    view = leader(drained)
    view.others.members = {name: replace(each, state=State.LEFT) for name, each in ROWS.items()}
    view.office.requests = ()
    waits, now = [], NOW + 0.05
    for _ in range(11):
        view.office.lease = Lease("lease", now)
        assert decide(view, now).count(CleanRun("run")) == 1
        learn(view, CleanRun("run"), Kept(3, "BlobImmutableDueToPolicy"), sent_at=now, now=now)
        waits.append(view.calls.failing[HOUSEKEEPING].until - now)
        now = view.calls.failing[HOUSEKEEPING].until
    assert [round(each, 3) for each in waits] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    view.others.members = {"p1": ROWS["p1"]}
    known = next_control(view, view.control, now)
    assert (known.kept, known.uncleaned, known.cleaned) == ({"run": 3}, ("run",), True)

    view.life.control = known
    learn(view, CleanRun("run"), Kept(1, "BlobImmutableDueToPolicy"), sent_at=now, now=now)
    assert next_control(view, view.control, now).kept == {"run": 1}
    learn(view, CleanRun("run"), None, sent_at=now, now=now)
    after = next_control(view, view.control, now)
    assert (after.kept, after.uncleaned, after.cleaned) == ({}, (), True)


def test_a_run_of_which_something_is_kept_does_not_hold_up_the_next_one() -> None:
    view = leader(replace(CONTROL, past=("older", "old"), uncleaned=("older", "old"), kept={"older": 3}))
    assert CleanRun("old") in decide(view, NOW + 0.05)
    assert not view.control.cleaned  # type: ignore[union-attr]
    learn(view, CleanRun("old"), None, sent_at=NOW + 0.05, now=NOW + 0.06)
    view.others.members = {name: row for name, row in view.others.members.items() if row.alive}
    after = next_control(view, view.control, NOW + 0.06)
    assert (after.uncleaned, after.kept, after.cleaned) == (("older",), {"older": 3}, True)


@pytest.mark.parametrize("state", [State.DEAD, State.LEFT])
def test_the_row_of_one_that_is_long_gone_is_deleted_while_the_run_goes_on(state: State) -> None:
    view = leader()
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=state)}
    view.others.ages["p3"] = Age("row of p3", 3599.0, 3, NOW)
    assert DeleteMember not in kinds(decide(view, NOW + 0.05))
    view.others.ages["p3"] = Age("row of p3", 3600.0, 3, NOW)
    assert DeleteMember("p3", "row of p3") in decide(view, NOW + 0.05)


def cleaning(**more: object) -> View:
    """p1 leads a drained run whose logs are deleted; the rows of those that left are still there."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    gone = {name: replace(ROWS[name], state=State.LEFT, tasks={}) for name in ("p2", "p3")}
    return leader(drained, members=gone, clean_done="run", ending=Finish(0, "drained"), ending_since=NOW, **more)


def deletes(view: View, now: float) -> list[str]:
    return [action.processor for action in decide(view, now) if isinstance(action, DeleteMember)]


def test_a_row_whose_deletion_was_refused_is_read_again_before_anything_else() -> None:
    """Orchestrators restart what exits, so the row is another one by then."""
    view = cleaning()
    assert deletes(view, NOW) == ["p2", "p3"]
    refused = DeleteMember("p2", "row of p2")
    learn(view, refused, No("UpdateConditionNotSatisfied"), sent_at=NOW, now=NOW + 0.01)
    assert deletes(view, NOW + 0.02) == ["p3"]

    rows = (ROWS["p1"], *view.others.members.values())
    learn(view, ScanMembers(), rows, sent_at=NOW, now=NOW + 0.03)  # may have been answered before the refusal
    assert deletes(view, NOW + 0.04) == ["p3"]
    learn(view, ScanMembers(), rows, sent_at=NOW + 1, now=NOW + 1.01)
    assert deletes(view, NOW + 1.02) == ["p2", "p3"]


def test_of_a_thousand_rows_a_few_are_deleted_at_the_same_time() -> None:
    view = cleaning()
    view.others.members = {name: row(name, state=State.LEFT) for name in map("p{:03d}".format, range(1000))}
    assert len(deletes(view, NOW)) == 8
    view.calls.busy = {"member p000": NOW, "member p001": NOW, "request drain-1": NOW}
    assert deletes(view, NOW) == ["p002", "p003", "p004", "p005", "p006"]


def test_a_mark_whose_answer_was_lost_is_settled_by_the_next_look_and_not_refused_by_itself() -> None:
    view = leader(ages={"p3": DEAD})
    learn(view, MarkDead("p3", "row of p3", 3), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    assert MarkDead not in kinds(decide(view, NOW + 0.9))
    learn(view, ScanMembers(), tuple(ROWS.values()), sent_at=NOW + 1, now=NOW + 1)  # it did not happen
    assert MarkDead("p3", "row of p3", 3) in decide(view, NOW + 1)


def test_a_beat_whose_answer_was_lost_counts_from_when_it_was_sent_once_the_row_is_read() -> None:
    """Else the next one comes so late after the last that an observer takes it for the end of an outage."""
    view = leader(ages={"p3": DEAD}, scanned_at=NOW + 5)
    lost = MergeOwnRow(replace(ROWS["p1"], beat=6), "row of p1")
    learn(view, lost, Trouble.UNSETTLED, sent_at=NOW + 2, now=NOW + 4.7)
    learn(view, ReadOwnRow(), replace(lost.row, etag="newer"), sent_at=NOW + 4.8, now=NOW + 4.9)
    assert (view.life.accepted_at, view.life.etag) == (NOW + 2, "newer")
    learn(view, MergeOwnRow(replace(lost.row, beat=7), "newer"), "newest", sent_at=NOW + 5, now=NOW + 5)
    assert view.others.ages == {"p3": DEAD}


def test_ages_survive_a_gap_in_our_own_beats_in_which_others_have_written() -> None:
    """Not the storage was away, only our own calls came late."""
    view = leader(ages={**leader().others.ages, "p3": DEAD}, scan_sent_at=NOW + 3)
    rows = (ROWS["p1"], replace(ROWS["p2"], etag="newer"), ROWS["p3"])
    learn(view, ScanMembers(), rows, sent_at=NOW + 4, now=NOW + 4)
    silent = view.others.ages["p3"]
    learn(view, MergeOwnRow(ROWS["p1"], "row of p1"), "newer", sent_at=NOW + 4.9, now=NOW + 5)
    assert view.others.ages["p3"] == silent
    learn(view, MergeOwnRow(ROWS["p1"], "newer"), "newest", sent_at=NOW + 10, now=NOW + 10)
    assert view.others.ages["p3"].seconds == 0


def test_ages_are_forgotten_also_where_another_is_the_first_who_can_write_again() -> None:
    """Nobody could write for half a minute. Seeing that others could, a leader believed that the silent were dead."""
    view = leader(ages={**leader().others.ages, "p3": DEAD}, scan_sent_at=NOW + 29)
    rows = (ROWS["p1"], replace(ROWS["p2"], etag="newer"), ROWS["p3"])
    learn(view, ScanMembers(), rows, sent_at=NOW + 30, now=NOW + 30)
    learn(view, MergeOwnRow(ROWS["p1"], "row of p1"), "newer", sent_at=NOW + 31, now=NOW + 31)
    assert view.others.ages["p3"].seconds == 0


def test_of_two_beats_of_one_number_the_earlier_counts_since_it_may_be_the_one_that_landed() -> None:
    view = view_of("p3")
    lost = MergeOwnRow(replace(ROWS["p3"], beat=6), "row of p3")
    for sent_at in (NOW + 2, NOW + 3):
        learn(view, lost, Trouble.UNSETTLED, sent_at=sent_at, now=sent_at)
    learn(view, ReadOwnRow(), replace(lost.row, etag="newer"), sent_at=NOW + 4, now=NOW + 4)
    assert view.life.accepted_at == NOW + 2


def test_reading_is_asked_for_only_by_those_who_need_it() -> None:
    """A follower that is no successor reads the leader row with each heartbeat, and nothing else."""
    view = view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",)))
    assert kinds(decide(view, NOW + 1)) == []
    assert kinds(decide(view, NOW + 2)) == [MergeOwnRow, ReadLeaderRow]
    named = view_of("p2")
    assert kinds(decide(named, NOW + 1)) == [ScanMembers]
    assert kinds(decide(named, NOW + 2)) == [MergeOwnRow, ReadLeaderRow, ScanMembers]


def test_who_has_just_joined_looks_at_the_others_only_if_nobody_leads() -> None:
    """A thousand that join a thousand would otherwise read a million rows."""
    joined = {"control": None, "scanned_at": NOW - 60}
    assert ScanMembers not in kinds(decide(view_of("p3", leader_row=None, **joined), NOW))
    assert ScanMembers in kinds(decide(view_of("p3", leader_row=Absent(), **joined), NOW))


def test_a_successor_looks_at_the_leaders_rate_once_the_leader_row_did_not_change() -> None:
    named = view_of("p2")
    learn(named, ReadLeaderRow(), named.others.leader_row, sent_at=NOW, now=NOW)  # type: ignore[arg-type]
    assert kinds(decide(named, NOW + 1)) == [ReadLeaderRow, ScanMembers]
    changed = replace(LEADER_ROW, etag="beats")
    learn(named, ReadLeaderRow(), changed, sent_at=NOW + 1, now=NOW + 1)
    assert ReadLeaderRow not in kinds(decide(named, NOW + 2))


def test_who_waits_for_a_task_reads_the_row_of_its_earlier_owner_alone_until_that_has_let_go() -> None:
    """p3 is no successor, and is given what p2 still has."""
    moved = Assignment(owner("p3", 8), after=(owner("p2"),), first=False)
    blob = replace(CONTROL, version=8, revision=10, tasks={**CONTROL.tasks, "clean-1": moved})
    view = view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",), version=8), scanned_at=NOW - 1)
    learn(view, ReadControl(), ControlRead(blob, "newer"), sent_at=NOW, now=NOW)
    asked = ReadMember("p2")
    assert asked in decide(view, NOW)
    assert ScanMembers not in kinds(decide(view, NOW))

    learn(view, asked, ROWS["p2"], sent_at=NOW, now=NOW + 0.1)
    assert starts(view, NOW + 0.2) == []
    assert asked not in decide(view, NOW + 0.2)
    assert asked in decide(view, NOW + 0.1 + TIMING.scan_s)
    learn(view, asked, replace(ROWS["p2"], released={"clean-1": 2}), sent_at=NOW + 1, now=NOW + 1.2)
    assert starts(view, NOW + 1.2) == ["clean-1"]


def test_an_earlier_owner_whose_row_is_gone_has_let_go() -> None:
    moved = Assignment(owner("p3", 8), after=(owner("p2"),), first=False)
    blob = replace(CONTROL, version=8, revision=10, tasks={**CONTROL.tasks, "clean-1": moved})
    view = view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",), version=8), scanned_at=NOW - 1)
    learn(view, ReadControl(), ControlRead(blob, "newer"), sent_at=NOW, now=NOW)
    learn(view, ReadMember("p2"), Trouble.UNAVAILABLE, sent_at=NOW, now=NOW + 0.1)
    assert starts(view, NOW + 0.1) == []
    learn(view, ReadMember("p2"), Absent(), sent_at=NOW + 0.4, now=NOW + 0.5)
    assert starts(view, NOW + 0.5) == ["clean-1"]


def test_with_very_many_members_nobody_reads_more_than_180_rows_a_second() -> None:
    many = {f"q{number}": row(f"q{number}") for number in range(2_000)}
    view = leader()
    view.others.members = ROWS | many
    assert ScanMembers not in kinds(decide(view, NOW + 11))
    assert ScanMembers in kinds(decide(view, NOW + 2_003 / 180))


def test_a_newcomer_that_would_make_the_job_model_too_large_gets_no_task_and_nobody_else_is_disturbed() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p4": row("p4")}
    view.work.plan = None  # so that nothing but the assignment is at stake
    blob = replace(CONTROL, tasks={**CONTROL.tasks, "clean-2": Assignment(owner("p1"), first=False)})
    view.life.control = blob
    [write] = [each for each in decide(view, NOW + 2) if isinstance(each, WriteControl)]
    assert (write.has_newcomers, member("p4") in write.control.members) == (True, True)
    learn(view, write, TooLarge("it needs more"), sent_at=NOW + 2, now=NOW + 2)
    assert (view.leads, view.ending) == (True, None)
    assert WriteControl not in kinds(decide(view, NOW + 3))
    assert WriteControl in kinds(decide(view, NOW + 7))  # what was on the move has arrived, perhaps

    view.others.members = {
        **view.others.members,
        "p3": replace(ROWS["p3"], state=State.DEAD),
    }  # another set of members may fit
    [again] = [each for each in decide(view, NOW + 3) if isinstance(each, WriteControl)]
    assert member("p4") in again.control.members
    learn(view, again, TooLarge("it needs more"), sent_at=NOW + 3, now=NOW + 3)
    [without] = [each for each in decide(view, NOW + 4) if isinstance(each, WriteControl)]
    assert (without.has_newcomers, without.control.members) == (False, (member("p1"), member("p2")))
    assert without.control.tasks["daily-0"].owner in (owner("p1", 10), owner("p2", 10))
    learn(view, without, "written", sent_at=NOW + 4, now=NOW + 4)
    assert not view.office.too_large


def test_of_several_newcomers_as_many_get_tasks_as_the_job_model_has_room_for() -> None:
    view = leader(replace(CONTROL, tasks={f"clean-{n}": Assignment(owner("p1"), first=False) for n in range(9)}))
    view.work.plan = None
    view.others.members = {**view.others.members, **{f"p{number}": row(f"p{number}") for number in range(4, 8)}}
    tried = []
    for moment in range(3):
        now = NOW + 2 + moment
        [write] = [each for each in decide(view, now) if isinstance(each, WriteControl)]
        tried.append([each.processor for each in write.control.members])
        learn(view, write, TooLarge("it needs more"), sent_at=now, now=now)
    everybody = [f"p{number}" for number in range(1, 8)]
    assert tried == [everybody, everybody[:5], everybody[:4]]


def test_members_whom_another_leader_has_let_in_are_no_newcomers_although_they_were_too_many_for_us() -> None:
    view = leader(too_large={CONTROL.members: NOW + 60})
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], tasks={})}
    assert WriteControl not in kinds(decide(view, NOW + 2))


def test_a_next_run_whose_job_model_is_too_large_does_not_begin() -> None:
    """Who is still there of the last run is no reason to begin one that nobody can run."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED)
    view = leader(drained, active_run="", plan=replace(PLAN, fingerprint="e" * 64), tasks={})
    view.life.written = replace(ROWS["p1"], fingerprint="e" * 64, tasks={})
    [write] = [each for each in decide(view, NOW + 2) if isinstance(each, WriteControl)]
    assert write.control.run_id != "run"
    learn(view, write, TooLarge("it needs more"), sent_at=NOW + 2, now=NOW + 2)
    assert verdict(view) == Finish(2, "it needs more")
    assert [each.control.run_id for each in decide(view, NOW + 3) if isinstance(each, WriteControl)] in ([], ["run"])


def test_an_older_copy_of_the_control_blob_ends_whoever_reads_it() -> None:
    view = view_of("p2")
    learn(view, ReadControl(), ControlRead(replace(CONTROL, revision=8), "older"), sent_at=NOW, now=NOW)
    assert BeginEnd(Finish(1, RESTORED)) in decide(view, NOW)
    assert view.control == CONTROL, "it is not adopted"
    leaving = view_of("p2", ending=Finish(0, "done"))
    learn(leaving, ReadControl(), ControlRead(replace(CONTROL, revision=8), "older"), sent_at=NOW, now=NOW)
    assert not any(isinstance(each, BeginEnd) for each in decide(leaving, NOW))
    for other in (replace(CONTROL, revision=10), replace(CONTROL, revision=1, group_id="cd" * 16)):
        view = view_of("p2")
        learn(view, ReadControl(), ControlRead(other, "read"), sent_at=NOW, now=NOW)
        assert not view.life.older_copy and view.control == other


def test_a_first_job_model_that_is_too_large_ends_the_leader_with_2() -> None:
    view = leader(replace(CONTROL, members=(), tasks={}, phase=RunPhase.NONE, version=0))
    [write] = [each for each in decide(view, NOW + 2) if isinstance(each, WriteControl)]
    learn(view, write, TooLarge("it needs more"), sent_at=NOW + 2, now=NOW + 2)
    assert BeginEnd(Finish(2, "it needs more")) in decide(view, NOW + 2)


def test_a_mark_whose_row_was_deleted_meanwhile_is_no_matter() -> None:
    view = leader()
    view.others.members = {}
    learn(view, MarkDead("p3", "row of p3", 3), "etag", sent_at=NOW, now=NOW)
    assert view.others.members == {}


def test_when_the_named_successors_are_gone_too_whoever_changes_the_leader_row_first_goes_on_alone() -> None:
    """A break does not change the blob's ETag: a hundred survivors would break each other's leases."""
    unnamed = replace(LEADER_ROW, successors=("p9",))
    view = view_of("p2", leader_age=SILENT, leader_row=unnamed)
    named = WriteLeaderRow(replace(unnamed, beat=71, successors=("p2",), etag=""), "leader row")
    assert decide(view, NOW) == [named]
    learn(view, named, "ours", sent_at=NOW, now=NOW)
    assert decide(view, NOW) == [BreakLease("control")]

    late = view_of("p3", leader_age=SILENT, leader_row=unnamed)
    learn(late, replace(named, row=replace(unnamed, successors=("p3",))), No("412"), sent_at=NOW, now=NOW)
    assert decide(late, NOW) == [ReadLeaderRow()]
    learn(late, ReadLeaderRow(), replace(named.row, etag="ours"), sent_at=NOW, now=NOW)
    assert BreakLease not in kinds(decide(late, NOW + 5))


CROWD = tuple(member(f"q{number:03}") for number in range(900))


def test_in_a_very_large_group_followers_come_to_the_control_blob_at_different_times() -> None:
    """A blob answers 500 calls a second: who is not named looks for news each 3.6 s, not each 2 s. It beats as ever."""
    follower = view_of("p3", replace(CONTROL, members=CROWD), leader_row=replace(LEADER_ROW, successors=("p2",)))
    assert kinds(decide(follower, NOW + 2)) == [MergeOwnRow]
    assert kinds(decide(follower, NOW + 3.6)) == [MergeOwnRow, ReadLeaderRow]
    named = view_of("p2", replace(CONTROL, members=CROWD))
    assert ReadLeaderRow in kinds(decide(named, NOW + 2))


def test_in_a_very_large_group_who_waits_for_many_reads_one_row_after_the_other() -> None:
    """A table partition carries 2,000 calls a second. Each of 900 reads one per 3.6 s, the least recently seen."""
    moved = {f"t-{n}": Assignment(owner("p3", 8), after=(owner(f"q{n}"),), first=False) for n in range(2)}
    unnamed = replace(LEADER_ROW, successors=("p2",), version=8)
    for crowd, expected in ((CROWD[:3], ["q0", "q1"]), (CROWD, ["q0"])):
        blob = replace(CONTROL, version=8, revision=10, members=crowd, tasks=moved)
        view = view_of("p3", leader_row=unnamed, scanned_at=NOW - 1)
        learn(view, ReadControl(), ControlRead(blob, "newer"), sent_at=NOW, now=NOW)
        assert [each.processor for each in decide(view, NOW) if isinstance(each, ReadMember)] == expected
    learn(view, ReadMember("q0"), row("q0"), sent_at=NOW, now=NOW)
    assert ReadMember not in kinds(decide(view, NOW + 3.5))
    assert ReadMember("q1") in decide(view, NOW + 3.6)
    learn(view, ReadMember("q1"), row("q1"), sent_at=NOW + 3.6, now=NOW + 3.6)
    assert ReadMember("q0") in decide(view, NOW + 7.2)


def test_in_a_very_large_group_what_others_wait_for_is_written_less_often() -> None:
    """All 900 change their rows with each version; each waits so long after its last write, no longer than a beat."""
    news = LocalTask(2, 1, NOW, report("daily-0", batch=7))
    for crowd, gap in ((CROWD[:3], 0.1), (CROWD, 1.5), (CROWD * 9, 2.0)):
        view = view_of("p3", replace(CONTROL, members=crowd), tasks={"daily-0": news})
        assert MergeOwnRow not in kinds(decide(view, NOW + gap - 0.01))
        assert MergeOwnRow in kinds(decide(view, NOW + gap))


def test_age_is_counted_in_the_intervals_in_which_a_large_group_is_read() -> None:
    """Reads eleven seconds apart are as they should be with 2,000 members, and count in full."""
    rows = tuple(ROWS.values()) + tuple(row(f"q{number}") for number in range(2_000))
    view = leader()
    for now in (NOW, NOW + 11, NOW + 22):
        learn(view, ScanMembers(), rows, sent_at=now, now=now)
    assert view.others.ages["q7"].seconds == 22.0


def test_the_control_blob_is_read_when_the_leader_row_says_there_is_news() -> None:
    newer = replace(LEADER_ROW, version=11, etag="news")
    assert decide(view_of("p3", leader_row=newer), NOW) == [ReadControl(unless_etag="control")]
    assert signal(CONTROL) == LEADER_ROW.signal
    assert life_of("p3") == "life of p3"


def test_one_whose_row_a_clean_up_has_forgotten_comes_back_too() -> None:
    view = view_of("p2")
    view.life.found = Absent()
    assert any(isinstance(action, Rejoin) for action in decide(view, NOW + 3))


def test_another_pipeline_is_refused_by_a_failed_run_as_well() -> None:
    failed = replace(CONTROL, phase=RunPhase.FAILED, failure=Failure("clean", "clean-0", "no", "trace"))
    view = view_of("p2", failed)
    view.life.active_run, view.work.plan = "", replace(PLAN, fingerprint="e" * 64)
    [begin] = [action for action in decide(view, NOW) if isinstance(action, BeginEnd)]
    assert begin.verdict.code == 2
    assert "Drain the run with the old code" in begin.verdict.message


# Back before it was dead.


def restarted(**more: object) -> View:
    """p1 leads, and has just seen that p2 was started again: there is a new life of it, which has read nothing yet."""
    view = leader()
    new = replace(row("p2"), incarnation="new life", etag="new", adopted=0, state=State.UNASSIGNED, fingerprint="")
    learn(view, ScanMembers(), (ROWS["p1"], replace(new, **more), ROWS["p3"]), sent_at=NOW, now=NOW)  # type: ignore[arg-type]
    return view


def owners(control: Control) -> dict[str, str]:
    return {task: each.owner.incarnation for task, each in control.tasks.items() if each.owner is not None}


def test_the_tasks_of_one_that_is_back_wait_until_it_is_able_and_are_its_own_again_with_one_version() -> None:
    view = restarted()
    assert next_control(view, CONTROL, NOW) == CONTROL
    able = replace(row("p2"), incarnation="new life", etag="able", state=State.ACTIVE)
    learn(view, ScanMembers(), (ROWS["p1"], able, ROWS["p3"]), sent_at=NOW + 1, now=NOW + 1)
    after = next_control(view, CONTROL, NOW + 1)
    assert owners(after) == {**owners(CONTROL), "clean-1": "new life"}
    assert after.tasks["clean-1"] == Assignment(Owner("p2", "new life", after.version), (), first=False)
    assert after.version > CONTROL.version


@pytest.mark.parametrize(
    "more",
    [{"fingerprint": "e" * 64}, {"state": State.LEAVING}],
    ids=["it has another pipeline", "it leaves"],
)
def test_they_do_not_wait_for_one_that_cannot_have_them(more: dict[str, object]) -> None:
    assert owners(next_control(restarted(**more), CONTROL, NOW))["clean-1"] in (life_of("p1"), life_of("p3"))


def test_they_wait_for_a_death_timeout_at_most() -> None:
    view = restarted()
    soon = NOW + TIMING.heartbeat_timeout_s
    assert next_control(view, CONTROL, soon - 0.1) == CONTROL
    assert owners(next_control(view, CONTROL, soon))["clean-1"] in (life_of("p1"), life_of("p3"))


def test_one_that_is_restarted_again_and_again_keeps_them_once_in_ten_minutes() -> None:
    view = restarted()
    third = replace(row("p2"), incarnation="third life", etag="third", adopted=0, fingerprint="")
    learn(view, ScanMembers(), (ROWS["p1"], third, ROWS["p3"]), sent_at=NOW + 1, now=NOW + 1)
    assert owners(next_control(view, CONTROL, NOW + 1))["clean-1"] in (life_of("p1"), life_of("p3"))
    learn(view, ScanMembers(), (ROWS["p1"], third, ROWS["p3"]), sent_at=NOW + 601, now=NOW + 601)
    assert view.others.back == {}


# What is forgotten.


def test_nothing_of_a_former_life_is_left_in_the_next_one() -> None:
    """A wait that had begun in the former life used to go on, and was over too early in the next."""
    view = view_of("p3", waiting_since={"clean-1": NOW - 40}, rewritten=1, control_read_for="leader row")
    perform_locally(view, Rejoin("It was marked dead."), NOW)
    assert view.life == Life("fresh")
    assert view.work.tasks["daily-0"].former


def test_a_leader_that_led_before_knows_nothing_of_its_former_leadership() -> None:
    """Requests that it had read then used to be answered again, under ETags of that time."""
    view = leader(requests=(Request("d", "etag", RequestKind.DRAIN),), clean_tries=3)
    perform_locally(view, StepDown("The lease was not renewed in time."), NOW)
    assert view.leadership is None
    view.candidacy.campaign = Campaign("control", lease=Lease("won", NOW + 50), read=True)
    won = replace(CONTROL, epoch=4, revision=10)
    learn(view, WriteControl(won, "control", "won"), "newer", sent_at=NOW + 51, now=NOW + 51)
    assert view.leadership == Leadership(Lease("won", NOW + 50), since=NOW + 51, barrier_since=NOW + 51)


def test_one_that_comes_back_as_another_life_and_is_refused_was_let_in_before() -> None:
    """It had no beat yet in this life, so it used to end at once, as one that was never let in."""
    view = view_of("p3", let_in=True)
    perform_locally(view, Rejoin("It was marked dead."), NOW)
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW, now=NOW + 1)
    assert verdict(view) is None
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW + 60, now=NOW + 61)
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW + 120, now=NOW + 121)
    assert verdict(view) == Finish(5, f"AuthenticationFailed. {GIVEN_UP}")


def test_one_that_was_never_let_in_ends_at_once() -> None:
    view = newcomer()
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW, now=NOW + 1)
    assert verdict(view) == Finish(2, "AuthenticationFailed.")


def test_asking_writes_nothing_and_says_when_to_ask_again() -> None:
    view = view_of("p2")
    before = repr(view)
    decision = deciding.decide(view, NOW)
    assert (decision.actions, decision.wake_at) == ([], NOW + 1.0), "it is a successor: it reads the leader row next"
    assert repr(view) == before


def test_a_leader_that_has_not_looked_yet_cleans_nothing_up() -> None:
    """It knew nobody, took the run for left, and deleted the logs of tasks that others still had open."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    view = leader(drained, members={}, scanned_at=-1e9, since=NOW - 1, active_run="")
    assert CleanRun not in kinds(decide(view, NOW))
    learn(view, ScanMembers(), (ROWS["p1"],), sent_at=NOW, now=NOW)
    assert CleanRun in kinds(decide(view, NOW))
