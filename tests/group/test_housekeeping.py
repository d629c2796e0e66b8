"""What the leader deletes: rows of members long gone, a drained run's leftovers."""

from dataclasses import replace

import pytest

from samza_azure.group.actions import (
    HOUSEKEEPING,
    CleanRun,
    DeleteMember,
    Finish,
    ScanMembers,
    WriteControl,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import Kept
from samza_azure.group.control import (
    Control,
    RunPhase,
)
from samza_azure.group.learn import learn, turn
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorState
from samza_azure.group.view import Lease, View
from samza_azure.messages import (
    Phase,
)
from samza_azure.outcomes import Refused
from tests.group.situation import (
    CONTROL,
    NOW,
    ROWS,
    decide,
    kinds,
    leader,
    member,
    report,
    row,
)
from tests.group.transcript import Story


def test_reports_of_a_later_incarnation_do_not_delay_the_clean_up() -> None:
    """It has no part in the drained run, and ends only when that is cleaned up; the leader must not wait for it."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",), leader=member("p1"))
    done = {"daily-0": report("daily-0", Phase.DRAINED)}
    others = {"p1": ROWS["p1"], "p2": row("p2", state=ProcessorState.LEFT), "p3": row("p3", done)}
    assert CleanRun not in kinds(decide(leader(drained, members=others), NOW))
    for back in (
        row("p3", done, incarnation="a later one"),
        row("p3", {"daily-0": report("daily-0", Phase.DRAINED, generation=1)}),
        row("p3", {"clean-1": report("clean-1", Phase.DRAINED), "gone-7": report("gone-7", Phase.DRAINED)}),
    ):
        assert CleanRun("run") in decide(leader(drained, members=others | {"p3": back}), NOW)


def test_a_drained_run_is_cleaned_up_when_the_others_have_left_it_also_in_a_later_run() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    view = leader(drained)
    assert CleanRun not in kinds(decide(view, NOW + 0.05))
    view.others.members = {name: replace(each, state=ProcessorState.LEFT) for name, each in ROWS.items()}
    assert CleanRun("run") in decide(view, NOW + 0.05)
    later = leader(replace(CONTROL, past=("older",), uncleaned=("older",)))
    assert CleanRun("older") in decide(later, NOW + 0.05)


def test_a_blob_that_cannot_be_deleted_delays_nothing_and_is_tried_again_less_and_less_often() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    view = leader(drained, requests=())
    view.others.members = {name: replace(each, state=ProcessorState.LEFT) for name, each in ROWS.items()}
    waits, now = [], NOW + 0.05
    for _ in range(11):
        view.as_leader.lease = Lease("lease", now)
        assert decide(view, now).count(CleanRun("run")) == 1
        learn(view, CleanRun("run"), Kept(3, "BlobImmutableDueToPolicy"), sent_at=now, now=now)
        waits.append(view.calls.failing[HOUSEKEEPING].until - now)
        now = view.calls.failing[HOUSEKEEPING].until
    assert [round(each, 3) for each in waits] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_the_control_blob_keeps_which_blobs_cannot_be_deleted(story: Story) -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    view = leader(drained, requests=(), members={"p1": ROWS["p1"]})
    immutable = "BlobImmutableDueToPolicy"
    said = []
    for now, answer in ((NOW + 0.05, Kept(3, immutable)), (NOW + 1.1, Kept(1, immutable)), (NOW + 3.2, None)):
        story.turn(view, now, {CleanRun: answer})
        story.turn(view, now + 0.01, {WriteControl: f"written at {now}"})
        assert isinstance(view.control, Control)
        said.append((view.control.kept, view.control.uncleaned, view.control.cleaned))
    assert said == [({"run": 3}, ("run",), True), ({"run": 1}, ("run",), True), ({}, (), True)]


def test_a_run_of_which_something_is_kept_does_not_hold_up_the_next_one() -> None:
    view = leader(replace(CONTROL, past=("older", "old"), uncleaned=("older", "old"), kept={"older": 3}))
    assert CleanRun("old") in decide(view, NOW + 0.05)
    assert not view.control.cleaned  # type: ignore[union-attr]
    learn(view, CleanRun("old"), None, sent_at=NOW + 0.05, now=NOW + 0.06)
    view.others.members = {name: row for name, row in view.others.members.items() if row.alive}
    after = next_control(view, view.control, NOW + 0.06)
    assert (after.uncleaned, after.kept, after.cleaned) == (("older",), {"older": 3}, True)


@pytest.mark.parametrize("state", [ProcessorState.DEAD, ProcessorState.LEFT])
def test_the_row_of_one_that_is_long_gone_is_deleted_while_the_run_goes_on(state: ProcessorState) -> None:
    view = leader()
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=state)}
    view.others.ages["p3"] = Age("row of p3", 3599.0, 3, NOW)
    assert DeleteMember not in kinds(decide(view, NOW + 0.05))
    view.others.ages["p3"] = Age("row of p3", 3600.0, 3, NOW)
    assert DeleteMember("p3", "row of p3") in decide(view, NOW + 0.05)


@pytest.mark.parametrize("state", [ProcessorState.DEAD, ProcessorState.LEFT, ProcessorState.ACTIVE])
def test_the_row_of_one_that_was_gone_before_the_leader_came_is_deleted_at_once(state: ProcessorState) -> None:
    """A nightly job of ten minutes on new machines left three rows a night: no leader watched them for an hour."""
    view = leader()
    gone, young = (replace(ROWS["p3"], processor=name, state=state) for name in ("last-night", "just-now"))
    rows = (*ROWS.values(), replace(gone, age_s=3600.0), replace(young, age_s=3590.0))
    learn(view, ScanMembers(), rows, sent_at=NOW, now=NOW)
    wanted = [] if state is ProcessorState.ACTIVE else ["last-night"]  # it is marked dead first
    assert deletes(view, NOW) == wanted
    learn(
        view, ScanMembers(), rows, sent_at=NOW + 2, now=NOW + 2
    )  # rows are not parsed again: the age is the first one
    assert view.others.ages["just-now"].unchanged_s == 3592.0
    turn(view, NOW + 60, random=0.5, fresh_id="x", wall_ms=1)
    assert view.others.ages["just-now"].unchanged_s == 3590.0, "an observer that was paused has seen nothing itself"
    changed = replace(young, etag="it is back", age_s=0.0)
    learn(view, ScanMembers(), (*ROWS.values(), changed), sent_at=NOW + 60, now=NOW + 60)
    assert view.others.ages["just-now"].unchanged_s == 0.0


def cleaning(**more: object) -> View:
    """p1 leads a drained run whose logs are deleted; the rows of those that left are still there."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    gone = {name: replace(ROWS[name], state=ProcessorState.LEFT, tasks={}) for name in ("p2", "p3")}
    return leader(drained, members=gone, clean_done="run", ending=Finish(0, "drained"), ending_since=NOW, **more)


def deletes(view: View, now: float) -> list[str]:
    return [action.processor for action in decide(view, now) if isinstance(action, DeleteMember)]


def test_a_row_whose_deletion_was_refused_is_read_again_before_anything_else() -> None:
    """Orchestrators restart what exits, so the row is another one by then."""
    view = cleaning()
    rows = (ROWS["p1"], *view.others.members.values())
    assert deletes(view, NOW) == ["p2", "p3"]
    refused = DeleteMember("p2", "row of p2")
    learn(view, refused, Refused("UpdateConditionNotSatisfied"), sent_at=NOW, now=NOW + 0.01)
    assert deletes(view, NOW + 0.02) == ["p3"]
    learn(view, ScanMembers(), rows, sent_at=NOW, now=NOW + 0.03)  # may have been answered before the refusal
    assert deletes(view, NOW + 0.04) == ["p3"]
    learn(view, ScanMembers(), rows, sent_at=NOW + 1, now=NOW + 1.01)
    assert deletes(view, NOW + 1.02) == ["p2", "p3"]


def test_a_thousand_rows_are_deleted_a_few_at_a_time() -> None:
    view = cleaning()
    view.others.members = {name: row(name, state=ProcessorState.LEFT) for name in map("p{:03d}".format, range(1000))}
    assert len(deletes(view, NOW)) == 8
    view.calls.busy = {"member p000": NOW, "member p001": NOW, "request drain-1": NOW}
    assert deletes(view, NOW) == ["p002", "p003", "p004", "p005", "p006"]


def test_a_leader_that_has_not_looked_yet_cleans_nothing_up() -> None:
    """It knew no members, concluded that all had left the run, and deleted the logs of tasks that others still had
    open."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    view = leader(drained, members={}, scanned_at=-1e9, since=NOW - 1, active_run="")
    assert CleanRun not in kinds(decide(view, NOW))
    learn(view, ScanMembers(), (ROWS["p1"],), sent_at=NOW, now=NOW)
    assert CleanRun in kinds(decide(view, NOW))
