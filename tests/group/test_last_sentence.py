"""What a processor that was asked to leave says in the end is what came of it, also when the storage is away."""

from dataclasses import replace

import pytest

from samza_azure.errors import Verdict
from samza_azure.group import tasks
from samza_azure.group.actions import OWN_ROW, Finish, MergeOwnRow, Tell
from samza_azure.group.control import Assignment
from samza_azure.group.ending import FAREWELL_S, HANDED_OVER
from samza_azure.group.learn import heard_container_lost, turn
from samza_azure.group.membership import own_row
from samza_azure.group.rows import ProcessorState
from samza_azure.group.tasks import PATIENCE, SILENT_S
from samza_azure.group.timing import LEAVING_BEAT_S, PROFILES, SELF_STOP, Timing
from samza_azure.group.view import LocalTask, View
from samza_azure.host.processor import CALL_S
from samza_azure.host.supervisor import GOODBYE_S
from samza_azure.messages import Permit, Phase
from tests.group.situation import CONTROL, NOW, decide, kinds, owner, report, view_of


def leaving(phase: Phase, *, left: bool) -> View:
    """p3, asked to leave long ago, with its one task in this phase."""
    view = view_of("p3", leaving=True, ending=Finish(Verdict.DONE, HANDED_OVER), ending_since=NOW - 1_000)
    assert view.own.found is not None
    written = replace(view.own.found, state=ProcessorState.LEFT if left else ProcessorState.LEAVING)
    view.own.written = written
    view.work.tasks = {"daily-0": LocalTask(2, 1, NOW - 2_000, report("daily-0", phase), releasing_since=NOW - 1_000)}
    assert PATIENCE * view.settings.shutdown_s + FAREWELL_S < 1_000
    return view


def said(view: View, code: Verdict = Verdict.LEFT_OPEN) -> str:
    *_, finish = decide(view, NOW)
    assert isinstance(finish, Finish) and finish.code is code
    return finish.message


def test_a_hand_over_that_was_answered_is_reported() -> None:
    assert said(leaving(Phase.RELEASED, left=True), Verdict.DONE) == HANDED_OVER


def test_the_last_message_counts_what_was_handed_over_and_names_the_rest_and_what_is_repeated() -> None:
    view = leaving(Phase.RELEASED, left=True)
    view.ending = replace(view.ending, code=Verdict.DONE)  # type: ignore[type-var]
    view.held, view.repeated = {"daily-0": 2, "clean-0": 1}, {"clean-0": 700}
    assert said(view, Verdict.DONE) == (
        "Left the group; 1 of 2 tasks handed over. daily-0: no other processor has got it yet; the next owner goes on "
        "from the log. Batches given up, because they could not end in time: clean-0; the next owners repeat 700 input "
        "rows."
    )


def test_a_last_message_names_the_write_that_the_storage_did_not_accept() -> None:
    text = said(leaving(Phase.RELEASED, left=False))
    assert text == (
        "Left the group, but could not write this to the storage: the others do not know; others get daily-0 when it "
        "has been silent for 8 s."
    )


def test_a_last_message_names_no_task_that_others_have_already() -> None:
    """The storage knows that daily-0 is released; that clean-0 is, it does not, and clean-1 is still ours."""
    view = leaving(Phase.RELEASED, left=False)
    mine, after = owner("p3"), (owner("p3"),)
    moved = {task: Assignment(owner("p2", 12), after=after, first=False) for task in ("daily-0", "clean-0")}
    view.own.control = replace(CONTROL, version=12, tasks={**moved, "clean-1": Assignment(mine, first=False)})
    view.work.tasks |= {
        task: LocalTask(2, 2, NOW - 2_000, report(task, Phase.RELEASED), releasing_since=NOW - 1_000)
        for task in ("clean-0", "clean-1")
    }
    view.own.written = replace(own_row(view), released={"daily-0": 2})
    assert "; others get clean-0, clean-1 when it has been silent" in said(view)


def test_what_a_container_that_did_not_release_it_has_left_is_repeated() -> None:
    """It hung and was ended, so nobody could say which rows its last batch had read."""
    view = view_of("p3", leaving=True)
    view.work.tasks["daily-0"].releasing_since = NOW
    turn(view, NOW, random=0.5, fresh_id="fresh", wall_ms=1)
    heard_container_lost(view, NOW + 1)
    assert view.repeated == {"daily-0": -1}
    view.repeated = {"daily-0": -1, "clean-0": 700}
    view.ending, view.ending_since = Finish(Verdict.DONE, HANDED_OVER), NOW - 1_000
    view.own.written = replace(own_row(view), state=ProcessorState.LEFT)
    assert said(view, Verdict.DONE).endswith(
        "Batches given up, because they could not end in time: clean-0, daily-0; the next owners repeat at least 700 "
        "input rows."
    )


def test_a_task_that_did_not_end_in_time_appends_nothing_after_the_last_write() -> None:
    """A clock that jumped ended the patience; LEFT was written, and the task went on until its container was gone."""
    view = leaving(Phase.RUNNING, left=False)
    view.ending_since = NOW - 10
    permit, last_word = (action for action in decide(view, NOW) if isinstance(action, Tell | MergeOwnRow))
    assert permit == Tell(Permit(0.0))
    assert isinstance(last_word, MergeOwnRow) and last_word.row.state is ProcessorState.LEFT


def test_a_task_that_did_not_end_is_named_and_its_doubt_with_it() -> None:
    text = said(leaving(Phase.RUNNING, left=False))
    assert "the others do not know" in text
    assert "daily-0 did not end in time; the next owner finds in the log whether the last batch is stored." in text
    assert said(leaving(Phase.RUNNING, left=True)).startswith("Left the group. daily-0 did not end in time")


@pytest.mark.parametrize("timing", PROFILES.values(), ids=list(PROFILES))
@pytest.mark.parametrize("went_on", [True, False])
def test_a_leaving_processor_without_storage_waits_for_its_permit_and_its_last_write(
    timing: Timing, went_on: bool
) -> None:
    """Its task cannot end, since the storage does not answer. With the container's 5 s this stays below 20 s."""
    view = leaving(Phase.RUNNING, left=False)
    view.settings = replace(view.settings, timing=timing)
    since = view.ending_since = view.work.tasks["daily-0"].releasing_since = NOW
    view.own.accepted_at = NOW if went_on else NOW - 100  # the outage began long before
    silent = since + min(SELF_STOP * timing.heartbeat_timeout_s, SILENT_S) if went_on else since
    over = silent + FAREWELL_S
    assert over + GOODBYE_S <= since + 20

    def finishes(at: float) -> list[Finish]:
        return [each for each in decide(view, at) if isinstance(each, Finish)]

    if went_on:
        assert tasks.may_still_release(view, silent - 0.1) and not finishes(silent - 0.1)
    assert Tell(Permit(0.0)) in decide(view, silent) and not finishes(silent)
    assert not finishes(over - 0.1)
    [finish] = finishes(over)
    assert "the others do not know" in finish.message and "daily-0 did not end in time" in finish.message
    view.own.accepted_at = over  # it answers again
    assert tasks.may_still_release(view, over) and not finishes(over)


def test_a_leaving_processor_of_a_slow_profile_sends_heartbeats_more_often() -> None:
    """With a heartbeat of 12 s it cut its tasks short after 10 s, although the storage was well."""
    view = leaving(Phase.RUNNING, left=False)
    slow = Timing(heartbeat_s=12.0, heartbeat_timeout_s=40.0, leader_timeout_s=30.0)
    view.settings = replace(view.settings, timing=slow)
    view.ending_since = view.calls.beat_sent_at = view.own.accepted_at = NOW
    view.work.tasks["daily-0"].releasing_since = NOW
    view.own.written = own_row(view)
    assert MergeOwnRow not in kinds(decide(view, NOW + LEAVING_BEAT_S - 0.1))
    assert MergeOwnRow in kinds(decide(view, NOW + LEAVING_BEAT_S))
    lost = LEAVING_BEAT_S + CALL_S + view.back_off(OWN_ROW).longest_s
    assert lost + CALL_S / 2 < SILENT_S, "one heartbeat may be lost"


def test_a_last_word_that_is_accepted_after_all_gives_no_task_its_permit_back() -> None:
    """Simulator seed 1000111: a clock jumped, LEFT was accepted at once, and with its new permit a task appended."""
    view = leaving(Phase.RUNNING, left=True)
    view.ending_since = view.work.tasks["daily-0"].releasing_since = view.own.accepted_at = NOW
    view.work.permit_sent = 0.0
    assert not tasks.may_still_release(view, NOW)
    assert not [each for each in decide(view, NOW) if isinstance(each, Tell) and isinstance(each.command, Permit)]
