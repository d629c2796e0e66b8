"""The faults of a scenario, drawn from its seed: crashes, freezes, outages, bad code, requests, foreign rows.

A fault happens at any moment, or waits for the beginning of a certain step (`steps.py`).
"""

from collections.abc import Callable
from random import Random

from samza_azure.group.control import RunPhase
from samza_azure.group.rows import LEADER, RequestKind
from samza_azure.group.timing import LEASE_S
from samza_azure.host.processor import call_timeout_s
from samza_azure.storage.memory import MemoryAccount, MemoryStorage, SimulatedAccount
from simulator.ledger import demand
from simulator.life import Life
from simulator.network import Outage
from simulator.notices import Notices
from simulator.scenario import NOTICED, Scenario
from simulator.steps import RARE
from simulator.vandal import vandalism

#: The seconds for which a throttling service asks in Retry-After; 0: it asks for none.
RETRY_AFTER_S = (0.0, 1.0, 10.0, 60.0)
#: In a scenario with lasting faults, the share of a busy fleet's faults that last.
LASTING = 0.3
#: All processors notice an outage within SETTLED timeouts. One that starts in it makes up to MORE calls at once.
SETTLED, MORE = 2.0, 3
#: Faults that go on for a while.
LAST = ("supervisor freezes", "container freezes", "machine freezes", "outage", "cut off", "access refused")
#: In a scenario with lasting faults, the share of take-over writes that are late.
LATE_TAKE_OVERS = 0.2
#: At most this many faults wait for the same step; they happen together.
AT_ONCE = 4
#: The fingerprint of a pipeline that is not the present one.
OLD_CODE = "0" * 64


class Faults(Notices):
    """Processors with faults, until the calm at the end."""

    def __init__(self, scenario: Scenario, account: Callable[..., SimulatedAccount] = MemoryAccount) -> None:
        super().__init__(scenario, account)
        self.ledger.steps.begun = self._step_begun
        self.faults = 0
        self.is_lull = False  # no faults for a while
        self._late_dice = Random(f"late take-over {scenario.seed}")
        self._aims: dict[str, list[str]] = {}  # step -> the faults that wait for it

    def _aim(self, kind: str, step: str) -> None:
        waiting = self._aims.setdefault(step, [])
        if len(waiting) < AT_ONCE:
            waiting.append(kind)

    def _step_begun(self, step: str, who: str) -> None:
        self.ledger.seen[f"step {step}"] += 1
        if step == "campaign" and self.scenario.lasting and self._late_dice.random() < LATE_TAKE_OVERS:
            self._delay_take_over(who)
        for kind in self._aims.pop(step, ()):
            delay = 0.0 if step in RARE else self.dice.choice([0.0, self.dice.uniform(0, self.timing.heartbeat_s)])
            self.loop.call_later(delay, self._fault, kind, who)

    def _fault(self, kind: str, who: str = "") -> None:
        """Inject one fault now. `who` has just begun the step that the fault waited for."""
        if self.calm or self.is_lull:
            return
        dice, steps = self.dice, self.ledger.steps
        self.ledger.seen[f"fault {kind}"] += 1
        if kind in NOTICED:
            self.faults += 2 * self._tell(kind)  # each of them hands over, and dies
            return
        self.faults += 1
        timeout = self.timing.heartbeat_timeout_s
        lasts = dice.choice([dice.uniform(0, timeout), dice.uniform(0, 3 * timeout), dice.uniform(0, 8 * timeout)])
        if self.scenario.style == "busy" and not (self.scenario.lasting and dice.random() < LASTING):
            lasts = 1.5 * timeout if kind == "crash" and dice.random() < 0.5 else dice.uniform(0, timeout / 4)
        self._disturb(lasts if kind in LAST else 0.0)
        match kind:
            case "outage" if self.scenario.throttled and dice.random() < 0.2:
                self._throttle(lasts)
            case "outage":
                self._outage(dice.choice(["blob", "table", "writes", "all"]), lasts)
            case "joins":
                steps.meet(kind)
                self.start(f"p{dice.randrange(self.scenario.processors + 2)}")
            case "drain" | "cancel" | "stop":
                if self.scenario.style == "busy" or dice.random() < 0.3:
                    steps.meet(kind)
                    self.ask(RequestKind(kind))
                    if kind == "drain" and "cancel" in self.scenario.faults and dice.random() < 0.3:
                        self._aim("cancel", "FREEZE")
            case "garbage":
                steps.meet(kind)
                self._garbage()
            case "poison":
                steps.meet(kind, lasts=lasts)
                self.habits.poisoned = 0.5
                self.loop.call_later(lasts, self.habits.cure)
            case "bad machine":
                if (victim := self._victim(who, kind)) is not None:
                    self._spoil(victim)
            case "old code":
                if self.scenario.style == "busy" or dice.random() < 0.3:
                    steps.meet(kind)
                    self.start("old", code=OLD_CODE)
            case "access refused":
                self._refuse_access(self._victim(who, kind) if dice.random() < 0.5 else None, lasts)
            case "false bell":
                self.faults += self.bells.lie()
            case "hostile bells":
                self.faults += self.bells.attack()
            case "other stages":
                steps.meet(kind)
                self.start("new", code=self._new_code())
            case _:
                victim = self._victim(who, kind)
                if victim is not None:
                    self._harm(kind, victim, lasts)

    def _delay_take_over(self, who: str) -> None:
        """Delay the candidate's write until after its timeout. The candidate may be frozen until then, and another may
        lead."""
        life, dice = self.lives.get(who), self._late_dice
        lasts = dice.uniform(1.0, 4.0) * call_timeout_s(self.timing)
        freezes = dice.random() < 0.5

        def sent() -> float:
            self._disturb(self.timing.heartbeat_s + 2 * lasts)
            self.faults += 1
            if freezes and life is not None:
                self.loop.call_later(0.0, self._harm, "machine freezes", life, 2 * lasts)
            return lasts

        if life is not None and not self.calm and not self.is_lull:
            life.link.late_write = sent

    def _spoil(self, victim: Life) -> None:
        """Let all tasks fail on this machine, until it is repaired or the faults are over: longer than tries last."""
        habits, name = victim.habits, victim.name
        lasts = self.dice.uniform(10, 120)
        self._disturb(lasts)
        self.note(f"bad machine: {name} ({lasts:.1f} s)")
        self.ledger.steps.meet("bad machine", lasts=lasts)
        habits.bad.add(name)
        self.loop.call_later(lasts, habits.bad.discard, name)

    def _refuse_access(self, victim: Life | None, lasts: float) -> None:
        """Take a role from one machine, or rotate the key for all; processors started afterwards have the new key."""
        now, who = self.loop.time(), victim.name if victim is not None else ""
        (victim.link if victim is not None else self.weather).outages.append(Outage("access", now + lasts, hangs=False))
        if victim is None:
            self.facts.no_beats.append((now, now + lasts))
            self.facts.no_blob.append((now, now + lasts))
        self._refused_until[who] = max(now + lasts, self._refused_until.get(who, 0.0))
        self.ledger.steps.meet("access refused", lasts=lasts)
        self.note(f"access refused to {who or 'all'} for {lasts:.1f} s")

    def _outage(self, kind: str, lasts: float) -> None:
        now = self.loop.time()
        self.weather.outages = [outage for outage in self.weather.outages if outage.until > now]
        outlasts = self.scenario.lasting and kind != "table" and self.dice.random() < 0.2
        if outlasts:  # longer than a lease; its holder finds out by a write before the faults end
            lasts = min(self.dice.uniform(1.0, 1.5) * LEASE_S, self.scenario.fault_s - now)
            self._disturb(lasts)
        hangs = outlasts or self.dice.random() < 0.5
        self.weather.outages.append(Outage(kind, now + lasts, hangs, queues=outlasts))
        if kind != "blob":
            self.facts.no_beats.append((now, now + lasts))
        if kind in ("blob", "all"):
            self.facts.no_blob.append((now, now + lasts))
        self.ledger.steps.meet(f"outage of {kind}", lasts=lasts)
        self.note(f"outage of {kind} for {lasts:.1f} s")
        settled = SETTLED * self.timing.heartbeat_timeout_s
        if kind == "all" and lasts > 2 * settled:
            self.loop.call_later(settled, self._look_at_outage, lasts - settled)

    def _look_at_outage(self, lasts: float) -> None:
        """Cost: in an outage the fleet makes no more calls than usual."""
        cost, starts = self.ledger.cost, self.numbers.total()
        calls, alive = cost.calls, sum(life.supervisor.alive for life in self.lives.values())

        def look() -> None:
            if not self.calm:
                lives = alive + self.numbers.total() - starts
                self.ledger.seen["judged Cost in an outage"] += 1
                wrong = cost.usual(cost.calls - calls, lasts, self.timing, lives, MORE * lives)
                demand(wrong is None, f"{wrong}, in an outage")

        self.loop.call_later(lasts, look)

    def _outlast_a_lease(self) -> None:
        """Make the blob unreachable for longer than a lease, and let a follower leave. The write by which the leader
        gives its tasks to others may land after the outage, when the lease has ended, too."""
        lasts = self.dice.uniform(1.0, 1.3) * LEASE_S
        if not self.calm and not self.is_lull and self.loop.time() + lasts < self.scenario.fault_s:
            now = self.loop.time()
            self._disturb(lasts)
            self.weather.outages.append(Outage("blob", now + lasts, hangs=True, queues=True))
            self.facts.no_blob.append((now, now + lasts))
            self.ledger.steps.meet("outage of blob", lasts=lasts)
            self.note(f"outage of blob for {lasts:.1f} s, which outlasts a lease")
            self._follower_leaves()

    def _follower_leaves(self) -> None:
        control = self.ledger.control
        leader = control.leader.processor if control is not None and control.leader is not None else ""
        stay = [life for life in self.lives.values() if life.supervisor.alive and not life.asked_to_leave]
        followers = [life for life in stay if life.name != leader and not life.supervisor.frozen]
        if leader and followers:
            leaver = self.dice.choice(followers)
            self.note(f"leaves: {leaver.name}")
            self._send_away(leaver)

    def _throttle(self, lasts: float) -> None:
        if self.calm or self.is_lull:
            return
        self._disturb(lasts)
        after_s = Random(f"throttled {self.scenario.seed} {self.loop.time()}").choice(RETRY_AFTER_S)
        self.weather.outages.append(Outage("throttled", self.loop.time() + lasts, hangs=False, after_s=after_s))
        self.ledger.steps.meet("throttled", lasts=lasts)
        self.note(f"throttled for {lasts:.1f} s, Retry-After {after_s:g}")

    def _victim(self, who: str, kind: str) -> Life | None:
        """Choose a processor: often the leader, more often one that has just begun a step. None leaves twice."""
        dice = self.dice
        alive = [life for life in self.lives.values() if life.supervisor.alive]
        control = self.ledger.control
        if kind == "leaves":
            if self.scenario.style == "busy" and not who:
                is_draining = control is not None and control.phase is RunPhase.DRAINING
                if any(life.asked_to_leave for life in alive) or (is_draining and dice.random() < 0.7):
                    return None  # one after the other; otherwise none is left to lead, and no drain ends
            alive = [life for life in alive if not life.asked_to_leave]
        if not alive:
            return None
        luck, victim = dice.random(), dice.choice(alive)
        leads = 0.9 if self.scenario.style == "busy" else 0.3
        leader = control.leader.processor if control is not None and control.leader is not None else ""
        for name, share in ((who, 0.5), (leader, leads)):
            if luck < share and name in self.lives and self.lives[name] in alive:
                return self.lives[name]
        return victim

    def _harm(self, kind: str, victim: Life, lasts: float) -> None:
        dice, steps = self.dice, self.ledger.steps
        self.note(f"{kind}: {victim.name} ({lasts:.1f} s)")
        steps.meet(kind.partition(",")[0], lasts=lasts if "freezes" in kind or kind == "cut off" else 0.0)
        match kind:
            case "crash":
                victim.crash()
                self.start(victim.name, delay=lasts)
            case "crash, other id":
                victim.crash()
                self.start(f"p{dice.randrange(self.scenario.processors + 2)}", delay=lasts)
            case "container dies":
                victim.container_dies()
            case "supervisor freezes":
                victim.freeze(lasts, supervisor=True, container=False)
            case "container freezes":
                victim.freeze(lasts, supervisor=False, container=True)
            case "machine freezes":
                victim.freeze(lasts, supervisor=True, container=True)
            case "clock jumps":
                victim.clock.jump(lasts)
                self.facts.jumps.append((victim.name, self.loop.time()))
            case "cut off":
                part = dice.choice(["blob", "table", "writes", "all"])
                if self.scenario.lasting and part == "blob":  # it sends heartbeats but adopts no version
                    lasts = dice.uniform(1.0, 2.0) * self.timing.barrier_timeout_s
                    self._disturb(lasts)
                victim.link.outages.append(Outage(part, self.loop.time() + lasts, dice.random() < 0.5))
            case "leaves":
                if not victim.supervisor.frozen:
                    self._send_away(victim)

    def _garbage(self) -> None:
        """Write rows that are not those of samza_azure."""
        dice = self.dice
        partition = dice.choice(["members", "requests"])
        key = f"zz-{dice.randrange(3)}"
        values: dict[str, str | int | bool] = {
            "incarnation": dice.choice(["", "x"]),
            "state": dice.choice(["ACTIVE", "sleepy", ""]),
            "tasks": dice.choice(["{", "[]", '{"clean-0": 7}', '{"clean-0": {"generation": "x"}}', "x" * 9000]),
            "released": dice.choice(["", "null", '{"clean-0": "soon"}', "7"]),
            "adopted": dice.choice([True, 10**12]),
            "kind": dice.choice(["dance", "", "drain me", "x" * 5000]),
        }
        MemoryStorage.upsert(self.ledger, partition, key, values)  # the ledger judges only what processors write
        self._vandalize(Random(f"vandal {self.scenario.seed} {self.loop.time()}"))

    def _vandalize(self, dice: Random) -> None:
        """The same, with columns that are missing, too many or of another type."""
        for partition, key, values in vandalism(dice, self.ledger.control) if self.ledger.control is not None else ():
            known = self.ledger.get(partition, key) if partition == LEADER else None
            MemoryStorage.upsert(self.ledger, partition, key, {**(known.values if known is not None else {}), **values})


__all__ = ["Faults"]
