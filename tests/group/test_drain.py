"""How a drain advances: FREEZE, FLUSH, DRAINED."""

from dataclasses import replace

import pytest

from samza_azure.group.actions import AnswerRequest, ReadRequests, ScanMembers, WriteControl
from samza_azure.group.control import (
    Control,
    RunPhase,
)
from samza_azure.group.drain import REMEMBERED, furthest, is_forgotten, progress, with_end
from samza_azure.group.notification import DrainNotification
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorRow, Request, RequestKind
from samza_azure.messages import (
    DrainStep,
    Phase,
    Plan,
    StagePlan,
    TaskReport,
)
from tests.group.situation import (
    CONTROL,
    DRAINING,
    NOW,
    OWNERS,
    PLAN,
    ROWS,
    leader,
    member,
    report,
    row,
)
from tests.group.transcript import Story


def frozen(task: str, at: int, **more: object) -> ProcessorRow:
    ends = {f"flights/{task[-1]}": (0, at)}
    return row(OWNERS[task], {task: report(task, ends=ends, frozen_for="u")}, **more)


def test_flush_is_written_when_every_reader_of_a_source_has_stopped() -> None:
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


#: The pipeline of an upgrade: a stage put in front of `clean`, which no longer reads a source; or `clean` renamed.
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


def test_flush_is_not_written_with_an_end_below_a_reported_position() -> None:
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7), "p2": frozen("clean-1", 5)}
    told = report("daily-0", read={"flights/1": (0, 6)})
    assert progress(DRAINING, rows | {"p3": row("p3", {"daily-0": told})}, PLAN) == DRAINING
    ahead = row(
        "p2", {"clean-1": report("clean-1", ends={"flights/1": (0, 5)}, frozen_for="u", read={"flights/1": (1, 0)})}
    )
    assert progress(DRAINING, rows | {"p2": ahead}, PLAN) == DRAINING


def test_a_drain_ends_only_partitions_that_the_run_reads() -> None:
    """A row is hearsay: what else it names would be in the positions of every later run."""
    more = {"flights/0": (0, 7), "flights/1": (9, 9), "of a stranger": (1, 2)}
    rows = dict(ROWS) | {"p1": row("p1", {"clean-0": report("clean-0", ends=more, frozen_for="u")})}
    after = progress(DRAINING, rows | {"p2": frozen("clean-1", 5)}, PLAN)
    assert after.drain is not None
    assert after.drain.ends == {"flights/0": (0, 7), "flights/1": (0, 5)}


def test_a_reader_that_reports_no_end_of_a_source_has_not_stopped() -> None:
    rows = dict(ROWS) | {
        "p1": frozen("clean-0", 7),
        "p2": row("p2", {"clean-1": report("clean-1", ends={}, frozen_for="u")}),
    }
    assert progress(DRAINING, rows, PLAN) == DRAINING


def test_the_word_of_a_former_owner_does_not_count() -> None:
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7), "p2": frozen("clean-1", 5, incarnation="a later one")}
    assert progress(DRAINING, rows, PLAN) == DRAINING


def test_a_report_for_a_cancelled_drain_does_not_count_for_the_next_one() -> None:
    """The task may have read on since; a FLUSH with the old ends would make the next run read rows again."""
    rows = dict(ROWS) | {"p1": frozen("clean-0", 7), "p2": frozen("clean-1", 5)}
    assert DRAINING.drain is not None
    again = replace(DRAINING, drain=replace(DRAINING.drain, uuid="a later one"))
    assert progress(again, rows, PLAN) == again


def test_the_end_of_a_partition_is_the_furthest_position_of_its_readers() -> None:
    assert furthest([{"a/0": (0, 9)}, {"a/0": (1, 2)}], {"a/0": (0, 1), "a/1": (0, 4)}) == {
        "a/0": (1, 2),
        "a/1": (0, 4),
    }


def ended(task: str, at: int) -> ProcessorRow:
    """The row of the owner of a task that has asked for its end."""
    return row(OWNERS[task], {task: report(task, Phase.DRAINED, read={f"flights/{task[-1]}": (0, at)})})


def test_a_run_is_drained_when_all_tasks_that_read_its_sources_have_asked_for_their_end() -> None:
    clean = ended("clean-0", 7)
    assert next_control(leader(CONTROL, members=dict(ROWS), written=clean), CONTROL, NOW) == CONTROL
    view = leader(CONTROL, members=dict(ROWS) | {"p2": ended("clean-1", 5)}, written=clean)
    after = next_control(view, CONTROL, NOW)
    assert (after.phase, after.drain) == (
        RunPhase.DRAINING,
        DrainNotification(
            after.drain.uuid if after.drain else "",
            "run",
            step=DrainStep.FLUSH,
            ends={"flights/0": (0, 7), "flights/1": (0, 5)},
            history=("FREEZE", "FLUSH"),
            by="its tasks, which have all shut down",
            at_ms=(1, 1),
        ),
    )


@pytest.mark.parametrize("phase", [RunPhase.NONE, RunPhase.DRAINING, RunPhase.DRAINED, RunPhase.FAILED])
def test_only_a_run_in_progress_is_drained_for_its_tasks(phase: RunPhase) -> None:
    rows = dict(ROWS) | {"p1": ended("clean-0", 7), "p2": ended("clean-1", 5)}
    other = replace(CONTROL, phase=phase)
    assert with_end(other, rows, PLAN, "1" * 32) == other
    nothing_read = replace(CONTROL, sources={}, readers={})
    assert with_end(nothing_read, rows, replace(PLAN, sources={}), "1" * 32) == nothing_read
    drain = with_end(CONTROL, rows, PLAN, "0123456789abcdef0123456789abcdef").drain
    assert drain is not None
    assert drain.uuid == "01234567-89ab-cdef-0123-456789abcdef"


def test_a_task_that_has_asked_for_its_end_has_stopped_for_every_drain() -> None:
    """It ends where it has read to, and the next run begins there; the others stop as ever."""
    rows = dict(ROWS) | {"p1": ended("clean-0", 7)}
    assert progress(DRAINING, rows, PLAN) == DRAINING
    after = progress(DRAINING, rows | {"p2": frozen("clean-1", 5)}, PLAN)
    assert after.drain is not None
    assert after.drain.ends == {"flights/0": (0, 7), "flights/1": (0, 5)}
    silent = row("p1", {"clean-0": report("clean-0", Phase.DRAINED)})
    assert progress(DRAINING, rows | {"p1": silent, "p2": frozen("clean-1", 5)}, PLAN) == DRAINING


def test_drained_is_written_when_the_log_of_every_task_is_and_says_where_the_next_run_begins() -> None:
    assert DRAINING.drain is not None
    ends = {"flights/0": (0, 7), "flights/1": (0, 5)}
    flushing = replace(DRAINING, drain=replace(DRAINING.drain, step=DrainStep.FLUSH, ends=ends))
    rows = {processor: row(processor, {task: report(task, Phase.DRAINED)}) for task, processor in OWNERS.items()}
    after = progress(flushing, rows, PLAN)
    assert (after.phase, after.positions, after.past, after.uncleaned) == (RunPhase.DRAINED, ends, ("run",), ("run",))
    rows["p3"] = ROWS["p3"]
    assert progress(flushing, rows, PLAN) == flushing


def test_while_draining_nothing_moves_by_choice() -> None:
    view = leader(DRAINING)
    view.others.members = {**view.others.members, "p4": row("p4")}
    view.others.members = {**view.others.members, "p0": row("p0")}
    assert next_control(view, DRAINING, NOW + 60) == DRAINING


def test_a_drained_runs_fingerprint_is_remembered_once() -> None:
    assert DRAINING.drain is not None
    flushing = replace(
        DRAINING, drain=replace(DRAINING.drain, step=DrainStep.FLUSH), finished=("x", CONTROL.fingerprint)
    )
    rows = {processor: row(processor, {task: report(task, Phase.DRAINED)}) for task, processor in OWNERS.items()}
    assert progress(flushing, rows, PLAN).finished == ("x", CONTROL.fingerprint)


def test_past_runs_keep_the_latest_and_all_with_a_chosen_name() -> None:
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


def test_a_drain_has_reached_the_last_step_of_its_history() -> None:
    asked = DrainNotification("u", "run")
    frozen = replace(asked, step=DrainStep.FREEZE)
    drained = replace(asked, step=DrainStep.FLUSH, history=("FREEZE", "FLUSH", "DRAINED"))
    assert [each.reached for each in (asked, frozen, drained)] == ["", "FREEZE", "DRAINED"]


def test_a_generated_id_older_than_all_remembered_ones_is_that_of_a_forgotten_run() -> None:
    made = tuple(f"{1_700_000_000_000 + number}-{number:08x}" for number in range(REMEMBERED + 2))
    past = ("by-hand", *made[1:-1])
    control = replace(CONTROL, past=past)
    assert [is_forgotten(control, run) for run in (made[0], made[1], made[-1])] == [True, False, False]
    assert not is_forgotten(control, "0-by-hand"), "chosen ids are remembered forever"
    assert not is_forgotten(replace(control, past=past[:-1]), made[0]), "there is room for one more"
    assert not is_forgotten(replace(control, run_id=made[0]), made[0]), "it is in progress; a clock was late"


def test_partitions_that_a_run_does_not_read_keep_their_place_for_a_later_one() -> None:
    assert furthest([{"flights/0": (0, 9)}], {"flights/0": (0, 7), "flights/1": (0, 5)})["flights/1"] == (0, 5)


def test_a_drain_from_the_request_to_the_end(story: Story) -> None:
    view = leader(members=dict(ROWS))
    asked = Request("u", "asked", RequestKind.DRAIN, "run", by="ada", asked_ms=1)

    def all_report(now: float, **said: TaskReport) -> None:
        """The own container and the others' rows say it; the leader scans and decides."""
        tasks = {task.replace("_", "-"): each for task, each in said.items()}
        story.reports(view, tasks["clean-0"], now)
        rows = tuple(row(OWNERS[task], {task: each}, etag=f"at {now}") for task, each in tasks.items())
        story.turn(view, now + 0.2, {ScanMembers: rows})
        story.turn(view, now + 0.2, {WriteControl: f"written at {now}", AnswerRequest: "answered"})

    story.turn(view, NOW + 1, {ReadRequests: (asked,), ScanMembers: tuple(ROWS.values())})
    story.turn(view, NOW + 1, {WriteControl: "frozen"})
    story.turn(view, NOW + 1.1, {AnswerRequest: "answered"})
    frozen_at = {"clean-0": {"flights/0": (0, 7)}, "clean-1": {"flights/1": (0, 5)}}
    still = {task.replace("-", "_"): report(task, ends=ends, frozen_for="u") for task, ends in frozen_at.items()}
    all_report(NOW + 1.5, **still, daily_0=report("daily-0"))
    assert isinstance(view.control, Control)
    assert view.control.drain is not None
    assert (view.control.drain.step, view.control.drain.ends) == (
        DrainStep.FLUSH,
        {"flights/0": (0, 7), "flights/1": (0, 5)},
    )
    story.turn(view, NOW + 1.8)

    all_report(NOW + 2, **{task.replace("-", "_"): report(task, Phase.DRAINED) for task in OWNERS})
    assert view.control.phase is RunPhase.DRAINED
    assert view.control.positions == {"flights/0": (0, 7), "flights/1": (0, 5)}
    story.turn(view, NOW + 2.3)
