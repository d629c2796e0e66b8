"""Which calls a processor makes, for a drawn state: its own row, the leader row, the lease, the control blob.

Part of `pieces`, as `decisions`. What is asked and written, and when, is worked out a second time, plainly.
"""

from dataclasses import replace
from random import Random
from typing import Any

from samza_azure.errors import Verdict
from samza_azure.group import actions as a
from samza_azure.group import decide, election, ending, housekeeping, membership, next_run, publish, tasks
from samza_azure.group.age import Age
from samza_azure.group.answers import Absent
from samza_azure.group.control import Control, Member, RunPhase, signal
from samza_azure.group.rows import LeaderRow, ProcessorRow, ProcessorState
from samza_azure.group.view import Campaign, Failing, Lease, View
from samza_azure.sim.ledger import demand

from .decisions.drawn import LIVES, NOW, Drawn, alive, same
from .decisions.election import who_leads_next
from .decisions.membership import candidates, next_barrier
from .decisions.publish import settled

ME = Member("p0", LIVES[0])


def check_actions(dice: Random) -> None:
    """Plain: what is called, in some states."""
    drawn = Drawn(dice)
    for _ in range(8):
        view = _drawn(drawn)
        _check_beat(view)
        _check_look(view)
        same("what is read to follow", election.follow(view, NOW), _follow(view))
        same("how one comes to lead", _plainly(election.campaign(view, NOW)), _plainly(_campaign(view)))
        if view.leadership is not None or view.handing_over is not None:
            same("how one hands over", _plainly(election.hand_over(view, NOW)), _plainly(_hand_over(view, None)))
        if view.leadership is not None and isinstance(view.control, Control):
            _check_leader(view, view.control)
        same("the end", _plainly(ending.end(view, NOW)), _plainly(_end(view)))
        _check_turn(view)


def _drawn(drawn: Drawn) -> View:
    """In the middle of things."""
    dice, view = drawn.dice, drawn.view()
    control = view.life.control
    if isinstance(control, Control) and control.phase is RunPhase.DRAINING and control.drain is None:
        view.life.control = control = replace(control, phase=RunPhase.RUNNING)  # no production code would write that
    if isinstance(control, Control) and control.phase is RunPhase.DRAINED:
        view.life.control = control = replace(control, past=(*control.past, control.run_id))
    view.life.control_etag = dice.choice(["c1", ""])
    view.life.control_read_at, view.life.control_read_for = drawn.before(), dice.choice(["e", "x", "a"])
    found = replace(drawn.row("p0", 0.8), incarnation=dice.choice([*LIVES, LIVES[0]]), boot=dice.choice(["boot", "x"]))
    view.life.found = dice.choice([None, Absent(), found, found, found])
    view.life.rewritten, view.life.join_unsettled = dice.randrange(3), dice.random() < 0.2
    ages = list(view.others.ages.values())
    view.life.found_age = replace(dice.choice(ages), read_at=drawn.before()) if ages and dice.random() < 0.8 else None
    view.calls.beat_sent_at, view.calls.leader_row_sent_at = drawn.before(), drawn.before()
    view.others.leader_read_at, view.others.leaderless_since = drawn.before(), drawn.before()
    view.candidacy.hold_until = drawn.before() + dice.choice([0.0, 3.0])
    if isinstance(view.others.leader_row, LeaderRow) and isinstance(control, Control):
        told = dice.choice([signal(control), "s"])
        row = replace(view.others.leader_row, epoch=dice.choice([2, 3, 4]), version=control.version, signal=told)
        view.others.leader_row = row
    if view.leadership is None and dice.random() < 0.4:
        lease = drawn.often(Lease("l2", drawn.before()), None)
        view.candidacy.campaign = Campaign("c1", dice.choice(["", "asked"]), lease, dice.random() < 0.7)
        view.too_old_for = drawn.often(view.too_old_for, 7, 0.8)  # a task of ours may have met a record of that format
    if view.leadership is None and dice.random() < 0.3:
        view.handing_over, view.vacates = Lease("l", NOW), True
    if isinstance(control, Control) and dice.random() < 0.1:
        view.calls.unsettled = a.WriteControl(control, "c1", "l")
    if dice.random() < 0.3:
        own = membership.own_row(view)
        view.life.written = drawn.often(own, replace(own, state=ProcessorState.LEFT), 0.8)
    for name in (a.LEADER_ROW, a.CONTROL, a.LEASE, a.REQUESTS):
        if dice.random() < 0.1:
            view.calls.busy[name] = drawn.before()
    if dice.random() < 0.2:  # there is no leader, and this one may lead
        drawn.undisturbed(view)
        view.leadership = view.handing_over = view.candidacy.campaign = None
        view.candidacy.hold_until, view.life.control_read_at = NOW, NOW - dice.choice([0.0, 1.0, 2.0])
        view.others.leader_age = Age("e", 99.0 * dice.choice([1, 9]), 3, NOW)
    if view.leadership is not None and isinstance(view.life.control, Control) and dice.random() < 0.15:
        drawn.undisturbed(view)  # all tasks have owners, and it is too early for others
        view.life.control = settled(drawn, view, view.life.control)
        view.leadership.published_at, view.others.scanned_at = NOW, NOW
        view.leadership.in_vain = ""
    if view.leadership is not None and dice.random() < 0.1:  # it sees no other processor
        drawn.undisturbed(view)
        view.calls.failing = {a.SCAN: Failing(dice.choice([4, 5, 9]), NOW - 1.0)}
        view.others.scanned_at = view.leadership.since = NOW - dice.choice([24.0, 25.0])
    if isinstance(view.life.control, Control) and dice.random() < 0.1:  # it has handed over, and does not say so yet
        view.leadership, view.handing_over, view.vacates = None, Lease("l", NOW), True
        view.others.leader_row = LeaderRow(view.life.control.epoch, view.life.control.version, "s", "c", 1, (), "e")
    if dice.random() < 0.1:  # it joins
        drawn.undisturbed(view)
        view.life.etag = view.life.written = None
        view.life.found = dice.choice([found, found, Absent()])
    view.others.ages = {name: replace(age, read_at=drawn.before()) for name, age in view.others.ages.items()}
    if view.ending is None and dice.random() < 0.15:
        view.ending, view.ending_since = (
            a.Finish(Verdict.DONE, dice.choice([ending.HANDED_OVER, "bye"])),
            drawn.before(),
        )
    control, row = view.control, view.others.leader_row
    if isinstance(control, Control) and isinstance(row, LeaderRow) and dice.random() < 0.3:  # there is no news
        successors = tuple(who_leads_next(view, control))
        view.others.leader_row = replace(row, epoch=control.epoch, signal=signal(control), successors=successors)
    return view


def _plainly(said: list[Any]) -> list[Any]:
    """Without the events, which are judged by themselves."""
    return [
        replace(each, control=replace(each.control, events=())) if isinstance(each, a.WriteControl) else each
        for each in said
    ]


def _free(view: View, name: str) -> bool:
    failing = view.calls.failing.get(name)
    return name not in view.calls.busy and (failing is None or failing.until <= NOW)


# Our row.


def _is_fenced(view: View) -> bool:
    found = view.life.found
    if isinstance(found, Absent):
        return True
    return found is not None and (found.incarnation != LIVES[0] or found.state == "DEAD")


def _check_beat(view: View) -> None:
    said, own, etag = membership.beat(view, NOW), membership.own_row(view), view.life.etag
    left = view.life.written is not None and view.life.written.state == "LEFT"
    if not _free(view, a.OWN_ROW) or left:
        same("a beat that cannot be", said, [])
    elif view.life.found is None:
        same("a row that is not known", said, [a.ReadOwnRow()])
    elif etag is None:
        kinds = [type(each).__name__ for each in said]
        same("how one joins", kinds, _join(view))
        rows = [each.row for each in said if isinstance(each, a.InsertOwnRow | a.ReplaceOwnRow)]
        demand(rows in ([], [own]), "Plain: one joins with another row")
    elif _is_fenced(view):
        same("a row that is ours no more", [type(each).__name__ for each in said], ["Rejoin"])
    else:
        gap = 2.0 if own == view.life.written else min(max(0.1, view.size / 600), 2.0)
        beats = [a.MergeOwnRow(replace(own, beat=view.life.beat + 1), etag)]
        same("a beat", said, beats if view.calls.beat_sent_at + gap <= NOW else [])
    same("whether we are fenced", membership.fenced(view), _is_fenced(view))


def _join(view: View) -> list[str]:
    found, age = view.life.found, view.life.found_age
    if not isinstance(found, ProcessorRow):
        return ["Rejoin"] if view.life.join_unsettled else ["InsertOwnRow"]
    if view.life.written is not None or found.incarnation == LIVES[0]:
        return ["Rejoin"]
    same_machine = view.settings.holds_directory and found.boot == "boot"
    if not alive(found) or same_machine or (age is not None and age.seconds >= 8.0 and age.reads >= 3):
        return ["ReplaceOwnRow"]
    if view.life.rewritten >= 2:
        return ["Ending"]
    return ["ReadOwnRow"] if age is not None and age.read_at + 1.0 <= NOW else []


def _look(view: View) -> list[Any]:
    every = max(1.0, len(view.others.members) / 180)  # rows a second, in a very large group
    if view.watching() and _free(view, a.SCAN) and view.others.scanned_at + every <= NOW:
        return [a.ScanMembers()]
    if a.SCAN in view.calls.busy or not isinstance(view.control, Control):
        return []
    waits = {
        each.processor
        for task in view.life.waiting_since
        for each in view.control.tasks[task].after
        if each.processor != "p0"
    }
    unread = {  # not since we began to wait for it
        each.processor
        for task, began in view.life.waiting_since.items()
        for each in view.control.tasks[task].after
        if view.seen_at(each.processor) < began
    }
    gap = view.size / 250
    if len(waits) * gap > 1.0:  # as many reads as such a group can bear: the row that was read longest ago
        last = max(view.others.read_at.values(), default=-1e9)
        waits = set(sorted(waits, key=lambda name: (view.seen_at(name), name))[:1]) if last + gap <= NOW else set()
    return [
        a.ReadMember(name)
        for name in sorted(waits)
        if (name in unread or view.seen_at(name) + 1.0 <= NOW) and _free(view, f"member {name}")
    ]


def _check_look(view: View) -> None:
    same("whom one looks at", membership.look(view, NOW), _look(view))
    members = view.others.members
    few = next(iter(members.values()), ProcessorRow("p1", LIVES[1]))
    for size in (125, 126, 250, 800):
        view.others.members = {**members, **{f"q{number}": few for number in range(size - len(members))}}
        same(f"whom one looks at among {size}", membership.look(view, NOW), _look(view))
    view.others.members = members
    demand(view.present is view.present, "Plain: who is present is worked out twice")
    demand(view.share is view.share, "Plain: our share is worked out twice")


# Following, and coming to lead.


def _follow(view: View) -> list[Any]:
    row, control, said = view.others.leader_row, view.control, list[Any]()
    leads, campaigns = view.leadership is not None, view.candidacy.campaign is not None
    asked = view.turn_at is not None and view.turn_at - view.others.drain_asked_at < 10.0
    every = min(view.read_interval(), 0.2) if drains(control) or asked else view.read_interval()
    due = not leads and view.others.leader_read_at + every <= NOW
    if _free(view, a.LEADER_ROW) and (row is None or due):
        said.append(a.ReadLeaderRow())
    if leads:
        return said
    said += _look(view)
    read_at = view.life.control_read_at
    if control is None:
        old = True
    elif isinstance(control, Absent) or control.leader is None:
        old = read_at + 1.0 <= NOW
    elif isinstance(row, LeaderRow):
        news = (row.epoch, row.version, row.signal) != (control.epoch, control.version, signal(control))
        old = news and row.epoch >= control.epoch and row.etag != view.life.control_read_for
        old = old or (read_at + 300.0 <= NOW and view.life.accepted_at + 4.0 >= NOW)
    else:
        old = isinstance(row, Absent) and read_at + 2.0 <= NOW
    if old and not view.too_old_for and not campaigns and _free(view, a.CONTROL):
        said.append(a.ReadControl(unless_etag=view.life.control_etag or None))
    return said


def _campaign(view: View) -> list[Any]:
    going, control, patience = view.candidacy.campaign, view.control, view.candidacy.patience
    if not _free(view, a.CONTROL) or view.ending is not None or view.life.accepted_at + 4.0 < NOW:
        return []
    if view.too_old_for:
        taken = going.lease_id if going is not None else ""
        return [a.ReleaseLease(taken)] if taken and _free(view, a.LEASE) else []
    if going is not None:
        return _goes_on(view, going)
    if view.candidacy.hold_until > NOW:
        return []
    if isinstance(control, Absent):
        fresh = Control(group_id="0123456789ab", nonce="0123456789ab")
        return [] if view.group_id else [a.CreateControl(fresh)]
    if not isinstance(control, Control):
        return []
    etag, since = view.life.control_etag, view.others.leaderless_since
    if control.leader is None:
        waits = 1.0 * (1 + 2 * patience) + (0.0 if next_run.can_act(view, control) else 4.0)
        if control.successor not in (None, "p0") and since + waits > NOW:
            return []
        late = since + 5.0 * (1 + patience) <= NOW
        return [a.BreakLease(etag)] if late else [a.AcquireLease("0123456789ab", etag)]
    if not election._suspect(view):  # judged by itself
        return []
    if view.life.control_read_at + 1.0 < NOW:
        return [a.ReadControl(unless_etag=etag)]
    row = view.others.leader_row
    if isinstance(row, Absent) or (isinstance(row, LeaderRow) and "p0" in row.successors):
        return [a.BreakLease(etag)]
    if not isinstance(row, LeaderRow) or not _free(view, a.LEADER_ROW):
        return []
    return [a.WriteLeaderRow(_leader_row(view, control, ("p0",), row.beat + 1), row.etag)]


def _leader_row(view: View, control: Control, successors: tuple[str, ...], beat: int) -> LeaderRow:
    return LeaderRow(control.epoch, control.version, signal(control), view.life.control_etag, beat, successors)


def _goes_on(view: View, going: Campaign) -> list[Any]:
    if going.lease is None:
        return [a.AcquireLease(going.asked or "0123456789ab", going.etag)]
    if going.lease.asked_at + 60.0 - 5.0 - 5.0 < NOW:
        return [a.ReleaseLease(going.lease.id)]
    control = view.control
    if view.calls.unsettled is not None or not going.read or not isinstance(control, Control):
        return [a.ReadControl(lease_id=going.lease.id)]
    raised = replace(control, revision=control.revision + 1, epoch=control.epoch + 1, nonce="0123456789ab")
    won = replace(raised, leader=ME, deposed=control.leader, successor=None, events=())
    return [a.WriteControl(won, going.etag, going.lease.id)]


def _hand_over(view: View, to: str | None) -> list[Any]:
    control, office = view.control, view.leadership
    if view.handing_over is not None and isinstance(control, Control):
        said: list[Any] = []
        row, told = view.others.leader_row, signal(control)
        if (
            isinstance(row, LeaderRow)
            and row.epoch == control.epoch
            and row.signal != told
            and _free(view, a.LEADER_ROW)
        ):
            vacant = replace(row, signal=told, control_etag=view.life.control_etag, beat=row.beat + 1)
            said.append(a.WriteLeaderRow(vacant, row.etag))
        return said + ([a.ReleaseLease("l")] if _free(view, a.LEASE) else [])
    if office is None or not isinstance(control, Control):
        return []
    if not _free(view, a.CONTROL) or view.calls.unsettled is not None:
        return []
    names = who_leads_next(view, control)
    named = to or (names[0] if names else None)
    last = replace(control, revision=control.revision + 1, leader=None, successor=named, nonce="0123456789ab")
    return [a.WriteControl(last, view.life.control_etag, office.lease.id)]


# Leading.


def _check_leader(view: View, control: Control) -> None:
    row, office, said = view.others.leader_row, view.leadership, election.show_life(view, control, NOW)
    assert office is not None
    read = isinstance(row, LeaderRow) and row.epoch > control.epoch
    if not _free(view, a.LEADER_ROW) or row is None:
        same("a sign of life that cannot be", said, [])
    elif read and view.life.control_read_at <= view.others.leader_read_at:
        asks = [a.ReadControl(lease_id=office.lease.id)] if _free(view, a.CONTROL) else []
        same("a later leader's row", said, asks)
    else:
        seen = row if isinstance(row, LeaderRow) else None
        mine = _leader_row(view, control, tuple(who_leads_next(view, control)), seen.beat + 1 if seen else 1)
        told = [(each.epoch, each.version, each.signal, each.successors) for each in (mine, seen) if each is not None]
        news = len(told) < 2 or told[0] != told[1]
        due = view.calls.leader_row_sent_at + (0.1 if news else 2.0) <= NOW
        same("a sign of life", said, [a.WriteLeaderRow(mine, seen.etag if seen else None)] if due else [])
    _check_lead(view, control, said)


def drains(control: object) -> bool:
    """Plain: whether its steps are waited for."""
    if not isinstance(control, Control):
        return False
    return control.phase is RunPhase.DRAINING or (
        control.phase is RunPhase.DRAINED and not control.kept.keys() >= {*control.uncleaned}
    )


def _check_lead(view: View, control: Control, signs: list[Any]) -> None:
    """One turn as leader: what it renews and reads, or why it steps down."""
    office = view.leadership
    assert office is not None
    asked = office.lease.asked_at
    said = decide.lead(view, NOW)
    if asked + 55.0 <= NOW or election.is_blind(view, NOW):
        same("a leader that must not lead", [type(each).__name__ for each in said], ["StepDown"])
        return
    to = election.abler(view, control, NOW)
    if to is not None and (last := _hand_over(view, to)):
        same("a leader that cannot act", _plainly(said), _plainly(last))
        return
    wanted: list[Any] = [a.RenewLease(office.lease.id)] if asked + 20.0 <= NOW and _free(view, a.LEASE) else []
    wanted += signs
    is_due = view.others.scanned_at + (0.2 if drains(control) else 1.0) <= NOW
    if _free(view, a.SCAN) and (is_due or view.others.scanned_at < office.since):
        wanted.append(a.ScanMembers())
    if _free(view, a.REQUESTS) and office.requests_read_at + 1.0 <= NOW:
        wanted.append(a.ReadRequests())
    same("what a leader does first", said[: len(wanted)], wanted)
    rest = said[len(wanted) :]
    demand(not any(isinstance(each, a.ScanMembers | a.ReadRequests | a.RenewLease) for each in rest), "Plain: twice")
    same(
        "who is marked",
        [each for each in rest if isinstance(each, a.MarkDead)],
        membership.mark_dead(view, control, NOW),
    )
    writes = [each for each in rest if isinstance(each, a.WriteControl)]
    asks = [each for each in rest if isinstance(each, a.ReadControl)]
    unsettled = view.calls.unsettled is not None
    next_one = publish.next_control(view, control, NOW)
    both = control, next_one
    in_progress = all(each.phase in ("RUNNING", "DRAINING") and each.stop is None for each in both)
    if in_progress and next_one.version == control.version and view.has_looked and not office.in_vain:
        late = max(office.barrier_since, office.since) + 30.0 <= NOW
        same(
            "the barrier in what is published",
            next_one.barrier,
            next_barrier(view, control, candidates(view, control), late=late),
        )
    writes_now = _free(view, a.CONTROL) and not unsettled and next_one != control
    says_so = any(alive(row) and row.cut_off for name, row in view.others.members.items() if name != "p0")
    tries = says_so and view.life.control_read_at + 2.0 <= NOW and next_one == control
    same(
        "what is asked of the blob",
        asks,
        [a.ReadControl(lease_id=office.lease.id)] if (unsettled or tries) and _free(view, a.CONTROL) else [],
    )
    same("whether a leader writes", len(writes), int(writes_now))
    for each in writes:
        after = replace(next_one, revision=control.revision + 1, nonce="0123456789ab", events=())
        same("what a leader writes", replace(each.control, events=()), after)
        newcomers = bool(set(after.members) - set(control.members))
        fence = (each.etag, each.lease_id, each.has_newcomers)
        same("the fence of that write", fence, (view.life.control_etag, office.lease.id, newcomers))
    same(
        "the housework",
        rest[-len(house) :] if (house := housekeeping.keep_house(view, control, NOW)) else [],
        house,
    )


# The end.


def _end(view: View) -> list[Any]:
    if view.ending is None:
        why = ending.verdict(view)
        return [a.BeginEnd(why)] if why is not None else []
    waits = ending.waits_for(view, NOW)
    if waits is None:
        return [ending._as_it_came(view, view.ending)]  # judged by itself
    if waits is ending.Wait.OWN_ROW:
        found = view.life.found
        if not _free(view, a.OWN_ROW) or found is None or _is_fenced(view) or view.life.etag is None:
            return []
        last = replace(membership.own_row(view), beat=view.life.beat + 1, state=ProcessorState.LEFT)
        last = replace(last, ending=f"0 {view.ending.message}")
        return [a.MergeOwnRow(last, view.life.etag)]
    if waits is ending.Wait.LEASE:
        return _hand_over(view, None)
    if waits is ending.Wait.CANDIDACY:
        lease_id = view.candidacy.campaign.lease_id if view.candidacy.campaign is not None else ""
        return [a.ReleaseLease(lease_id)] if _free(view, a.LEASE) else []
    return []


def _check_turn(view: View) -> None:
    """The whole turn: each question asked once, by a processor that may ask it, and no action twice."""
    said = decide.decide(view, NOW)
    demand(NOW < said.wake_at <= NOW + 2.0, f"Plain: asked again at {said.wake_at}")
    last = ending.end(view, NOW)
    wanted: list[Any] = [] if any(isinstance(each, a.MergeOwnRow) for each in last) else membership.beat(view, NOW)
    if view.life.etag is not None:
        wanted += election.follow(view, NOW)
        if view.leadership is not None:
            led = decide.lead(view, NOW)
            begins_to_end = any(isinstance(each, a.BeginEnd) for each in last)
            wanted += [each for each in led if not (begins_to_end and isinstance(each, a.WriteControl))]
        elif view.handing_over is None:
            wanted += election.campaign(view, NOW)
        elif view.ending is None:
            wanted += election.hand_over(view, NOW)
    wanted += [*tasks.commands(view, NOW), *last]
    same("a turn", _plainly(said.actions), _plainly(wanted))
    view.finished = a.Finish(Verdict.DONE, "over")
    same("a turn after the end", decide.decide(view, NOW).actions, [])
    view.finished = None


__all__ = ["check_actions"]
