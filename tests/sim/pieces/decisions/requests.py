"""What is asked of the leader, and what it answers."""

from collections.abc import Mapping
from dataclasses import replace

from samza_azure.group import (
    requests,
)
from samza_azure.group.control import (
    Control,
    Member,
    RunPhase,
    Stop,
)
from samza_azure.group.rows import ProcessorRow, Request, RequestKind
from samza_azure.group.view import (
    View,
)
from samza_azure.messages import (
    DrainStep,
)
from samza_azure.sim.ledger import demand

from .drawn import LIVES, Drawn, present, same


def check_requests(drawn: Drawn, view: View, control: Control) -> None:
    asked = drawn.requests()
    rows = present(view)
    frozen = control.drain is not None and control.drain.step is DrainStep.FREEZE
    flushes = control.phase is RunPhase.DRAINING and not frozen
    same("whether the drain flushes", requests.flushes(control), flushes)

    def ours(each: Request) -> bool:
        return each.kind is not None and each.run_id in ("", control.run_id)

    open_ones = [each for each in asked if not each.answer and ours(each)]
    ignored = [each for each in asked if not each.answer and not ours(each)]
    same("who waits in vain", requests.ignored(control, asked), len(ignored))

    def obeyed(each: Request) -> bool:
        if each.kind is RequestKind.CANCEL:
            return each.key in control.withdrawn and not frozen
        return each.kind is not RequestKind.STOP or control.stop is not None

    waiting = {each.kind for each in open_ones if obeyed(each)}

    def answer(each: Request) -> str:
        if not ours(each):
            return "already drained" if each.kind is not None and each.run_id in control.past else ""
        if each.kind is RequestKind.DRAIN:
            if each.key in {drain.uuid for drain in control.drains}:
                return "accepted"
            if control.phase in ("DRAINING", "DRAINED"):
                if control.drain is not None and control.drain.uuid == each.key:
                    return "accepted"
                return "already draining" if control.phase == "DRAINING" else "already drained"
            return "cancelled" if waiting & {RequestKind.CANCEL, RequestKind.STOP} else ""
        if each.kind is RequestKind.CANCEL:
            if control.drain is not None and not frozen:
                return "already drained" if control.phase == "DRAINED" else "refused: the run flushes already"
            return "cancelled" if obeyed(each) and RequestKind.DRAIN not in waiting else ""
        if control.stop is not None:
            if RequestKind.DRAIN in waiting:
                return ""
            return "accepted" if control.stop.uuid == each.key else "already stopping"
        if flushes:
            return "refused: the run flushes already"
        meant = [row for row in rows.values() if not each.incarnations or row.incarnation[:8] in each.incarnations]
        return "" if meant else "nobody is left to stop"

    wanted = [(each, answer(each)) for each in asked if not each.answer]
    same("the answers", requests.answers(control, asked, rows), [pair for pair in wanted if pair[1]])
    sent = [each.key for each in asked if drawn.dice.random() < 0.2]
    after = requests.with_cancel(control, asked, sent)
    cancels = sorted(each.key for each in open_ones if each.kind is RequestKind.CANCEL and each.key not in sent)[:8]
    if (control.drain is not None and not frozen) or set(cancels) <= set(control.withdrawn):
        same("a cancellation without use", after, control)
    else:
        thawed = replace(control, drain=None, phase=_thawed(control)) if frozen else control
        same("a cancellation", after, replace(thawed, withdrawn=tuple(cancels)))
    after = requests.with_drain(control, asked, sent)
    earlier = {*sent, *(each.uuid for each in control.drains)}
    drains = [each for each in open_ones if each.kind is RequestKind.DRAIN and each.key not in earlier]
    held = any(each.kind in (RequestKind.CANCEL, RequestKind.STOP) for each in open_ones)
    if not drains or held or control.phase != "RUNNING":
        same("a drain that is not taken up", after, control)
    else:
        first = drains[0]
        taken = after.drain is not None and (after.drain.uuid, after.drain.run_id) == (first.key, control.run_id)
        frozen_now = (
            taken and after.drain is not None and (after.drain.step, after.drain.history) == ("FREEZE", ("FREEZE",))
        )
        demand(frozen_now and after.phase == "DRAINING", f"Plain: the drain {first.key} becomes {after.drain}")
    _check_stop(view, control, rows, flushes=flushes, frozen=frozen)


def _thawed(control: Control) -> RunPhase:
    return RunPhase.RUNNING if control.phase is RunPhase.DRAINING else control.phase


def _check_stop(view: View, control: Control, rows: Mapping[str, ProcessorRow], *, flushes: bool, frozen: bool) -> None:
    if view.leadership is None:
        return
    asked, after = view.leadership.requests, requests.with_stop(view, control, rows)
    everybody = tuple(sorted(Member(row.processor, row.incarnation) for row in rows.values() if not row.too_old_for))
    certain = view.others.seen_alive | {LIVES[0]}
    if control.stop is None:
        able = [
            each
            for each in asked
            if each.kind is RequestKind.STOP and not each.answer and not flushes and each.run_id in ("", control.run_id)
            if each.key not in view.leadership.answering
            if any(
                row.incarnation in certain and (not each.incarnations or row.incarnation[:8] in each.incarnations)
                for row in rows.values()
            )
        ]
        if not able:
            same("no stop", after, control)
            return
        base = replace(control, drain=None, phase=_thawed(control)) if frozen else control
        same("a stop", after, replace(base, stop=Stop(able[0].key, everybody)))
        return
    there = [
        member
        for member in control.stop.members
        if member.processor in rows and rows[member.processor].incarnation == member.incarnation
    ]
    if not there:
        unanswered = [each for each in asked if each.key == control.stop.uuid and not each.answer]
        same("the end of a stop", after, control if unanswered else replace(control, stop=None))
        return
    joined = set(everybody) - set(control.stop.members)
    sure = [
        member for member in there if member == Member("p0", LIVES[0]) or member.incarnation in view.others.seen_alive
    ]
    grown = replace(control, stop=replace(control.stop, members=tuple(sorted({*there, *joined}))))
    same("who is stopped, too", after, grown if joined and sure else control)
