"""Membership: who is a member, and who is alive.

A heartbeat is one conditional merge of our own row. A silent row is marked dead by the ETag whose age was measured, so
the mark is refused if the row has changed since.
"""

from dataclasses import replace

from samza_azure.errors import Verdict
from samza_azure.group import bells, next_run, tasks
from samza_azure.group.actions import (
    CONTROL,
    MEMBER,
    OWN_ROW,
    SCAN,
    Action,
    Finish,
    InsertOwnRow,
    MarkDead,
    MergeOwnRow,
    ReadMember,
    ReadOwnRow,
    Rejoin,
    ReplaceOwnRow,
    ScanMembers,
    resource,
)
from samza_azure.group.control import BarrierState, Control, Member
from samza_azure.group.moment import reached
from samza_azure.group.rows import ProcessorRow, ProcessorState, ending
from samza_azure.group.timing import WAITS_PER_S
from samza_azure.group.view import View
from samza_azure.messages import Machine
from samza_azure.outcomes import Missing

#: A row of our id, or a leader's, that changes this often has a live owner. One change may be the last write of a dead
#: one, landing late.
RIVAL_WRITES = 2


def beat(view: View, now: float) -> list[Action]:
    """Join, then merge our own row once per heartbeat. Changes that others wait for are written at once."""
    if not view.free(OWN_ROW, now) or (view.own.written is not None and view.own.written.state is ProcessorState.LEFT):
        return []
    if view.own.found is None:
        return [ReadOwnRow()]
    if view.own.etag is None:
        return join(view, now)
    if fenced(view):
        return [Rejoin("This processor was marked dead or its row was taken; it comes back as a new incarnation.")]
    row = own_row(view)
    gap = view.beat_every_s if row == view.own.written else view.timing.urgent_gap_s(view.size)
    if reached(view.calls.beat_sent_at + gap, now):
        return [MergeOwnRow(replace(row, beat=view.own.beat + 1), view.own.etag)]
    return []


def join(view: View, now: float) -> list[Action]:
    """Insert our row, or replace that of a predecessor of the same id that is certainly gone."""
    row = own_row(view)
    match view.own.found:
        case ProcessorRow() as found if view.own.written is not None:
            return [Rejoin(f"The row of {view.me} belongs to incarnation {found.incarnation} now.")]
        case ProcessorRow() as found if found.incarnation == view.incarnation:
            return [Rejoin("This processor was marked dead before it learned that it had joined.")]
        case ProcessorRow() as found:
            age = view.own.found_age
            gone = not found.alive or (view.settings.holds_directory and found.boot == view.settings.boot)
            if gone or (age is not None and age.silent(view.timing.heartbeat_timeout_s)):
                return [ReplaceOwnRow(row, found.etag)]
            if view.own.rewritten >= RIVAL_WRITES:
                return [
                    Finish(
                        Verdict.REFUSED,
                        f"A live processor has the id {view.me!r}. Start this one with another --id, or stop that one.",
                    )
                ]
            if age is not None and reached(age.read_at + view.timing.heartbeat_s / 2, now):
                return [ReadOwnRow()]
            return []
        case _ if view.own.join_unsettled:  # the row may have been written, marked dead and deleted since
            return [Rejoin("This processor does not know whether it had joined; it joins as a new incarnation.")]
        case _:
            return [InsertOwnRow(row)]


def own_row(view: View) -> ProcessorRow:
    """The current value of our row, with the beat unchanged."""
    control = view.control if isinstance(view.control, Control) else None
    adopted = control.version if control is not None else 0
    leaves = view.departs or view.too_old_for > 0
    state = ProcessorState.LEAVING if leaves else ProcessorState.ACTIVE if adopted else ProcessorState.UNASSIGNED
    return ProcessorRow(
        processor=view.me,
        incarnation=view.incarnation,
        etag=view.own.written.etag if view.own.written else "",
        beat=view.own.beat,
        adopted=adopted,
        state=state,
        released=tasks.released(view),
        tasks={
            task: report
            for task, local in view.work.tasks.items()
            if (report := tasks.reported(view, local)) is not None
        },
        fingerprint=view.work.plan.fingerprint if view.work.plan and _takes_tasks(view) else "",
        new_run=next_run.wanted_run(view),
        boot=view.settings.boot,
        too_old_for=view.too_old_for
        if view.too_old_for and all(local.closed for local in view.work.tasks.values())
        else 0,
        cut_off=view.cut_off,
        machine=Machine(
            view.settings.host,
            view.settings.release,
            view.work.plan.code if view.work.plan is not None else "",
            view.work.use,
        ),
        # Before the first one is ready there is no plan, so no task can be ours.
        no_container=view.work.plan is not None and (not view.work.container or view.hangs),
        ending=ending(Verdict.FAILED, view.gave_up) if view.gave_up else "",
        going=view.going,
        replicas=view.work.replicas if view.settings.replicas else None,
        was_going=view.own.written is not None and (view.own.written.going is not None or view.own.written.was_going),
        bell=bells.own_bell(view),
    )


def _takes_tasks(view: View) -> bool:
    """Whether a leader may give us tasks. A group of one takes them from itself alone."""
    return not view.settings.alone or view.leads or bool(tasks.assigned(view))


def fenced(view: View) -> bool:
    """Whether our row is no longer ours: marked dead, replaced, or deleted."""
    match view.own.found:
        case ProcessorRow() as found:
            return found.incarnation != view.incarnation or found.state is ProcessorState.DEAD
        case Missing():
            return True  # marked dead, and deleted since by a clean-up
    return False


def scan(view: View, now: float) -> list[Action]:
    """Scan all rows, as a leader: at its rate, and at once if it has not since it began to lead."""
    if view.free(SCAN, now) and (not view.has_looked or reached(view.others.scanned_at + view.scan_gap(), now)):
        return [ScanMembers()]
    if not view.others.gone:
        return []
    due = {name: at for name, row in view.others.members.items() if (at := bells.due_at(view, row)) is not None}
    return [ReadMember(name) for name, at in due.items() if reached(at, now) and view.free(f"{MEMBER}{name}", now)]


def look(view: View, now: float) -> list[Action]:
    """Scan all rows, if we may have to lead next; otherwise, and in between, read those whose tasks we wait for."""
    if view.watching() and view.free(SCAN, now) and reached(view.others.scanned_at + view.scan_interval, now):
        return [ScanMembers()]
    if SCAN in view.calls.busy:
        return []
    since, gap, every = tasks.awaited(view), view.size / WAITS_PER_S, view.wait_gap()
    awaited = sorted(since)
    if len(awaited) * gap > every:  # one after the other, round-robin
        is_due = reached(max(view.others.read_at.values(), default=-1e9) + gap, now)
        awaited = [min(awaited, key=view.seen_at)] if is_due else []
    return [
        ReadMember(processor)
        for processor in awaited
        if (view.seen_at(processor) < since[processor] or reached(view.seen_at(processor) + every, now))
        and view.free(resource(ReadMember(processor)), now)
    ]


def candidates(view: View, control: Control) -> dict[str, ProcessorRow]:
    """The processors that can be given tasks: they have the run's pipeline, can read the control blob and do not leave.

    An existing member keeps its tasks until the barrier times out: after the first version nobody has adopted one yet.
    The leader of a group of one has no other candidate; others stand by, and take over when it leaves. One that the
    blob asks to go is none even before its row says so.
    """
    members = set(control.members)
    return {
        processor: row
        for processor, row in view.present.items()
        if (processor == view.me or not view.settings.alone)
        and row.state is not ProcessorState.LEAVING
        and row.incarnation not in control.noticed
        and row.fingerprint == control.fingerprint
        and (row.adopted or not control.version or Member(processor, row.incarnation) in members)
    }


def mark_dead(view: View, control: Control, now: float) -> list[Action]:
    """Mark silent members dead, before their tasks are published to others.

    When the barrier times out, a member for which it waits is marked too, even if it sends heartbeats; one that has
    just joined or come back has had no time to adopt. A member that is cut off is marked, since it cannot learn that
    its tasks have moved.
    """
    if now > view.own.accepted_at + 2 * view.timing.heartbeat_s:
        return []  # an observer that is cut off itself must not mark others
    overdue = control.barrier.state is BarrierState.TIMEOUT and is_overdue(view, now)
    awaited = candidates(view, control) if overdue else {}
    actions: list[Action] = []
    for processor, row in view.others.members.items():
        age = view.others.ages.get(processor)
        if processor == view.me or not row.alive or age is None or not view.writable(f"{MEMBER}{processor}", now):
            continue
        stuck = processor in awaited and row.adopted < control.version
        silent = age.silent(view.timing.heartbeat_timeout_s) or bells.member_gone(view, row, age)
        if silent or stuck or is_cut_off(view, row):
            actions.append(MarkDead(processor, row.etag, control.epoch))
    return actions


def is_cut_off(view: View, row: ProcessorRow) -> bool:
    """Whether a member has been cut off from the blob for long enough, while we were not.

    After an outage for everybody, it needs its longest back-off and one call to notice and report that it is over.
    """
    since = view.as_leader.cut_off.get(row.incarnation) if row.cut_off else None
    if since is None:
        return False
    return view.own.control_read_at >= since + view.timing.heartbeat_timeout_s + view.back_off(CONTROL).longest_s


def tries_blob(view: View, now: float) -> bool:
    """Whether the leader must check that the blob can be reached, since a member reports that it cannot."""
    says_so = any(row.alive and row.cut_off and name != view.me for name, row in view.others.members.items())
    return says_so and reached(view.own.control_read_at + view.timing.heartbeat_s, now)


def is_overdue(view: View, now: float) -> bool:
    """Whether the barrier has been open for too long."""
    return reached(max(view.as_leader.barrier_since, view.as_leader.since) + view.timing.barrier_timeout_s, now)
