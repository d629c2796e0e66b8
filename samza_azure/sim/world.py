"""A fleet in one thread: the production `Processor` over a faulty network, with its containers, from one seed.

All events are drawn from the seed and written into a history, so the same seed gives the same history. Faults come
first, drawn for each seed; then all is calm. After the faults the fleet must heal within a bound (L1), and after a
drain each row of the input must be in the output exactly once (S7). Under mild trouble that never ends the work must
continue (L2). What the ledger cannot see is checked here; *Exit* means that no processor ends without a reason.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any

from samza_azure.group.actions import Finish
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.ending import FAREWELL_S
from samza_azure.group.rows import MEMBERS, REQUESTS, RequestKind, request_columns
from samza_azure.group.tasks import PATIENCE
from samza_azure.group.timing import CHURN_MAX, LEASE_S, PROFILES
from samza_azure.group.view import Settings
from samza_azure.logs.names import RUNS, stage_and_number, task_log, task_name
from samza_azure.logs.reading import fetch_part, scan
from samza_azure.logs.task_log import LogLimits
from samza_azure.messages import Command, Permit, ReleaseTask, StartTask
from samza_azure.sim.container import CLEANERS, FAREWELL, SOURCE, Habits, outcome, plan_of
from samza_azure.sim.ledger import Facts, Ledger, Violation, demand
from samza_azure.sim.life import RATE_ERROR, Clock, Life
from samza_azure.sim.loop import Callback, VirtualLoop
from samza_azure.sim.network import Outage, Weather
from samza_azure.sim.promises import (
    WaitForTask,
    applies,
    check_overlap,
    grown,
    runs_within,
    stated,
    vacant,
    vacant_at_most,
    waiting,
    waits_at_most,
    within,
)
from samza_azure.sim.scenario import Scenario, draw
from samza_azure.sim.steps import RARE, STEPS
from samza_azure.storage.driver import drive
from samza_azure.storage.memory import Link, MemoryAccount, SimulatedAccount

#: In heartbeats: what is still wrong this long after the last fault is a bug.
HEALS_WITHIN = 12.0
#: A run fails within this time if all its tasks do, unless it is drained before.
FAILS_WITHIN_S = 90.0
#: The interval between checks of the world.
LOOK_S = 0.25
#: The interval between checks of what each life remembers, which grows slowly.
GROWS_S = 5.0
#: Under mild trouble each task runs for at least this part of the time (L2).
RUNNING_SHARE = 0.95
#: At the beginning each processor starts within this time.
STARTS_WITHIN_S = 10.0

#: In a busy fleet logs roll within the short life of a run.
SHORT_LOGS = LogLimits(roll_bytes=6_000, roll_records=8, record_bytes=3_000)
#: In a scenario with lasting faults, this part of a busy fleet's faults last.
LASTING = 0.3
#: All processors notice an outage within SETTLED timeouts. One that starts in it makes up to MORE calls at once.
SETTLED, MORE = 2.0, 3
#: Faults that go on for a while.
LAST = ("supervisor freezes", "container freezes", "machine freezes", "outage", "cut off", "access refused")
#: In a steered fleet this part of the faults that wait, wait for what has seldom met.
STEERED = 0.7
#: At most this many faults wait for the same step; they happen together.
AT_ONCE = 4
#: The fingerprint of a pipeline that is not the present one.
OLD_CODE = "0" * 64
#: That of one with a stage put in front. It may come before the run is drained.
OTHER_STAGES = "e" * 64
#: That of one in which a stage has another name.
RENAMED = "d" * 64


class _Alarm(logging.Handler):
    """An error in the log of a processor is a failure of the seed."""

    def __init__(self, world: "World") -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.broken(self._world.loop, {"message": record.getMessage()})


@dataclass(slots=True)
class FailOver:
    """How long after a death the tasks were assigned to others, and the bound for that."""

    of: str  # "the leader" or "a follower"
    seconds: float
    bound: float


@dataclass(slots=True)
class Result:
    """The result of a seed."""

    scenario: Scenario
    history: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    violation: str | None = None
    seconds: float = 0.0
    fail_over: FailOver | None = None  # of the one death that nothing else happens beside


class World:
    """One scenario and its simulation."""

    def __init__(self, scenario: Scenario, account: Callable[..., SimulatedAccount] = MemoryAccount) -> None:
        self.scenario, self._account = scenario, account
        self.dice = Random(f"world {scenario.seed}")
        self.loop = VirtualLoop()
        self.timing = scenario.timing or PROFILES[scenario.profile]
        self.weather = Weather()
        slack = 1 / (1 - RATE_ERROR) - 1 if scenario.clocks else 0.0
        self.facts = Facts(self.loop.time, self.timing, self._drained, self.note, slack)
        self.ledger = Ledger(self.facts)
        self.ledger.steps.begun = self._step_begun
        self.runs = 0
        self.habits = self._habits(self._fingerprint())
        self.lives: dict[str, Life] = {}
        self.numbers: Counter[str] = Counter()
        self.result = Result(scenario, seen=self.ledger.seen)
        self.calm = False
        self.failed: BaseException | None = None
        self.fed: dict[str, dict[int, int]] = {}  # run id -> where each partition begins
        self.faults = 0
        self.again = ""  # the drained run after which the same code begins another
        self.blind = ""  # a processor that never reaches the blob again
        self._refused_until: dict[str, float] = {}  # processor, or nobody for all -> until when its access is refused
        self._waiting: dict[WaitForTask, float] = {}  # who waits for a task, and since when
        self._grown_at = 0.0  # when it was last looked whether a life remembers too much
        self._most = 0  # rows and tasks that there have been at once
        self._quiet_from = 0.0  # when the last fault is over, and nobody was started or has ended since
        self._vacant: dict[str, float] = {}  # the leadership, or a task, that nobody who lives has, and since when
        self._aims: dict[str, list[str]] = {}  # step -> the faults that wait for it
        self._over = self.loop.create_future()
        self._starting: list[Callback] = []

    def instant(self) -> float:
        """The true time."""
        return self.loop.time()

    def account(self, link: Link) -> SimulatedAccount:
        """The storage, over this link."""
        return self._account(self.ledger, link=link)

    def play(self) -> Result:
        """From the first start to the last check."""
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self.broken)
        alarm = _Alarm(self)
        logger = logging.getLogger("samza_azure.host.processor")
        logger.addHandler(alarm)
        logger.propagate = False
        try:
            self.loop.run_until_complete(self._play())
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the result of this seed
            self.result.violation = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            self.note(f"FAILED: {error}")
        finally:
            logger.removeHandler(alarm)
            logger.propagate = True
            for life in self.lives.values():
                life.crash()
            self.loop.run_until_complete(asyncio.sleep(0))
            asyncio.set_event_loop(None)
            self.loop.close()
        self.result.seconds = self.loop.time()
        return self.result

    def note(self, text: str) -> None:
        """One line of history."""
        self.result.history.append(f"{self.loop.time():9.3f}  {text}")

    async def _play(self) -> None:
        self._raise_storm()
        for number in range(self.scenario.processors):
            self.start(f"p{number}", delay=self.dice.choice([0.0, self.dice.uniform(0, STARTS_WITHIN_S)]))
        await (self._mild_trouble() if self.scenario.style == "mild" else self._faults())
        await self._calm_down()
        await self._drain()

    async def _faults(self) -> None:
        """One after the other, at any moment, or at the next moment at which a certain step begins."""
        scenario, dice = self.scenario, self.dice
        self._look()
        if scenario.lasting:
            self.loop.call_later(dice.uniform(0, scenario.fault_s / 2), self._outlast_a_lease)
        if scenario.throttled:  # once at least
            lasts = dice.uniform(1, 3) * self.timing.heartbeat_timeout_s
            self.loop.call_later(dice.uniform(0, scenario.fault_s), self._throttle, lasts)
        await self._wait(dice.uniform(0, 3 * self.timing.heartbeat_timeout_s))
        while self.loop.time() < scenario.fault_s:
            if scenario.watched and not any(life.supervisor.alive for life in self.lives.values()):
                self._go_back()
                self._raise_storm()
                for number in range(scenario.processors):
                    self.start(f"p{number}", delay=self._back())
            if scenario.faults:
                if dice.random() < scenario.aimed:
                    if scenario.rare and dice.random() < STEERED:
                        self._aim(*dice.choice(scenario.rare))
                    else:
                        self._aim(dice.choice(scenario.aims or scenario.faults), dice.choice((*STEPS, *RARE, *RARE)))
                else:
                    self._fault(dice.choice(scenario.faults))
            await self._wait(dice.expovariate(1 / scenario.every_s))

    def _look(self) -> None:
        """While there are faults, check repeatedly who waits for whom, what is vacant, and what grows."""
        for check in (self._look_for_patience, self._look_for_bounds, self._look_for_growth):
            try:
                check()
            except Violation as error:
                self.broken(self.loop, {"exception": error})
        if not self.calm and self.failed is None:
            self.loop.call_later(LOOK_S, self._look)

    def _look_for_patience(self) -> None:
        """Patience: the new owner of a task starts it in time."""
        self._waiting = waiting(self.lives.values(), self._waiting, self.loop.time())
        bound = waits_at_most(self.timing, self.habits.shutdown_s)
        for (name, _, task, _), since in self._waiting.items():
            late = self.loop.time() > since + bound
            demand(not late, f"Patience: {name} may work, was given {task} {bound:.1f} s ago, and waits")

    def _look_for_bounds(self) -> None:
        """Bound: what nobody has, somebody has in time, unless something else happens meanwhile."""
        control, now = self.ledger.control, self.loop.time()
        if control is None or not applies(self.weather):
            self._vacant.clear()
            return
        found = set() if self.ledger.asked(RequestKind.STOP) else vacant(control, self.lives.values())
        self._vacant = {what: self._vacant.get(what, now) for what in found}
        for what, since in self._vacant.items():
            quiet = max(since, self._quiet_from)
            bound = vacant_at_most(self.timing, control, len(self.lives), what, self.weather)
            bound = within(bound, clocks=self.scenario.clocks)
            demand(
                now <= quiet + bound, f"Bound: nobody has had {what} for {bound:.1f} s in which nothing else happened"
            )

    def _look_for_growth(self) -> None:
        """Leak: no life remembers more than there is."""
        ledger = self.ledger
        if self.loop.time() < self._grown_at + GROWS_S:
            return
        self._grown_at = self.loop.time()
        tasks = len(ledger.control.tasks) if ledger.control is not None else 0
        self._most = max(self._most, len(ledger.keys(MEMBERS)) + len(ledger.keys(REQUESTS)) + tasks)
        for life in self.lives.values():
            wrong = grown(life.processor, self._most) if life.supervisor.alive else None
            demand(wrong is None, f"Leak: {life.name} remembers {wrong}; there have never been more than {self._most}")

    def _disturb(self, lasts: float = 0.0) -> None:
        """Note a disturbance of this length. What a processor promises in a quiet time counts from its end."""
        self._quiet_from = max(self._quiet_from, self.loop.time() + lasts)

    def _aim(self, kind: str, step: str) -> None:
        waiting = self._aims.setdefault(step, [])
        if len(waiting) < AT_ONCE:
            waiting.append(kind)

    def _step_begun(self, step: str, who: str) -> None:
        self.ledger.seen[f"step {step}"] += 1
        for kind in self._aims.pop(step, ()):
            delay = 0.0 if step in RARE else self.dice.choice([0.0, self.dice.uniform(0, self.timing.heartbeat_s)])
            self.loop.call_later(delay, self._fault, kind, who)

    async def _wait(self, seconds: float) -> None:
        """Let time pass; the first thing that breaks ends it."""
        if not self._over.done():
            await asyncio.wait([self._over], timeout=seconds)
        if self.failed is not None:
            raise self.failed

    def broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Violation):
            error = Violation(f"Exit: {context.get('message')}: {error!r}")
        if self.failed is None:
            self.failed = error
            if not self._over.done():
                self._over.set_result(None)

    # Processors.

    def start(self, name: str, *, delay: float = 0.0, code: str = "") -> None:
        """Start a processor, unless one of this name lives. `code` is a fingerprint; the present one without it."""
        # In a context of its own: the call that takes effect at this moment belongs to another processor.
        self._starting.append(self.loop.call_later(delay, self._start, name, code, context=Context()))

    def _start(self, name: str, code: str) -> None:
        if self.failed is not None or (name in self.lives and self.lives[name].supervisor.alive):
            return
        self._disturb()
        self.numbers[name] += 1
        number = self.numbers[name]
        settings = self._settings(name)
        habits = self._habits(code) if code else self.habits
        slow = 0.2 if self.scenario.style == "busy" else 3.0
        clock = Clock(self.loop.time, Random(f"{self.scenario.seed} {name} {number}"), wrong=self.scenario.clocks)
        self.lives[name] = Life(self, clock, number, settings, habits, plan_start_s=self.dice.choice([0.2, slow]))
        self.note(f"{name} starts{f' with code {code[:4]}' if code else ''}, life {number}")

    def _settings(self, name: str) -> Settings:
        return Settings(
            processor=name,
            timing=self.timing,
            shutdown_s=self.habits.shutdown_s,
            boot=f"{name} boot",
            holds_directory=self.dice.random() < 0.5,
            new_run=self.ledger.control is not None and self.again == self.ledger.control.run_id,
        )

    def ended(self, life: Life, finish: Finish) -> None:
        """A processor came to its end. Orchestrators start it again."""
        self._disturb()
        life.supervisor.alive = False
        seen, control = self.ledger.seen, self.ledger.control
        seen[f"exit {finish.code}"] += 1
        fits = life.habits.plan.fingerprint == (control.fingerprint if control else "")
        refused = self.loop.time() < max(self._refused_until.get(name, 0.0) for name in ("", life.name)) + FAREWELL_S
        reasons = {
            0: life.told_to_leave or seen["phase DRAINED"] + seen["stop"] > 0,
            1: seen["phase FAILED"] > 0,
            2: not fits or refused,
            3: life.processor.view.life.beat == 0,
            5: refused,
        }
        demand(reasons[finish.code], f"Exit: {life.name} ended with {finish.code}: {finish.message}")
        drained = control is not None and control.phase is RunPhase.DRAINED
        outdated = finish.code == 2 and life.name not in ("old", "new") and life.habits is not self.habits
        done = self.calm and life.told_to_leave
        if (
            finish.code in (1, 3, 5)
            or outdated
            or (finish.code == 2 and refused and fits)
            or (finish.code == 0 and not drained and not done)
        ):
            self.start(life.name, delay=self._back())
        elif drained and not self.calm:
            self._upgrade()
            self.start(life.name, delay=self._back())

    def _back(self) -> float:
        """How long an orchestrator takes."""
        return self.dice.uniform(0.1, 1) if self.scenario.style == "busy" else self.dice.uniform(0.5, 5)

    def _upgrade(self) -> None:
        """After a drain: another pipeline, or the same one that is asked to begin anew, or the same, so that no run
        begins."""
        control = self.ledger.control
        if control is None or self.runs >= self.ledger.seen["phase DRAINED"] or self.again == control.run_id:
            return
        luck = 0.5 if self.scenario.style == "busy" else self.dice.random()
        if luck < 0.6:
            self.runs = self.ledger.seen["phase DRAINED"]
            early = self._new_code() if "other stages" in self.scenario.faults else ""
            fresh = early and early != control.fingerprint and early not in control.finished
            self.habits = self._habits(early if fresh else self._fingerprint())
            self._raise_storm()
            self.note("the pipeline is upgraded")
        elif luck < 0.8:
            self.again = control.run_id
            self.note("the same pipeline is to begin another run")

    def _habits(self, fingerprint: str) -> Habits:
        """Containers of this code. In a busy fleet tasks start fast, so that more can happen to them."""
        plan = plan_of(
            self.scenario.sources,
            self.scenario.counts,
            fingerprint,
            front=fingerprint == OTHER_STAGES,
            audited=self.scenario.audited,
            handled=self.scenario.handled,
            renamed=fingerprint == RENAMED,
        )
        habits = Habits(plan)
        if self.scenario.style == "busy":
            habits = Habits(plan, batch_s=3.0, commit_s=3.0, start_s=0.3, limits=SHORT_LOGS)
        habits.forgets, habits.pauses = self.scenario.forgets, self.scenario.pauses
        return habits

    def _fingerprint(self) -> str:
        return f"{self.runs + 1:064x}"

    def _go_back(self) -> None:
        """Other code may have begun the run that is there; then that is what everybody is started with."""
        control = self.ledger.control
        present = control.fingerprint if control is not None else ""
        if control is not None and control.phase is not RunPhase.DRAINED and present != self.habits.plan.fingerprint:
            self.habits = self._habits(present or self._fingerprint())
            self.note("other code has begun this run: everybody goes back to it")

    # Faults.

    def _raise_storm(self) -> None:
        scenario = self.scenario
        weather = self.weather
        if self.loop.time() < scenario.fault_s:
            weather.tail, weather.refused = scenario.tail, scenario.refused
            weather.lost, weather.late = scenario.lost, scenario.late
        self.habits.slow_batch, self.habits.slow_release = scenario.slow_batch, scenario.slow_release

    def _fault(self, kind: str, who: str = "") -> None:
        """One fault, now. `who` has just begun the step that it waited for."""
        if self.calm:
            return
        dice, steps = self.dice, self.ledger.steps
        self.faults += 1
        self.ledger.seen[f"fault {kind}"] += 1
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
            case "other stages":
                steps.meet(kind)
                self.start("new", code=self._new_code())
            case _:
                victim = self._victim(who, kind)
                if victim is not None:
                    self._harm(kind, victim, lasts)

    def _new_code(self) -> str:
        """Of the upgrade that comes too early: with a stage in front, or with another name for a stage."""
        return RENAMED if Random(f"renamed {self.scenario.seed}").random() < 0.5 else OTHER_STAGES

    def _spoil(self, victim: Life) -> None:
        """All that it tries to run fails, until it is repaired or the faults are over: longer than it has tries."""
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
        if outlasts:  # longer than a lease, whose holder notices it by a write before the faults end
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
        """Cost: while the service is away nobody calls it more often than usual."""
        cost, starts = self.ledger.cost, self.numbers.total()
        calls, alive = cost.calls, sum(life.supervisor.alive for life in self.lives.values())

        def look() -> None:
            if not self.calm:
                lives = alive + self.numbers.total() - starts
                wrong = cost.usual(cost.calls - calls, lasts, self.timing, lives, MORE * lives)
                demand(wrong is None, f"{wrong}, in an outage")

        self.loop.call_later(lasts, look)

    def _outlast_a_lease(self) -> None:
        """Nobody reaches the blob for longer than a lease, and somebody leaves. What the leader wrote then, to give
        its tasks to others, may land when the outage is over, and the lease, too."""
        lasts = self.dice.uniform(1.0, 1.3) * LEASE_S
        if not self.calm and self.loop.time() + lasts < self.scenario.fault_s:
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
        stay = [life for life in self.lives.values() if life.supervisor.alive and not life.told_to_leave]
        followers = [life for life in stay if life.name != leader and not life.supervisor.frozen]
        if leader and followers:
            leaver = self.dice.choice(followers)
            self.note(f"leaves: {leaver.name}")
            self._send_away(leaver)

    def _throttle(self, lasts: float) -> None:
        if self.calm:
            return
        self._disturb(lasts)
        self.weather.outages.append(Outage("throttled", self.loop.time() + lasts, hangs=False))
        self.ledger.steps.meet("throttled", lasts=lasts)
        self.note(f"throttled for {lasts:.1f} s")

    def _victim(self, who: str, kind: str) -> Life | None:
        """Choose a processor: often the leader, more often one that has just begun a step. None is sent away twice."""
        dice = self.dice
        alive = [life for life in self.lives.values() if life.supervisor.alive]
        control = self.ledger.control
        if kind == "leaves":
            if self.scenario.style == "busy" and not who:
                is_draining = control is not None and control.phase is RunPhase.DRAINING
                if any(life.told_to_leave for life in alive) or (is_draining and dice.random() < 0.7):
                    return None  # one after the other, or nobody is left to lead, and no drain comes to its end
            alive = [life for life in alive if not life.told_to_leave]
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
                if self.scenario.lasting and part == "blob":  # it beats, and does not adopt the next version
                    lasts = dice.uniform(1.0, 2.0) * self.timing.barrier_timeout_s
                    self._disturb(lasts)
                victim.link.outages.append(Outage(part, self.loop.time() + lasts, dice.random() < 0.5))
            case "leaves":
                if not victim.supervisor.frozen:
                    self._send_away(victim)

    def _send_away(self, life: Life) -> None:
        """Tell it to go, perhaps twice. Whatever happens, it is gone within a bound."""
        life.leave()
        if self.dice.random() < 0.3:
            life.supervisor.at(self.dice.uniform(0, 2), life.leave)
        timing, freezes = self.timing, life.freezes
        waits = 2 * PATIENCE * self.habits.shutdown_s + 3 * timing.heartbeat_timeout_s + 2 * timing.heartbeat_s
        bound = (waits + 2 * timing.scan_s + FAREWELL_S + 5) * (1 + 2 * RATE_ERROR)

        def look() -> None:
            stays = life.supervisor.alive and life.freezes == freezes
            demand(not stays, f"L1: {life.name} was asked to leave {bound:.0f} s ago, and it is still there")

        self.loop.call_later(bound, look)

    def ask(self, kind: RequestKind) -> None:
        """Write a request row, as the command does."""
        key = f"{kind}-{self.dice.getrandbits(64):016x}"
        self.note(f"request: {kind}")
        control = self.ledger.control
        run_id = control.run_id if control is not None and self.dice.random() < 0.5 else ""
        lives = [str(row.values["incarnation"]) for row in self.ledger.query(MEMBERS) if "incarnation" in row.values]
        meant = lives if kind is RequestKind.STOP and self.dice.random() < 0.5 else ()
        self.ledger.insert(REQUESTS, key, request_columns(kind, key, run_id, meant))

    def _garbage(self) -> None:
        """Rows that nobody of us wrote."""
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
        MemoryAccount(self.ledger)  # a stranger's client
        super(Ledger, self.ledger).upsert(partition, key, values)

    # After the faults.

    async def _calm_down(self) -> None:
        """End the faults and start all missing processors; then the fleet must heal."""
        self.note("calm: no more faults")
        self.calm = True
        self.blind = ""
        self._aims.clear()
        self.weather.clear()
        now = self.loop.time()
        self.facts.no_beats = [(begun, min(ended, now)) for begun, ended in self.facts.no_beats]
        self.facts.no_blob = [(begun, min(ended, now)) for begun, ended in self.facts.no_blob]
        self.ledger.steps.calm()
        scenario = self.scenario
        if not (scenario.tail or scenario.refused or scenario.lost or scenario.late or scenario.throttled):
            changes = self.ledger.takeovers
            demand(changes <= 1 + 2 * self.faults, f"S11: {self.faults} faults, and {changes} times another leader")
        self._go_back()
        self.habits.cure()
        self.habits.slow_batch = self.habits.slow_release = 0.0
        for life in self.lives.values():
            life.calm_down()
        for timer in self._starting:
            timer.cancel()
        for number in range(self.scenario.processors):
            self.start(f"p{number}", delay=0.1)
        await self._heal(self.heals_within(), "L1: {:.0f} s after the last fault {}")
        await self._stay()
        await self._lose_one()
        control, alive = self.ledger.control, sum(life.supervisor.alive for life in self.lives.values())
        if self.scenario.lasting and alive > 2 and control is not None and control.phase is RunPhase.RUNNING:
            await self._half_blind("reads", is_news=True)
            self.lives[self.blind].link.outages.clear()
            self.blind = ""

    async def _lose_one(self) -> None:
        """Bound: one processor more dies while all is well, and its tasks run elsewhere as soon as is promised."""
        control = self.ledger.control
        assert control is not None
        alive = [name for name, life in self.lives.items() if life.supervisor.alive]
        if control.phase is not RunPhase.RUNNING or control.leader is None or len(alive) < 2 or self.unhealed():
            return
        victim = self._one(self.dice.random() < 0.5)
        leads = victim.name == control.leader.processor
        self.note(f"{victim.name} dies, and nothing else happens")
        victim.crash()
        bounds, since = stated(self.timing, control, len(alive)), self.loop.time()
        clocks = self.scenario.clocks
        after = f"Bound: {{:.1f}} s after {victim.name} died {{}}"
        if leads:
            await self._hold(within(bounds.leaderless, clocks=clocks), lambda: self._led_by(control.epoch), after)
        bound = within(bounds.leader_lost if leads else bounds.follower_lost, clocks=clocks) + since - self.loop.time()
        await self._hold(bound, self._not_given_on, after)
        stated_s = bounds.leader_lost if leads else bounds.follower_lost
        self.result.fail_over = FailOver("the leader" if leads else "a follower", self.loop.time() - since, stated_s)
        bound = within(runs_within(self.timing, len(alive), self.habits.start_s), clocks=clocks)
        await self._hold(bound, self.unhealed, "Bound: {:.1f} s after its tasks were given to others {}")

    def _led_by(self, epoch: int) -> str | None:
        """Whether still nobody leads but the leader of this epoch."""
        control = self.ledger.control
        assert control is not None
        return "nobody leads" if control.epoch == epoch else None

    def _not_given_on(self) -> str | None:
        """Which task belongs to nobody who lives."""
        control = self.ledger.control
        assert control is not None
        alive = [name for name, life in self.lives.items() if life.supervisor.alive]
        owners = {task: each.owner.processor if each.owner else "nobody" for task, each in control.tasks.items()}
        return next((f"{task} is still {owner}'s" for task, owner in owners.items() if owner not in alive), None)

    async def _heal(self, bound: float, otherwise: str) -> None:
        """Wait until all is well, which must be within the bound."""
        await self._hold(bound, self.unhealed, otherwise)

    async def _hold(self, bound: float, trouble: Callable[[], str | None], otherwise: str) -> None:
        """Wait until the trouble is over, which must be within the bound."""
        since = self.loop.time()
        while (wrong := trouble()) is not None:
            demand(self.loop.time() < since + bound, otherwise.format(bound, wrong))
            await self._wait(LOOK_S)
        self.note(f"healed after {self.loop.time() - since:.1f} s")

    async def _stay(self) -> None:
        """S11: without a fault nothing moves and nobody else leads."""
        await self._wait(10 + 3 * self.timing.heartbeat_timeout_s)
        control, calls, since = self.ledger.control, self.ledger.cost.calls, self.loop.time()
        await self._wait(3 * self.timing.heartbeat_timeout_s)
        after, calls, seconds = self.ledger.control, self.ledger.cost.calls - calls, self.loop.time() - since
        assert control is not None and after is not None
        if after.phase is RunPhase.RUNNING:
            demand(after.epoch == control.epoch, f"S11: epoch {control.epoch} became {after.epoch} without a fault")
            same = after.version == control.version or after.given_up != control.given_up
            demand(same, f"S11: version {control.version} became {after.version}")
            demand(self.unhealed() is None, f"L1: healed, and then {self.unhealed()}")
            if same and after.version == control.version:
                alive = sum(life.supervisor.alive for life in self.lives.values())
                reports = len(after.tasks) * seconds / (self.habits.batch_s / 2)  # the highest rate of batches
                wrong = self.ledger.cost.usual(calls, seconds, self.timing, alive, reports)
                demand(wrong is None, f"{wrong}, in calm")

    def heals_within(self) -> float:
        """How long it may take until all is well again, from any state."""
        timing, control = self.timing, self.ledger.control
        patience = 2.0 ** min(control.churn + 1 if control is not None else 0, CHURN_MAX)
        deaths = 4 * timing.heartbeat_timeout_s + 2 * patience * timing.leader_timeout_s
        return HEALS_WITHIN * timing.heartbeat_s + deaths + 4 * self.habits.shutdown_s + 40.0

    def unhealed(self) -> str | None:
        """What is still wrong."""
        control = self.ledger.control
        if control is None:
            return "there is no control blob"
        alive = {name: life for name, life in self.lives.items() if life.supervisor.alive and name != self.blind}
        if control.phase is RunPhase.DRAINED:
            return f"the run is drained, {list(alive)} live on, and no other run begins" if alive else None
        if not alive:
            return "nobody lives"
        if control.phase not in (RunPhase.RUNNING, RunPhase.DRAINING):
            return f"the run is {control.phase}"
        if control.stop is not None or self.ledger.asked(RequestKind.STOP):
            return "it is still being stopped"
        leading = [name for name, life in alive.items() if life.processor.view.leads]
        if control.leader is None or leading != [control.leader.processor]:
            return f"{leading} lead, the blob says {control.leader}"
        for task, assignment in control.tasks.items():
            owner = assignment.owner
            if owner is None or owner.processor not in alive:
                return f"{task} has no living owner"
            life = alive[owner.processor]
            if life.processor.view.incarnation != owner.incarnation:
                return f"{task} belongs to a former life of {owner.processor}"
            if life.running.get(task) != owner.generation:
                return f"{task} is owned by {owner.processor} and does not run there"
            if assignment.first and self.ledger.has_log(control.run_id, task):
                return f"{task} has a log, and the control blob does not know that"
        if len(alive) > 1 and not set(self.ledger.successors()) & alive.keys() - set(leading):
            return f"{leading} names nobody who would lead next"
        shares = Counter(each.owner.processor for each in control.tasks.values() if each.owner is not None)
        able = [shares[name] for name, life in alive.items() if life.habits.plan.fingerprint == control.fingerprint]
        # A task that somebody gave up leaves its place there free, so that nothing else moves.
        if control.phase is RunPhase.RUNNING and not control.given_up and max(able) > min(able) + 1:
            return f"the tasks are not balanced: {dict(shares)} of {list(alive)}"
        return None

    # L2: trouble that never ends.

    async def _mild_trouble(self) -> None:
        """Errors and slow calls all the time, a short pause each minute; then deaths; then one that is half blind."""
        await self._wait(STARTS_WITHIN_S)  # a task that moves to a late joiner does not run meanwhile
        await self._heal(self.heals_within(), "L2: {:.0f} s after the start {}")
        await self._go_on()
        for leads in (True, False):
            victim = self._one(leads)
            self.note(f"{victim.name} dies")
            victim.crash()
            await self._heal(2 * self._handled_within(leads), "L2: {:.0f} s after a death {}")
            self.start(victim.name)
            await self._heal(self.heals_within(), "L2: {:.0f} s after a start {}")
        if len(self.lives) > 2:  # of two, one that is blind and one that leaves, nobody could lead
            is_news = Random(f"half blind {self.scenario.seed}").random() < 0.5
            await self._half_blind("blob", is_news=is_news)

    async def _go_on(self) -> None:
        """S11: the leader stays; L2: each task runs nearly always."""
        begun, looks = self.ledger.control, 0
        running: Counter[str] = Counter()
        next_pause = self.loop.time() + self.scenario.every_s
        assert begun is not None
        while self.loop.time() < self.scenario.fault_s:
            await self._wait(LOOK_S)
            control, looks = self.ledger.control, looks + 1
            assert control is not None
            for task, assignment in control.tasks.items():
                life = self.lives.get(assignment.owner.processor) if assignment.owner is not None else None
                running[task] += life is not None and life.running.get(task) == assignment.owner.generation  # type: ignore[union-attr]
            if self.loop.time() > next_pause:
                next_pause += self.scenario.every_s
                self._one(self.dice.random() < 0.5).freeze(
                    self.dice.uniform(0, self.timing.heartbeat_s / 2), supervisor=True, container=True
                )
            demand(control.epoch == begun.epoch, f"S11: epoch {begun.epoch} became {control.epoch} without a fault")
        for task, times in running.items():
            demand(times >= RUNNING_SHARE * looks, f"L2: {task} ran for {100 * times / looks:.0f} % of the time")

    async def _half_blind(self, part: str, *, is_news: bool) -> None:
        """One processor beats but can no longer read the control blob. Its tasks must move: with `is_news`, because it
        does not adopt the version after somebody has left; otherwise, because it notices that it cannot read."""
        if not is_news:  # nor anything from a processor that has just started
            await self._wait(10.0)
            await self._heal(self.heals_within(), "L2: {:.0f} s after a start {}")
        victim = self._one(False)
        for _ in range(round(self._handled_within(leads=True))):
            control = self.ledger.control
            assert control is not None
            owners = {each.owner.processor for each in control.tasks.values() if each.owner is not None}
            if others := sorted(owners - {victim.name}):
                break
            await self._wait(1.0)  # processors that have just come back have no share of the tasks yet
        demand(bool(others), f"L2: {victim.name} has kept all tasks")
        self.note(f"{victim.name} can no longer reach the blob")
        victim.link.outages.append(Outage(part, float("inf"), hangs=False))
        if is_news:
            self._send_away(self.lives[self.dice.choice(others)])
        self.blind = victim.name
        await self._wait(10.0)  # the processor that left is back
        bound = self.timing.barrier_timeout_s + 2 * self._handled_within(leads=True)
        await self._heal(bound, "L2: {:.0f} s after a processor lost sight of the blob {}")

    def _one(self, leads: bool) -> Life:
        """The leader, or anyone else."""
        control = self.ledger.control
        leader = control.leader.processor if control is not None and control.leader is not None else ""
        alive = [life for life in self.lives.values() if life.supervisor.alive]
        return self.dice.choice([life for life in alive if (life.name == leader) == leads] or alive)

    def _handled_within(self, leads: bool) -> float:
        """The stated bound: a death, until its tasks are running elsewhere."""
        timing = self.timing
        noticed = max(timing.leader_timeout_s, timing.heartbeat_timeout_s) if leads else timing.heartbeat_timeout_s
        return noticed + 5 * timing.scan_s + 2 * timing.heartbeat_s + 2 * self.habits.start_s

    async def _drain(self) -> None:
        """The end: a drain, after which every row must be in the output exactly once, and nobody lives."""
        control = self.ledger.control
        assert control is not None
        if control.phase is RunPhase.RUNNING:
            self.ask(RequestKind.DRAIN)
            if self.scenario.lasting:
                await self._fail_in_the_drain()
        since, bound = self.loop.time(), self.heals_within()
        while self.loop.time() < since + bound:
            await self._wait(0.5)
            control = self.ledger.control
            assert control is not None
            if control.phase is RunPhase.DRAINED and not any(life.supervisor.alive for life in self.lives.values()):
                break
        else:
            living = [name for name, life in self.lives.items() if life.supervisor.alive]
            raise Violation(
                f"L1: {bound:.0f} s after the drain was asked for the run is {control.phase}, {living} live"
            )
        demand(control.cleaned, "S12: everybody is gone, and the drained run is not cleaned up")
        # A request to create that lands after the clean-up leaves an empty blob, which nobody can prevent.
        found = self.ledger.list(RUNS)
        left = [name for name, size in found if size > 0 and any(f"/{stage}-" in name for stage in CLEANERS)]
        demand(not left, f"S12: {left} were left after the clean-up")

    async def _fail_in_the_drain(self) -> None:
        """User code fails until the run has failed. Processors that come back then continue the drain."""
        self.habits.poisoned = 1.0
        failed, until = self.ledger.seen["phase FAILED"], self.loop.time() + FAILS_WITHIN_S
        while self.ledger.seen["phase FAILED"] == failed and self.loop.time() < until:
            await self._wait(LOOK_S)
        self.habits.cure()

    # S7: each row exactly once.

    def _drained(self, control: Control) -> None:
        """The output of a run that was just declared drained is what a serial reader would have written."""
        begin = self.fed.get(control.past[-2], {}) if len(control.past) > 1 else {}
        end = {
            number: control.positions.get(f"{SOURCE}/{number}", (0, 0))[1] for number in range(self.scenario.sources)
        }
        self.fed[control.run_id] = end
        rows = {number: range(begin.get(number, 0), to) for number, to in end.items()}
        stages = {stage_and_number(task)[0] for task in control.tasks} & {*CLEANERS, "audit"}
        for number, wanted in rows.items():
            for stage in stages:
                got = [row for part in self._read(control.run_id, task_name(stage, number)) for row in part]
                farewells = [FAREWELL] if stage == "audit" and self.scenario.handled else []  # of `on_drain`, one
                wrong = sorted(map(tuple, got)) != [(number, each) for each in (*farewells, *wanted)]
                demand(not wrong, f"S7: {stage}-{number} wrote {len(got)} rows of {len(wanted)}")
        counts: Counter[tuple[int, int]] = Counter()
        results: dict[tuple[int, int], tuple[int, int]] = {}
        for number in range(self.scenario.counts):
            for part in self._read(control.run_id, f"daily-{number}"):
                for window, key, count, total in part:
                    counts[window, key] += 1
                    results[window, key] = (count, total)
        twice = [name for name, times in counts.items() if times > 1]
        demand(not twice, f"S7: the windows {twice} came out more than once")
        expected = outcome(rows)
        demand(results == expected, f"S7: {len(results)} results, {len(expected)} expected, and they differ")
        total = sum(len(each) for each in rows.values())
        self.ledger.seen["rows checked"] += total
        self.note(f"the output is exact: {total} rows, {len(expected)} windows")

    def _read(self, run_id: str, task: str) -> list[list[list[int]]]:
        """All rows of a log, in their order, read by the real rules on a perfect link."""
        blobs = MemoryAccount(self.ledger.all_written()).blobs()
        found = drive(scan(task_log(run_id, task), (0, 0), reads_max=None), blobs)
        return [json.loads(drive(fetch_part(part), blobs)) for part in found.parts]

    # Checks on what processors do.

    def check_command(self, life: Life, command: Command) -> None:
        """S4, S5 and Overlap, at the moment a command is given."""
        view, control = life.processor.view, self.ledger.control
        if isinstance(command, StartTask):
            permitted = life.container is not None and life.clock.now() < view.work.permit_told
            demand(permitted, f"S4: {life.name} starts {command.task} without a permit")
            check_overlap(self.ledger, self.lives.values(), life, command, self.habits.shutdown_s)
        if isinstance(command, Permit) and command.until > 0:
            bound = self.ledger.permit_bound(view.incarnation)
            true = life.clock.instant(command.until)
            demand(true <= bound, f"S4: {life.name} permits work until {true:.2f}, and {bound:.2f} is allowed")
        if isinstance(command, ReleaseTask) and control is not None and view.ending is None:
            owner = control.tasks[command.task].owner if command.task in control.tasks else None
            local = view.work.tasks.get(command.task)
            running = control.phase in (RunPhase.RUNNING, RunPhase.DRAINING)
            still = (
                owner is not None
                and local is not None
                and (owner.member, owner.generation) == (view.member, local.generation)
            )
            demand(not (running and still), f"S5: {life.name} releases {command.task}, which is still its own")


def play(scenario: Scenario) -> Result:
    """Play one scenario to its end."""
    return World(scenario).play()


__all__ = ["FailOver", "Result", "Scenario", "World", "draw", "play"]
