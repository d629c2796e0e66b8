"""Why and when a processor ends, and what it waits for first."""

from dataclasses import replace

from samza_azure.group.actions import (
    AcquireLease,
    BeginEnd,
    CleanRun,
    Finish,
    MergeOwnRow,
    ReadControl,
    ReadOwnRow,
    Rejoin,
    ReleaseLease,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.answers import ControlRead, Trouble
from samza_azure.group.control import (
    Failure,
    RunPhase,
)
from samza_azure.group.ending import RESTORED, rest_until
from samza_azure.group.learn import heard_rejected, learn, perform_locally, started
from samza_azure.group.rows import ProcessorState
from samza_azure.group.tasks import PATIENCE
from samza_azure.group.view import Campaign, Lease
from samza_azure.messages import (
    Phase,
    ReleaseTask,
    changes,
)
from samza_azure.outcomes import Refused
from tests.group.situation import (
    CONTROL,
    NOW,
    PLAN,
    ROWS,
    TIMING,
    WIDER,
    commands_in,
    decide,
    kinds,
    leader,
    report,
    view_of,
    without_blob,
)
from tests.group.transcript import Story


def test_a_leaving_processor_keeps_its_tasks_until_the_leader_moves_them() -> None:
    view = view_of("p3", leaving=True)
    [begin] = [action for action in decide(view, NOW + 0.2) if isinstance(action, BeginEnd)]
    perform_locally(view, begin, NOW + 0.2)
    assert commands_in(decide(view, NOW + 0.3)) == []
    view.own.accepted_at = NOW + 6  # its heartbeats are accepted
    view.work.permit_sent = view.permit_until
    assert commands_in(decide(view, NOW + 6.3)) == [ReleaseTask("daily-0")]


def test_the_stopping_order_is_work_then_row_then_lease(story: Story) -> None:
    verdict = Finish(0, "Run run is drained.")
    view = leader(replace(CONTROL, phase=RunPhase.DRAINED), ending=verdict, ending_since=NOW)
    assert MergeOwnRow not in kinds(story.turn(view, NOW))

    story.reports(view, report("clean-0", Phase.RELEASED), NOW + 0.1)
    actions = story.turn(view, NOW + 0.2, {MergeOwnRow: "left"})
    assert [each.row.state for each in actions if isinstance(each, MergeOwnRow)] == [ProcessorState.LEFT]
    assert WriteControl not in kinds(actions)

    actions = story.turn(view, NOW + 0.3, {WriteControl: "vacant"})
    assert ReleaseLease not in kinds(actions)
    actions = story.turn(view, NOW + 0.4, {WriteLeaderRow: "vacated", ReleaseLease: None})
    assert ReleaseLease in kinds(actions)
    assert story.turn(view, NOW + 0.5)[-1] == verdict


def test_a_leader_that_is_asked_to_leave_after_a_drain_leaves_the_clean_up_to_the_next() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED)
    view = leader(drained, ending=Finish(0, "Run run is drained."), ending_since=NOW)
    waits = PATIENCE * view.settings.shutdown_s
    assert rest_until(view) == NOW + 2 * waits + 3 * TIMING.heartbeat_timeout_s
    view.leaving, view.own.accepted_at = True, NOW + waits  # its heartbeats are accepted meanwhile
    assert rest_until(view) == NOW + waits


def test_a_leader_whose_last_write_is_unsettled_reads_its_row_then_releases_the_lease() -> None:
    view = leader(leaving=True, ending=Finish(0, "left"), ending_since=NOW - 1)
    view.own.control = replace(CONTROL, tasks={})
    view.work.tasks.clear()
    [last] = [action for action in decide(view, NOW) if isinstance(action, MergeOwnRow)]
    learn(view, last, Trouble.UNSETTLED, sent_at=NOW, now=NOW)
    after = NOW + TIMING.heartbeat_s
    assert [kind for kind in kinds(decide(view, after)) if kind in (MergeOwnRow, ReadOwnRow)] == [ReadOwnRow]

    learn(view, ReadOwnRow(), replace(last.row, etag="left"), sent_at=after, now=after)
    [handed] = [action for action in decide(view, after) if isinstance(action, WriteControl)]
    assert (handed.control.leader, handed.control.successor) == (None, "p2")


def test_a_leaving_processor_that_was_marked_dead_sends_nothing_further() -> None:
    view = view_of("p3", ending=Finish(0, "left"), ending_since=NOW - 1)
    view.work.tasks.clear()
    [last] = [action for action in decide(view, NOW) if isinstance(action, MergeOwnRow)]
    learn(view, last, Refused("UpdateConditionNotSatisfied"), sent_at=NOW, now=NOW)
    learn(view, ReadOwnRow(), replace(ROWS["p3"], state=ProcessorState.DEAD), sent_at=NOW, now=NOW)
    [rejoin] = [action for action in decide(view, NOW) if isinstance(action, Rejoin)]
    perform_locally(view, rejoin, NOW)
    assert decide(view, NOW)[-1] == Finish(0, "left")


def test_a_processor_that_ends_during_its_campaign_releases_the_lease() -> None:
    view = view_of("p2", ending=Finish(0, "Left."), ending_since=NOW, tasks={})
    view.own.written = replace(ROWS["p2"], state=ProcessorState.LEFT)
    view.candidacy.campaign = Campaign("control", lease=Lease("ours", NOW))
    assert decide(view, NOW)[-1] == ReleaseLease("ours")
    learn(view, ReleaseLease("ours"), None, sent_at=NOW, now=NOW)
    assert decide(view, NOW)[-1] == Finish(0, "Left.")


def test_a_processor_that_ends_while_it_acquires_the_lease_waits_and_releases_it() -> None:
    """Otherwise the next candidate would have to break a lease without a holder."""
    view = view_of("p2", ending=Finish(0, "Left."), ending_since=NOW, tasks={})
    view.own.written = replace(ROWS["p2"], state=ProcessorState.LEFT)
    view.candidacy.campaign, acquire = Campaign("control"), AcquireLease("asked", "control")
    started(view, acquire, NOW)
    assert decide(view, NOW) == []
    learn(view, acquire, None, sent_at=NOW, now=NOW + 0.2)
    assert decide(view, NOW + 0.2)[-1] == ReleaseLease("asked")
    learn(view, ReleaseLease("asked"), None, sent_at=NOW, now=NOW + 0.3)
    assert decide(view, NOW + 0.3)[-1] == Finish(0, "Left.")


def test_a_processor_that_ends_during_its_first_request_for_the_lease_waits_and_releases_it() -> None:
    """Nobody leads, so no lease was broken, and no campaign is known before the answer."""
    view = view_of("p2", replace(CONTROL, leader=None, successor="p2"), ending=Finish(0, "Left."), ending_since=NOW)
    view.work.tasks.clear()
    view.own.written, acquire = replace(ROWS["p2"], state=ProcessorState.LEFT), AcquireLease("asked", "control")
    started(view, acquire, NOW)
    assert decide(view, NOW) == []
    learn(view, acquire, None, sent_at=NOW, now=NOW + 0.2)
    assert decide(view, NOW + 0.2)[-1] == ReleaseLease("asked")
    learn(view, ReleaseLease("asked"), None, sent_at=NOW, now=NOW + 0.3)
    assert decide(view, NOW + 0.3)[-1] == Finish(0, "Left.")


def test_another_pipeline_is_refused_with_the_way_out() -> None:
    view = view_of("p3", plan=replace(PLAN, fingerprint="0" * 64))
    [begin] = [action for action in decide(view, NOW) if isinstance(action, BeginEnd)]
    assert begin.verdict == Finish(
        2,
        "Run run has another pipeline than this processor (ffffffffffff there, 000000000000 here). "
        "Drain the run with the old code (samza-azure drain), then start the new: it begins the next run. If the run "
        "is another job's, give this one another app.name, or an app.id.",
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
        "Drain the run with the old code (samza-azure drain), then start the new: it begins the next run. If the run "
        "is another job's, give this one another app.name, or an app.id.",
    )


def test_a_pipeline_that_its_own_container_rejects_ends_a_processor_with_2() -> None:
    view = view_of("p3")
    heard_rejected(view, "A stage reads an unknown stream.")
    assert BeginEnd(Finish(2, "A stage reads an unknown stream.")) in decide(view, NOW)


def test_a_difference_in_state_without_details_is_reported() -> None:
    assert changes({"stage daily": {"state": "a"}}, {"stage daily": {"state": "b"}}) == [
        "stage daily: what its state depends on differs (functions, the slide of a window, a schema)"
    ]


def test_a_control_blob_that_vanished_or_is_anothers_ends_it() -> None:
    gone = without_blob("p3")
    assert [a.verdict.code for a in decide(gone, NOW) if isinstance(a, BeginEnd)] == [1]
    other = view_of("p3", replace(CONTROL, group_id="cd" * 16), group_id=CONTROL.group_id)
    assert [a.verdict.code for a in decide(other, NOW) if isinstance(a, BeginEnd)] == [1]


def test_processors_of_a_drained_run_and_unchanged_newcomers_end_with_0() -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",))
    assert [a.verdict.code for a in decide(view_of("p3", drained), NOW) if isinstance(a, BeginEnd)] == [0]
    comer = view_of("p3", drained, active_run="")
    assert [a.verdict.code for a in decide(comer, NOW) if isinstance(a, BeginEnd)] == [0]
    upgraded = view_of("p3", drained, active_run="", plan=replace(PLAN, fingerprint="0" * 64))
    assert BeginEnd not in kinds(decide(upgraded, NOW))


def test_a_newcomer_to_an_uncleaned_drained_run_campaigns() -> None:
    """Its leader may have died over it, and the others have gone: seed 168044708."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",), leader=None)
    comer = view_of("p3", drained, active_run="", tasks={}, leaderless_since=NOW - 4)
    found = decide(comer, NOW)
    assert BeginEnd not in kinds(found)
    assert AcquireLease in kinds(found)
    assert CleanRun("run") in decide(leader(drained, active_run="", tasks={}, members={"p1": ROWS["p1"]}), NOW)


def test_a_processor_with_another_number_of_partitions_is_refused_with_the_difference() -> None:
    [begin] = [a for a in decide(view_of("p3", plan=WIDER), NOW) if isinstance(a, BeginEnd)]
    assert begin.verdict == Finish(
        2,
        "Run run has another pipeline than this processor (ffffffffffff there, 444444444444 here): "
        "flights has 2 partitions there, 4 here. "
        "Drain the run with the old code (samza-azure drain), then start the new: it begins the next run. If the run "
        "is another job's, give this one another app.name, or an app.id.",
    )


def test_an_older_copy_of_the_control_blob_ends_each_processor_that_reads_it() -> None:
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
        assert not view.own.older_copy and view.control == other


def test_another_pipeline_is_refused_by_a_failed_run_as_well() -> None:
    failed = replace(CONTROL, phase=RunPhase.FAILED, failure=Failure("clean", "clean-0", "no", "trace"))
    view = view_of("p2", failed)
    view.work.active_run, view.work.plan = "", replace(PLAN, fingerprint="e" * 64)
    [begin] = [action for action in decide(view, NOW) if isinstance(action, BeginEnd)]
    assert begin.verdict.code == 2
    assert "Drain the run with the old code" in begin.verdict.message
