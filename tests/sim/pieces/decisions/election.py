"""Which processor leads, and which ones may succeed it."""

from dataclasses import replace

from samza_azure.group import (
    election,
    next_run,
)
from samza_azure.group.actions import (
    SCAN,
)
from samza_azure.group.control import (
    Control,
    Member,
)
from samza_azure.group.rows import LeaderRow
from samza_azure.group.view import (
    View,
)

from .drawn import NOW, alive, present, same
from .next_run import fits


def who_leads_next(view: View, control: Control) -> list[str]:
    stopped = control.stop.members if control.stop is not None else ()
    owners = {each.owner.processor for each in control.tasks.values() if each.owner is not None}
    able = [
        row
        for name, row in present(view).items()
        if name != "p0" and row.state != "LEAVING" and Member(name, row.incarnation) not in stopped
    ]
    ranked = sorted(
        able,
        key=lambda row: (
            row.cut_off or bool(control.version and row.adopted == 0),
            0 if fits(control, row.fingerprint, row.new_run) else 1,
            -row.format,
            row.processor in owners,
            row.processor,
        ),
    )
    return [row.processor for row in ranked][:3]


def check_election(view: View, control: Control) -> None:
    names = who_leads_next(view, control)
    same("the successors", list(election.successors_of(view, control)), names)
    known = view.control
    churn = known.churn if isinstance(known, Control) else 0
    timeout = 5.0 * 2 ** min(churn, 4)
    same("the leader's timeout", election.leader_timeout(view), timeout)
    age, row = view.others.leader_age, view.others.leader_row
    named = row.successors if isinstance(row, LeaderRow) else ()
    patience = named.index("p0") * 1.0 if "p0" in named else (3 + 3 * view.candidacy.patience) * 2.0
    silent = age is not None and age.seconds >= timeout + patience and age.reads >= 3
    same("a suspicion", election._suspect(view), silent)  # the question itself
    if view.leadership is None:
        return
    since = view.leadership.since
    heard = view.life.accepted_at > NOW - 4.0
    endless = SCAN in view.calls.busy and view.calls.busy[SCAN] + 24.0 < NOW
    tried = endless or view.failing_calls(SCAN) >= 5
    blind = heard and tried and max(view.others.scanned_at, since) + 24.0 < NOW
    same("a blind leader", election.is_blind(view, NOW), blind)
    same("who is abler", election.abler(view, control, NOW), _abler(view, control, names))
    after, deposed = election.with_churn(view, control, NOW), control.deposed
    if deposed is not None:
        found = view.others.members.get(deposed.processor)
        if found is None or not alive(found) or found.incarnation != deposed.incarnation:
            same("a suspicion that was right", after, replace(control, deposed=None))
            return
        if found.etag != view.leadership.deposed_etag:
            same("a suspicion that was wrong", after, replace(control, deposed=None, churn=control.churn + 1))
            return
    forgotten = control.churn > 0 and since + 10 * 5.0 * 2 ** min(control.churn, 4) <= NOW
    same("patience", after, replace(control, churn=0) if forgotten else control)


def _abler(view: View, control: Control, names: list[str]) -> str | None:
    rows, office = present(view), view.leadership
    assert office is not None
    seen = {name: row for name, row in rows.items() if row.incarnation in view.others.seen_alive}
    latest = max([row.format for row in seen.values()], default=1)
    if (next_run.can_act(view, control) and latest <= 1) or view.ending is not None:
        return None
    if view.others.scanned_at < office.since or view.calls.unsettled is not None:
        return None
    for name in names:
        age = view.others.ages.get(name)
        silent = age is None or (age.seconds >= 4.0 and age.reads >= 3)
        if name not in seen or silent or rows[name].format < latest or rows[name].cut_off:
            continue
        if fits(control, rows[name].fingerprint, rows[name].new_run):
            return name if office.since + 5.0 <= NOW else None
    return None
