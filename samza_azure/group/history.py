"""Recent events and their reasons, which the leader writes into the control blob together with the change itself.

They are for people only: no decision depends on them, no write is made for them, and a blob without room omits them.
"""

from collections.abc import Iterator
from dataclasses import replace

from samza_azure.group.control import BarrierState, Control, Event, Member, RunPhase
from samza_azure.group.membership import own_row
from samza_azure.group.notice import Availability
from samza_azure.group.rows import ProcessorState
from samza_azure.group.view import View

#: How many events are kept, and how many characters of each.
KEPT, TEXT_LIMIT = 40, 240
#: How many tasks an event names when many move at once.
NAMED = 3


def with_events(view: View, before: Control, after: Control) -> Control:
    """The control blob to write, with an event for each change."""
    happened = [
        Event(view.wall_ms, kind, text if len(text) <= TEXT_LIMIT else f"{text[: TEXT_LIMIT - 1]}…")
        for kind, text in _between(view, before, after)
    ]
    return replace(after, events=(*before.events, *happened)[-KEPT:]) if happened else after


def _between(view: View, before: Control, after: Control) -> Iterator[tuple[str, str]]:
    """Kind and text of each event between two values of the blob, causes first."""
    if after.epoch != before.epoch and after.leader is not None:
        yield "leader", _leads(view, before, after.leader)
    if after.run_id != before.run_id:
        yield "run", f"Run {after.run_id} began."
    yield from _of_noticed(view, before, after)
    yield from _of_members(view, before, after)
    for task, each in after.given_up.items():
        if before.given_up.get(task) != each:
            yield "given up", f"{each.owner.processor} gave up {task}: {each.message}"
    yield from _moves(before, after)
    if after.barrier.state is BarrierState.TIMEOUT and before.barrier != after.barrier:
        yield "slow", f"Not all members adopted version {after.version} in time; the others go on without them."
    if after.stop is not None and before.stop is None:
        yield "stop", "All members were asked to stop."
    yield from _of_drain(before, after)
    if after.phase is RunPhase.FAILED and before.phase is not RunPhase.FAILED and after.failure is not None:
        yield "failed", f"The run failed in {after.failure.task}: {after.failure.message}"


def _leads(view: View, before: Control, leader: Member) -> str:
    who = leader.processor
    if before.leader is None:
        return f"{who} leads; its predecessor handed over." if before.epoch else f"{who} is the first leader."
    if before.leader.processor == view.me:
        return f"{who} leads again, as a new incarnation."
    return f"{who} took over from {before.leader.processor}, which sent no heartbeat in time."


def _of_members(view: View, before: Control, after: Control) -> Iterator[tuple[str, str]]:
    was, now = set(before.members), set(after.members)
    present = {member.processor for member in now}
    for member in sorted(was - now):
        if member.processor not in present and member.incarnation not in after.noticed:
            yield _gone(view, before, member)
    known = {member.processor for member in was}
    for member in sorted(now - was):
        yield (
            "joined",
            f"{member.processor} {'rejoined as a new incarnation' if member.processor in known else 'joined'}.",
        )


def _of_noticed(view: View, before: Control, after: Control) -> Iterator[tuple[str, str]]:
    for life, each in after.noticed.items():
        was, who = before.noticed.get(life), each.processor
        if was is None:
            by = f" by {_clock(each.by_ms)}" if each.by_ms else ""
            yield (
                "decommissioning",
                f"{who} will go{by} ({each.why}); it gets no new tasks and hands over those it has.",
            )
        if each.state is Availability.DECOMMISSIONED and (was is None or was.state is not each.state):
            yield "decommissioned", f"{who} has handed over {each.handed_over} of {each.tasks} tasks."
    for life, was in before.noticed.items():
        row = view.present.get(was.processor)
        if life not in after.noticed and row is not None and row.incarnation == life:
            yield "schedulable", f"{was.processor} stays: the notice was withdrawn ({was.why})."
        elif life not in after.noticed and was.state is not Availability.DECOMMISSIONED:
            row = view.others.members.get(was.processor)
            known = row.going if row is not None and row.incarnation == life else None
            so_far = f", with {known.in_words(NAMED)}" if known is not None else ""
            yield "gone", f"{was.processor} is gone{so_far}."


def _clock(at_ms: int) -> str:
    """A time of day; the days before and after are far enough away not to be confused with it."""
    seconds = at_ms // 1000 % 86_400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02} UTC"


def _gone(view: View, before: Control, member: Member) -> tuple[str, str]:
    who, timeout_s = member.processor, view.timing.heartbeat_timeout_s
    row, age = own_row(view) if who == view.me else view.others.members.get(who), view.others.ages.get(who)
    if row is not None and row.incarnation != member.incarnation:
        return "died", f"{who} came back as a new incarnation, which is not a member yet."
    if row is not None and row.failure is not None:  # also while it leaves: it is no member when it has left
        code, why = row.failure
        return "ended", f"{who} ends with exit code {code}: {why}"
    if row is not None and row.alive:
        return "left", f"{who} is leaving or standing by."
    if row is not None and row.state is ProcessorState.LEFT:
        so_far = f", with {row.going.in_words(NAMED)}" if row.going is not None and row.going.tasks else ""
        return "left", f"{who} left{so_far}."
    # A member that sends heartbeats, but is cut off or does not adopt, is marked dead too. A later scan may have seen
    # the mark, which restarts the age. Then the other reason is given for a member that was silent; it is also true.
    why = f"no heartbeat for {timeout_s:g} s"
    if row is not None and (age is None or not age.silent(timeout_s)):
        if row.cut_off:
            why = "it could not reach the control blob"
        elif before.barrier.state is BarrierState.TIMEOUT and row.adopted < before.version:
            why = f"it did not adopt version {before.version} in time"
    return "died", f"{who} was marked dead: {why}."


def _moves(before: Control, after: Control) -> Iterator[tuple[str, str]]:
    if after.run_id != before.run_id or after.version == before.version:
        return
    moved = [
        f"{task} from {earlier.owner.processor} to {each.owner.processor}"
        for task, each in after.tasks.items()
        if (earlier := before.tasks.get(task)) is not None
        and earlier is not each
        and earlier.owner is not None
        and each.owner is not None
        and (earlier.owner.processor, earlier.owner.incarnation) != (each.owner.processor, each.owner.incarnation)
    ]
    if moved:
        more = "" if len(moved) <= NAMED else f" and {len(moved) - NAMED} more"
        yield "moved", f"{', '.join(moved[:NAMED])}{more}."


def _of_drain(before: Control, after: Control) -> Iterator[tuple[str, str]]:
    if after.phase is RunPhase.DRAINED and before.phase is not RunPhase.DRAINED:
        yield "drain", f"Run {after.run_id} is drained."
    elif after.run_id == before.run_id and after.drain is None and before.drain is not None:
        yield "drain", "The drain was cancelled."
    elif after.drain is not None and (before.drain is None or before.drain.step is not after.drain.step):
        yield "drain", f"The drain reached {after.drain.step}."
