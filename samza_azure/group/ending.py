"""Ending: whether this processor ends, and what it waits for first.

It ends its work first, then its row, then its lease. So nobody starts a task that it still runs, and nobody leads
before it has stopped.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import assert_never

from samza_azure.errors import Verdict
from samza_azure.group import decommission, election, membership, next_run, rows, tasks
from samza_azure.group.actions import (
    CONTROL,
    LEADER_ROW,
    LEASE,
    OWN_ROW,
    Action,
    BeginEnd,
    Finish,
    MergeOwnRow,
    ReleaseLease,
)
from samza_azure.group.control import Control, Member, RunPhase
from samza_azure.group.moment import reached
from samza_azure.group.notice import names_of, what_is_left
from samza_azure.group.rows import ProcessorState
from samza_azure.group.timing import DENIED_S, ROLE_S
from samza_azure.group.view import Denial, OwnIncarnation, Settings, View
from samza_azure.messages import Plan, changes
from samza_azure.outcomes import Missing

#: An older copy would issue version numbers again, and waiters could not tell two versions of one number apart.
RESTORED = (
    "control.json is older than before: an earlier copy was restored while processors ran. Stop all of them, run "
    "samza-azure recover JOB, then start again."
)
GIVEN_UP = (
    f"It accepted this processor before and has refused it for {DENIED_S:.0f} s, so the processor ends. Start it again "
    "with a valid secret or role."
)
OLD_CODE = (
    "Run {run} is drained. This code has pipeline {pipeline}, which an earlier run had: it may be old code that "
    "starts late. Start the current code, or this code with --new-run or a new app.run.id to go back to it."
)
SAME_CODE = (
    "Run {run} is drained and the pipeline is the same. Nothing to do: change the pipeline, set a new app.run.id or "
    "start with --new-run to begin the next run."
)
NOT_ALONE = (
    "{leader} runs this job, and with PassthroughJobCoordinatorFactory a job has one processor. Stop that one first, "
    "for example with samza-azure stop. For several processors set job.coordinator.factory to "
    "samza_azure.AzureJobCoordinatorFactory, or leave it out."
)
HANDED_OVER = "Left the group; its tasks were handed over."
#: How long a leaving processor waits for its last calls before it exits anyway.
FAREWELL_S = 5.0


def verdict(view: View) -> Finish | None:
    """Why this processor must end. None if it must not."""
    if view.leaving:
        return Finish(Verdict.FAILED, view.gave_up) if view.gave_up else Finish(Verdict.DONE, HANDED_OVER)
    if (refused := _refused(view)) is not None:
        return refused
    if view.too_old_for:
        return None
    control = view.control
    if view.own.older_copy:
        return Finish(Verdict.FAILED, RESTORED)
    if isinstance(control, Missing) and view.group_id:
        return Finish(
            Verdict.FAILED,
            "The control blob is gone: control.json was deleted while this processor ran. If that was no "
            "samza-azure delete, stop all processors, run samza-azure recover JOB, and start them again.",
        )
    if not isinstance(control, Control):
        return None
    if control.group_id != view.group_id:
        return Finish(
            Verdict.FAILED,
            "The control blob belongs to another group: it was deleted and created again while this one ran.",
        )
    if (rival := _rival(view, control)) is not None:
        return Finish(Verdict.REFUSED, NOT_ALONE.format(leader=rival))
    if control.stop is not None and view.member in control.stop.members:
        return Finish(Verdict.DONE, f"Run {control.run_id} is stopped. The next start resumes it.")
    match control.phase:
        case RunPhase.DRAINED:
            return _after_drain(view, control)
        case RunPhase.FAILED if view.work.active_run == control.run_id and control.failure is not None:
            return Finish(
                Verdict.FAILED,
                f"Task {control.failure.task} failed: {control.failure.message}\n{control.failure.traceback}",
            )
        case RunPhase.RUNNING | RunPhase.DRAINING | RunPhase.FAILED:
            return _misfit(view, control)
    return None


def _rival(view: View, control: Control) -> str | None:
    """The processor that leads, and certainly lives, although we are to be alone."""
    if not view.settings.alone or view.leads or view.others.leader_beats < membership.RIVAL_WRITES:
        return None
    return control.leader.processor if control.leader not in (None, view.member) else None


def _refused(view: View) -> Finish | None:
    """The ending if the account or the container refuses this processor, or if the job model is too large."""
    denied = list(view.calls.denied.values())
    let_in = view.calls.let_in
    lasting = next((each for each in denied if each.last - each.since >= patience_s(each, let_in=let_in)), None)
    if lasting is not None:
        if let_in:
            return Finish(Verdict.ACCESS_LOST, f"{lasting.reason} {GIVEN_UP}")
        return Finish(Verdict.UNREACHABLE if lasting.may_pass else Verdict.REFUSED, lasting.reason)
    if view.work.rejected:
        return Finish(Verdict.REFUSED, view.work.rejected)
    if view.leadership is not None and view.leadership.in_vain:
        return Finish(Verdict.REFUSED, view.leadership.in_vain)
    return None


def patience_s(denial: Denial, *, let_in: bool) -> float:
    """How long a refusal may last."""
    if let_in:
        return DENIED_S
    return ROLE_S if denial.may_pass else 0.0


def _after_drain(view: View, control: Control) -> Finish | None:
    if view.work.active_run == control.run_id:
        ended = Finish(Verdict.DONE, f"Run {control.run_id} is drained.", drained=True)
        return None if _waits_for_upgrade(view) else ended
    if view.work.plan is None:
        return None
    if next_run.wanted_run(view) or not control.has_finished(view.work.plan.fingerprint):
        if view.settings.run_id not in control.past:
            return None
        by_hand = f"app.run.id is {view.settings.run_id!r}, a run that is drained for good."
        return Finish(Verdict.REFUSED, f"{by_hand} Name another one, or remove the line.")
    if (left := _left_behind(view, control)) is not None:
        return left
    if _waits_for_upgrade(view):
        return None
    if view.work.plan.fingerprint != control.fingerprint:
        return Finish(Verdict.REFUSED, _left_to_do(control, view.work.plan.fingerprint))
    if not control.cleaned:
        return None  # the leader may have died during the clean-up; then the next leader completes it
    return Finish(Verdict.DONE, _left_to_do(control, view.work.plan.fingerprint), drained=True)


def _left_to_do(control: Control, fingerprint: str) -> str:
    """What somebody has to do after a drain so that code with this pipeline runs again, or other code."""
    text = SAME_CODE if fingerprint == control.fingerprint else OLD_CODE
    return text.format(run=control.run_id, pipeline=fingerprint[:12])


def waits_for_people(control: Control, fingerprint: str) -> str:
    """What a live processor with this pipeline waits for after a drain that only people can do, unless it asks for the
    next run; empty if it begins that, or is not ready.
    """
    if control.phase is not RunPhase.DRAINED or not fingerprint or not control.has_finished(fingerprint):
        return ""
    return _left_to_do(control, fingerprint)


def waiting(view: View) -> str:
    """The same for this processor; empty if it waits for nothing, or ends."""
    control, plan = view.control, view.work.plan
    if not isinstance(control, Control) or plan is None or view.ending is not None or next_run.wanted_run(view):
        return ""
    return waits_for_people(control, plan.fingerprint) if verdict(view) is None else ""


def of_start(control: Control | None, plan: Plan, settings: Settings) -> Finish:
    """What a start of this code would do with the present run; with the code of a refusal, if it would be refused."""
    if control is None or control.phase is RunPhase.NONE:
        return Finish(Verdict.DONE, "No run has begun yet: the first start begins one.")
    view = View(settings, OwnIncarnation(settings.processor))
    view.group_id, view.own.control, view.work.plan = control.group_id, control, plan
    if (ends := verdict(view)) is not None:
        return ends
    run = f"Run {control.run_id}"
    match control.phase:
        case RunPhase.DRAINED if not next_run.wanted_run(view) and control.has_finished(plan.fingerprint):
            return Finish(Verdict.DONE, _left_to_do(control, plan.fingerprint))
        case RunPhase.DRAINED:
            return Finish(Verdict.DONE, f"{run} is drained: a start of this code begins the next run.")
        case RunPhase.DRAINING:
            return Finish(Verdict.DONE, f"{run} is being drained, with this pipeline: a start of this code joins it.")
        case RunPhase.FAILED:
            return Finish(Verdict.DONE, f"{run} failed, with this pipeline: a start of this code resumes it.")
    return Finish(Verdict.DONE, f"{run} has this pipeline: a start of this code goes on with it, without a drain.")


def _waits_for_upgrade(view: View) -> bool:
    """Whether this processor stays after a drain. One that was restarted after the last drain has its own run, if it is
    upgraded, and ends with that.
    """
    return view.settings.wait_for_upgrade or (view.settings.restarted and not view.work.active_run)


def _left_behind(view: View, control: Control) -> Finish | None:
    """The ending of a processor whose run is drained and that cannot take part in the next one, which began while it
    waited or slept: that has another pipeline, or another id than app.run.id says.
    """
    over, fits = view.work.active_run, _has_pipeline_of(view, control) and view.settings.run_id in ("", control.run_id)
    if fits or over in ("", control.run_id):
        return None
    return Finish(Verdict.DONE, f"Run {over} is drained, and run {control.run_id} has begun since.")


def _misfit(view: View, control: Control) -> Finish | None:
    if (left := _left_behind(view, control)) is not None:
        return left
    if view.work.plan is not None and not _has_pipeline_of(view, control):
        return Finish(Verdict.REFUSED, _other_pipeline(control, view.work.plan))
    by_hand = view.settings.run_id
    if by_hand and by_hand != control.run_id:
        return Finish(
            Verdict.REFUSED,
            f"Run {control.run_id} is in progress, app.run.id says {by_hand}. Drain it, or unset the key.",
        )
    return None


def _has_pipeline_of(view: View, control: Control) -> bool:
    """Whether we have the run's pipeline, as far as both are known."""
    return view.work.plan is None or control.fingerprint in ("", view.work.plan.fingerprint)


def _other_pipeline(control: Control, plan: Plan) -> str:
    """What differs, stage by stage and stream by stream, and what to do about it."""
    if control.has_finished(plan.fingerprint):
        return (
            f"Run {control.run_id} has another pipeline. An earlier run, which is drained, had this processor's, so it "
            "may be old code. Start the current code; to go back to this one, drain the run (samza-azure drain), then "
            "start it with --new-run."
        )
    differences = changes(control.described, plan.described) if control.described and plan.described else []
    if differences:
        what = ":\n" + "\n".join(f"  {each}" for each in differences) + "\n"
    else:
        what = (
            f" ({control.fingerprint[:12]} there, {plan.fingerprint[:12]} here)"
            f"{_recounted(control.sources, plan.sources)}. "
        )
    return (
        f"Run {control.run_id} has another pipeline than this processor{what}"
        "Drain the run with the old code (samza-azure drain), then start the new: it begins the next run. If the run "
        "is another job's, give this one another app.name, or an app.id."
    )


def _recounted(there: Mapping[str, int], here: Mapping[str, int]) -> str:
    """For the message: the source streams whose number of partitions differs, which is the easiest to recognize."""
    differing = [
        f"{stream} has {count} partitions there, {here[stream]} here"
        for stream, count in sorted(there.items())
        if here.get(stream, count) != count
    ]
    return f": {', '.join(differing)}" if differing else ""


class Wait(Enum):
    """What an ending processor waits for, in this order; for each, who must act and how long it waits.

    ================  ==============================================  ================================
    OWN_TASKS         its own container, to close its tasks           1.5 task.shutdown.ms each, `silent_at`
    OTHERS            (a leader, stopped) the others it stops          `rest_until`
    NEW_OWNERS        (a leader that leaves) its own next write        `rest_until`
    CLEAN_UP          (a leader, drained) the others' rows, the blobs  `rest_until`
    OWN_ROW           the storage, to take its last word               `rest_until` and FAREWELL_S
    LEASE, CANDIDACY  the storage, to release the lease                `rest_until` and FAREWELL_S
    ANSWER            the storage, to answer the last write            `rest_until` and FAREWELL_S
    ================  ==============================================  ================================

    Only a leader waits for others: for those whose row reports a task that the blob gives to that incarnation. No
    ending processor waits for the leader: a member of a drained or stopped run ends at once. A processor that joins a
    drained run waits for its clean-up before it ends, but blocks nobody: its row reports no task of that run. So there
    is no cycle: `tests/model/ending.py` plays to the end every order of events in which one processor of a drained or
    stopped run rejoins, crashes, is upgraded or restarted, or is asked to leave a run.
    """

    OWN_TASKS = "its tasks"
    OTHERS = "those whom it stops"
    NEW_OWNERS = "others to get its tasks"
    CLEAN_UP = "the clean-up of the run"
    OWN_ROW = "its last word"
    LEASE = "the release of its lease"
    CANDIDACY = "the release of a lease that it won meanwhile"
    ANSWER = "an answer"


def waits_for(view: View, now: float) -> Wait | None:
    """What an ending processor waits for first. None if it can exit."""
    if tasks.may_still_release(view, now):
        return Wait.OWN_TASKS
    if (duty := _duty(view, now)) is not None:
        return duty
    if view.own.etag is None or reached(rest_until(view) + FAREWELL_S, now):
        return None
    if view.own.written is None or view.own.written.state is not ProcessorState.LEFT:
        return Wait.OWN_ROW
    if view.lease is not None or view.handing_over is not None:
        return Wait.LEASE
    campaign, control = view.candidacy.campaign, view.control
    if campaign is not None and campaign.lease_id:
        return Wait.CANDIDACY  # otherwise the next candidate would have to break it
    asks = campaign is not None or (isinstance(control, Control) and control.leader is None)
    may_win = asks and CONTROL in view.calls.busy
    return Wait.ANSWER if may_win or LEADER_ROW in view.calls.busy else None


def end(view: View, now: float) -> list[Action]:
    """End the work, then the row, then the lease; then exit, even if the storage is down."""
    if view.ending is None:
        why = verdict(view)
        return [BeginEnd(why)] if why is not None else []
    match waits_for(view, now):
        case None:
            return [_as_it_came(view, view.ending)]
        case Wait.OWN_TASKS | Wait.OTHERS | Wait.NEW_OWNERS | Wait.CLEAN_UP | Wait.ANSWER:
            return []  # the container, the other parts of this turn or the storage must act
        case Wait.OWN_ROW:
            return _leave_row(view, now)
        case Wait.LEASE:
            return election.hand_over(view, now)
        case Wait.CANDIDACY:
            lease_id = view.candidacy.campaign.lease_id if view.candidacy.campaign is not None else ""
            return [ReleaseLease(lease_id)] if view.free(LEASE, now) else []
        case never:
            assert_never(never)


def releases_lease(view: View, now: float) -> bool:
    """Whether `end` releases the lease in this turn. A leader that was asked to leave has handed over before that."""
    return view.ending is not None and waits_for(view, now) is Wait.LEASE


def _as_it_came(view: View, ending: Finish) -> Finish:
    """The ending, with another message if the processor left but the storage does not have its last row."""
    if ending.message != HANDED_OVER or view.own.etag is None:
        return ending
    known = view.own.written is not None and view.own.written.state is ProcessorState.LEFT
    own = {name: each for name, each in sorted(view.work.tasks.items()) if view.work.container and not each.former}
    doubtful = [name for name, local in own.items() if not local.closed]
    sentences = []
    if known and not doubtful and view.held:
        return replace(ending, message=_handed_over(view))
    if not known:
        wait = [name for name in own if name in doubtful or _is_waited_for(view, name)]
        get = f"; others get {', '.join(wait)} when" if wait else ", who see it when"
        sentences.append(
            f"Left the group, but could not write this to the storage: the others do not know{get} it has been "
            f"silent for {view.timing.heartbeat_timeout_s:g} s."
        )
    if doubtful:
        sentences.append(
            f"{'Left the group. ' if known else ''}{', '.join(doubtful)} did not end in time; the next owner finds "
            "in the log whether the last batch is stored. Nothing is lost or duplicated."
        )
    if not sentences:
        return ending
    going = decommission.going_of(view)
    so_far = [f"So far: {going.so_far}."] if going is not None and going.tasks else []
    return replace(ending, code=Verdict.LEFT_OPEN, message=" ".join([*sentences, *so_far]))


def _is_waited_for(view: View, task: str) -> bool:
    """Whether others cannot begin a task that has ended here before they take us for dead: the blob gives it to us, or
    no row that was accepted says that it is released.
    """
    share, known = view.share, view.own.written.released if view.own.written is not None else {}
    if share is None or task in share.mine:
        return True
    return any(name == task and known.get(task, -1) < generation for name, generation in share.awaited)


def _handed_over(view: View) -> str:
    """What became of the tasks of a processor that has left in order, all of which have ended."""
    going = decommission.going_of(view)
    assert going is not None, "it was asked to leave"
    text = f"Left the group; {going.so_far}."
    if left := decommission.left_of(view):
        text += f" {what_is_left(left)}; the next owner goes on from the log."
    if view.repeated:
        least = "at least " if min(view.repeated.values()) < 0 else ""
        rows = f"{least}{going.repeated}" if going.repeated else "an unknown number of"
        text += f" Batches given up, because they could not end in time: {names_of(sorted(view.repeated))}"
        text += f"; the next owners repeat {rows} input rows."
    return text


def _duty(view: View, now: float) -> Wait | None:
    """What a leader must do before it ends."""
    control = view.control
    if not view.leads or not isinstance(control, Control) or reached(rest_until(view), now):
        return None
    if control.stop is not None:  # later arrivals have nothing to commit, and orchestrators may start more and more
        others = (Member(row.processor, row.incarnation) for row in view.others.members.values() if row.alive)
        if any(other in control.members for other in others if other != view.member):
            return Wait.OTHERS
    elif view.leaving and view.work.plan is not None and tasks.assigned(view):
        return Wait.NEW_OWNERS  # publish first, so that others start while we end
    return Wait.CLEAN_UP if control.phase is RunPhase.DRAINED and not control.cleaned else None


def rest_until(view: View) -> float:
    """The time after which an ending processor waits for nothing but its last calls.

    A leader may take longer: the others leave a drained or stopped run first, dead ones are marked, then it cleans up.
    A leader that was asked to leave does not: its orchestrator soon kills it, and the next leader completes the
    clean-up. Nor does one whose machine goes meanwhile: if it leaves before, nobody has to wait for its silence. A
    processor that was asked to leave waits less while the storage accepts nothing.
    """
    until = view.ending_since + tasks.PATIENCE * view.settings.shutdown_s
    control = view.control
    is_last = isinstance(control, Control) and (control.phase is RunPhase.DRAINED or control.stop is not None)
    if (view.lease or view.handing_over) and is_last and not view.leaving:
        until += tasks.PATIENCE * view.settings.shutdown_s + 3 * view.timing.heartbeat_timeout_s
        goes_at = decommission.last_word_at(view, view.ending_since)
        if goes_at is not None and goes_at > view.ending_since:  # after that, nobody knows when it goes
            until = min(until, goes_at)
    return min(until, max(view.ending_since, tasks.silent_at(view))) if view.leaving else until


def _leave_row(view: View, now: float) -> list[Action]:
    """Write that we have left. Before that, `beat` must have read the row and found that it is still ours."""
    if not view.free(OWN_ROW, now) or view.own.etag is None or view.own.found is None or membership.fenced(view):
        return []
    last_words = rows.ending(view.ending.code, view.ending.message) if view.ending is not None else ""
    last = replace(membership.own_row(view), beat=view.own.beat + 1, state=ProcessorState.LEFT, ending=last_words)
    return [MergeOwnRow(last, view.own.etag)]
