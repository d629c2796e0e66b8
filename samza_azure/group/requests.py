"""Requests to the leader: which it obeys, what it answers, and which rows it deletes.

Anyone with access to the account may write a request, in any order and with any content. The leader first obeys it in
the control blob, under its key, and then answers it; so if it dies in between, the next leader sees what was done. A
request that cannot be obeyed is counted, never answered, and deleted when it is a day old.
"""

from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeAlias

from samza_azure.group.actions import REQUESTS, Action, ReadRequests
from samza_azure.group.age import Age
from samza_azure.group.control import Control, Member, Noticed, RunPhase, Stop
from samza_azure.group.moment import reached
from samza_azure.group.notice import WHY_LIMIT
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import SHORT_LIFE, ProcessorRow, Request, RequestKind
from samza_azure.group.view import View
from samza_azure.messages import DrainStep

#: A request that has not changed for this time is deleted, answered or not.
FORGOTTEN_AFTER_S = 24 * 3600.0

ACCEPTED, CANCELLED = "accepted", "cancelled"
ALREADY_DRAINING, ALREADY_DRAINED, ALREADY_STOPPING = "already draining", "already drained", "already stopping"
NOBODY_LEFT = "nobody is left to stop"
ALREADY_GOING, STAYS = "already decommissioning", "withdrawn"
NOT_THERE = "refused: it is not there any more"
SUPERSEDED = "refused: a later request for the same processor says otherwise"
OTHER_NOTICE = "refused: it has a notice from elsewhere"
TOO_LATE = "refused: the run flushes already"

#: While one of these waits for its answer, no drain is taken up.
WITHDRAWING = frozenset({RequestKind.CANCEL, RequestKind.STOP})
#: One write obeys at most this many cancellations; a flood of them takes several writes.
CANCELLED_AT_ONCE = 8
#: The kinds of unanswered requests that concern this run; of those that withdraw drains, only obeyed ones.
Waiting: TypeAlias = AbstractSet[RequestKind | None]


def is_forgotten(request: Request, age: Age) -> bool:
    """Whether a request is deleted for its age, which the service's clock tells: jobs of ten minutes leave some, too.

    One that may yet be obeyed must have been seen for that long. It may be from a time in which no processor ran.
    """
    may_be_obeyed = request.kind is not None and not request.answer
    return age.silent(FORGOTTEN_AFTER_S) if may_be_obeyed else age.unchanged_s >= FORGOTTEN_AFTER_S


def read(view: View, now: float) -> list[Action]:
    """Read the requests once per `scan_s`, whatever the size of the group: each read costs money, and few find one."""
    is_due = view.free(REQUESTS, now) and reached(view.as_leader.requests_read_at + view.timing.scan_s, now)
    return [ReadRequests()] if is_due else []


def with_cancel(control: Control, requests: Sequence[Request], answering: Container[str] = ()) -> Control:
    """Cancel the freeze, and record that in the blob even if there is none. For `answering` see `with_drain`.

    No cancellation is answered before this write. The write proves that we still lead. It also fences our own FREEZE
    that was not answered and may still arrive: that one expects an earlier ETag.
    """
    if control.is_final:
        return control
    cancels = (each.key for each in _unanswered(control, requests) if each.kind is RequestKind.CANCEL)
    waiting = sorted(key for key in cancels if key not in answering)
    first = waiting[:CANCELLED_AT_ONCE]
    if set(first) <= set(control.withdrawn):
        return control
    return replace(thawed(control) if _is_frozen(control) else control, withdrawn=tuple(first))


def with_drain(control: Control, requests: Sequence[Request], answering: Container[str] = ()) -> Control:
    """Take up the first unanswered drain of this run, or of whichever comes next. Not one of `answering`, to which an
    answer is on its way or was lost: it would say what is not true.

    None is taken up while a request that withdraws drains waits for its answer. That request is answered after the
    drains that it withdraws, so they cannot come back under the next leader.
    """
    unanswered = _unanswered(control, requests)
    drains = (request for request in unanswered if request.kind is RequestKind.DRAIN)
    drain = next((each for each in drains if each.key not in answering and not _has_drained(control, each)), None)
    withdrawing = any(request.kind in WITHDRAWING for request in unanswered)
    if drain is None or withdrawing or control.phase is not RunPhase.RUNNING:
        return control
    notification = DrainNotification(
        drain.key,
        control.run_id,
        step=DrainStep.FREEZE,
        history=("FREEZE",),
        by=drain.by,
        asked_ms=drain.asked_ms,
    )
    return replace(control, phase=RunPhase.DRAINING, drain=notification)


def thawed(control: Control) -> Control:
    """Continue the run as if nobody had asked for a drain. Only before FLUSH, which the write's ETag ensures."""
    phase = RunPhase.RUNNING if control.phase is RunPhase.DRAINING else control.phase
    return replace(control, phase=phase, drain=None)


def with_stop(view: View, control: Control, rows: Mapping[str, ProcessorRow]) -> Control:
    """A stop covers the members that are alive when it is accepted, and those that join while one of them is.

    The next start clears it. A dead processor's row looks alive until it is old, so a member lets others join the stop
    only if its row was seen to change.
    """
    stop = control.stop
    if stop is None:
        request = next((each for each in view.as_leader.requests if _can_stop(view, control, each, rows)), None)
        if request is None:
            return control
        stopped = thawed(control) if _is_frozen(control) else control
        return replace(stopped, stop=Stop(request.key, _members(rows)))
    there = [member for member in stop.members if _lives(rows, member)]
    if not there:
        is_answered = all(request.answer for request in view.as_leader.requests if request.key == stop.uuid)
        return replace(control, stop=None) if is_answered else control
    joined = set(_members(rows)) - set(stop.members)
    if joined and any(member == view.member or member.incarnation in view.others.seen_alive for member in there):
        return replace(control, stop=replace(stop, members=tuple(sorted({*there, *joined}))))
    return control


def with_notices(control: Control, requests: Sequence[Request], rows: Mapping[str, ProcessorRow]) -> Control:
    """Note which processors will go: those that somebody has asked to, and those whose rows say that they will stay
    until their machine ends. Of several requests for one processor the latest counts.
    """
    latest = _latest(requests)
    noticed = {}
    for processor, row in rows.items():
        known, asked, going = control.noticed.get(row.incarnation), latest.get(row.incarnation[:SHORT_LIFE]), row.going
        if asked is not None and not asked.answer:
            if asked.kind is RequestKind.RECOMMISSION:
                known = known if known is not None and not known.uuid else None
            elif known is None or not known.uuid:
                why = f"asked for by {asked.by}" if asked.by else "somebody asked for it"
                known = Noticed(processor, asked.key, why[:WHY_LIMIT], asked.until_ms)
        if known is not None and not known.uuid and going is None:
            known = None  # it has the notice no more
        elif known is None and going is not None and going.stays and not going.asked:
            known = Noticed(processor, why=going.why, by_ms=going.by_ms)
        if known is not None and going is not None and going.state is not known.state:
            known = replace(known, state=going.state, handed_over=going.handed_over, tasks=going.tasks)
        if known is not None:
            noticed[row.incarnation] = known
    return control if noticed == control.noticed else replace(control, noticed=noticed)


def _latest(requests: Sequence[Request]) -> dict[str, Request]:
    """The latest request for each shortened incarnation to decommission it, or not to."""
    found = dict[str, Request]()
    for request in sorted(requests, key=lambda each: (each.asked_ms, each.key)):
        if request.kind in (RequestKind.DECOMMISSION, RequestKind.RECOMMISSION):
            found |= dict.fromkeys(request.incarnations, request)
    return found


def answers(
    control: Control, requests: Sequence[Request], rows: Mapping[str, ProcessorRow]
) -> list[tuple[Request, str]]:
    """The answers that the leader has to give now, each with its request."""
    waiting = {each.kind for each in _unanswered(control, requests) if _is_obeyed(control, each)}
    latest = _latest(requests)
    given = [(each, _answer(control, each, waiting, rows, latest)) for each in requests if not each.answer]
    return [(each, text) for each, text in given if text]


def ignored(control: Control, requests: Sequence[Request]) -> int:
    """The number of requests that wait in vain: of an unknown kind, too large, or for a run that does not exist."""
    return sum(not request.answer and not _speaks_of(control, request) for request in requests)


def _answer(
    control: Control,
    request: Request,
    waiting: Waiting,
    rows: Mapping[str, ProcessorRow],
    latest: Mapping[str, Request],
) -> str:
    """The answer to a request; empty while there is none."""
    if not _speaks_of(control, request):
        return ALREADY_DRAINED if request.kind is not None and request.run_id in control.past else ""
    match request.kind:
        case RequestKind.DRAIN:
            return _answer_to_drain(control, request, waiting)
        case RequestKind.CANCEL:
            return _answer_to_cancel(control, request, waiting)
        case RequestKind.STOP:
            return _answer_to_stop(control, request, waiting, rows)
        case RequestKind.DECOMMISSION | RequestKind.RECOMMISSION:
            return _answer_to_notice(control, request, latest, rows)
    return ""


def _answer_to_drain(control: Control, request: Request, waiting: Waiting) -> str:
    if _has_drained(control, request):
        return ACCEPTED
    if control.phase in (RunPhase.DRAINING, RunPhase.DRAINED):
        if control.drain is not None and control.drain.uuid == request.key:
            return ACCEPTED
        return ALREADY_DRAINING if control.phase is RunPhase.DRAINING else ALREADY_DRAINED
    return CANCELLED if waiting & WITHDRAWING else ""


def _answer_to_cancel(control: Control, request: Request, waiting: Waiting) -> str:
    if control.is_final:
        return ALREADY_DRAINED if control.phase is RunPhase.DRAINED else TOO_LATE
    return CANCELLED if _is_obeyed(control, request) and RequestKind.DRAIN not in waiting else ""


def _answer_to_stop(control: Control, request: Request, waiting: Waiting, rows: Mapping[str, ProcessorRow]) -> str:
    if control.stop is not None:
        stops = ACCEPTED if control.stop.uuid == request.key else ALREADY_STOPPING
        return "" if RequestKind.DRAIN in waiting else stops
    if flushes(control):
        return TOO_LATE
    return "" if any(_is_meant(request, row.incarnation) for row in rows.values()) else NOBODY_LEFT


def _answer_to_notice(
    control: Control, request: Request, latest: Mapping[str, Request], rows: Mapping[str, ProcessorRow]
) -> str:
    row = next((each for each in rows.values() if each.incarnation[:SHORT_LIFE] in request.incarnations), None)
    if row is None:
        return NOT_THERE
    if latest.get(row.incarnation[:SHORT_LIFE]) is not request:
        return SUPERSEDED
    known = control.noticed.get(row.incarnation)
    if request.kind is RequestKind.DECOMMISSION:
        if known is None or not known.uuid:
            return ""
        return ACCEPTED if known.uuid == request.key else ALREADY_GOING
    if known is None:
        return STAYS
    return "" if known.uuid else OTHER_NOTICE


def _can_stop(view: View, control: Control, request: Request, rows: Mapping[str, ProcessorRow]) -> bool:
    """Whether this is a new stop, stopping is possible, and at least one of its members is certainly alive."""
    if request.kind is not RequestKind.STOP or request.answer or flushes(control) or not _speaks_of(control, request):
        return False
    if request.key in view.as_leader.answering:
        return False
    certain = view.others.seen_alive | {view.incarnation}
    return any(_is_meant(request, row.incarnation) and row.incarnation in certain for row in rows.values())


def _is_obeyed(control: Control, request: Request) -> bool:
    """Whether the blob has what was asked for. A drain is in the blob by itself, and always counts as waiting."""
    match request.kind:
        case RequestKind.CANCEL:
            return request.key in control.withdrawn and not _is_frozen(control)
        case RequestKind.STOP:
            return control.stop is not None
    return True


def _unanswered(control: Control, requests: Sequence[Request]) -> list[Request]:
    return [request for request in requests if not request.answer and _speaks_of(control, request)]


def _has_drained(control: Control, request: Request) -> bool:
    """Whether this request has drained an earlier run. Its answer may have been lost until the next run began."""
    return any(each.uuid == request.key for each in control.drains)


def _is_meant(request: Request, incarnation: str) -> bool:
    return not request.incarnations or incarnation[:SHORT_LIFE] in request.incarnations


def _speaks_of(control: Control, request: Request) -> bool:
    """Whether a request concerns this run, or whichever run there is. A request of an unknown kind concerns none."""
    return request.kind is not None and request.run_id in ("", control.run_id)


def _is_frozen(control: Control) -> bool:
    return control.drain is not None and control.drain.step is DrainStep.FREEZE


def flushes(control: Control) -> bool:
    """Whether the drain is past the point of no return. It can neither be cancelled nor stopped."""
    return control.phase is RunPhase.DRAINING and not _is_frozen(control)


def _members(rows: Mapping[str, ProcessorRow]) -> tuple[Member, ...]:
    """The members without those that stand by, since they cannot read that they are stopped."""
    return tuple(sorted(Member(row.processor, row.incarnation) for row in rows.values() if not row.too_old_for))


def _lives(rows: Mapping[str, ProcessorRow], member: Member) -> bool:
    row = rows.get(member.processor)
    return row is not None and row.incarnation == member.incarnation
