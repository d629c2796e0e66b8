"""How a group goes on without its newest control blob, and what it must not go on without."""

from dataclasses import replace

import pytest

from samza_azure.group.control import Control, RunPhase, Stop
from samza_azure.group.recovery import ABSURD, Evidence, LastOfLog, lost, needs_recovery, recovered
from samza_azure.logs.position import Position
from samza_azure.messages import DrainStep
from tests.group.situation import CONTROL, DRAINING, member

GROUP = CONTROL.group_id
LOGS = {task: LastOfLog(GROUP, 2, read={"flights/0": (0, 100)}) for task in CONTROL.tasks}
KNOWN = Evidence(used=9, epoch=3, logs=LOGS, runs={"run"}, ends={"flights/0": (0, 100), "flights/1": (1, 7)})


def test_it_goes_on_above_every_number_that_was_used_and_nobody_owns_a_task() -> None:
    known = replace(KNOWN, used=400, epoch=70)
    stopped = replace(CONTROL, stop=Stop("s", (member("p1"),)), churn=3, deposed=member("p2"), successor="p3")
    after = recovered(stopped, known, now_ms=5)
    assert after.revision == after.version == after.barrier.version > 400
    assert after.epoch > 70
    assert {each.owner for each in after.tasks.values()} == {None}
    assert (after.leader, after.members, after.stop, after.deposed, after.churn) == (None, (), None, None, 0)
    kept = ("group_id", "run_id", "phase", "fingerprint", "sources", "readers", "positions", "past", "drain")
    assert all(getattr(after, name) == getattr(CONTROL, name) for name in kept)
    assert after.events[-1].kind == "recovered"


def test_only_a_task_without_a_log_may_create_one() -> None:
    logs = {task: log for task, log in LOGS.items() if task != "daily-0"}
    after = recovered(CONTROL, replace(KNOWN, logs=logs), now_ms=5)
    assert {task: each.first for task, each in after.tasks.items()} == {
        "clean-0": False,
        "clean-1": False,
        "daily-0": True,
    }


def test_the_next_run_begins_at_the_end_of_a_source_that_has_lost_rows() -> None:
    """The drained run had read them. What is produced from there on was never read, and would have been skipped."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, positions={"flights/0": (2, 50), "flights/1": (0, 9)})
    after = recovered(drained, KNOWN, now_ms=5)
    assert after.positions == {"flights/0": (0, 100), "flights/1": (0, 9)}
    assert after.tasks == CONTROL.tasks, "status shows who ran them"
    assert lost(drained, replace(KNOWN, logs={})) == []


@pytest.mark.parametrize(
    ("current", "used", "wanted"),
    [(None, 2, True), (replace(CONTROL, revision=8), 2, True), (CONTROL, 10, True), (CONTROL, 9, False)],
    ids=["missing", "older than a copy", "older than a log", "the newest"],
)
def test_whether_there_is_anything_to_recover(current: Control | None, used: int, wanted: bool) -> None:
    logs = {**LOGS, "clean-0": LastOfLog(GROUP, used)}
    assert needs_recovery(current, CONTROL, replace(KNOWN, logs=logs)) is wanted


FLUSHING = replace(DRAINING, drain=replace(DRAINING.drain, step=DrainStep.FLUSH))  # type: ignore[type-var]
DRAINED_LOGS = {**LOGS, "clean-0": replace(LOGS["clean-0"], drained=True)}


def ahead(at: Position) -> dict[str, LastOfLog]:
    """A task has read up to here what the one before it has written up to blob 2, byte 8."""
    return {
        **LOGS,
        "clean-0": replace(LOGS["clean-0"], end=(2, 8)),
        "daily-0": replace(LOGS["daily-0"], stands={"clean-0": at}),
    }


@pytest.mark.parametrize(
    ("base", "known", "sentence"),
    [
        (CONTROL, replace(KNOWN, logs={"clean-0": LOGS["clean-0"]}), "The logs of clean-1, daily-0 are gone"),
        (CONTROL, replace(KNOWN, runs={"run", "later"}), "Run later has task logs"),
        (CONTROL, replace(KNOWN, logs={**LOGS, "clean-0": LastOfLog("cd" * 16, 2)}), "belongs to another group"),
        (CONTROL, replace(KNOWN, logs={**LOGS, "clean-0": LastOfLog(GROUP, ABSURD)}), "no group has come to"),
        (CONTROL, replace(KNOWN, logs=DRAINED_LOGS), "The log of clean-0 is drained"),
        (DRAINING, replace(KNOWN, logs=DRAINED_LOGS), "The log of clean-0 is drained"),
        (CONTROL, replace(KNOWN, ends={"flights/0": (0, 99)}), "has read flights/0 up to blob 0, byte 100"),
        (CONTROL, replace(KNOWN, ends={}), "its log ends at blob 0, byte 0"),
        (CONTROL, replace(KNOWN, logs=ahead((2, 9))), "daily-0 has read the rows of clean-0 up to blob 2, byte 9"),
        (FLUSHING, replace(KNOWN, logs=ahead((3, 0))), "that task's log ends at blob 2, byte 8"),
    ],
)
def test_what_is_lost_is_said(base: Control, known: Evidence, sentence: str) -> None:
    assert any(sentence in each for each in lost(base, known))


def test_nothing_is_lost_where_nothing_is() -> None:
    assert lost(CONTROL, KNOWN) == []
    assert lost(CONTROL, replace(KNOWN, logs=ahead((2, 8)))) == []
    assert lost(replace(CONTROL, phase=RunPhase.DRAINED), replace(KNOWN, logs=ahead((2, 9)))) == []
    assert lost(replace(CONTROL, past=("older",)), replace(KNOWN, runs={"run", "older"})) == []
    assert lost(FLUSHING, replace(KNOWN, logs=DRAINED_LOGS)) == []
    unborn = {task: replace(each, first=True) for task, each in CONTROL.tasks.items()}
    assert lost(replace(CONTROL, tasks=unborn), replace(KNOWN, logs={})) == []
