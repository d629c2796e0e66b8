"""Which processor begins the next run, and from which positions."""

from dataclasses import replace

import pytest

from samza_azure.group.actions import BeginEnd, Finish, ReadControl, WriteControl
from samza_azure.group.answers import ControlRead
from samza_azure.group.control import Control, Failure, RunPhase
from samza_azure.group.ending import verdict
from samza_azure.group.learn import heard_plan, learn
from samza_azure.group.next_run import can_act
from samza_azure.group.publish import next_control
from samza_azure.group.view import Settings, View
from tests.group.situation import (
    CONTROL,
    NOW,
    PLAN,
    ROWS,
    TIMING,
    WIDER,
    decide,
    kinds,
    leader,
    view_of,
)


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
    back.own.written = replace(ROWS["p1"], fingerprint=old, new_run="new")
    assert BeginEnd not in kinds(decide(back, NOW))
    assert next_control(back, drained, NOW).fingerprint == old


def test_the_next_run_has_the_new_tasks_reads_old_partitions_on_and_new_ones_from_their_beginning() -> None:
    ends = {"flights/0": (0, 7), "flights/1": (0, 5)}
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), positions=ends)
    after = next_control(leader(drained, active_run="", plan=WIDER), drained, NOW)
    assert list(after.tasks) == ["clean-0", "clean-1", "clean-2", "clean-3", "daily-0"]
    assert (after.sources, after.positions) == ({"flights": 4}, ends)


def reads(view: View, blob: Control) -> None:
    learn(view, ReadControl(), ControlRead(blob, blob.run_id + blob.phase), sent_at=NOW, now=NOW)


@pytest.mark.parametrize("waits", [True, False])
def test_upgraded_code_whose_container_comes_up_after_the_drain_begins_the_next_run(waits: bool) -> None:
    """It counted as part of the drained run once it had read of it, and waited for an upgrade that it was itself."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=())
    view = leader(CONTROL, active_run="", plan=None)
    view.settings = replace(view.settings, wait_for_upgrade=waits)
    reads(view, replace(CONTROL, phase=RunPhase.DRAINING))
    reads(view, drained)
    assert BeginEnd not in kinds(decide(view, NOW))

    heard_plan(view, replace(PLAN, fingerprint="0" * 64))

    assert BeginEnd not in kinds(decide(view, NOW))
    assert can_act(view, drained)
    assert next_control(view, drained, NOW).fingerprint == "0" * 64


@pytest.mark.parametrize("knows_first", [True, False])
def test_a_processor_with_the_runs_pipeline_takes_part_in_it(knows_first: bool) -> None:
    view = view_of("p2", replace(CONTROL, phase=RunPhase.NONE), active_run="", plan=None)
    for knows in (knows_first, not knows_first):
        if knows:
            heard_plan(view, PLAN)
        else:
            reads(view, CONTROL)
        assert view.work.active_run == ("run" if knows is not knows_first else "")


def test_old_code_that_waits_ends_well_when_upgraded_code_has_begun_the_next_run() -> None:
    """It was advised to drain the run first, with 2."""
    view = view_of("p2")
    view.settings = replace(view.settings, wait_for_upgrade=True)
    reads(view, replace(CONTROL, phase=RunPhase.DRAINED, past=("run",)))
    assert verdict(view) is None

    reads(view, replace(CONTROL, run_id="next", fingerprint="e" * 64))

    assert verdict(view) == Finish(0, "Run run is drained, and run next has begun since.")


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("phase", [RunPhase.RUNNING, RunPhase.DRAINED])
@pytest.mark.parametrize("differs", ["pipeline", "app.run.id"])
def test_a_processor_that_slept_through_the_end_of_its_run_ends_well(
    waits: bool, phase: RunPhase, differs: str
) -> None:
    """It was told to drain the next run with its own code, or that it may be old code that starts late: with 2."""
    view = view_of("p2")
    view.settings = replace(view.settings, wait_for_upgrade=waits, run_id="run" if differs == "app.run.id" else "")
    fingerprint = "e" * 64 if differs == "pipeline" else PLAN.fingerprint
    past = ("run", "next") if phase is RunPhase.DRAINED else ("run",)
    finished = (PLAN.fingerprint, fingerprint) if phase is RunPhase.DRAINED else (PLAN.fingerprint,)

    reads(view, replace(CONTROL, run_id="next", fingerprint=fingerprint, phase=phase, past=past, finished=finished))

    assert verdict(view) == Finish(0, "Run run is drained, and run next has begun since.")


def test_a_leader_that_is_refused_does_not_resume_the_failed_run_before_it_ends() -> None:
    """It hears of its pipeline and, in the same turn, that another run is in progress than app.run.id says."""
    failure = Failure("clean", "clean-0", "It failed.", "")
    failed = replace(CONTROL, phase=RunPhase.FAILED, failure=failure)
    view = leader(failed, active_run="", plan=None, tasks={})
    view.settings = replace(view.settings, run_id="another")
    heard_plan(view, PLAN)

    actions = decide(view, NOW)

    assert BeginEnd in kinds(actions)
    assert WriteControl not in kinds(actions), "the failure would be forgotten"
