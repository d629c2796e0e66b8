"""What a processor does about a run that failed, is drained, or has another pipeline, through `decide`."""

from dataclasses import replace
from typing import Any

import pytest

from samza_azure.errors import Verdict
from samza_azure.group import next_run
from samza_azure.group.actions import BeginEnd, Finish, MergeOwnRow, ReadControl, Rejoin, WriteControl
from samza_azure.group.answers import ControlRead
from samza_azure.group.control import Control, Failure, RunPhase
from samza_azure.group.ending import HANDED_OVER, of_start, waiting
from samza_azure.group.learn import heard_leave, learn, perform_locally
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import ProcessorState
from samza_azure.group.view import Settings, View
from samza_azure.host.status import document
from samza_azure.messages import DrainStep, Plan
from tests.group.situation import CONTROL, NOW, PLAN, ROWS, decide, leader, member, view_of

FAILURE = Failure("clean", "clean-0", "no such column", "Traceback of the stage")
FAILED = replace(CONTROL, phase=RunPhase.FAILED, failure=FAILURE)
DRAINED = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), finished=(CONTROL.fingerprint,), uncleaned=("run",))


def settings_of(view: View, **more: Any) -> View:
    view.settings = replace(view.settings, **more)
    return view


def verdicts(view: View) -> list[tuple[int, str]]:
    return [(each.verdict.code, each.verdict.message) for each in decide(view, NOW) if isinstance(each, BeginEnd)]


def written(view: View) -> list[Control]:
    return [each.control for each in decide(view, NOW) if isinstance(each, WriteControl)]


def test_a_processor_that_took_part_in_a_failed_run_ends_with_its_reason() -> None:
    assert verdicts(view_of("p2", FAILED)) == [(1, "Task clean-0 failed: no such column\nTraceback of the stage")]


def test_a_processor_that_gives_up_hands_over_and_ends_with_its_reason() -> None:
    """Its container ended three times in a row; the row said "0 Left the group"."""
    why = "The container ended 3 times in a row (exit code 7).\nSee its log."
    view = view_of("p3", beat_sent_at=NOW - 60)
    heard_leave(view, why)
    [leaving] = [each.row for each in decide(view, NOW) if isinstance(each, MergeOwnRow)]
    assert (leaving.state, leaving.failure) == (ProcessorState.LEAVING, (1, why.partition("\n")[0]))
    assert verdicts(view) == [(1, why)]
    view.ending, view.ending_since, view.work.tasks = Finish(Verdict.FAILED, why), NOW, {}
    [last] = [each.row for each in decide(view, NOW) if isinstance(each, MergeOwnRow)]
    assert (last.state, last.failure) == (ProcessorState.LEFT, leaving.failure)


def test_giving_up_while_ending_does_not_change_the_verdict() -> None:
    view = view_of("p3", leaving=True, ending=Finish(Verdict.DONE, HANDED_OVER), ending_since=NOW)
    view.work.tasks = {}
    heard_leave(view, "The container ended 3 times in a row.")
    assert {each.row.ending for each in decide(view, NOW) if isinstance(each, MergeOwnRow)} == {f"0 {HANDED_OVER}"}


def test_the_next_leader_resumes_a_failed_run_and_its_drain() -> None:
    assert verdicts(view_of("p2", FAILED, active_run="")) == []
    (resumed,) = written(leader(FAILED, active_run=""))
    assert (resumed.phase, resumed.failure, resumed.run_id) == (RunPhase.RUNNING, None, "run")
    drain = DrainNotification("uuid", "run", step=DrainStep.FREEZE)
    (resumed,) = written(leader(replace(FAILED, drain=drain), active_run=""))
    assert (resumed.phase, resumed.drain) == (RunPhase.DRAINING, drain)


def test_a_leader_that_saw_it_fail_or_has_other_code_does_not_resume_it() -> None:
    assert written(leader(FAILED)) == []
    assert written(leader(replace(FAILED, fingerprint="e" * 64, leader=member("p1")), active_run="")) == []


@pytest.mark.parametrize(("waits", "codes"), [(True, []), (False, [0])])
def test_the_same_pipeline_after_a_drain_ends_or_waits_for_an_upgrade(waits: bool, codes: list[int]) -> None:
    cleaned = replace(DRAINED, uncleaned=())
    view = settings_of(view_of("p2", cleaned, active_run=""), wait_for_upgrade=waits)
    assert [code for code, _ in verdicts(view)] == codes


OTHER = replace(PLAN, fingerprint="e" * 64, sources={"flights": 4})
DRAINED_TWICE = replace(DRAINED, uncleaned=(), finished=(OTHER.fingerprint, PLAN.fingerprint))


@pytest.mark.parametrize(
    ("control", "plan", "code", "says"),
    [
        (None, PLAN, 0, "No run has begun yet: the first start begins one."),
        (replace(CONTROL, phase=RunPhase.NONE), PLAN, 0, "No run has begun yet: the first start begins one."),
        (CONTROL, PLAN, 0, "Run run has this pipeline: a start of this code goes on with it, without a drain."),
        (CONTROL, OTHER, 2, "flights has 2 partitions there, 4 here. Drain the run with the old code"),
        (replace(CONTROL, finished=(OTHER.fingerprint,)), OTHER, 2, "so it may be old code."),
        (replace(CONTROL, phase=RunPhase.DRAINING), PLAN, 0, "is being drained, with this pipeline"),
        (FAILED, PLAN, 0, "Run run failed, with this pipeline: a start of this code resumes it."),
        (FAILED, OTHER, 2, "Drain the run with the old code"),
        (DRAINED_TWICE, PLAN, 0, "Run run is drained and the pipeline is the same."),
        (DRAINED_TWICE, OTHER, 2, "which an earlier run had: it may be old code that starts late."),
        (DRAINED_TWICE, replace(OTHER, fingerprint="0" * 64), 0, "a start of this code begins the next run."),
    ],
)
def test_what_a_start_would_do_is_known_before(control: Control | None, plan: Plan, code: int, says: str) -> None:
    """The only test was to start a processor, and to wait for its exit with 2."""
    found = of_start(control, plan, Settings("check"))
    assert (found.code, says in found.message) == (code, True), found.message


def test_old_code_that_waits_after_a_rollback_says_for_what() -> None:
    """It stood by, and said nothing: the sentence came only if it did not wait."""
    control = replace(DRAINED_TWICE, past=("run",))
    view = settings_of(view_of("p2", control, active_run="", plan=OTHER), wait_for_upgrade=True)
    assert verdicts(view) == []
    assert waiting(view).startswith("Run run is drained. This code has pipeline eeeeeeeeeeee")
    assert "a new app.run.id" in waiting(view)
    asks = settings_of(view_of("p2", control, active_run="", plan=OTHER), wait_for_upgrade=True, run_id="again")
    assert waiting(asks) == ""
    rows = [replace(ROWS["p2"], fingerprint=OTHER.fingerprint), replace(ROWS["p3"], fingerprint=OTHER.fingerprint)]
    rows[1] = replace(rows[1], new_run="again")
    found = document("app", control, rows)["processors"]
    assert [each["waits_for"] for each in found] == [waiting(view), None]


def test_old_code_that_waited_ends_when_the_upgrade_has_begun() -> None:
    upgraded = replace(CONTROL, run_id="next", fingerprint="e" * 64)
    waiting = settings_of(view_of("p2", upgraded, active_run="run"), wait_for_upgrade=True)
    assert verdicts(waiting) == [(0, "Run run is drained, and run next has begun since.")]


def test_a_processor_that_rejoins_ends_with_the_failed_run_that_it_was_part_of() -> None:
    view = view_of("p2")
    perform_locally(view, Rejoin("it was marked dead"), NOW)
    learn(view, ReadControl(), ControlRead(replace(FAILED, revision=10), "failed"), sent_at=NOW, now=NOW)
    assert [code for code, _ in verdicts(view)] == [1]
    assert next_run.begin_run(view, FAILED) == FAILED


def test_old_code_that_is_restarted_after_the_upgrade_is_advised_to_upgrade() -> None:
    upgraded = replace(CONTROL, run_id="next", fingerprint="e" * 64, finished=(PLAN.fingerprint,))
    restarted = settings_of(view_of("p2", upgraded, active_run=""), restarted=True)
    ((code, message),) = verdicts(restarted)
    assert (code, "Start the current code" in message) == (2, True)
    assert "Drain the run with the old code" not in message


def test_another_run_by_hand_is_refused_while_one_is_in_progress() -> None:
    ((code, message),) = verdicts(settings_of(view_of("p2"), run_id="other"))
    assert (code, message) == (2, "Run run is in progress, app.run.id says other. Drain it, or unset the key.")


def test_the_next_run_by_hand_is_asked_for_in_the_row() -> None:
    view = settings_of(view_of("p2", DRAINED, active_run="", beat_sent_at=NOW - 60), run_id="next")
    assert [each.row.new_run for each in decide(view, NOW) if isinstance(each, MergeOwnRow)] == ["next"]


def test_a_processor_whose_row_was_taken_rejoins_as_a_new_incarnation() -> None:
    taken = replace(ROWS["p2"], incarnation="life of a twin")
    assert Rejoin in map(type, decide(view_of("p2", found=taken, etag=None), NOW))


def test_a_processor_that_has_finished_makes_no_further_decision() -> None:
    view = view_of("p2", FAILED)
    view.finished = next(each.verdict for each in decide(view, NOW) if isinstance(each, BeginEnd))
    assert decide(view, NOW) == []
