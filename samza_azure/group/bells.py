"""Doorbells: connections between processors, which tell sooner what the storage tells later. They are hints.

A connection that is closed and then refused says that the process at its other end has ended, and that its machine
lives (`host/bells.py`). A ring says that the leader's row has news. What follows is done under the lease and the ETags
that it would be done under later, so a wrong hint breaks no fence:

- of the leader: its first successor breaks the lease at once, as after a silence. If the leader lives, its next write
  is refused. Nobody says that it leads any sooner: that waits for the claim of the former leader to end;
- of a member: it is marked dead after a little more than one heartbeat of silence, as long as that of its row was read.
  So one that lives and beats is never marked because of a bell;
- a ring costs one read of the leader row.

Whoever can forge bells can only cost calls. At one processor at most `BELIEVED` ends of processes and `RINGS` rings
count at once, and as many more in an hour; no end while a wrong suspicion is remembered (`churn`), nor for an hour
after it has followed one that was wrong.
"""

import hmac
from collections.abc import Mapping
from itertools import islice

from samza_azure.group.age import Age
from samza_azure.group.control import Control, Member
from samza_azure.group.moment import reached
from samza_azure.group.rows import Bell, LeaderRow, ProcessorRow, ProcessorState
from samza_azure.group.view import Campaign, Left, View

#: In this time at most so many ends of processes, and so many rings, count at one processor, besides as many at once.
WINDOW_S, BELIEVED, RINGS = 3600.0, 12, 60
#: A leader holds a connection to at most this many members.
PEERS = 100
#: A member whose process is said to have ended is marked dead after so many heartbeats of silence.
MISSED = 1.25


def token_of(secret: bytes, incarnation: str) -> str:
    """The token of an incarnation: who has it can read the row."""
    return hmac.digest(secret, incarnation.encode(), "sha256").hex()


def own_bell(view: View) -> Bell | None:
    """What our row says of our bell."""
    bell = view.settings.doorbell
    return Bell(bell.host, bell.port, token_of(bell.secret, view.incarnation)) if bell is not None else None


def wanted(view: View) -> Mapping[str, Bell]:
    """To which incarnations we hold a connection, and where: a leader to all, its named successors to the leader."""
    control, row = view.control, view.others.leader_row
    if view.settings.doorbell is None or not isinstance(control, Control) or view.ending is not None:
        return {}
    if view.leads:
        rows = [each for name, each in view.others.members.items() if each.alive and name != view.me]
    elif control.leader is not None and isinstance(row, LeaderRow) and view.me in row.successors:
        found = view.others.members.get(control.leader.processor)
        rows = [found] if found is not None and found.incarnation == control.leader.incarnation else []
    else:
        return {}
    heard = view.others.gone
    bells = ((each.incarnation, each.bell) for each in rows if each.bell and each.incarnation not in heard)
    return dict(islice(bells, PEERS))


def leader_gone(view: View, control: Control, now: float) -> bool:
    """Whether the leader's process is said to have ended, and it is our turn."""
    row = view.others.leader_row
    at = _since(view)
    if at is None or control.churn or not isinstance(row, LeaderRow) or view.me not in row.successors:
        return False
    return reached(at + row.successors.index(view.me) * view.timing.scan_s, now)


def _since(view: View) -> float | None:
    """Since when the leader's process is said to have ended, if it is and that was not followed yet."""
    control = view.control
    leader = control.leader if isinstance(control, Control) else None
    if leader is None or leader.incarnation in view.others.followed:
        return None
    return view.others.gone.get(leader.incarnation)


def knows_blob(view: View) -> bool:
    """Whether a leader whose process has ended is not known to have written more than we have read: then one call less
    stands before the break. If it has, the break is refused, and the blob is read."""
    row = view.others.leader_row
    is_same = isinstance(row, LeaderRow) and row.control_etag == view.own.control_etag
    is_first = isinstance(row, LeaderRow) and view.me in row.successors[:1]  # before others may have taken over
    return is_same and is_first and view.own.control_read_at > -1e9 and _since(view) is not None


def must_know_blob(view: View, row: LeaderRow) -> bool:
    """Whether a successor reads the blob although nothing is announced: it may have to go on from there at once."""
    return (
        view.settings.doorbell is not None and view.me in row.successors and row.control_etag != view.own.control_etag
    )


def may_read_again(view: View) -> bool:
    """Whether a refused break only says that the leader had written more before its process ended."""
    since = _since(view)
    return since is not None and view.own.control_read_at <= since


def knows_acquired(view: View, going: Campaign) -> bool:
    """Whether the blob needs no read after the lease was acquired: it had the ETag of what we know. Any write since
    then has another ETag, so ours would be refused."""
    return going.etag == view.own.control_etag and _since(view) is not None


def member_gone(view: View, row: ProcessorRow, age: Age) -> bool:
    """Whether a member's process is said to have ended, and it has missed a heartbeat since its row was first read,
    while all our calls to the table were answered: in an outage that is short, who lives misses one too."""
    is_silent = age.reads > 0 and age.seconds >= MISSED * view.timing.heartbeat_s
    return row.incarnation in view.others.gone and is_silent and view.calls.troubled_at < age.read_at - age.seconds


def due_at(view: View, row: ProcessorRow) -> float | None:
    """When to read the row of a member whose process is said to have ended. None: it is not, or is silent enough."""
    age = view.others.ages.get(row.processor)
    if row.incarnation not in view.others.gone or age is None:
        return None
    left_s = MISSED * view.timing.heartbeat_s - age.seconds
    return age.read_at + left_s if left_s > 0 else None


def heard_gone(view: View, incarnation: str, now: float) -> bool:
    """A connection to this incarnation was closed and then refused. Return whether that counts."""
    others = view.others
    known = {row.incarnation: row for row in others.members.values() if row.alive}
    is_deaf = now < others.deaf_until or (isinstance(view.control, Control) and view.control.churn > 0)
    if incarnation not in known or incarnation in others.gone or is_deaf:
        return False
    if not _is_planned(view, known[incarnation]):
        others.believed, counts = _taken(others.believed, BELIEVED, now)
        if not counts:
            return False
    others.gone = {life: at for life, at in others.gone.items() if life in known} | {incarnation: now}
    others.followed &= others.gone.keys()
    return True


def heard_life(view: View, row: ProcessorRow, now: float) -> None:
    """The row of a member was read. If it has changed since the last read, later than a write that was under way when
    its process ended, then the bell was wrong, or what has changed it ends the incarnation."""
    others = view.others
    at, before = others.gone.get(row.incarnation), others.members.get(row.processor)
    if at is None or before is None or before.incarnation != row.incarnation:
        return
    if before.etag != row.etag and now > at + view.timing.heartbeat_s:
        forget(view, row.incarnation)


def forget(view: View, incarnation: str) -> None:
    """A bell was wrong. The process may be connected to again, and its end counts again."""
    others = view.others
    others.gone = {life: at for life, at in others.gone.items() if life != incarnation}
    others.followed -= {incarnation}


def _is_planned(view: View, row: ProcessorRow) -> bool:
    """Whether it has said, or was asked, that it goes: such ends are no surprise, and may be many at once. Who leads
    is none of them, since its end costs a campaign."""
    control = view.control
    if not isinstance(control, Control) or (control.leader and control.leader.incarnation == row.incarnation):
        return False
    return row.state is ProcessorState.LEAVING or row.incarnation in control.noticed


def heard_ring(view: View, now: float) -> bool:
    """Another processor says that the leader's row has news. Return whether that counts."""
    if view.leads or view.others.rung:
        return False
    view.others.rings, view.others.rung = _taken(view.others.rings, RINGS, now)
    return view.others.rung


def _taken(left: Left, most: int, now: float) -> tuple[Left, bool]:
    """One hint is taken from those that may still count, if there is one."""
    count = min(float(most), left.count + (now - left.at) * most / WINDOW_S)
    return (Left(count - 1, now), True) if count >= 1 else (Left(count, now), False)


def was_wrong(view: View, deposed: Member | None) -> bool:
    """Whether we took over from this one because of a bell."""
    return deposed is not None and deposed.incarnation in view.others.gone
