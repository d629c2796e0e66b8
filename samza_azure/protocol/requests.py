"""What is asked of the leader: what it obeys, what it answers, which rows it forgets.

Anyone with access to the account may write a request, in no order and with anything in it. One is obeyed through the
control blob first, under its key, and answered after that, so a leader that dies in between leaves nothing to guess.
What nobody can obey is counted, never answered, and forgotten after a day: by reads, not by a clock.
"""

from collections.abc import Sequence
from dataclasses import replace

from samza_azure.protocol.control import Control, DrainNotification, Member, RunPhase, Stop
from samza_azure.protocol.messages import DrainStep
from samza_azure.protocol.rows import SHORT_LIFE, ProcessorRow, Request, RequestKind
from samza_azure.protocol.view import View

#: A request that has not changed for so long is deleted, answered or not.
FORGOTTEN_AFTER_S = 24 * 3600.0

ACCEPTED, CANCELLED = "accepted", "cancelled"
ALREADY_DRAINING, ALREADY_DRAINED, ALREADY_STOPPING = "already draining", "already drained", "already stopping"
NOBODY_LEFT = "nobody is left to stop"
TOO_LATE = "refused: the run flushes already"


def with_drain(control: Control, requests: Sequence[Request]) -> Control:
    """Cancel the freeze, or take up the first unanswered drain of this run, or of whichever comes next.

    While a request that withdraws drains waits for its answer, none is taken up. It is answered after them, so a
    drain that it withdrew cannot come back under the next leader.
    """
    unanswered = [request for request in requests if not request.answer and _speaks_of(control, request)]
    if any(request.kind in (RequestKind.CANCEL, RequestKind.STOP) for request in unanswered):
        cancelled = any(request.kind is RequestKind.CANCEL for request in unanswered)
        return thawed(control) if cancelled and _is_frozen(control) else control
    drain = next((request for request in unanswered if request.kind is RequestKind.DRAIN), None)
    if drain is None or control.phase is not RunPhase.RUNNING:
        return control
    notification = DrainNotification(drain.key, control.run_id, DrainStep.FREEZE, history=("FREEZE",))
    return replace(control, phase=RunPhase.DRAINING, drain=notification)


def thawed(control: Control) -> Control:
    """The run goes on as if nobody had asked for a drain. Only before FLUSH, and the write's ETag sees to that."""
    phase = RunPhase.RUNNING if control.phase is RunPhase.DRAINING else control.phase
    return replace(control, phase=phase, drain=None)


def with_stop(view: View, control: Control, rows: dict[str, ProcessorRow]) -> Control:
    """A stop is for those who are there, and for who joins while one of them is. The next start clears it.

    A dead processor's row looks alive until it is old, so somebody counts as there who was seen to write it.
    """
    stop = control.stop
    if stop is None:
        request = next((each for each in view.requests if _can_stop(view, control, each, rows)), None)
        if request is None:
            return control
        stopped = thawed(control) if _is_frozen(control) else control
        return replace(stopped, stop=Stop(request.key, _members(rows)))
    there = [member for member in stop.members if _lives(rows, member)]
    if not there:
        is_answered = all(request.answer for request in view.requests if request.key == stop.uuid)
        return replace(control, stop=None) if is_answered else control
    if any(member == view.member or member.incarnation in view.seen_alive for member in there):
        return replace(control, stop=replace(stop, members=tuple(sorted({*stop.members, *_members(rows)}))))
    return control


def answer(control: Control, request: Request, requests: Sequence[Request], rows: dict[str, ProcessorRow]) -> str:
    """What the leader says to a request; empty as long as it has nothing to say."""
    match request.kind:
        case RequestKind.DRAIN:
            return _answer_to_drain(control, request, requests)
        case RequestKind.CANCEL:
            return _answer_to_cancel(control, request, requests)
        case RequestKind.STOP:
            return _answer_to_stop(control, request, requests, rows)
    return ""


def ignored(control: Control, requests: Sequence[Request]) -> int:
    """How many wait in vain: of an unknown kind, of a size that ours never have, or for a run that is not there."""
    return sum(not request.answer and not _speaks_of(control, request) for request in requests)


def _answer_to_drain(control: Control, request: Request, requests: Sequence[Request]) -> str:
    if request.run_id and request.run_id in control.past:
        return ALREADY_DRAINED
    if not _speaks_of(control, request):
        return ""
    if control.phase in (RunPhase.DRAINING, RunPhase.DRAINED):
        return ACCEPTED if control.drain is not None and control.drain.uuid == request.key else ALREADY_DRAINING
    withdrawing = (RequestKind.CANCEL, RequestKind.STOP)
    is_withdrawn = any(each.kind in withdrawing and not each.answer and _speaks_of(control, each) for each in requests)
    return CANCELLED if is_withdrawn else ""


def _answer_to_cancel(control: Control, request: Request, requests: Sequence[Request]) -> str:
    if request.run_id in control.past:
        return ALREADY_DRAINED
    if not _speaks_of(control, request) or _is_frozen(control):
        return ""
    if control.drain is not None:
        return ALREADY_DRAINED if control.phase is RunPhase.DRAINED else TOO_LATE
    return "" if _has_drain(control, requests) else CANCELLED


def _answer_to_stop(
    control: Control, request: Request, requests: Sequence[Request], rows: dict[str, ProcessorRow]
) -> str:
    if not _speaks_of(control, request):
        return ALREADY_DRAINED if request.run_id in control.past else ""
    if control.stop is not None:
        if control.stop.uuid != request.key:
            return ALREADY_STOPPING
        return "" if _has_drain(control, requests) else ACCEPTED
    if _flushes(control):
        return TOO_LATE
    return NOBODY_LEFT if not any(_is_meant(request, row.incarnation) for row in rows.values()) else ""


def _can_stop(view: View, control: Control, request: Request, rows: dict[str, ProcessorRow]) -> bool:
    """It is new, a stop is possible, and one of those it is meant for is certainly there."""
    if request.kind is not RequestKind.STOP or request.answer or _flushes(control) or not _speaks_of(control, request):
        return False
    certain = view.seen_alive | {view.incarnation}
    return any(_is_meant(request, row.incarnation) and row.incarnation in certain for row in rows.values())


def _is_meant(request: Request, incarnation: str) -> bool:
    return not request.incarnations or incarnation[:SHORT_LIFE] in request.incarnations


def _speaks_of(control: Control, request: Request) -> bool:
    """Of this run, or of whichever is there. One without a kind speaks of nothing."""
    return request.kind is not None and request.run_id in ("", control.run_id)


def _is_frozen(control: Control) -> bool:
    return control.drain is not None and control.drain.step is DrainStep.FREEZE


def _flushes(control: Control) -> bool:
    return control.phase is RunPhase.DRAINING and not _is_frozen(control)


def _has_drain(control: Control, requests: Sequence[Request]) -> bool:
    return any(each.kind is RequestKind.DRAIN and not each.answer and _speaks_of(control, each) for each in requests)


def _members(rows: dict[str, ProcessorRow]) -> tuple[Member, ...]:
    return tuple(sorted(Member(row.processor, row.incarnation) for row in rows.values()))


def _lives(rows: dict[str, ProcessorRow], member: Member) -> bool:
    row = rows.get(member.processor)
    return row is not None and row.incarnation == member.incarnation
