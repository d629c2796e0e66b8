"""The defects B1 to B28 of Samza's coordinator on Azure, each as one small change of our code."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from samza_azure.group import election, ending, membership, publish, tasks
from samza_azure.group import learn as learning
from samza_azure.group import view as viewing
from samza_azure.group.actions import (
    BeginEnd,
    Finish,
    InsertOwnRow,
    MergeOwnRow,
    RenewLease,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.answers import Trouble
from samza_azure.group.control import Assignment, BarrierState, Control
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.host import perform as performing
from samza_azure.host import processor as hosting
from samza_azure.logs import task_log as logs
from samza_azure.outcomes import Refused
from simulator import container as containers

Patch = pytest.MonkeyPatch


def no_processors_are_passed_on(patch: Patch) -> None:
    """B1: the list of live processors is computed but not used for the assignment."""
    patch.setattr(publish, "assign", lambda tasks, members, current, **more: {})


def blind_retry_of_a_beat(patch: Patch) -> None:
    """B2: a refused heartbeat is sent again without its condition, so a paused processor never learns that it is
    dead."""
    perform = performing._perform

    async def forcing(action: Any, me: str, blob: Any, table: Any, *rest: Any) -> Any:
        answer = await perform(action, me, blob, table, *rest)
        if isinstance(action, MergeOwnRow) and isinstance(answer, Refused):
            row = await table.get("members", me, timeout=1.0)
            answer = await perform(replace(action, etag=row.etag), me, blob, table, *rest)
        return answer

    patch.setattr(performing, "_perform", forcing)


def no_self_stop(patch: Patch) -> None:
    """B3: work goes on as long as the process does."""
    patch.setattr(viewing, "SELF_STOP", 1000.0)


def leaving_waits_for_the_storage(patch: Patch) -> None:
    """B4: a processor that cannot write its last state never exits."""
    patch.setattr(ending, "FAREWELL_S", 1e9)


def lease_before_work(patch: Patch) -> None:
    """B5: a leader that exits gives up the lease first, then its row, then its work."""
    end = ending.end

    def hasty(view: Any, now: float) -> list[Any]:
        if view.ending is not None and (view.lease is not None or view.handing_over is not None):
            return election.hand_over(view, now)
        return end(view, now)

    patch.setattr(ending, "end", hasty)


def nobody_follows_during_a_barrier(patch: Patch) -> None:
    """B6, B7: a leader counts as alive as long as the barrier of its version is open."""
    suspect = election._suspect

    def believing(view: Any) -> bool:
        return bool(suspect(view) and view.control.barrier.state is BarrierState.END)

    patch.setattr(election, "_suspect", believing)


def the_same_version_again(patch: Patch) -> None:
    """B8: the next leader continues from the version that it knew, and publishes another model under the same
    number."""
    assignment = publish.with_assignment

    def reused(view: Any, control: Any, *rest: Any) -> Any:
        after = assignment(view, control, *rest)
        return after if after is control else replace(after, version=control.version)

    patch.setattr(publish, "with_assignment", reused)


def without_the_look_at_owners(patch: Patch) -> None:
    """A mistake of no project: the fence that hides the one above, a task given under another version than the one that
    gives it."""
    patch.setattr(publish, "_wrong_owner", lambda before, after: None)


def a_barrier_without_an_end(patch: Patch) -> None:
    """B9, kazoo's DoubleBarrier: a member that does not reach the barrier has no consequences."""
    patch.setattr(membership, "is_overdue", lambda view, now: False)


def any_life_will_do(patch: Patch) -> None:
    """B10, durabletask#1136: a restarted processor counts as the incarnation that had the tasks."""
    assigned = publish.with_assignment

    def taken(each: Assignment, able: Mapping[str, ProcessorRow]) -> Assignment:
        if each.owner is None or each.owner.processor not in able:
            return each
        return replace(each, owner=replace(each.owner, incarnation=able[each.owner.processor].incarnation))

    def with_assignment(view: Any, control: Control, able: Mapping[str, ProcessorRow], now: float) -> Control:
        seen = replace(control, tasks={task: taken(each, able) for task, each in control.tasks.items()})
        after = assigned(view, seen, able, now)
        if after is seen:
            return control
        tasks = {task: control.tasks[task] if each is seen.tasks[task] else each for task, each in after.tasks.items()}
        return replace(after, tasks=tasks)

    patch.setattr(publish, "with_assignment", with_assignment)


def a_newcomer_counts_from_zero(patch: Patch) -> None:
    """B11: a new leader that has adopted no version yet starts again at version 0."""
    campaign = election._continue_campaign

    def fresh(view: Any, going: Any, now: float) -> list[Any]:
        return [
            replace(action, control=replace(action.control, version=0)) if isinstance(action, WriteControl) else action
            for action in campaign(view, going, now)
        ]

    patch.setattr(election, "_continue_campaign", fresh)


def no_change_before_the_first_end(patch: Patch) -> None:
    """B12: a change of the members before the end of the first barrier raises an exception in the leader."""
    assignment = publish.with_assignment

    def parsing(view: Any, control: Any, *rest: Any) -> Any:
        after = assignment(view, control, *rest)
        if after is not control and control.version and control.barrier.state is not BarrierState.END:
            raise ValueError("UNASSIGNED is no number")
        return after

    patch.setattr(publish, "with_assignment", parsing)


def too_many_processors(patch: Patch) -> None:
    """B13: removing the processors in excess of the tasks overruns the list."""
    assign = publish.assign

    def trimming(tasks: Any, members: Any, current: Any, **more: Any) -> Any:
        if len(members) > len(tasks):
            raise IndexError("list index out of range")
        return assign(tasks, members, current, **more)

    patch.setattr(publish, "assign", trimming)


def the_surplus_goes(patch: Patch) -> None:
    """B14: a processor that gets no task exits, so there is no standby."""
    verdict = ending.verdict

    def impatient(view: Any) -> Finish | None:
        adopted = view.own.written is not None and view.own.written.state is ProcessorState.ACTIVE
        idle = adopted and isinstance(view.control, Control) and view.control.version and not tasks.assigned(view)
        return verdict(view) or (Finish(0, "There is nothing to do.") if idle else None)

    patch.setattr(ending, "verdict", impatient)


def zombie_leader(patch: Patch) -> None:
    """B15, client-go: a leader whose write was refused goes on leading."""
    learn = learning.learn

    def stubborn(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        if isinstance(action, WriteControl) and isinstance(answer, Refused):
            answer = Trouble.UNAVAILABLE
        learn(view, action, answer, sent_at=sent_at, now=now)

    patch.setattr(hosting, "learn", stubborn)


def losing_the_leadership_ends_the_processor(patch: Patch) -> None:
    """B16: losing the lease ends the processor instead of its leadership."""
    learn = learning.learn

    def offended(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        led = view.leads and view.ending is None
        learn(view, action, answer, sent_at=sent_at, now=now)
        if led and not view.leads:
            learning.perform_locally(view, BeginEnd(Finish(1, "The lease is lost.")), now)

    patch.setattr(hosting, "learn", offended)


def a_renewal_is_tried_once(patch: Patch) -> None:
    """B17, DistributedLock, WebJobs: any error of a renewal counts as the loss of the lease."""
    learn = learning.learn

    def nervous(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        if isinstance(action, RenewLease) and isinstance(answer, Trouble):
            answer = Refused("whatever")
        learn(view, action, answer, sent_at=sent_at, now=now)

    patch.setattr(hosting, "learn", nervous)


def _fatal(patch: Patch, kind: type) -> None:
    """A refusal of such a call is an uncaught exception."""
    learn = learning.learn

    def dying(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        if isinstance(action, kind) and isinstance(answer, Refused):
            raise LookupError("The row is not as it was.")
        learn(view, action, answer, sent_at=sent_at, now=now)

    patch.setattr(hosting, "learn", dying)


def a_refused_beat_is_fatal(patch: Patch) -> None:
    """B18: a row that the heartbeat does not expect raises a null pointer exception."""
    _fatal(patch, MergeOwnRow)


def a_refused_leader_row_is_fatal(patch: Patch) -> None:
    """B19: a 412 for the flag that names the leader raises an exception."""
    _fatal(patch, WriteLeaderRow)


def a_row_is_only_inserted(patch: Patch) -> None:
    """B20: after a crash the row of the same id is still there, so the insert is refused forever."""
    patch.setattr(membership, "join", lambda view, now: [InsertOwnRow(membership.own_row(view))])


def an_error_is_the_end(patch: Patch) -> None:
    """B21: one failed call ends the processor, so a short outage ends all of them."""
    learn = learning.learn

    def giving_up(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        learn(view, action, answer, sent_at=sent_at, now=now)
        if answer is Trouble.UNAVAILABLE:
            learning.perform_locally(view, BeginEnd(Finish(3, "AzureException")), now)

    patch.setattr(hosting, "learn", giving_up)


def leaving_twice_is_an_error(patch: Patch) -> None:
    """B22: a second stop fails because the first one has deleted its data."""
    heard = learning.heard_leave

    def once(view: Any, gave_up: str = "") -> None:
        if view.leaving:
            raise KeyError("the row is gone")
        heard(view, gave_up)

    patch.setattr(hosting, "heard_leave", once)


def a_leader_elects_itself(patch: Patch) -> None:
    """B23: acquiring one's own lease again counts as a new leadership."""
    learn = learning.learn

    def again(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        learn(view, action, answer, sent_at=sent_at, now=now)
        if isinstance(action, RenewLease) and answer is None and view.lease is not None:
            view.candidacy.campaign = viewing.Campaign(view.own.control_etag, lease=view.lease, read=True)
            view.leadership = None

    patch.setattr(hosting, "learn", again)


def no_fence_at_take_over(patch: Patch) -> None:
    """B26: a processor reads and writes as soon as it gets a task, without fencing the former owner."""

    def only_reads(log: Any, **arguments: Any) -> Any:
        log.end = (yield from logs._newest(log, arguments["first"])), 0
        if log.end[0] == 0:
            yield logs.Create(log.blob)
        yield from logs._catch_up(log)

    patch.setattr(containers, "take_over", only_reads)


def no_debounce(patch: Patch) -> None:
    """B27, librdkafka#4742: each change becomes a version of its own, however fast the changes come."""
    assignment = publish.with_assignment

    def eager(view: Any, control: Any, *rest: Any) -> Any:
        view.as_leader.published_at = -1e9
        return assignment(view, control, *rest)

    patch.setattr(publish, "with_assignment", eager)


def other_partitions_are_not_noticed(patch: Patch) -> None:
    """B28: code with another number of partitions than the run began with keeps working."""
    patch.setattr(ending, "_misfit", lambda view, control: None)
    candidates = membership.candidates

    def anyone(view: Any, control: Any) -> Any:
        alike = {name: replace(row, fingerprint=control.fingerprint) for name, row in view.present.items()}
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(viewing.View, "present", alike)
            return candidates(view, control)

    patch.setattr(membership, "candidates", anyone)


def one_failure_fails_the_run(patch: Patch) -> None:
    """Ours: a task that fails on one machine is not tried on another, so a full disk on one machine ends the run."""
    failures = publish.with_failures
    patch.setattr(publish, "with_failures", lambda view, control, able: failures(view, control, {}))


def a_task_goes_back(patch: Patch) -> None:
    """Ours: the processor that gave a task up is forgotten at once, so the task goes to and fro."""
    assignment = publish.assign

    def forgetful(tasks: Any, members: Any, current: Any, *, given_up: Any, **more: Any) -> Any:
        kept = {**current, **{task: who for task, who in given_up.items() if who in members}}
        return assignment(tasks, members, kept, **more)

    patch.setattr(publish, "assign", forgetful)


def a_row_tells_of_a_former_life(patch: Patch) -> None:
    """Ours: a restarted processor keeps reporting the tasks of its former incarnation."""
    reported = tasks.reported
    patch.setattr(tasks, "reported", lambda view, local: reported(view, replace(local, former=False)))
