"""What a task may read next and how event time moves, worked out a second time.

Part of `pieces`. The simulated container counts in a simpler event time of its own, so no fleet asks `streams`. Here
any state of its producers is drawn. Numbers are small, so that equal ones are drawn, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from samza_azure.messages import Drain, DrainPhase, DrainStep
from samza_azure.sim.ledger import demand
from samza_azure.streams import gate as gates
from samza_azure.streams import idleness, pace, watermark
from samza_azure.streams import offset as offsets
from samza_azure.streams.gate import Gate
from samza_azure.streams.offset import INFINITY_US, Offset, ProducerPosition, ProducerState
from samza_azure.streams.pace import Pace, SourceProgress

#: Instants, durations and frontiers are drawn from these.
FEW = (0.0, 0.4, 0.5, 1.0, 2.0, 9.0)
ENDS = {"flights/0": (0, 2), "flights/1": (1, 1)}


def same(what: str, found: object, wanted: object) -> None:
    demand(found == wanted, f"Plain: {what}: {str(found)[:300]}, and {str(wanted)[:300]} is right")


def drawn_producer(dice: Random) -> ProducerPosition:
    return ProducerPosition(
        (dice.randrange(2), dice.randrange(3)),
        dice.choice([None, 0, 1_500, 2_000, 9_999, INFINITY_US]),
        dice.choice(list(ProducerState)),
    )


def drawn_producers(dice: Random) -> tuple[ProducerPosition, ...]:
    """Often all in the same states."""
    found = tuple(drawn_producer(dice) for _ in range(dice.choice([1, 2, 3])))
    if dice.random() < 0.4:
        state = dice.choice(list(ProducerState))
        found = tuple(ProducerPosition(each.position, each.frontier_us, state) for each in found)
    return found


def drawn_offset(dice: Random, of: str = "between") -> Offset:
    return Offset(of, dice.choice([0, 0, 0, 1, 2]), dice.choice([None, 0, 1_500, 2_000]), drawn_producers(dice))


def _least(producers: Sequence[ProducerPosition]) -> int | None:
    awaited = [each.frontier_us for each in producers if each.state in ("active", "doubted")]
    idle = [each.frontier_us for each in producers if each.state == "idle"]
    if not awaited and not idle:
        return INFINITY_US
    if None in awaited:
        return None
    known = [each for each in (awaited or idle) if each is not None]
    return min(known) if known else None


def _quiet(producers: Sequence[ProducerPosition]) -> bool:
    return not any(each.state in ("active", "doubted") for each in producers)


def check_idleness(dice: Random) -> None:
    """Who is idle, and whose claim to be so has to be checked."""
    producers = drawn_producers(dice)
    same("the least frontier", offsets.least_us(producers), _least(producers))
    same("whether all are idle", idleness.is_quiet(producers), _quiet(producers))
    active = [each for each in producers if each.state == "active"]
    least = _least(active) if active else None
    wanted = []
    for number, each in enumerate(producers):
        rises = least is not None and (each.frontier_us is None or each.frontier_us < least)
        if (each.state in ("idle", "doubted") and rises) if active else each.state == "doubted":
            wanted.append(number)
    same(f"whose claim counts of {producers}", idleness.in_question(producers), wanted)
    place, now, since, timeout = producers[0], 9.0, dice.choice([None, *FEW]), dice.choice(FEW)
    long = since is not None and since + timeout <= now
    same("whether a silence is long", idleness.is_long(since, now, timeout), long)
    state = ProducerState.IDLE if long and place.state == "active" else place.state
    after = ProducerPosition(place.position, place.frontier_us, state)
    same("who was silent", idleness.after_silence(place, since, now, timeout), after)
    quiet, is_open = [dice.random() < 0.8 for _ in range(dice.randrange(4))], dice.random() < 0.7
    sources, before = dice.randrange(4), dice.choice([None, 0.0, 3.0])
    found = idleness.quiet_since(before, now, quiet, sources, is_open=is_open)
    idles = is_open and sources <= len(quiet) and False not in quiet
    same("since when it is idle", found, (now if before is None else before) if idles else None)


def check_offsets(dice: Random) -> None:
    """How an offset is stored, and what several sources of one stream say together."""
    one = drawn_offset(dice)
    at = [
        [*each.position, each.frontier_us, *([] if each.state == "active" else [each.state.value])] for each in one.at
    ]
    same("an offset", one.to_json(), {"of": "between", "step": one.step, "fired": one.fired_us, "at": at})
    same("an offset that is read", Offset.from_json(one.to_json()), one)
    same("its positions", one.positions, [each.position for each in one.at])
    count = dice.randrange(1, 3)
    read = [
        Offset(of, 0, None, tuple(drawn_producer(dice) for _ in range(count)))
        for of in ("a", "a", "b")
        if dice.random() < 0.8
    ]
    if len(read) > 1 and dice.random() < 0.4:
        read[1] = Offset(read[1].of, 0, None, read[0].at)
    same("what each stream says", offsets.by_stream(read), _by_stream(read))


def _by_stream(read: Sequence[Offset]) -> dict[str, list[ProducerPosition]]:
    wanted: dict[str, list[ProducerPosition]] = {}
    for of in dict.fromkeys(each.of for each in read):
        theirs = [each.at for each in read if each.of == of]
        wanted[of] = []
        for number in range(len(theirs[0])):
            seen = [at[number] for at in theirs]
            behind = next(each for each in seen if all(each.position <= other.position for other in seen))
            differ = any((each.position, each.state) != (behind.position, behind.state) for each in seen)
            state = ProducerState.ACTIVE if differ else behind.state
            wanted[of].append(ProducerPosition(behind.position, behind.frontier_us, state))
    return wanted


def check_event_time_of(dice: Random) -> None:
    """The watermark after a batch, and the frontier of its record."""
    read = [Offset(of, 0, None, drawn_producers(dice)) for of in ("a", "b")]
    said, step = _by_stream(read), dice.choice([0, 0, 0, 1, 2])
    delays = [(of, dice.choice([0, 1, 3])) for of in said if dice.random() < 0.8]
    leasts = [_least(said[of]) for of, _ in delays]
    wanted: int | None = INFINITY_US
    if step == 0:
        known = [
            (least - least % 1000) - 1000 * ms
            for least, (_, ms) in zip(leasts, delays, strict=True)
            if least is not None
        ]
        wanted = min(known) if known and len(known) == len(delays) else None
    same("the watermark", watermark.next_watermark_us(read, step, delays), wanted)
    now_ms, lag = dice.choice([0, 1, 7, INFINITY_US // 1000]), dice.choice([0, 300])
    terms = [(of, dice.choice([0, -500, 800])) for of in (None, *said) if dice.random() < 0.6]
    parts: list[int | None] = []
    for stream, shift in terms:
        reached = _least(said[stream]) if stream is not None else 1000 * now_ms if now_ms else None
        parts.append(reached if reached is None or reached >= INFINITY_US else reached + shift - lag)
    sums = [each for each in parts if each is not None]
    frontier = min(sums) if sums and len(sums) == len(parts) else None
    same("the frontier", watermark.frontier_us(read, now_ms, terms, lag), frontier)


def check_pace(dice: Random) -> None:
    """When a log is read, when a batch is due, and where it ends."""
    count = dice.choice([1, 9, 10, 11, 19, 20, 21, 119, 120, 121, 500])
    usual = 5.0 if count <= 10 else 60.0 if count >= 120 else count / 2
    same("how often a log is read unasked", pace.unasked_s(count), usual)
    believed, flushing = dice.random() < 0.5, dice.random() < 0.5
    again = usual if believed else 1.0
    if flushing:
        again = min(again, 0.2 if count <= 20 else count / 100)
    found = pace.reread_s(count, is_believed=believed, is_flushing=flushing)
    demand(abs(found - again) < 1e-9, f"Plain: a log is read again after {found} s, and {again} s is right")
    place = drawn_producer(dice)
    hint, end = (dice.choice([None, (0, 1), (0, 2), (1, 1)]) for _ in range(2))
    due, frozen = dice.random() < 0.3, dice.random() < 0.4
    now = due or (hint is not None and place.position < hint)
    if frozen:
        now = end is not None and place.position < end
    reads = pace.is_read_now(place, hint, end, is_due=due, is_frozen=frozen)
    same("whether a log is read", reads, now and place.state != "drained")
    batches, most, size = dice.choice([0, 1, 49, 50, 51, 100]), 64, dice.choice([8, 32, 33, 64, 80])
    more = min(size * 2, most) if size < most and batches % 50 == 0 else size
    same("how much a batch may read", pace.raised_bytes(size, most, batches), more)
    start = drawn_offset(dice)
    heads = start.at if dice.random() < 0.3 else tuple(drawn_producer(dice) for _ in start.at)
    waits = [dice.choice(FEW) for _ in range(4)]
    progress = SourceProgress(heads, dice.choice([0, 0, 7]), dice.random() < 0.5, *waits, has_more=dice.random() < 0.3)
    its = Pace(dice.choice(FEW), dice.choice(FEW), dice.random() < 0.5, dice.random() < 0.3)
    step, draining = dice.choice([0, 1, 2]), dice.random() < 0.5
    onward = pace.next_offset(start, progress, its, step=step, draining=draining)
    same(f"the next offset after {start}, {progress}, {its}", onward, _next(start, progress, its, step, draining))


def _next(start: Offset, found: SourceProgress, its: Pace, step: int, draining: bool) -> Offset:
    before, after = _least(start.at), _least(found.heads)
    hurry = draining and (found.is_at_end or found.has_more)
    kept = its.keeps_last_rows and found.is_at_end  # for the batch that fires
    onward = Offset(start.of, start.step, before, found.heads)
    if found.rows and not kept:
        waited = found.since_rows >= its.between_rows and found.since_new >= its.between_rows
        return onward if hurry or waited else start
    if found.is_at_end and start.step < step:
        return Offset(start.of, step, before, found.heads)
    moves = after is not None and (before is None or before < after)
    fires = its.has_watermark and before is not None and (start.fired_us is None or start.fired_us < before)
    turns = _quiet(start.at) is not _quiet(found.heads)
    if start.step > 0 or kept or not (found.rows or moves or fires or turns):
        return start
    if found.is_at_end and found.since_end < 0.5:
        return start
    waited = found.since_tick >= its.between_ticks and found.since_new >= its.between_ticks
    return onward if hurry or waited else start


@dataclass(frozen=True, slots=True)
class Answered:
    """What a source has answered."""

    version: int
    is_at_end: bool


def check_gates(dice: Random) -> None:
    """What a drain changes about a task's sources, and which phases it may enter."""
    gate = Gate(
        dice.randrange(3),
        frozen=dice.random() < 0.5,
        ends=dice.choice([None, ENDS]),
        step=dice.choice([0, 0, 1]),
        draining=dice.random() < 0.6,
    )
    drain = Drain(dice.choice([None, DrainStep.FREEZE, DrainStep.FLUSH]), "u", ENDS)
    fields: dict[str, Any] = {}
    if drain.step is None and gate.draining and gate.ends is None:
        fields = {"frozen": False, "draining": False}
    elif drain.step == "FREEZE" and not gate.draining:
        fields = {"frozen": True, "draining": True, "ends": None}
    elif drain.step == "FLUSH" and not (gate.draining and gate.ends is not None):
        fields = {"frozen": True, "draining": True, "ends": ENDS}
    now = {name: getattr(gate, name) for name in ("shut", "frozen", "ends", "step", "draining", "batch_bytes")}
    wanted = Gate(gate.version + 1, **{**now, **fields}) if fields else gate
    same("the next gate", gates.next_gate(gate, drain), wanted)
    for partition in (None, "flights/0", "flights/7"):
        end = (gate.ends or {}).get(partition, (0, 0)) if gate.ends is not None and partition is not None else None
        same(f"the end of {partition}", gate.end_of(partition), end)
    answers = [
        Answered(dice.choice([gate.version, gate.version, gate.version, 7]), dice.random() < 0.7)
        for _ in range(dice.randrange(3))
    ]
    sources, frozen_for = dice.randrange(3), dice.choice([None, "", "u"])
    phases: list[DrainPhase] = []
    if drain.step is not None and sources <= len(answers) and {each.version for each in answers} <= {gate.version}:
        phases += [DrainPhase.SOURCES_STOPPED] if frozen_for == "" else []
        flushes = drain.step == "FLUSH" and gate.ends is not None and gate.step == 0
        phases += [DrainPhase.FLUSHING] if flushes and all(each.is_at_end for each in answers) else []
    same("the phases", gates.next_steps(gate, drain, answers, sources, frozen_for), phases)
    places = [drawn_producer(dice) for _ in range(3)]
    ends = [dice.choice([None, each.position, (0, 1)]) for each in places]
    pairs = list(zip(places, ends, strict=True))
    read = [each.state == "drained" if end is None else each.position == end for each, end in pairs]
    same("whether all is read", gates.is_all_read(places, ends), False not in read)
    far = [number for number, (each, end) in enumerate(pairs) if end is not None and end < each.position]
    same("what is read too far", gates.read_too_far(places, ends), far[0] if far else None)


def check_event_time(dice: Random) -> None:
    """Plain: each question, for some states."""
    for _ in range(8):
        check_idleness(dice)
        check_offsets(dice)
        check_event_time_of(dice)
        check_gates(dice)
        for _ in range(3):
            check_pace(dice)


__all__ = ["check_event_time"]
