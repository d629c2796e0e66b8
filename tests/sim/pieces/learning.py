"""What a processor learns: for a drawn state, each call and each answer changes just what it should, and nothing else.

Part of `pieces`. All fields of what is known are compared before and after: each case says which of them change, and
to what.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

from samza_azure.errors import Verdict
from samza_azure.group import actions as a
from samza_azure.group import learn
from samza_azure.group.age import Age
from samza_azure.group.answers import Absent, Busy, ControlRead, Denied, Kept, Later, No, TooLarge, Trouble, Unchanged
from samza_azure.group.control import Control, Member
from samza_azure.group.rows import LeaderRow, ProcessorRow, ProcessorState, Request
from samza_azure.group.view import (
    Campaign,
    Denial,
    Failing,
    Leadership,
    Lease,
    LocalTask,
    OwnIncarnation,
    View,
    Well,
)
from samza_azure.messages import Drain, DrainStep, Permit, Phase, ReleaseTask, StartTask, TaskError, TaskReport
from samza_azure.sim.ledger import demand

from .decisions.drain import word
from .decisions.drawn import LIVES, NAMES, NOW, PLAN, TASKS, Drawn, alive
from .decisions.tasks import closed

#: What is known, by field: "life.etag".
Known = dict[str, Any]
PARTS = ("life", "others", "candidacy", "work", "calls", "leadership")


def known(view: View) -> Known:
    """All that a view holds, each collection copied."""
    found: Known = {}
    for each in fields(view):
        value = getattr(view, each.name)
        if each.name in PARTS and value is not None and is_dataclass(value):
            found[each.name] = True
            for inner in fields(value):
                found[f"{each.name}.{inner.name}"] = _copied(getattr(value, inner.name))
        elif not each.name.startswith("_") and each.name != "settings":
            found[each.name] = value
    return found


#: Who says that it leads is judged by the invariant Leader.
SAID = {f"leadership.{name}" for name in ("row_etag", "row_sent_at", "free_from", "resigns", "may_have_resigned")}
SAID |= {"vacates"}


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: replace(each) if isinstance(each, LocalTask) else each for name, each in value.items()}
    return value


class Case:
    """One call and its answer, or one thing heard, and what it should change."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn, self.dice = drawn, drawn.dice
        self.view = drawn.view()
        self._fill()
        self.now, self.sent = NOW, NOW - drawn.dice.choice([0.0, 0.5, 2.0])
        self.before = known(self.view)
        self.change: Known = {}
        self.busy_s = 0.0  # for how long the service asks not to be called

    def _fill(self) -> None:
        """What else may be known in the middle of a call."""
        view, dice, drawn = self.view, self.dice, self.drawn
        view.calls.unsettled = None
        view.life.control_etag = dice.choice(["c1", "c2"])
        view.life.beat_unsettled = drawn.often((dice.choice([3, 4]), drawn.before()), None)
        view.life.found = dice.choice([None, Absent(), drawn.row("p0")])
        view.life.found_age = drawn.often(Age(dice.choice(["a-life-1 3", "x"]), 1.0, 1, drawn.before()), None)
        view.others.leader_age = drawn.often(
            Age(dice.choice(["e", "f", ""]), 3.0, dice.choice([0, 2]), drawn.before()), None, 0.8
        )
        view.others.ages = {name: replace(age, read_at=drawn.before()) for name, age in view.others.ages.items()}
        view.others.write_seen_at = drawn.before()
        view.life.control_read_at, view.life.control_read_for = drawn.before(), dice.choice(["e", "x"])
        if dice.random() < 0.4:
            lease = drawn.often(Lease("l2", drawn.before()), None)
            view.candidacy.campaign = Campaign("c1", "", lease)
        if dice.random() < 0.2:
            view.handing_over = Lease("l", NOW)
        control = view.life.control
        for task in control.given_up if isinstance(control, Control) else ():
            owner = control.tasks[task].owner
            if owner is not None and dice.random() < 0.5:
                well = Well(owner.generation, dice.choice([1, 2]), drawn.before())
                view.others.well = {**view.others.well, task: well}
        for local in view.work.tasks.values():
            local.started_at = NOW - dice.choice([1.0, 599.0, 600.0, 601.0])
        if dice.random() < 0.4:
            last = NOW - dice.choice([119.0, 120.0, 121.0])
            kinds = ("MergeOwnRow", "ScanMembers", "ReadControl")
            view.calls.denied = {kind: Denial(last, dice.choice([last, NOW]), "no", may_pass=True) for kind in kinds}
        names = [f"member {name}" for name in NAMES] + ["request k0", "request k1"]
        view.calls.doubted = {name: drawn.before() for name in names if dice.random() < 0.3}
        view.random = dice.choice([0.0, 0.25, 0.5])
        if view.leadership is not None and dice.random() < 0.2:
            view.leadership.since = NOW  # after the call was sent

    def forgets_ages(self) -> None:
        """The observer was away: it suspects no leader."""
        ages = self.change.get("others.ages", self.before["others.ages"])
        self.change["others.ages"] = {name: Age(age.etag, 0.0, 0, self.now) for name, age in ages.items()}
        self.young_leader()

    def young_leader(self) -> None:
        age = self.change.get("others.leader_age", self.before["others.leader_age"])
        if age is not None:
            self.change["others.leader_age"] = Age(age.etag, 0.0, 0, self.now)

    def observes_again(self) -> None:
        """After a refused step: a timeout of observing, and a part of one more."""
        luck = self.before["random"]
        until = self.now + 5.0 * (1 + luck)
        self.change |= {"candidacy.campaign": None, "candidacy.patience": luck, "candidacy.hold_until": until}
        self.young_leader()

    def demoted(self) -> None:
        """It no longer leads."""
        self.change |= {"leadership": None, "calls.unsettled": None}
        self.observes_again()

    def answered(self, action: Any, answer: Any) -> None:
        """What each answered call changes."""
        name = a.resource(action)
        self.view.calls.busy[name] = self.before["calls.busy"][name] = self.sent
        failing = dict(self.before["calls.failing"])
        says_nothing = isinstance(answer, No) and isinstance(action, a.ReadControl) and action.lease_id is None
        unread = isinstance(answer, Later) and not isinstance(action, a.ReadControl)
        if isinstance(answer, Trouble | Denied | Kept) or says_nothing or unread:
            times = (failing[name].times if name in failing else 0) + 1
            waits = self.view.back_off(name).after(times, self.before["random"])
            self.busy_s = self.dice.choice([0.0, 1.0, 1e3]) if answer is Trouble.UNAVAILABLE else 0.0
            most = min(self.busy_s, self.view.back_off(name).longest_s)
            asked = self.now + most if most and name != "own row" else 0.0
            failing[name] = Failing(times, max(self.sent + waits, asked))
            if name in ("control", "lease") and times >= 2 and self.before["leadership"] is not None:
                self.change["leadership.cut_off"] = {}
        else:
            failing.pop(name, None)
        busy = {each: at for each, at in self.before["calls.busy"].items() if each != name}
        self.change |= {"calls.busy": busy, "calls.failing": failing}
        self._access(action, answer)

    def _access(self, action: Any, answer: Any) -> None:
        denied, kind = self.before["calls.denied"], type(action).__name__
        recent = {each: denial for each, denial in denied.items() if self.now - denial.last < 120.0}
        if isinstance(answer, Denied):
            since = recent[kind].since if kind in recent else self.sent
            self.change["calls.denied"] = {**recent, kind: Denial(since, self.now, answer.reason, answer.may_pass)}
            if isinstance(action, a.MergeOwnRow | a.InsertOwnRow | a.ReplaceOwnRow):
                self.change["calls.denied_at"] = self.sent
        elif not isinstance(answer, Trouble) and denied:
            self.change["calls.denied"] = {each: denial for each, denial in recent.items() if each != kind}

    def learns(self, action: Any, answer: Any) -> None:
        """Let production learn it, and compare. A service that is busy answers like one that is away."""
        answer = Busy(self.busy_s) if self.busy_s else answer
        learn.learn(self.view, action, answer, sent_at=self.sent, now=self.now)
        self.compare(f"{type(action).__name__} answered by {str(answer)[:80]}")

    def compare(self, what: str) -> None:
        """All that should have changed has, and nothing else."""
        found, wanted = known(self.view), {**self.before, **self.change}
        if wanted["leadership"] is None:
            wanted = {name: value for name, value in wanted.items() if not name.startswith("leadership.")}
        if isinstance(wanted["leadership"], Leadership):
            office = wanted["leadership"]
            wanted |= {f"leadership.{each.name}": getattr(office, each.name) for each in fields(office)} | {
                "leadership": True
            }
        names = (wanted.keys() | found.keys()) - SAID
        differs = sorted(name for name in names if wanted.get(name) != found.get(name))
        told = "; ".join(
            f"{name} is {str(found.get(name))[:120]}, not {str(wanted.get(name))[:120]}" for name in differs
        )
        demand(not differs, f"Plain: after {what} {told}")


def _observed(age: Age | None, etag: str, now: float, interval: float) -> Age:
    if age is None or age.etag != etag:
        return Age(etag, 0.0, 0, now)
    return Age(etag, age.seconds + min(now - age.read_at, 2 * interval), age.reads + 1, now)


# Our row.


def own_row(case: Case) -> None:
    dice, before, drawn = case.dice, case.before, case.drawn
    row = replace(drawn.row("p0", 0.6), beat=dice.choice([2, 3, 4]))
    kind: Any = dice.choice([a.MergeOwnRow, a.ReplaceOwnRow, a.InsertOwnRow, a.ReadOwnRow])
    action: Any = a.ReadOwnRow()
    if kind is a.ReadOwnRow:
        answer: Any = dice.choice([row, row, row, Absent(), Trouble.UNAVAILABLE])
        case.answered(action, answer)
        if isinstance(answer, Absent):
            case.change["life.found"] = Absent()
        elif isinstance(answer, ProcessorRow) and row.incarnation == LIVES[0] and (alive(row) or row.state == "LEFT"):
            sent = before["life.beat_unsettled"]
            if sent is not None and sent[0] == row.beat:
                case.change["life.accepted_at"] = max(before["life.accepted_at"], sent[1])
            case.change |= {"life.etag": row.etag, "life.found": row, "life.beat": max(3, row.beat)}
            if not alive(row):
                case.change["life.written"] = row
        elif isinstance(answer, ProcessorRow):
            age, beat = before["life.found_age"], f"{row.incarnation} {row.beat}"
            if age is not None and age.etag != beat and alive(row):
                case.change["life.rewritten"] = before["life.rewritten"] + 1
            case.change |= {"life.found": row, "life.found_age": _observed(age, beat, case.now, 2.0)}
        case.learns(action, answer)
        return
    action = kind(row) if kind is a.InsertOwnRow else kind(row, "e")
    answer = dice.choice(["n", "n", No("x"), Trouble.UNSETTLED, Trouble.UNAVAILABLE, Denied("no", may_pass=True)])
    case.answered(action, answer)
    if answer == "n":
        case.change |= {"life.etag": "n", "life.written": row, "life.beat": row.beat, "life.found": row}
        case.change |= {"life.beat_unsettled": None, "calls.let_in": True}
        accepted = before["life.accepted_at"]
        if case.sent > max(accepted, before["others.write_seen_at"]) + 4.0:
            case.forgets_ages()
        case.change["life.accepted_at"] = max(accepted, case.sent)
    elif answer is Trouble.UNSETTLED and kind is not a.MergeOwnRow:
        case.change |= {"life.found": None, "life.join_unsettled": True}
    elif answer is Trouble.UNSETTLED:
        case.change["life.found"] = None
        sent = before["life.beat_unsettled"]
        if sent is None or sent[0] != row.beat:
            case.change["life.beat_unsettled"] = (row.beat, case.sent)
    elif isinstance(answer, No):
        case.change["life.found"] = None
    case.learns(action, answer)


# The lease and the leader row.


def lease(case: Case) -> None:
    action: Any = case.dice.choice([a.RenewLease("l"), a.RenewLease("x"), a.RenewLease("a"), a.ReleaseLease("l")])
    answer = case.dice.choice([None, None, No("x"), Absent(), Trouble.UNSETTLED])
    case.answered(action, answer)
    office = case.view.leadership
    if isinstance(action, a.ReleaseLease):
        if not isinstance(answer, Trouble):
            case.change["handing_over"] = None
            if case.before["candidacy.campaign"] is not None:
                case.observes_again()
    elif office is not None and action.lease_id == "l":
        if answer is None:
            case.change["leadership.lease"] = Lease("l", case.sent)
        elif not isinstance(answer, Trouble):
            case.demoted()
    case.learns(action, answer)


def leader_row(case: Case) -> None:
    view, dice, before = case.view, case.dice, case.before
    seen = LeaderRow(3, 5, "s", "c", 1, tuple(dice.sample(NAMES, dice.randrange(3))), dice.choice(["e", "f"]))
    if dice.random() < 0.4:
        action: Any = a.WriteLeaderRow(seen, "e")
        answer: Any = dice.choice(["n", No("x"), Trouble.UNSETTLED, Trouble.UNAVAILABLE])
        case.answered(action, answer)
        if answer == "n":
            case.change |= {"others.leader_row": replace(seen, etag="n"), "others.leader_read_at": case.now}
        elif answer is Trouble.UNSETTLED:
            case.change |= {"others.leader_row": None, "calls.leader_row_unsettled": seen}
        elif isinstance(answer, No):
            case.change["others.leader_row"] = None
        case.learns(action, answer)
        return
    if dice.random() < 0.4:
        other = replace(seen, etag="", beat=dice.choice([1, 2]))
        view.calls.leader_row_unsettled = before["calls.leader_row_unsettled"] = other
    action, answer = a.ReadLeaderRow(), dice.choice([seen, seen, Absent(), Trouble.UNAVAILABLE])
    case.answered(action, answer)
    if not isinstance(answer, Trouble):
        etag = answer.etag if isinstance(answer, LeaderRow) else ""
        age, ours, watches = before["others.leader_age"], before["calls.leader_row_unsettled"], view.watching()
        if age is not None and ours is not None and answer == replace(ours, etag=etag):
            age = replace(age, etag=etag)
        if age is None or age.etag != etag:
            case.change["candidacy.patience"] = before["random"]
        due = age is None or age.reads > 0 or not age.etag
        case.change["others.leader_age"] = _observed(age, etag, case.now, 1.0 if watches and due else 2.0)
        case.change |= {
            "others.leader_row": answer,
            "others.leader_read_at": case.now,
            "calls.leader_row_unsettled": None,
        }
    case.learns(action, answer)


# The control blob.


def _seen(case: Case) -> None:
    row = case.change.get("others.leader_row", case.before["others.leader_row"])
    etag = row.etag if isinstance(row, LeaderRow) else ""
    case.change |= {"life.control_read_at": case.now, "life.control_read_for": etag}
    rows = case.before["others.members"].values()
    said, office = {each.incarnation for each in rows if alive(each) and each.cut_off}, case.change.get("leadership")
    if isinstance(office, Leadership):
        case.change["leadership"] = replace(office, cut_off=dict.fromkeys(said, case.now))
    elif case.before["leadership"] is not None:
        known_ = case.before["leadership.cut_off"]
        case.change["leadership.cut_off"] = {life: known_.get(life, case.now) for life in said}


def _knows(case: Case, control: Control, etag: str) -> None:
    """The control blob is this one now."""
    before, change = case.before, case.change
    if etag != before["life.control_etag"]:
        change["others.leaderless_since"] = case.now
    old, office = before["life.control"], change.get("leadership")
    if isinstance(old, Control) and old.version != control.version:
        if office is not None:
            change["leadership"] = replace(office, published_at=case.now)
        elif before["leadership"] is not None:
            change |= {"leadership.published_at": case.now, "leadership.barrier_since": case.now}
            change["leadership.too_large"] = {}
    if isinstance(old, Control) and old.epoch != control.epoch:
        case.young_leader()
    campaign = change.get("candidacy.campaign", before["candidacy.campaign"])
    if campaign is not None and campaign.lease is not None:
        change["candidacy.campaign"] = replace(campaign, read=True, etag=etag)
    change |= {"life.control": control, "life.control_etag": etag, "group_id": before["group_id"] or "group"}
    change["revision"] = control.revision
    _seen(case)
    plan = before["work.plan"]
    is_ours = plan is not None and plan.fingerprint == control.fingerprint
    is_ours = is_ours and case.view.settings.run_id in ("", control.run_id)
    if is_ours and control.phase in ("RUNNING", "DRAINING"):
        change["work.active_run"] = control.run_id
    mine = {
        task: each.owner
        for task, each in control.tasks.items()
        if each.owner is not None and (each.owner.processor, each.owner.incarnation) == ("p0", LIVES[0])
    }
    tasks = before["work.tasks"]
    change["work.tasks"] = {task: local for task, local in tasks.items() if task in mine or not closed(local)}
    waits = {}
    for task, owner in mine.items():
        begun = task in change["work.tasks"] and change["work.tasks"][task].generation == owner.generation
        if control.tasks[task].after and not begun:
            waits[task] = before["life.waiting_since"].get(task, case.now)
    change["life.waiting_since"] = waits
    awaited = {each.processor for task in waits for each in control.tasks[task].after}
    change["others.read_at"] = {name: at for name, at in before["others.read_at"].items() if name in awaited}


def _written(case: Case, action: a.WriteControl, control: Control, etag: str) -> None:
    """Our write was accepted."""
    before, change = case.before, case.change
    campaign = before["candidacy.campaign"]
    won = campaign is not None and campaign.lease is not None and campaign.lease.id == action.lease_id
    office = None
    if won:
        office = Leadership(campaign.lease, case.now, case.now)
        change |= {"candidacy.campaign": None, "others.scanned_at": -1e9, "others.leader_row": None}
        change["leadership"] = office
    _knows(case, control, etag)
    if control.leader != Member("p0", LIVES[0]):
        lease_now = office.lease if office is not None else before.get("leadership.lease")
        change |= {"leadership": None, "handing_over": lease_now}
        case.observes_again()


def _draws_control(case: Case) -> Control:
    control = case.drawn.control()
    revision = case.dice.choice([5, 6, 7, 7, 7])
    return replace(control, revision=revision, epoch=case.dice.choice([3, 4]), version=case.dice.choice([0, 5, 7]))


def control_read(case: Case) -> None:
    view, dice, before = case.view, case.dice, case.before
    control, lease_id = _draws_control(case), dice.choice([None, None, "l"])
    action = a.ReadControl(lease_id)
    answer: Any = dice.choice(
        [
            ControlRead(control, dice.choice(["c1", "c2"])),
            ControlRead(control, "c3"),
            Unchanged(),
            Absent(),
            Later(9, "x"),
            No("x"),
        ]
    )
    if dice.random() < 0.3:
        sent = a.WriteControl(replace(control, nonce=dice.choice(["n", "m"])), "c1", dice.choice(["l", "l2"]))
        view.calls.unsettled = case.before["calls.unsettled"] = sent
    unsettled = case.before["calls.unsettled"]
    case.answered(action, answer)
    if isinstance(answer, ControlRead):
        if before["group_id"] == control.group_id and before["revision"] > control.revision:
            case.change["life.older_copy"] = True
            _seen(case)
        else:
            case.change["calls.unsettled"] = None
            if unsettled is not None and unsettled.control.nonce == control.nonce:
                _written(case, unsettled, control, answer.etag)
            else:
                _knows(case, control, answer.etag)
    elif isinstance(answer, Later):
        case.change["too_old_for"] = 9
        if case.before["leadership"] is not None:
            case.demoted()
    elif isinstance(answer, Unchanged) and lease_id is None:
        _seen(case)
    elif isinstance(answer, Absent) and lease_id is None:
        case.change |= {"life.control": Absent(), "life.control_read_at": case.now}
    elif isinstance(answer, Absent | No) and lease_id is not None:
        case.demoted()
        case.change["life.control_read_at"] = -1e9
    case.learns(action, answer)


def control_written(case: Case) -> None:
    dice, old, before = case.dice, case.before["life.control"], case.before
    control = _draws_control(case)
    leader = dice.choice([Member("p0", LIVES[0]), Member("p0", LIVES[0]), None])
    action = a.WriteControl(replace(control, leader=leader), "c1", dice.choice(["l", "l2"]))
    answer: Any = dice.choice(["n", "n", "n", No("x"), Trouble.UNSETTLED, Trouble.UNAVAILABLE, TooLarge("big")])
    if before["leadership"] is not None:
        members = [control.members, (Member("p9", "x"),)]
        before["leadership.too_large"] = {each: NOW + dice.choice([-1.0, 0.0, 1.0]) for each in members[1:]}
        case.view.office.too_large = dict(before["leadership.too_large"])
    case.answered(action, answer)
    if answer == "n":
        _written(case, action, action.control, "n")
    elif answer is Trouble.UNSETTLED:
        case.change["calls.unsettled"] = action
    elif isinstance(answer, TooLarge) and before["leadership"] is not None:
        waits = {each: until for each, until in before["leadership.too_large"].items() if until > case.now}
        case.change["leadership.too_large"] = {**waits, control.members: case.now + 5.0}
        works = isinstance(old, Control) and old.run_id == control.run_id
        rows = case.view.present
        works = works and any(
            each.processor in rows and rows[each.processor].incarnation == each.incarnation for each in old.members
        )
        case.change["leadership.in_vain"] = "" if works else "big"
    elif isinstance(answer, No):
        case.demoted()
        case.change["life.control_read_at"] = -1e9
    case.learns(action, answer)


def candidacy(case: Case) -> None:
    dice, old = case.dice, case.before["life.control"]
    action: Any = dice.choice([a.BreakLease("c1"), a.AcquireLease("l3", "c1"), a.CreateControl(_draws_control(case))])
    codes = [No("LeaseNotPresent"), No("ConditionNotMet")]
    answer: Any = dice.choice([None, None, *codes, Absent(), Trouble.UNSETTLED, Trouble.UNAVAILABLE])
    if isinstance(action, a.CreateControl):
        answer = dice.choice(["n", No("x"), Trouble.UNSETTLED, Trouble.UNAVAILABLE])
    case.answered(action, answer)
    if isinstance(action, a.CreateControl):
        if answer == "n":
            _knows(case, action.control, "n")
        elif answer is not Trouble.UNAVAILABLE:
            case.change |= {"life.control": None, "life.control_read_at": -1e9}
    elif isinstance(action, a.BreakLease) and (answer is None or answer == codes[0]):
        case.change["candidacy.campaign"] = Campaign("c1")
    elif isinstance(action, a.AcquireLease) and answer is None:
        case.change["candidacy.campaign"] = Campaign("c1", lease=Lease("l3", case.sent))
    elif isinstance(action, a.AcquireLease) and answer is Trouble.UNSETTLED:
        case.change["candidacy.campaign"] = Campaign("c1", asked="l3")
    elif (
        isinstance(action, a.AcquireLease)
        and isinstance(answer, No)
        and isinstance(old, Control)
        and old.leader is None
    ):
        until = case.now + 1.0 * (1 + case.before["random"])
        case.change |= {"candidacy.campaign": None, "candidacy.hold_until": until, "life.control_read_at": -1e9}
    elif isinstance(answer, No | Absent):
        case.demoted()
        case.change["life.control_read_at"] = -1e9
    case.learns(action, answer)


# The others.


def _trusted(case: Case, kind: str) -> None:
    doubted = case.before["calls.doubted"]
    case.change["calls.doubted"] = {
        name: since for name, since in doubted.items() if not name.startswith(kind) or since > case.sent
    }


def _running(case: Case, row: ProcessorRow) -> ProcessorRow:
    """The same, in which half of the tasks that a processor has given up run, some of them for a while."""
    control, dice, said = case.before["life.control"], case.dice, dict(row.tasks)
    for task in control.given_up if isinstance(control, Control) else ():
        owner, known = control.tasks[task].owner, case.before["others.well"].get(task)
        if owner is not None and (owner.processor, owner.incarnation) == (row.processor, row.incarnation):
            attempt = known.attempt if known is not None and dice.random() < 0.5 else dice.randrange(1, 3)
            if dice.random() < 0.5:
                said[task] = TaskReport(task, owner.generation, attempt, Phase.RUNNING)
    return replace(row, tasks=said)


def scan(case: Case) -> None:
    before, dice, drawn = case.before, case.dice, case.drawn
    rows = tuple(drawn.row(name) for name in NAMES if dice.random() < 0.8)
    old = before["others.members"]
    rows = tuple(
        replace(old[row.processor], etag=row.etag) if row.processor in old and dice.random() < 0.5 else row
        for row in rows
    )
    rows = tuple(_running(case, row) for row in rows)
    answer: Any = dice.choice([rows, rows, rows, Trouble.UNAVAILABLE, Denied("no", may_pass=False), Later(9, "x")])
    if answer is rows and dice.random() < 0.1:
        answer = rows = (*rows, *drawn.requests())  # which are no members
    case.answered(a.ScanMembers(), answer)
    rows = tuple(row for row in rows if isinstance(row, ProcessorRow))
    if isinstance(answer, tuple):
        interval = 1.0
        _trusted(case, "member ")
        back = {name: each for name, each in before["others.back"].items() if case.now < each[1] + 600.0}
        ages, seen, news, old_ones = {}, set(), False, list[ProcessorRow]()
        for row in rows:
            earlier, age = old.get(row.processor), before["others.ages"].get(row.processor)
            if earlier is not None and earlier.incarnation != row.incarnation and alive(earlier) and alive(row):
                back.setdefault(row.processor, (row.incarnation, case.now))
            if earlier is not None and earlier.incarnation == row.incarnation and alive(row) and not alive(earlier):
                old_ones.append(earlier)
                ages[row.processor] = _observed(age, earlier.etag, case.now, interval)
                continue
            ages[row.processor] = _observed(age, row.etag, case.now, interval)
            changed = age is not None and age.etag != row.etag
            if alive(row):
                news = news or changed
                if changed or row.incarnation in before["others.seen_alive"]:
                    seen.add(row.incarnation)
        members = {row.processor: row for row in (*rows, *old_ones)}
        case.change |= {"others.members": members, "others.ages": ages, "others.scanned_at": case.sent}
        case.change |= {"others.seen_alive": frozenset(seen), "others.back": back}
        if news:
            at = max(before["others.scanned_at"], before["others.write_seen_at"])
            case.change["others.write_seen_at"] = at
            if at > max(before["life.accepted_at"], before["others.write_seen_at"]) + 4.0:
                case.forgets_ages()
        _looks(case, members)
    case.learns(a.ScanMembers(), answer)


def _looks(case: Case, members: Mapping[str, ProcessorRow]) -> None:
    """What else is worked out from the rows."""
    control, before = case.before["life.control"], case.before
    well = {}
    for task in control.given_up if isinstance(control, Control) else ():
        said = word(control, task, members)
        if said is not None and said.phase is Phase.RUNNING:
            known_ = before["others.well"].get(task)
            same = known_ is not None and (known_.generation, known_.attempt) == (said.generation, said.attempt)
            well[task] = known_ if same else Well(said.generation, said.attempt, case.now)
    case.change["others.well"] = well
    if before["leadership"] is not None:
        says_so = {row.incarnation for row in members.values() if alive(row) and row.cut_off}
        known_ = before["leadership.cut_off"]
        case.change["leadership.cut_off"] = {life: at for life, at in known_.items() if life in says_so}
    deposed = control.deposed if isinstance(control, Control) else None
    looks = before["leadership"] is not None and deposed is not None and not before["leadership.deposed_etag"]
    if looks and deposed is not None and deposed.processor in members:
        case.change["leadership.deposed_etag"] = members[deposed.processor].etag


def member(case: Case) -> None:
    before, dice = case.before, case.dice
    name = dice.choice(NAMES[1:])
    others, ages, doubted = before["others.members"], before["others.ages"], before["calls.doubted"]
    kind = dice.randrange(3)
    if kind == 0:
        row = case.drawn.row(name)
        action: Any = a.ReadMember(name)
        answer: Any = dice.choice([row, row, Absent(), Trouble.UNAVAILABLE])
        case.answered(action, answer)
        if not isinstance(answer, Trouble) and before["others.scanned_at"] <= case.sent:
            rest = {each: one for each, one in others.items() if each != name}
            old = {each: age for each, age in ages.items() if each != name}
            gone = isinstance(answer, Absent)
            case.change["others.members"] = rest if gone else {**rest, name: row}
            case.change["others.ages"] = (
                old if gone else {**old, name: _observed(ages.get(name), row.etag, case.now, 1.0)}
            )
            case.change["others.read_at"] = {**before["others.read_at"], name: case.sent}
            case.change["calls.doubted"] = {each: at for each, at in doubted.items() if each != f"member {name}"}
        case.learns(action, answer)
        return
    action = a.MarkDead(name, "e1", 3) if kind == 1 else a.DeleteMember(name, "e1")
    answer = dice.choice(["n" if kind == 1 else None, No("x"), Trouble.UNAVAILABLE, Trouble.UNSETTLED])
    if kind == 2 and dice.random() < 0.2:
        answer = Absent()
    case.answered(action, answer)
    is_same = name in others and others[name].etag == "e1"
    if answer == "n" and is_same:
        marked = replace(others[name], state=ProcessorState.DEAD, etag="n", epoch=3)
        case.change["others.members"] = {**others, name: marked}
    elif answer == "n" or (kind == 2 and (answer is None or isinstance(answer, Absent)) and not is_same):
        pass  # what was seen since is newer
    elif kind == 2 and (answer is None or isinstance(answer, Absent)):
        case.change["others.members"] = {each: one for each, one in others.items() if each != name}
    elif isinstance(answer, No) or answer is Trouble.UNSETTLED:
        case.change["calls.doubted"] = {**doubted, f"member {name}": case.now}
        if isinstance(answer, No):
            case.change["others.ages"] = {each: age for each, age in ages.items() if each != name}
            if kind == 2 and is_same:  # what we know of it is out of date
                case.change["others.members"] = {each: one for each, one in others.items() if each != name}
    case.learns(action, answer)


def asked(case: Case) -> None:
    before, dice, leads = case.before, case.dice, case.before["leadership"] is not None
    old: tuple[Request, ...] = before.get("leadership.requests", ())
    kind = dice.randrange(3)
    if kind == 0:
        rows = tuple(replace(each, etag=dice.choice(["e", "e2"])) for each in case.drawn.requests())
        answer: Any = dice.choice([rows, rows, Trouble.UNAVAILABLE])
        case.answered(a.ReadRequests(), answer)
        if answer is rows:
            _trusted(case, "request ")
            if leads and case.sent >= before["leadership.since"]:
                ages, sent = before["leadership.request_ages"], before["leadership.answering"]
                ours = {each.key: each for each in old if each.answer != ""}  # an answer is never taken back
                known = tuple(ours[each.key] if each.answer == "" and each.key in ours else each for each in rows)
                now = {each.key: _observed(ages.get(each.key), each.etag, case.now, 1.0) for each in known}
                case.change |= {"leadership.requests": known, "leadership.request_ages": now}
                case.change["leadership.requests_read_at"] = case.now
                there = {each.key for each in known}
                case.change["leadership.answering"] = {key: text for key, text in sent.items() if key in there}
        case.learns(a.ReadRequests(), answer)
        return
    action: Any = a.AnswerRequest("k1", "e", "accepted") if kind == 1 else a.DeleteRequest("k1", "e")
    answer = dice.choice(["n" if kind == 1 else None, No("x"), Trouble.UNAVAILABLE, Trouble.UNSETTLED])
    if kind == 2 and dice.random() < 0.2:
        answer = Absent()
    case.answered(action, answer)
    if leads and answer == "n":
        told = tuple(replace(each, answer="accepted", etag="n") if each.key == "k1" else each for each in old)
        case.change["leadership.requests"] = told
    elif leads and kind == 2 and (answer is None or isinstance(answer, Absent)):
        case.change["leadership.requests"] = tuple(each for each in old if each.key != "k1")
    elif isinstance(answer, No) or answer is Trouble.UNSETTLED:
        case.change["calls.doubted"] = {**before["calls.doubted"], "request k1": case.now}
    case.learns(action, answer)


def cleaned(case: Case) -> None:
    answer = case.dice.choice([None, Kept(3, "held"), Trouble.UNAVAILABLE, Denied("no", may_pass=True)])
    case.answered(a.CleanRun("r0"), answer)
    if case.before["leadership"] is not None and answer is None:
        case.change |= {"leadership.clean_done": "r0", "leadership.clean_tries": 0}
    elif case.before["leadership"] is not None and isinstance(answer, Kept):
        tries = case.before["leadership.clean_tries"] + 1
        case.change |= {"leadership.clean_kept": ("r0", 3), "leadership.clean_tries": tries}
    case.learns(a.CleanRun("r0"), answer)


# What is done and heard here.


def locally(case: Case) -> None:
    before, dice, task = case.before, case.dice, case.dice.choice(TASKS)
    tasks = before["work.tasks"]
    start = StartTask(task, dice.randrange(1, 4), 9, False, "r2", "group")
    drain = Drain(DrainStep.FREEZE, "u")
    bye = a.Finish(Verdict.DONE, "bye")
    todo: list[Any] = [
        a.Tell(Permit(3.0)),
        a.Tell(start),
        a.Tell(drain),
        a.StepDown("x"),
        a.Rejoin("x"),
        a.BeginEnd(bye),
        bye,
    ]
    if task in tasks:
        todo += [a.Tell(ReleaseTask(task))] * 2
    action = dice.choice(todo)
    match action:
        case a.Tell(command=Permit()):
            case.change["work.permit_sent"] = 3.0
        case a.Tell(command=StartTask()):
            old = tasks.get(task)
            failures = old.failures if old is not None and old.generation == start.generation else 0
            new = LocalTask(start.generation, 9, started_at=case.now, failures=failures)
            case.change |= {"work.attempts": 9, "work.tasks": {**tasks, task: new}}
            waits = before["life.waiting_since"]
            case.change["life.waiting_since"] = {each: at for each, at in waits.items() if each != task}
        case a.Tell(command=ReleaseTask()):
            case.change["work.tasks"] = {**tasks, task: replace(tasks[task], releasing_since=case.now)}
        case a.Tell(command=Drain()):
            case.change["work.drain_sent"] = drain
        case a.StepDown():
            case.demoted()
        case a.Rejoin():
            case.demoted()
            fresh = OwnIncarnation(before["fresh_id"])
            case.change |= {f"life.{each.name}": getattr(fresh, each.name) for each in fields(fresh)}
            case.change["work.tasks"] = {
                each: replace(local, former=True) for each, local in tasks.items() if not closed(local)
            }
        case a.BeginEnd():
            case.change |= {"ending": bye, "ending_since": case.now}
        case _:
            case.change["finished"] = bye
    learn.perform_locally(case.view, action, case.now)
    case.compare(f"{type(action).__name__} was done")


def heard(case: Case) -> None:
    before, dice, view = case.before, case.dice, case.view
    tasks = before["work.tasks"]
    task = dice.choice([name for name, local in tasks.items() if not closed(local)] or TASKS)
    match dice.randrange(8):
        case 5:
            learn.heard_drain_asked(view, case.now)
            case.change["others.drain_asked_at"] = case.now
        case 0:
            learn.heard_plan(view, PLAN)
            case.change |= {"work.plan": PLAN, "work.container": True, "work.permit_sent": 0.0, "work.drain_sent": None}
            there = before["life.control"]
            in_progress = isinstance(there, Control) and there.phase in ("RUNNING", "DRAINING")
            if in_progress and there.fingerprint == PLAN.fingerprint and view.settings.run_id in ("", there.run_id):
                case.change["work.active_run"] = there.run_id
        case 1:
            learn.heard_container_lost(view, case.now)
            case.change |= {"work.container": False, "work.permit_sent": 0.0, "work.drain_sent": None}
            case.change["work.tasks"] = {name: _lost(name, local, case.now) for name, local in tasks.items()}
        case 2:
            learn.heard_rejected(view, "why")
            case.change["work.rejected"] = "why"
        case 3:
            why, known = dice.choice(["", "no memory"]), before["gave_up"]
            learn.heard_leave(view, why)
            case.change |= {"leaving": True, "gave_up": why if not known and before["ending"] is None else known}
        case _:
            _heard_task(case, task)
    case.compare("what was heard")


def _lost(task: str, local: LocalTask, now: float) -> LocalTask:
    if local.report is not None and local.report.phase is Phase.DRAINED:
        return local
    phase = Phase.RELEASED if local.releasing_since is not None else Phase.RESTART
    batch = local.report.batch if local.report is not None else -1
    report = TaskReport(task, local.generation, local.attempt, phase, batch=batch)
    return replace(local, report=report, closed_at=now, lost=True)


def _heard_task(case: Case, task: str) -> None:
    tasks, dice = case.before["work.tasks"], case.dice
    report = replace(
        case.drawn.report(task), attempt=dice.choice([1, 1, 1, 2]), too_old_for=dice.choice([None, None, 9])
    )
    if dice.random() < 0.4:
        report = replace(report, phase=Phase.FAILED, error=TaskError("no", "trace"))
    learn.heard_task(case.view, report, case.now)
    local = tasks.get(task)
    if local is None or local.attempt != report.attempt:
        return
    ends = not closed(local) and report.phase in (
        Phase.RELEASED,
        Phase.DRAINED,
        Phase.SUPERSEDED,
        Phase.RESTART,
        Phase.FAILED,
    )
    new = replace(local, report=report, closed_at=case.now if ends else local.closed_at)
    if ends and report.phase is Phase.FAILED:
        new.failures = 1 if case.now - local.started_at > 600.0 else local.failures + 1
    case.change["work.tasks"] = {**tasks, task: new}
    if report.too_old_for is not None:
        case.change["too_old_for"] = 9


def turned(case: Case) -> None:
    case.view.turn_at = case.before["turn_at"] = case.dice.choice([None, case.drawn.before()])
    if case.before["turn_at"] is not None and case.now - case.before["turn_at"] > 4.0:
        case.forgets_ages()
    case.change |= {"turn_at": case.now, "random": 0.3, "fresh_id": "x", "wall_ms": 5}
    learn.turn(case.view, case.now, random=0.3, fresh_id="x", wall_ms=5)
    case.compare("a turn")


def started(case: Case) -> None:
    action: Any = case.dice.choice(
        [a.MergeOwnRow(case.drawn.row("p0"), "e"), a.WriteLeaderRow(LeaderRow(1, 1, "", "", 1), None), a.ScanMembers()]
    )
    case.change["calls.busy"] = {**case.before["calls.busy"], a.resource(action): case.now}
    if isinstance(action, a.MergeOwnRow):
        case.change["calls.beat_sent_at"] = case.now
    elif isinstance(action, a.WriteLeaderRow):
        case.change["calls.leader_row_sent_at"] = case.now
    learn.started(case.view, action, case.now)
    case.compare("a call was sent")


CASES: tuple[Callable[[Case], None], ...] = (
    own_row,
    lease,
    leader_row,
    control_read,
    control_written,
    candidacy,
    scan,
    member,
    asked,
    cleaned,
    locally,
    heard,
    turned,
    started,
)


def check_learning(dice: Random) -> None:
    """Plain: each kind of news, in some states."""
    drawn = Drawn(dice)
    for case in CASES * 2:
        case(Case(drawn))


__all__ = ["check_learning"]
