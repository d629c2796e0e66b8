"""Membership: joining, heartbeats, ages, marking dead, rejoining."""

from dataclasses import replace

import pytest

from samza_azure.group import actions
from samza_azure.group.actions import (
    Finish,
    InsertOwnRow,
    MarkDead,
    MergeOwnRow,
    ReadControl,
    ReadOwnRow,
    Rejoin,
    ReplaceOwnRow,
    ScanMembers,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import ControlRead, Denied, Trouble
from samza_azure.group.ending import GIVEN_UP, verdict
from samza_azure.group.learn import learn, perform_locally, turn
from samza_azure.group.membership import own_row
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.timing import OUT_OF_REACH
from samza_azure.group.view import Failing, OwnIncarnation, Settings, View
from samza_azure.messages import (
    Permit,
    Phase,
    ReleaseTask,
)
from samza_azure.outcomes import Missing, Refused
from tests.group.situation import (
    CONTROL,
    DEAD,
    NOW,
    ROWS,
    TIMING,
    commands_in,
    decide,
    kinds,
    leader,
    report,
    row,
    starts,
    view_of,
)
from tests.group.transcript import Story


def newcomer() -> View:
    view = View(Settings("p9", TIMING, boot="boot"), OwnIncarnation("new"))
    turn(view, NOW, random=0.5, fresh_id="fresh", wall_ms=1)
    return view


def test_a_processor_checks_whether_its_id_is_in_use_before_it_joins() -> None:
    assert decide(newcomer(), NOW) == [ReadOwnRow()]


def test_a_joining_processor_inserts_its_row_if_there_is_none() -> None:
    view = newcomer()
    learn(view, ReadOwnRow(), Missing(), sent_at=NOW, now=NOW)
    assert decide(view, NOW) == [InsertOwnRow(ProcessorRow("p9", "new", boot="boot"))]


@pytest.mark.parametrize("lost", [InsertOwnRow, ReplaceOwnRow])
def test_a_processor_whose_join_was_not_answered_and_whose_row_is_gone_rejoins(lost: type) -> None:
    """Simulator seed 881000: the row was written, marked dead and deleted before its processor asked again."""
    view = newcomer()
    row = ProcessorRow("p9", "new", boot="boot")
    action = InsertOwnRow(row) if lost is InsertOwnRow else ReplaceOwnRow(row, "etag")
    learn(view, action, Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    learn(view, ReadOwnRow(), Missing(), sent_at=NOW + 10, now=NOW + 10)
    assert kinds(decide(view, NOW + 10)) == [Rejoin]


@pytest.mark.parametrize("state", [ProcessorState.DEAD, ProcessorState.LEFT])
def test_a_joining_processor_replaces_a_row_that_is_dead_or_left(state: ProcessorState) -> None:
    view = newcomer()
    learn(view, ReadOwnRow(), ProcessorRow("p9", "old", "etag", state=state), sent_at=NOW, now=NOW)
    assert decide(view, NOW) == [ReplaceOwnRow(ProcessorRow("p9", "new", boot="boot"), "etag")]


def test_a_joining_processor_replaces_its_predecessor_of_this_boot_at_once_if_the_directory_is_free() -> None:
    view = newcomer()
    learn(view, ReadOwnRow(), ProcessorRow("p9", "old", "etag", boot="boot"), sent_at=NOW, now=NOW)
    assert kinds(decide(view, NOW)) == [ReplaceOwnRow]


def test_a_joining_processor_waits_for_the_silence_of_a_predecessor_of_another_boot() -> None:
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


def test_foreign_merges_into_the_row_of_a_dead_predecessor_delay_no_join() -> None:
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


def test_a_processor_marked_dead_before_its_join_was_answered_rejoins() -> None:
    view = newcomer()
    joins = InsertOwnRow(ProcessorRow("p9", "new", boot="boot"))
    learn(view, joins, Trouble.UNSETTLED, sent_at=NOW, now=NOW + 10)
    dead = ProcessorRow("p9", "new", "marked", boot="boot", state=ProcessorState.DEAD)
    learn(view, ReadOwnRow(), dead, sent_at=NOW + 11, now=NOW + 11)
    assert kinds(decide(view, NOW + 11)) == [Rejoin]


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
        assert (view.own.etag, view.own.accepted_at) == ("row of p3", NOW)


def test_after_a_lost_answer_it_reads_its_row_and_goes_on() -> None:
    view = view_of("p3")
    learn(view, MergeOwnRow(ROWS["p3"], "row of p3"), Trouble.UNSETTLED, sent_at=NOW + 2, now=NOW + 3)
    assert ReadOwnRow() in decide(view, NOW + 4)
    learn(view, ReadOwnRow(), replace(ROWS["p3"], etag="newer", beat=6), sent_at=NOW + 4, now=NOW + 4)
    [beat] = [action for action in decide(view, NOW + 4) if isinstance(action, MergeOwnRow)]
    assert (beat.etag, beat.row.beat) == ("newer", 7)


def test_a_processor_marked_dead_stops_its_work_and_rejoins_as_a_new_incarnation(story: Story) -> None:
    view = view_of("p3")
    dead = replace(ROWS["p3"], etag="marked", state=ProcessorState.DEAD)
    story.turn(view, NOW + 2, {MergeOwnRow: Refused("UpdateConditionNotSatisfied")})
    story.turn(view, NOW + 3, {ReadOwnRow: dead})
    story.turn(view, NOW + 3)
    assert view.incarnation == "fresh"
    actions = story.turn(view, NOW + 3.1, {ReadOwnRow: dead})
    assert commands_in(actions) == [Permit(0.0), ReleaseTask("daily-0")]
    story.reports(view, report("daily-0", Phase.RELEASED), NOW + 3.2)
    story.turn(view, NOW + 3.3, {ReplaceOwnRow: "back"})
    story.turn(view, NOW + 3.4, {ReadControl: ControlRead(CONTROL, "control")})
    assert starts(view, NOW + 3.5) == [], "its tasks belong to its former life until the leader gives it some"
    story.turn(view, NOW + 3.5)


def test_a_new_incarnation_has_adopted_nothing_before_it_reads_the_control_blob() -> None:
    """A processor that can write its row and not read the blob would be given tasks, time out, and join again
    for more."""
    view = view_of("p3")
    perform_locally(view, Rejoin("marked dead"), NOW)
    row = own_row(view)
    assert (row.incarnation, row.adopted, row.state) == ("fresh", 0, ProcessorState.UNASSIGNED)


def test_the_permit_ends_three_quarters_of_the_timeout_after_the_accepted_heartbeat_was_sent() -> None:
    view = view_of("p3")
    learn(view, MergeOwnRow(ROWS["p3"], "row of p3"), "newer", sent_at=NOW + 2, now=NOW + 2.9)
    assert commands_in(decide(view, NOW + 3)) == [Permit(NOW + 2 + 0.75 * TIMING.heartbeat_timeout_s)]


def test_a_silent_member_is_marked_by_the_etag_whose_age_was_measured() -> None:
    view = leader()
    view.others.ages["p3"] = DEAD
    assert MarkDead("p3", "row of p3", 3) in decide(view, NOW + 0.05)


def test_a_leader_that_is_cut_off_itself_marks_no_processor_dead() -> None:
    view = leader(accepted_at=NOW - 5)
    view.others.ages["p3"] = DEAD
    assert MarkDead not in kinds(decide(view, NOW + 0.05))


def test_a_leader_forgets_its_suspicions_when_its_heartbeats_are_accepted_again() -> None:
    """Reads may have worked while no write did: the others were silent, and alive."""
    view = leader(accepted_at=NOW - 5)
    view.others.ages["p3"] = DEAD
    learn(view, MergeOwnRow(ROWS["p1"], "row of p1"), "newer", sent_at=NOW, now=NOW)
    assert MarkDead not in kinds(decide(view, NOW + 0.05))


def test_a_leader_that_was_frozen_forgets_its_suspicions() -> None:
    view = leader()
    view.others.ages["p3"] = DEAD
    turn(view, NOW + 60, random=0.5, fresh_id="fresh", wall_ms=1)
    assert view.others.ages["p3"] == Age("row of p3", 0.0, 0, NOW + 60)


def test_a_dead_mark_without_an_answer_is_settled_by_the_next_read() -> None:
    view = leader(ages={"p3": DEAD})
    learn(view, MarkDead("p3", "row of p3", 3), Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    assert MarkDead not in kinds(decide(view, NOW + 0.9))
    learn(view, ScanMembers(), tuple(ROWS.values()), sent_at=NOW + 1, now=NOW + 1)  # it did not happen
    assert MarkDead("p3", "row of p3", 3) in decide(view, NOW + 1)


def test_a_heartbeat_without_an_answer_counts_from_its_sending_once_the_row_is_read() -> None:
    """Else the next one comes so late after the last that an observer takes it for the end of an outage."""
    view = leader(ages={"p3": DEAD}, scanned_at=NOW + 5)
    lost = MergeOwnRow(replace(ROWS["p1"], beat=6), "row of p1")
    learn(view, lost, Trouble.UNSETTLED, sent_at=NOW + 2, now=NOW + 4.7)
    learn(view, ReadOwnRow(), replace(lost.row, etag="newer"), sent_at=NOW + 4.8, now=NOW + 4.9)
    assert (view.own.accepted_at, view.own.etag) == (NOW + 2, "newer")
    learn(view, MergeOwnRow(replace(lost.row, beat=7), "newer"), "newest", sent_at=NOW + 5, now=NOW + 5)
    assert view.others.ages == {"p3": DEAD}


def test_ages_survive_a_gap_in_the_own_heartbeats_in_which_others_have_written() -> None:
    """Not the storage was away, only our own calls came late."""
    view = leader(ages={**leader().others.ages, "p3": DEAD}, scanned_at=NOW + 3)
    rows = (ROWS["p1"], replace(ROWS["p2"], etag="newer"), ROWS["p3"])
    learn(view, ScanMembers(), rows, sent_at=NOW + 4, now=NOW + 4)
    silent = view.others.ages["p3"]
    learn(view, MergeOwnRow(ROWS["p1"], "row of p1"), "newer", sent_at=NOW + 4.9, now=NOW + 5)
    assert view.others.ages["p3"] == silent
    learn(view, MergeOwnRow(ROWS["p1"], "newer"), "newest", sent_at=NOW + 10, now=NOW + 10)
    assert view.others.ages["p3"].seconds == 0


@pytest.mark.parametrize("is_answered", [True, False], ids=["an answer", "a read finds it"])
def test_who_could_not_beat_for_as_long_as_it_may_work_takes_nobody_for_dead(is_answered: bool) -> None:
    """A few writes of others landed in an outage of all writes, so it seemed to be its own; those whose writes did not
    land were marked dead."""
    seen = NOW + 0.75 * TIMING.heartbeat_timeout_s - 0.5
    view = leader(ages={"p3": DEAD}, write_seen_at=seen, scanned_at=seen + 0.2)
    beat = MergeOwnRow(replace(ROWS["p1"], beat=6), "row of p1")
    if is_answered:
        learn(view, beat, "newer", sent_at=seen + 1, now=seen + 1)
    else:
        learn(view, beat, Trouble.UNSETTLED, sent_at=seen + 1, now=seen + 3)
        learn(view, ReadOwnRow(), replace(beat.row, etag="newer"), sent_at=seen + 3, now=seen + 3)
    assert view.own.accepted_at == seen + 1
    assert view.others.ages["p3"].seconds == 0


def test_ages_are_forgotten_also_where_another_is_the_first_who_can_write_again() -> None:
    """No write worked for half a minute. When a leader saw that others could write again, it took the silent ones for
    dead."""
    view = leader(ages={**leader().others.ages, "p3": DEAD}, scanned_at=NOW + 29)
    rows = (ROWS["p1"], replace(ROWS["p2"], etag="newer"), ROWS["p3"])
    learn(view, ScanMembers(), rows, sent_at=NOW + 30, now=NOW + 30)
    learn(view, MergeOwnRow(ROWS["p1"], "row of p1"), "newer", sent_at=NOW + 31, now=NOW + 31)
    assert view.others.ages["p3"].seconds == 0


def test_the_earlier_of_two_unsettled_heartbeats_with_the_same_number_counts() -> None:
    view = view_of("p3")
    lost = MergeOwnRow(replace(ROWS["p3"], beat=6), "row of p3")
    for sent_at in (NOW + 2, NOW + 3):
        learn(view, lost, Trouble.UNSETTLED, sent_at=sent_at, now=sent_at)
    learn(view, ReadOwnRow(), replace(lost.row, etag="newer"), sent_at=NOW + 4, now=NOW + 4)
    assert view.own.accepted_at == NOW + 2


def test_a_dead_mark_for_a_row_that_was_deleted_meanwhile_is_ignored() -> None:
    view = leader()
    view.others.members = {}
    learn(view, MarkDead("p3", "row of p3", 3), "etag", sent_at=NOW, now=NOW)
    assert view.others.members == {}


def test_age_is_counted_in_the_intervals_in_which_a_large_group_is_read() -> None:
    """Reads eleven seconds apart are as they should be with 2,000 members, and count in full."""
    rows = tuple(ROWS.values()) + tuple(row(f"q{number}") for number in range(2_000))
    view = leader()
    for now in (NOW, NOW + 11, NOW + 22):
        learn(view, ScanMembers(), rows, sent_at=now, now=now)
    assert view.others.ages["q7"].seconds == 22.0


def test_a_processor_whose_row_was_cleaned_up_rejoins() -> None:
    view = view_of("p2")
    view.own.found = Missing()
    assert any(isinstance(action, Rejoin) for action in decide(view, NOW + 3))


def test_nothing_of_a_former_incarnation_is_left_in_the_next_one() -> None:
    """A wait that had begun in the former incarnation went on, and was over too early in the next."""
    view = view_of("p3", waiting_since={"clean-1": NOW - 40}, rewritten=1, control_read_for="leader row")
    perform_locally(view, Rejoin("It was marked dead."), NOW)
    assert view.own == OwnIncarnation("fresh")
    assert view.work.tasks["daily-0"].former


def test_a_new_incarnation_that_is_refused_counts_as_admitted_before() -> None:
    """Its new incarnation had no heartbeat yet, so it ended at once, like a processor that was never admitted."""
    view = view_of("p3", let_in=True)
    perform_locally(view, Rejoin("It was marked dead."), NOW)
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW, now=NOW + 1)
    assert verdict(view) is None
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW + 60, now=NOW + 61)
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW + 120, now=NOW + 121)
    assert verdict(view) == Finish(5, f"AuthenticationFailed. {GIVEN_UP}")


@pytest.mark.parametrize("state", [ProcessorState.UNASSIGNED, ProcessorState.DEAD])
def test_a_processor_that_finds_its_row_was_admitted_before(state: ProcessorState) -> None:
    """The answer to the write that joined was lost, and no heartbeat came through before the account refused it: it
    ended at once, like a processor that was never admitted."""
    view = newcomer()
    joins = InsertOwnRow(ProcessorRow("p9", "new", boot="boot"))
    learn(view, joins, Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    learn(view, ReadOwnRow(), replace(joins.row, etag="there", state=state), sent_at=NOW, now=NOW)
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW, now=NOW + 1)
    assert verdict(view) is None


def test_a_processor_that_was_never_admitted_ends_at_once() -> None:
    view = newcomer()
    learn(view, ReadOwnRow(), Denied("AuthenticationFailed."), sent_at=NOW, now=NOW + 1)
    assert verdict(view) == Finish(2, "AuthenticationFailed.")


@pytest.mark.parametrize(("times", "expected"), [(OUT_OF_REACH - 1, False), (OUT_OF_REACH, True)])
def test_so_many_calls_without_an_answer_mean_that_the_control_blob_is_out_of_reach(
    times: int,
    expected: bool,
) -> None:
    view = view_of("p2")
    view.calls.failing[actions.CONTROL] = Failing(times, NOW)
    assert view.cut_off is expected
