"""What our own review changed without anything noticing: each as one small change of our code."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from samza_azure.group import assign as assigning
from samza_azure.group import (
    containers,
    election,
    housekeeping,
    membership,
    publish,
    requests,
    rows,
    tasks,
    timing,
    view,
)
from samza_azure.group import drain as draining
from samza_azure.group import learn as learning
from samza_azure.group.actions import Rejoin, Tell
from samza_azure.host import processor
from samza_azure.logs import source_log, task_log
from samza_azure.logs.operations import Read, Rule
from samza_azure.messages import DrainStep, Phase

Patch = pytest.MonkeyPatch


def released_while_it_works(patch: Patch) -> None:
    """our review: the loser of a task reports its release while it still works."""

    def released(view: Any) -> dict[str, int]:
        return dict(view.share.awaited) if view.share is not None else {}

    patch.setattr(tasks, "released", released)


def the_gainer_waits_for_ever(patch: Patch) -> None:
    """our review: the gainer of a task waits for the loser without a bound."""

    def is_released(view: Any, task: str, earlier: Any, now: float) -> bool:
        since = view.own.waiting_since.get(task, now)
        seen = view.seen_at(earlier.processor) >= since and tasks.has_released(view, task, earlier)
        return view.is_me(earlier) or seen

    patch.setattr(tasks, "_is_released_by", is_released)


def an_interruption_counts_as_failures(patch: Patch) -> None:
    """our review: a task whose permit has expired starts again as late as one that has failed several times."""
    retry_at = tasks.retry_at

    def late(view: Any, task: str, local: Any) -> float:
        return retry_at(view, task, local) + (4.0 if local.phase is Phase.RESTART else 0.0)

    patch.setattr(tasks, "retry_at", late)


def flush_takes_the_last_end(patch: Patch) -> None:
    """our review: of two readers of a source, the one looked at last determines where the drain ends."""

    def furthest(reported: Any, begun: Mapping[str, Any]) -> dict[str, Any]:
        ends = dict(begun)
        for each in reported:
            ends.update(each)
        return ends

    patch.setattr(draining, "furthest", furthest)


def a_drain_waits_for_an_ended_task(patch: Patch) -> None:
    """our review: a task that has asked for its shutdown has to say where it stands in each drain, and never does."""

    def stopped_at(report: Any, drain: str) -> Any:
        return report.ends if report is not None and report.frozen_for == drain else None

    patch.setattr(draining, "_stopped_at", stopped_at)


def draining_moves_tasks(patch: Patch) -> None:
    """our review: tasks are rebalanced while the run drains."""
    assign = publish.assign
    patch.setattr(publish, "assign", lambda *known, **more: assign(*known, **(more | {"balance": True})))


def starts_without_a_permit(patch: Patch) -> None:
    """our review: tasks are started past the self-stop deadline."""
    commands = tasks.commands

    def too_late(view: Any, now: float) -> list[Any]:
        actions = commands(view, now)
        if view.work.container and view.ending is None and view.permit_until <= now:
            mine = tasks.assigned(view).items()
            actions += [Tell(tasks._start(view, *each)) for each in mine if tasks._may_start(view, *each, now)]
        return actions

    patch.setattr(tasks, "commands", too_late)


def churn_never_rises(patch: Patch) -> None:
    """our review: deposing a leader that is alive does not lengthen the timeout."""
    with_churn = election.with_churn

    def never(view: Any, control: Any, now: float) -> Any:
        after = with_churn(view, control, now)
        return replace(after, churn=min(after.churn, control.churn))

    patch.setattr(election, "with_churn", never)


def no_successors_are_named(patch: Patch) -> None:
    """our review: the leader row names no successors, so all notice a death late."""
    patch.setattr(election, "successors_of", lambda view, control: ())


def first_is_never_cleared(patch: Patch) -> None:
    """our review: a task whose log was lost counts as a task that never had one."""
    patch.setattr(publish, "with_births", lambda view, before, control: control)


def cleans_up_at_once(patch: Patch) -> None:
    """our review: the leader deletes a drained run's logs before the other processors have left it."""
    patch.setattr(housekeeping, "_has_tasks", lambda control, row: False)


def every_drain_is_accepted(patch: Patch) -> None:
    """our review: a second request, or one while the drain is withdrawn, is answered as if its drain were under way."""
    patch.setattr(requests, "_answer_to_drain", lambda control, request, waiting: requests.ACCEPTED)


def a_stop_keeps_the_freeze(patch: Patch) -> None:
    """our review: the next start resumes a run that is frozen for a drain."""
    with_stop = publish.with_stop

    def frozen(view: Any, control: Any, rows: Any) -> Any:
        after = with_stop(view, control, rows)
        kept = control.drain is not None and control.drain.step is DrainStep.FREEZE and after.stop is not None
        return replace(after, phase=control.phase, drain=control.drain) if kept else after

    patch.setattr(publish, "with_stop", frozen)


def ages_survive_an_outage(patch: Patch) -> None:
    """our review: a silence during which perhaps no processor could write counts like any other."""

    def remembering(view: Any, sent_at: float, now: float) -> None:
        view.own.accepted_at = max(view.own.accepted_at, sent_at)

    patch.setattr(learning, "_beat_accepted", remembering)


def followers_that_are_no_successors_wait_long(patch: Patch) -> None:
    """our review: followers that are not named as successors wait ten times as long, and the named ones may be gone."""
    suspect = election._suspect

    def late(view: Any) -> bool:
        row, age = view.others.leader_row, view.others.leader_age
        is_named = view.me in getattr(row, "successors", ())
        return suspect(view) and (
            is_named or age.silent(10 * (election.leader_timeout(view) + view.timing.heartbeat_s))
        )

    patch.setattr(election, "_suspect", late)


def calls_are_kept(patch: Patch) -> None:
    """our review: a processor keeps each call that it has ever made."""

    class Kept(set[Any]):
        def discard(self, each: Any) -> None:
            """It stays."""

    begin = processor.Processor.__init__

    def keeping(self: Any, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        self._calls = Kept()

    patch.setattr(processor.Processor, "__init__", keeping)


def an_outage_quadruples_the_calls(patch: Patch) -> None:
    """our review: a call that fails is made again four times as soon as the next one would be due."""
    after = timing.BackOff.after

    def soon(self: Any, failures: int, random: float) -> float:
        return after(self, 1, random) / 4

    patch.setattr(timing.BackOff, "after", soon)


def rows_are_read_from_a_replica(patch: Patch) -> None:
    """our review: every fifth scan is answered by a replica that is one scan behind."""
    learns, before = learning._learn_members, dict[int, Any]()

    def stale(view: Any, rows: Any, sent_at: float, now: float) -> None:
        known, before[id(view)] = before.get(id(view), rows), rows
        learns(view, known if view.own.beat % 5 == 0 else rows, sent_at, now)

    patch.setattr(learning, "_learn_members", stale)


# What another fence hides from every simulation; an ordinary test shows each alone.


def a_late_mark_kills_the_next_life(patch: Patch) -> None:
    """our review: an incarnation is marked dead, and the late answer counts for the next one. No seed is slow
    enough."""
    marked = learning._marked_dead

    def kills(view: Any, action: Any, answer: Any, now: float) -> None:
        row = view.others.members.get(action.processor)
        marked(view, replace(action, etag=row.etag if row is not None else ""), answer, now)

    patch.setattr(learning, "_marked_dead", kills)


def a_late_read_brings_a_life_back(patch: Patch) -> None:
    """our review: a read of one row that was sent before a scan and is answered after it counts. No seed is slow
    enough."""
    learns = learning._learn_member

    def late(view: Any, processor: str, answer: Any, sent_at: float, now: float) -> None:
        learns(view, processor, answer, now, now)

    patch.setattr(learning, "_learn_member", late)


def a_scan_brings_the_dead_back(patch: Patch) -> None:
    """our review: a scan that was sent before an incarnation was marked dead, and is answered after it, counts. No seed
    is slow enough."""
    learns = learning._learn_members

    def late(view: Any, rows: Any, sent_at: float, now: float) -> None:
        view.others.members = {name: row for name, row in view.others.members.items() if row.alive}
        learns(view, rows, sent_at, now)

    patch.setattr(learning, "_learn_members", late)


def a_wish_is_granted_to_each_life(patch: Patch) -> None:
    """our review: a processor that rejoins has forgotten that its request for a new run was granted. In no seed a
    processor that made one rejoins after the drain."""
    perform = processor.perform_locally

    def forgets(view: Any, action: Any, now: float) -> None:
        perform(view, action, now)
        if isinstance(action, Rejoin):
            view.work.active_run = ""

    patch.setattr(processor, "perform_locally", forgets)


def ages_survive_a_pause(patch: Patch) -> None:
    """our review: an observer that was frozen keeps its ages. A gap between two reads counts little anyway, and a death
    needs several reads."""
    patch.setattr(learning, "_forget_ages", lambda view, now: None)


def drain_believes_any_generation(patch: Patch) -> None:
    """our review: a drain accepts a row's report of any generation. A row only reports its own processor's tasks."""

    def report_of(task: str, owner: Any, rows: Mapping[str, Any]) -> Any:
        row = rows.get(owner.processor) if owner is not None else None
        return row.tasks.get(task) if row is not None else None

    patch.setattr(draining, "report_of", report_of)


def append_compares_no_bytes(patch: Patch) -> None:
    """our review: a refused append counts as landed if the log has grown by as much. A task's log has one permitted
    writer, so only producers of a source lose rows."""
    send = task_log.send

    def believing(name: str, data: bytes, position: int) -> Rule[bool]:
        rule, answer = send(name, data, position), None
        while True:
            try:
                operation = rule.send(answer)
            except StopIteration as stop:
                return bool(stop.value)
            answer = yield operation
            if isinstance(operation, Read) and answer is not None and answer.size >= position + len(data):
                answer = replace(answer, data=data[: len(answer.data)])

    patch.setattr(task_log, "send", believing)
    patch.setattr(source_log, "send", believing)


def no_look_for_a_later_blob(patch: Patch) -> None:
    """our review: a producer that finds its blob gone, or creates it again, does not check whether the log went on. It
    would have to sleep between two operations until others have rolled the log and its readers have passed the blob."""

    def never(log: Any) -> Iterator[Any]:
        yield from ()

    patch.setattr(task_log, "_refuse_if_overtaken", never)


def the_lease_is_believed_too_long(patch: Patch) -> None:
    """our review: a leader acts for 30 s after the service may have given its lease to another. Each of its writes
    names the lease and the ETag, so the first one is refused."""
    patch.setattr(view.Lease, "ends_at", property(lambda lease: lease.asked_at + view.LEASE_S + 25.0))


def the_lease_is_the_leadership(patch: Patch) -> None:
    """our review: a leader that is cut off says that it leads until its lease ends, beside the next one."""
    patch.setattr(
        view.View, "is_leader", lambda self, now: self.leadership is not None and now < self.leadership.lease.ends_at
    )


def the_permit_is_the_leadership(patch: Patch) -> None:
    """client-go: a leader says that it leads as long as it may work. The others suspect it before that ends."""
    patch.setattr(view.View, "leader_until", property(lambda self: self.permit_until))


def the_next_leader_does_not_wait(patch: Patch) -> None:
    """client-go: who holds the lease leads. A leader that was deposed alive does not know of it yet."""
    shown = learning._shown

    def at_once(view: Any, leading: Any, action: Any, etag: str, sent_at: float, now: float) -> None:
        shown(view, leading, action, etag, sent_at, now)
        leading.free_from = min(leading.free_from, now)

    patch.setattr(learning, "_shown", at_once)


def tasks_wait_for_the_next_container(patch: Patch) -> None:
    """our review: a processor whose container has ended keeps its tasks, although another one has a container."""
    patch.setattr(containers, "ready", lambda able: able)
    patch.setattr(containers, "awaited", lambda view, control, able, now: set())


def a_container_that_hangs_counts(patch: Patch) -> None:
    """our review: a processor whose container hangs keeps its tasks until that is killed."""
    patch.setattr(view.View, "hangs", False)


def cut_off_keeps_its_tasks(patch: Patch) -> None:
    """our review: a member that sends heartbeats but cannot reach the control blob keeps its tasks."""
    patch.setattr(membership, "is_cut_off", lambda view, row: False)


def cut_off_is_believed_at_once(patch: Patch) -> None:
    """our review: a member that says that it is cut off is marked dead, even in an outage that hits all."""
    patch.setattr(membership, "is_cut_off", lambda view, row: row.cut_off)


def the_surplus_is_forgotten(patch: Patch) -> None:
    """our review: tasks are taken from the processors that have too many, and given to nobody."""
    take = assigning._surplus

    def forgetful(shares: dict[str, list[str]], total: int) -> list[str]:
        take(shares, total)
        return []

    patch.setattr(assigning, "_surplus", forgetful)


def a_damaged_drain_is_obeyed(patch: Patch) -> None:
    """our review: a drain is obeyed whatever its columns say, and whichever are missing."""
    read = rows.request

    def trusting(key: str, etag: str, values: Mapping[str, Any], age_s: float = 0.0) -> rows.Request:
        found = read(key, etag, values, age_s)
        is_drain = found.kind is None and values.get("kind") == rows.RequestKind.DRAIN
        return replace(found, kind=rows.RequestKind.DRAIN, run_id="") if is_drain else found

    patch.setattr(rows, "request", trusting)


def a_damaged_drain_raises(patch: Patch) -> None:
    """our review: a column that a drain needs is read without a look whether it is there."""
    read = rows.request

    def careless(key: str, etag: str, values: Mapping[str, Any], age_s: float = 0.0) -> rows.Request:
        return read(key, etag, values if values.get("kind") != "drain" else values | {"uuid": values["uuid"]}, age_s)

    patch.setattr(rows, "request", careless)


def a_newcomer_gets_nothing(patch: Patch) -> None:
    """our review: only tasks that have lost their owner are assigned, so a processor that joins idles."""
    assign = publish.assign

    def unbalanced(*args: Any, balance: bool = True, **more: Any) -> dict[str, str]:
        return assign(*args, balance=False, **more)

    patch.setattr(publish, "assign", unbalanced)
