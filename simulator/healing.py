"""Whether a simulated fleet has healed, and how long that may take."""

from collections import Counter
from collections.abc import Mapping

from samza_azure.group.control import Control, RunPhase
from samza_azure.group.rows import RequestKind
from samza_azure.group.timing import CHURN_MAX, SIGHT_S, Timing
from simulator.ledger import CLOCK_RATE, Ledger
from simulator.life import Life
from simulator.promises import warm_ups_s

#: In heartbeats: a part of the time that healing may take after the last fault.
HEALS_WITHIN = 12.0


def heals_within(timing: Timing, control: Control | None, shutdown_s: float) -> float:
    """The time within which the fleet heals, from any state."""
    patience = 2.0 ** min(control.churn + 1 if control is not None else 0, CHURN_MAX)
    deaths = 4 * timing.heartbeat_timeout_s + 2 * patience * timing.leader_timeout_s
    warm_ups = 0.0
    if control is not None and control.replicas:
        warm_ups = warm_ups_s(timing, control, len(control.members), 0.0)
    return HEALS_WITHIN * timing.heartbeat_s + deaths + 4 * shutdown_s + 40.0 + warm_ups


def handled_within(timing: Timing, start_s: float, *, leads: bool) -> float:
    """The stated bound, from the death of the leader or of a follower until its tasks run elsewhere."""
    noticed = max(timing.leader_timeout_s, timing.heartbeat_timeout_s) if leads else timing.heartbeat_timeout_s
    return noticed + 5 * timing.scan_s + 2 * timing.heartbeat_s + 2 * start_s


def blind_within(timing: Timing, start_s: float, *, is_news: bool, clocks: bool) -> float:
    """The time within which others run the tasks of a processor that cannot reach the blob: it must adopt a version, or
    it looks at the blob without news, which by the slowest clock takes longest."""
    waits_s = timing.barrier_timeout_s if is_news else SIGHT_S
    return waits_s / (CLOCK_RATE if clocks else 1.0) + 2 * handled_within(timing, start_s, leads=True)


def unhealed(ledger: Ledger, lives: Mapping[str, Life], blind: str, *, balanced: bool = True) -> str | None:
    """The first trouble found; None if the fleet has healed. `blind`: a processor that never reaches the blob again.
    Without `balanced`, shares may differ."""
    control = ledger.control
    if control is None:
        return "there is no control blob"
    alive = {name: life for name, life in lives.items() if life.supervisor.alive and name != blind}
    if control.phase is RunPhase.DRAINED:
        return f"the run is drained, {list(alive)} live on, and no other run begins" if alive else None
    if not alive:
        return "nobody lives"
    if control.phase not in (RunPhase.RUNNING, RunPhase.DRAINING):
        return f"the run is {control.phase}"
    if control.stop is not None or ledger.asked(RequestKind.STOP):
        return "it is still being stopped"
    leading = [name for name, life in alive.items() if life.processor.view.is_leader(life.clock.now())]
    if control.leader is None or leading != [control.leader.processor]:
        return f"{leading} say that they lead, the blob says {control.leader}"
    for task, assignment in control.tasks.items():
        owner = assignment.owner
        if owner is None or owner.processor not in alive:
            return f"{task} has no living owner"
        life = alive[owner.processor]
        if life.processor.view.incarnation != owner.incarnation:
            return f"{task} belongs to a former incarnation of {owner.processor}"
        if life.running.get(task) != owner.generation:
            return f"{task} is owned by {owner.processor} and does not run there"
        if assignment.first and ledger.has_log(control.run_id, task):
            return f"{task} has a log, and the control blob does not know that"
    if len(alive) > 1 and not set(ledger.successors()) & alive.keys() - set(leading):
        return f"{leading} names no successor"
    shares = Counter(each.owner.processor for each in control.tasks.values() if each.owner is not None)
    able = [shares[name] for name, life in alive.items() if life.habits.plan.fingerprint == control.fingerprint]
    # The processor that gave up a task has one less: no other task moves there in its place.
    is_judged = balanced and control.phase is RunPhase.RUNNING and not control.given_up
    if is_judged and max(able) > min(able) + 1:
        return f"the tasks are not balanced: {dict(shares)} of {list(alive)}"
    return None


def led_by(control: Control, epoch: int) -> str | None:
    """The trouble if no processor has taken over since this epoch."""
    return "nobody leads" if control.epoch == epoch else None


def not_given_on(control: Control, lives: Mapping[str, Life]) -> str | None:
    """The trouble if the owner of a task is not alive."""
    alive = [name for name, life in lives.items() if life.supervisor.alive]
    owners = {task: each.owner.processor if each.owner else "nobody" for task, each in control.tasks.items()}
    return next((f"{task} is still {owner}'s" for task, owner in owners.items() if owner not in alive), None)


def idle(control: Control, lives: Mapping[str, Life], name: str) -> str | None:
    """The trouble if a processor, which has no container, still owns a task, or if another one does not run its own."""
    for task, each in control.tasks.items():
        owner = each.owner
        if owner is None or owner.processor == name:
            return f"{task} is still {name}'s"
        if owner.processor in lives and lives[owner.processor].running.get(task) != owner.generation:
            return f"{task} is {owner.processor}'s and does not run there"
    return None
