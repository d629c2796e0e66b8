"""The processors of one scenario: started, ended, started again by an orchestrator, upgraded, asked to leave.

Everything is drawn from the seed and written into the history. Faults are in `faults.py`, and the order of events is in
`world.py`. *Exit* means that no processor ends without a reason; *S7* is checked when a run is drained.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any

from samza_azure.errors import Verdict
from samza_azure.group.actions import Finish
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.ending import FAREWELL_S
from samza_azure.group.rows import MEMBERS, REQUESTS, RequestKind, request_columns
from samza_azure.group.tasks import PATIENCE
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import Doorbell, Settings
from samza_azure.host.slot import RESTARTED_S
from samza_azure.logs.task_log import LogLimits
from samza_azure.messages import Command
from samza_azure.storage.memory import Link, MemoryAccount, SimulatedAccount
from simulator.bells import Network
from simulator.container import SOURCE, Habits, plan_of
from simulator.ledger import Facts, Ledger, Violation, demand
from simulator.life import RATE_ERROR, Clock, Life
from simulator.loop import Callback, VirtualLoop
from simulator.network import Weather
from simulator.outcome import check_output
from simulator.promises import check_command, check_leader
from simulator.scenario import Scenario

#: In a busy fleet logs roll within the short life of a run.
SHORT_LOGS = LogLimits(roll_bytes=6_000, roll_records=8, record_bytes=3_000)
#: An answer takes no longer than this, also where calls are slow.
ANSWER_S = 5.0
#: The fingerprint of a pipeline with a stage before the first. It may be started before the run is drained.
OTHER_STAGES = "e" * 64
#: The fingerprint of a pipeline in which a stage has another name.
RENAMED = "d" * 64


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
    fail_over: FailOver | None = None  # of the one death without other faults


class Processors:
    """All lives of all processors, over one storage and one network."""

    def __init__(self, scenario: Scenario, account: Callable[..., SimulatedAccount] = MemoryAccount) -> None:
        self.scenario, self._account = scenario, account
        self.dice = Random(f"world {scenario.seed}")
        self._operator, self._marks = Random(f"operator {scenario.seed}"), Random(f"marks {scenario.seed}")
        self.replaced = 0  # processors that waited for an upgrade, and were asked to leave for it
        self.loop = VirtualLoop()
        self.timing = scenario.timing or PROFILES[scenario.profile]
        self.weather = Weather()
        slack = 1 / (1 - RATE_ERROR) - 1 if scenario.clocks else 0.0
        self.facts = Facts(
            self.loop.time,
            self.timing,
            self._drained,
            self.note,
            lambda run: self.again == run,
            self._rung_at,
            replicas=scenario.replicas > 0,
            clock_slack=slack,
        )
        self.ledger = Ledger(self.facts)
        self.runs = 0
        self.habits = self._habits(self._fingerprint())
        self.lives: dict[str, Life] = {}
        self.bells = Network(scenario.seed, self.lives, self.ledger.seen, self.note)
        self.last_ended: Life | None = None
        self.numbers: Counter[str] = Counter()
        self.result = Result(scenario, seen=self.ledger.seen)
        self.calm = False
        self.failed: BaseException | None = None
        self.fed: dict[str, dict[int, int]] = {}  # run id -> where each partition begins
        self.again = ""  # the drained run after which the same code begins another
        self._drained_at: dict[str, float] = {}  # processor -> when it ended because its run was drained
        self._over_before: dict[str, tuple[int, int]] = {}  # what had ended for good when this processor started
        self._refused_until: dict[str, float] = {}  # processor, or "" for all -> until when its access is refused
        self._decided_at: dict[tuple[str, int], float] = {}  # (name, life) -> when it began to end; that may take long
        self._quiet_from = 0.0  # since when there was no fault, and no processor started or ended
        self._over = self.loop.create_future()
        self._starting: list[Callback] = []

    def instant(self) -> float:
        """The true time."""
        return self.loop.time()

    def account(self, link: Link) -> SimulatedAccount:
        """The storage, over this link."""
        return self._account(self.ledger, link=link)

    def note(self, text: str) -> None:
        """Add a line to the history."""
        self.result.history.append(f"{self.loop.time():9.3f}  {text}")

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

    def _disturb(self, lasts: float = 0.0) -> None:
        """Note a disturbance of this length. What a processor promises in a quiet time counts from its end."""
        self._quiet_from = max(self._quiet_from, self.loop.time() + lasts)

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
        bells = self.bells.of(name) if self.scenario.bells else None
        self.lives[name] = Life(self, clock, number, settings, habits, self.dice.choice([0.2, slow]), bells)
        self._over_before[name] = self._over_for_good()
        self.note(f"{name} starts{f' with code {code[:4]}' if code else ''}, life {number}")

    def _settings(self, name: str) -> Settings:
        new_run = self.ledger.control is not None and self.again == self.ledger.control.run_id
        drained_at = self._drained_at.pop(name, float("-inf"))  # as the mark in its directory says, if that is there
        is_marked = self._marks.random() < 0.5 and self.loop.time() < drained_at + RESTARTED_S
        return Settings(
            processor=name,
            timing=self.timing,
            shutdown_s=self.habits.shutdown_s,
            boot=f"{name} boot",
            holds_directory=self.dice.random() < 0.5,
            new_run=new_run,
            restarted=is_marked and not new_run and not self.calm,
            replicas=self.scenario.replicas,
            wait_for_upgrade=self.scenario.waits and not self.calm and self._operator.random() < 0.7,
            doorbell=Doorbell("10.0.0.1", 8080, f"{name} {self.numbers[name]}".encode())
            if self.scenario.bells
            else None,
        )

    def _rung_at(self, processor: str, incarnation: str) -> float | None:
        return self.lives[processor].rung_at.get(incarnation) if processor in self.lives else None

    def port_closed(self, life: Life) -> None:
        """Tell those who are connected to this process that it has ended."""
        if self.scenario.bells and self.loop.is_running():
            self.bells.ended(life)

    def ended(self, life: Life, finish: Finish) -> None:
        """Note the end of a processor. An orchestrator starts it again."""
        self._disturb()
        life.supervisor.alive, self.last_ended = False, life
        seen, control = self.ledger.seen, self.ledger.control
        # One that left a task open, or could not say that it left, was asked to leave as well.
        code = 0 if finish.code is Verdict.LEFT_OPEN else finish.code
        seen[f"exit {finish.code}"] += 1
        fits = life.habits.plan.fingerprint == (control.fingerprint if control else "")
        decided_at = self._decided_at.pop((life.name, life.number), self.loop.time())
        refused = decided_at < max(self._refused_until.get(name, 0.0) for name in ("", life.name)) + ANSWER_S
        over, failed = (
            now > before for now, before in zip(self._over_ever(), self._over_before[life.name], strict=True)
        )
        reasons = {
            0: life.asked_to_leave or over,
            1: failed or life.deaths.are_too_many,
            2: not fits or refused,
            3: life.processor.view.own.beat == 0,
            5: refused,
        }
        waits = finish.drained and _waits(life)
        if finish.drained:
            self._drained_at[life.name] = self.loop.time()
        demand(reasons[code] and not waits, f"Exit: {life.name} ended with {finish.code}: {finish.message}")
        drained = control is not None and control.phase is RunPhase.DRAINED
        outdated = finish.code == 2 and life.name not in ("old", "new") and life.habits is not self.habits
        others_stay = any(each.supervisor.alive for each in self.lives.values())
        done = self.calm and life.asked_to_leave and others_stay
        if (
            finish.code in (1, 3, 5)
            or outdated
            or (finish.code == 2 and refused and fits)
            or (code == 0 and not drained and not done)
        ):
            self.start(life.name, delay=self._back())
        elif drained and not self.calm:
            self._upgrade()
            self.start(life.name, delay=self._back())

    def _over_ever(self) -> tuple[int, int]:
        """How often a run was drained or stopped, and how often one has failed."""
        seen = self.ledger.seen
        return seen["phase DRAINED"] + seen["stop"], seen["phase FAILED"]

    def _over_for_good(self) -> tuple[int, int]:
        """The same without what is still so: a processor that starts now may end because of that."""
        (over, failed), control = self._over_ever(), self.ledger.control
        if control is None:
            return over, failed
        is_over = control.phase is RunPhase.DRAINED or control.stop is not None
        return over - is_over, failed - (control.phase is RunPhase.FAILED)

    def _back(self) -> float:
        """How long an orchestrator takes to start it again."""
        return self.dice.uniform(0.1, 1) if self.scenario.style == "busy" else self.dice.uniform(0.5, 5)

    def _upgrade(self) -> None:
        """After a drain, go on with another pipeline, with the same one and a request for a new run, or with the same
        one alone, which begins no run."""
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

    def _new_code(self) -> str:
        """The code of an upgrade that comes too early: with a stage before the first, or another name for a stage."""
        return RENAMED if Random(f"renamed {self.scenario.seed}").random() < 0.5 else OTHER_STAGES

    def _habits(self, fingerprint: str) -> Habits:
        """The habits of containers of this code. In a busy fleet tasks start fast, so that more can happen to them."""
        plan = plan_of(
            self.scenario.sources,
            self.scenario.counts,
            fingerprint,
            front=fingerprint == OTHER_STAGES,
            audited=self.scenario.audited,
            handled=self.scenario.handled,
            renamed=fingerprint == RENAMED,
            all_stateful=self.scenario.replicas > 0,
        )
        habits = Habits(plan)
        if self.scenario.style == "busy":
            habits = Habits(plan, batch_s=3.0, commit_s=3.0, start_s=0.3, limits=SHORT_LOGS)
        habits.forgets, habits.pauses = self.scenario.forgets, self.scenario.pauses
        habits.shuts_down = self.scenario.shuts_down
        return habits

    def _fingerprint(self) -> str:
        return f"{self.runs + 1:064x}"

    def _go_back(self) -> None:
        """From now on start processors with the code that has begun the run in progress."""
        control = self.ledger.control
        present = control.fingerprint if control is not None else ""
        if control is not None and control.phase is not RunPhase.DRAINED and present != self.habits.plan.fingerprint:
            self.habits = self._habits(present or self._fingerprint())
            self.note("other code has begun this run: everybody goes back to it")

    def _raise_storm(self) -> None:
        scenario = self.scenario
        weather = self.weather
        if self.loop.time() < scenario.fault_s:
            weather.tail, weather.refused = scenario.tail, scenario.refused
            weather.lost, weather.late = scenario.lost, scenario.late
        self.habits.slow_batch, self.habits.slow_release = scenario.slow_batch, scenario.slow_release

    def _send_away(self, life: Life) -> None:
        """Ask a processor to leave, perhaps twice. Whatever happens, it has ended within a bound."""
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

    def turned(self, life: Life) -> None:
        """Check Leader when a processor has had a turn, and note when it begins to end."""
        check_leader(self.ledger, self.lives.values(), life)
        if life.processor.view.ending is not None:
            self._decided_at.setdefault((life.name, life.number), self.loop.time())

    def check_command(self, life: Life, command: Command) -> None:
        """Check S4, S5 and Overlap when a command is given."""
        check_command(self.ledger, self.lives.values(), life, command, self.habits.shutdown_s)

    def _drained(self, control: Control) -> None:
        """Check S7: the output of the run just declared drained is what a serial reader would have written."""
        begin = self.fed.get(control.past[-2], {}) if len(control.past) > 1 else {}
        end = {
            number: control.positions.get(f"{SOURCE}/{number}", (0, 0))[1] for number in range(self.scenario.sources)
        }
        self.fed[control.run_id] = end
        rows = {number: range(begin.get(number, 0), to) for number, to in end.items()}
        windows = check_output(self.ledger, control, rows, self.scenario.counts, handled=self.scenario.handled)
        total = sum(len(each) for each in rows.values())
        self.ledger.seen["rows checked"] += total
        self.note(f"the output is exact: {total} rows, {windows} windows")
        self._replace_soon(control.run_id)

    def _replace_soon(self, run_id: str) -> None:
        self.loop.call_later(self._operator.uniform(0.2, 3), self._replace_waiting, run_id)

    def _replace_waiting(self, run_id: str) -> None:
        """The operator replaces one that waits for an upgrade after this run, and the others later."""
        control = self.ledger.control
        if self.failed is not None or control is None or control.run_id != run_id:
            return
        alive = [life for life in self.lives.values() if life.supervisor.alive]
        waiting = [life for life in alive if _waits(life) and not life.asked_to_leave]
        if waiting:
            self.replaced += 1
            self._send_away(waiting[0])
        if waiting or not self.calm:
            self._replace_soon(run_id)


def _waits(life: Life) -> bool:
    """Whether it stays after a drain, for as long as nobody replaces it."""
    view = life.processor.view
    return view.settings.wait_for_upgrade or (view.settings.restarted and not view.work.active_run)


__all__ = ["OTHER_STAGES", "FailOver", "Processors", "Result"]
