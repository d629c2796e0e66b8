"""Who begins the next run, and what it begins with."""

from dataclasses import replace

from samza_azure.group.actions import (
    BeginEnd,
    Finish,
)
from samza_azure.group.control import (
    RunPhase,
)
from samza_azure.group.publish import next_control
from samza_azure.group.view import Settings
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
    back.life.written = replace(ROWS["p1"], fingerprint=old, new_run="new")
    assert BeginEnd not in kinds(decide(back, NOW))
    assert next_control(back, drained, NOW).fingerprint == old


def test_the_next_run_has_the_new_tasks_reads_old_partitions_on_and_new_ones_from_their_beginning() -> None:
    ends = {"flights/0": (0, 7), "flights/1": (0, 5)}
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), positions=ends)
    after = next_control(leader(drained, active_run="", plan=WIDER), drained, NOW)
    assert list(after.tasks) == ["clean-0", "clean-1", "clean-2", "clean-3", "daily-0"]
    assert (after.sources, after.positions) == ({"flights": 4}, ends)
