"""A fleet in one thread: the production `Processor` over a faulty network, with its containers, from one seed.

Everything that happens is drawn from the seed and written into a history, so the same seed gives the same history.
First faults, drawn anew for each seed, then calm: after the faults the fleet must heal within a bound (L1), and a
drain must find each row of the input in the output exactly once (S7).
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from samza_azure.errors import StateLost
from samza_azure.host.processor import ContainerLost, Processor
from samza_azure.host.runs import PREFIX, RunLogs
from samza_azure.protocol.actions import Finish
from samza_azure.protocol.control import Control, RunPhase
from samza_azure.protocol.messages import Command, Permit, Phase, Ready, ReleaseTask, Report
from samza_azure.protocol.reading import fetch_part, scan
from samza_azure.protocol.timing import PROFILES
from samza_azure.protocol.view import Settings, View
from samza_azure.sim.container import SOURCE, Container, Habits, outcome, plan_of
from samza_azure.sim.ledger import Facts, Ledger, Violation, demand
from samza_azure.sim.loop import Process, VirtualLoop
from samza_azure.sim.memory import MemoryAccount
from samza_azure.sim.network import FaultyLink, Outage, Weather
from samza_azure.storage.driver import drive

T = TypeVar("T")

#: Whatever is still wrong so long after the last fault is a fault of ours. In heartbeat timeouts.
HEALS_WITHIN = 12.0
#: The supervisor starts a dead container again after so long.
CONTAINER_BACK_S = 0.5

#: The fingerprint of a pipeline that is not the present one.
OLD_CODE = "0" * 64

FAULTS = (
    "crash",
    "crash, other id",
    "container dies",
    "supervisor freezes",
    "container freezes",
    "machine freezes",
    "outage",
    "cut off",
    "leaves",
    "joins",
    "drain",
    "garbage",
    "poison",
    "old code",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a seed stands for."""

    seed: int
    processors: int
    sources: int
    counts: int
    profile: str
    fault_s: float  # how long faults last
    every_s: float  # a fault comes about as often
    faults: tuple[str, ...]
    tail: float
    refused: float
    lost: float
    late: float
    slow_batch: float
    slow_release: float
    clocks: bool  # run at rates of their own


def draw(seed: int, *, processors: int | None = None, fault_s: float | None = None) -> Scenario:
    """The scenario of a seed. Each seed has a part of the faults only, so that they do not hide each other."""
    dice = Random(f"scenario {seed}")

    def some(most: float) -> float:
        return dice.choice([0.0, most / 10, most])

    drawn = dice.choice([1, 2, 3, 3, 3, 5])
    kinds = tuple(kind for kind in FAULTS if dice.random() < 0.4)
    return Scenario(
        seed=seed,
        processors=processors or drawn,
        sources=dice.choice([1, 2, 3, 4]),
        counts=dice.choice([1, 2, 3]),
        profile=dice.choice(["fast", "default", "default", "eco"]),
        fault_s=fault_s or dice.choice([60.0, 120.0, 240.0]),
        every_s=dice.choice([5.0, 15.0, 40.0]),
        faults=kinds,
        tail=some(0.05),
        refused=some(0.1),
        lost=some(0.1),
        late=some(0.03),
        slow_batch=some(0.1),
        slow_release=some(0.5),
        clocks=dice.random() < 0.3,
    )


class Clock:
    """One machine's time and dice."""

    def __init__(self, world: "World", name: str) -> None:
        self._world, self._dice = world, Random(f"{world.scenario.seed} {name}")
        self._rate = self._dice.uniform(0.95, 1.05) if world.scenario.clocks else 1.0
        self._origin = self._dice.uniform(0, 1e6)

    def now(self) -> float:
        return self._origin + self._world.loop.time() * self._rate

    def instant(self, local: float) -> float:
        """The true time of a local one."""
        return (local - self._origin) / self._rate

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._world.loop.time() * 1000)

    def random(self) -> float:
        return self._dice.random()

    def fresh_id(self) -> str:
        return f"{self._dice.getrandbits(128):032x}"


class SimulatedRuns(RunLogs):
    """`RunLogs` without a thread."""

    def __init__(self, account: MemoryAccount) -> None:
        super().__init__(account.blobs())
        self._account = account

    async def refuse_if_any(self) -> None:
        storage = self._account.storage
        if found := await self._account.carry("blobs.list", lambda: storage.list(PREFIX), 10.0):
            raise StateLost("There are task logs, but no control blob", blob=found[0][0])

    async def clean(self, run_id: str) -> None:
        storage = self._account.storage
        for name, _ in await self._account.carry("blobs.list", lambda: storage.list(f"{PREFIX}{run_id}/"), 10.0):
            if "/clean-" in name:
                await self._account.carry("blobs.delete", lambda name=name: storage.delete(name), 10.0)  # type: ignore[misc]


class Life:
    """One life of one processor: a supervisor, its container, the wires between them."""

    def __init__(self, world: "World", name: str, number: int, settings: Settings, plan_start_s: float) -> None:
        self.world, self.name, self.number = world, name, number
        self.clock = Clock(world, f"{name} {number}")
        self.supervisor = Process(f"{name}.{number}")
        self.link = FaultyLink(name, number, world.weather, world.dice, world.ledger.seen)
        self.link.refused = self._answered
        self.account = MemoryAccount(world.ledger, link=self.link)
        self.container: Container | None = None
        self.containers = 0
        self.finish: Finish | None = None
        self.frozen_until = 0.0
        self.plan_start_s = plan_start_s
        self.habits = world.habits
        self.processor = Processor(
            settings,
            self.account.control_blob(),
            self.account.rows(),
            SimulatedRuns(self.account),
            self.clock,
            tell=self._tell,
            watch=self._watch,
        )
        self.work = self.supervisor.spawn(self._live())
        self._start_container()

    async def _live(self) -> None:
        self.finish = await self.processor.run()
        self.world.note(f"{self.name} ends with {self.finish.code}: {self.finish.message.splitlines()[0]}")
        self._end_container()
        self.world.ended(self, self.finish)

    def crash(self) -> None:
        """The whole processor is gone, its container with it."""
        self.supervisor.kill()
        self._end_container()

    def container_dies(self) -> None:
        """The container alone is gone; the supervisor hears of it and starts another."""
        if self.container is None:
            return
        self._end_container()
        self.supervisor.spawn(self._hear(ContainerLost("killed by the world")))
        self.supervisor.at(CONTAINER_BACK_S, self._start_container)

    def freeze(self, seconds: float, *, supervisor: bool, container: bool) -> None:
        """Stop for a while."""
        if supervisor:
            self.supervisor.freeze(seconds)
        if container and self.container is not None:
            self.container.process.freeze(seconds)

    @property
    def running(self) -> dict[str, int]:
        """Tasks that run, or are drained, and their generations."""
        if self.container is None:
            return {}
        return {
            task: work.start.generation
            for task, work in self.container.tasks.items()
            if work.phase in (Phase.RUNNING, Phase.DRAINED)
        }

    def _start_container(self) -> None:
        if self.finish is not None:
            return
        self.containers += 1
        process = Process(f"{self.name}.{self.number} container {self.containers}")
        container = Container(
            process, self.account, self.habits, self.world.dice, self.clock.now, self._say, self.world.note
        )
        self.container = container
        process.spawn(self._come_up(container))

    async def _come_up(self, container: Container) -> None:
        await asyncio.sleep(self.plan_start_s * (0.5 + self.world.dice.random()))
        self.supervisor.spawn(self._hear(Ready(self.habits.plan)))

    def _end_container(self) -> None:
        if self.container is not None:
            self.container.process.kill()
            self.container = None

    def _say(self, report: Report) -> None:
        self.supervisor.spawn(self._hear(report))

    async def _hear(self, report: Report | ContainerLost) -> None:
        self.processor.hear(report)

    def _tell(self, command: Command) -> None:
        self.world.check_command(self, command)
        if self.container is not None:
            self.container.process.spawn(self._obey(self.container, command))

    async def _obey(self, container: Container, command: Command) -> None:
        container.obey(command)

    def _watch(self, view: View) -> None:
        self.world.check_view(self, view)

    def _answered(self, operation: str, answer: object) -> None:
        if operation == "control.write" and type(answer).__name__ == "Refused":
            self.world.ledger.deposed[self.name, self.number] = self.world.loop.time()


class _Alarm(logging.Handler):
    """An error in the log of a processor is a failure of the seed."""

    def __init__(self, world: "World") -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.broken(self._world.loop, {"message": record.getMessage()})


@dataclass(slots=True)
class Result:
    """What came of a seed."""

    scenario: Scenario
    history: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    violation: str | None = None
    seconds: float = 0.0


class World:
    """One scenario, played."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.dice = Random(f"world {scenario.seed}")
        self.loop = VirtualLoop()
        self.timing = PROFILES[scenario.profile]
        self.weather = Weather()
        self.facts = Facts(self.loop.time, self.timing, self._drained, self.note)
        self.ledger = Ledger(self.facts)
        self.runs = 0
        self.habits = Habits(plan_of(scenario.sources, scenario.counts, self._fingerprint()))
        self.lives: dict[str, Life] = {}
        self.numbers: Counter[str] = Counter()
        self.result = Result(scenario, seen=self.ledger.seen)
        self.calm = False
        self.failed: BaseException | None = None
        self.fed: dict[str, dict[int, int]] = {}  # run id -> where each partition begins
        self._over = self.loop.create_future()
        self._starting: list[asyncio.TimerHandle] = []

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
            self.result.violation = f"{type(error).__name__}: {error}"
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
        scenario = self.scenario
        self._raise_storm()
        for number in range(scenario.processors):
            self.start(f"p{number}", delay=self.dice.choice([0.0, self.dice.uniform(0, 10)]))
        await self._wait(self.dice.uniform(0, 3 * self.timing.heartbeat_timeout_s))
        while self.loop.time() < scenario.fault_s:
            if scenario.faults:
                self._fault(self.dice.choice(scenario.faults))
            await self._wait(self.dice.expovariate(1 / scenario.every_s))
        await self._calm_down()
        await self._drain()

    async def _wait(self, seconds: float) -> None:
        """Let time pass; the first thing that breaks ends it."""
        if not self._over.done():
            await asyncio.wait([self._over], timeout=seconds)
        if self.failed is not None:
            raise self.failed

    def broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or Violation(str(context.get("message")))
        if self.failed is None:
            self.failed = error
            if not self._over.done():
                self._over.set_result(None)

    # Processors.

    def start(self, name: str, *, delay: float = 0.0, old_code: bool = False) -> None:
        """Start a processor, unless one of this name lives."""
        self._starting.append(self.loop.call_later(delay, self._start, name, old_code))

    def _start(self, name: str, old_code: bool) -> None:
        if self.failed is not None or (name in self.lives and self.lives[name].supervisor.alive):
            return
        self.numbers[name] += 1
        number = self.numbers[name]
        settings = Settings(
            processor=name,
            timing=self.timing,
            shutdown_s=self.habits.shutdown_s,
            boot=f"{name} boot",
            holds_directory=self.dice.random() < 0.5,
        )
        life = Life(self, name, number, settings, plan_start_s=self.dice.choice([0.2, 3.0]))
        if old_code:
            life.habits = Habits(plan_of(self.scenario.sources, self.scenario.counts, OLD_CODE))
        self.lives[name] = life
        self.note(f"{name} starts{' with old code' if old_code else ''}, life {number}")

    def ended(self, life: Life, finish: Finish) -> None:
        """A processor came to its end. Orchestrators start it again."""
        life.supervisor.alive = False
        self.ledger.seen[f"exit {finish.code}"] += 1
        control = self.ledger.control
        fits = life.habits.plan.fingerprint == (control.fingerprint if control else "")
        if finish.code == 2:
            demand(not fits, f"{life.name} was refused: {finish.message}")
        if finish.code == 1:
            failed = control is not None and control.phase is RunPhase.FAILED
            demand(failed or self.ledger.seen["phase FAILED"] > 0, f"{life.name} failed: {finish.message}")
        if finish.code == 3:
            demand(life.processor.view.beat == 0, f"S-outage: {life.name} gave up although it had joined")
        drained = control is not None and control.phase is RunPhase.DRAINED
        outdated = finish.code == 2 and life.name != "old" and life.habits is not self.habits
        if finish.code in (1, 3) or outdated or (finish.code == 0 and not drained and not self.calm):
            self.start(life.name, delay=self.dice.uniform(0.5, 5))
        elif drained and not self.calm:
            self._upgrade()
            self.start(life.name, delay=self.dice.uniform(0.5, 5))

    def _upgrade(self) -> None:
        """After a drain: another pipeline, so that the next run begins, or the same, so that none does."""
        if self.runs < self.ledger.seen["phase DRAINED"] and self.dice.random() < 0.7:
            self.runs = self.ledger.seen["phase DRAINED"]
            self.habits = Habits(plan_of(self.scenario.sources, self.scenario.counts, self._fingerprint()))
            self._raise_storm()
            self.note("the pipeline is upgraded")

    def _fingerprint(self) -> str:
        return f"{self.runs + 1:064x}"

    # Faults.

    def _raise_storm(self) -> None:
        scenario = self.scenario
        weather = self.weather
        if self.loop.time() < scenario.fault_s:
            weather.tail, weather.refused = scenario.tail, scenario.refused
            weather.lost, weather.late = scenario.lost, scenario.late
        self.habits.slow_batch, self.habits.slow_release = scenario.slow_batch, scenario.slow_release

    def _fault(self, kind: str) -> None:
        dice, seen = self.dice, self.ledger.seen
        alive = [life for life in self.lives.values() if life.supervisor.alive]
        victim = dice.choice(alive) if alive else None
        control = self.ledger.control
        leader = control.leader.processor if control is not None and control.leader is not None else None
        if leader in self.lives and self.lives[leader] in alive and dice.random() < 0.3:
            victim = self.lives[leader]
        timeout = self.timing.heartbeat_timeout_s
        lasts = dice.choice([dice.uniform(0, timeout), dice.uniform(0, 3 * timeout), dice.uniform(0, 8 * timeout)])
        seen[f"fault {kind}"] += 1
        if kind == "outage":
            outage = Outage(
                dice.choice(["blob", "table", "writes", "all"]), self.loop.time() + lasts, dice.random() < 0.5
            )
            self.weather.outages.append(outage)
            if outage.kind != "blob":
                self.facts.no_beats.append((self.loop.time(), outage.until))
            self.note(f"outage of {outage.kind} for {lasts:.1f} s")
        elif kind == "joins":
            self.start(f"p{dice.randrange(self.scenario.processors + 2)}")
        elif kind == "drain":
            if dice.random() < 0.3:
                self.ask("drain")
        elif kind == "garbage":
            self._garbage()
        elif kind == "poison":
            self.habits.poisoned = dice.random() < 0.3
        elif kind == "old code":
            if dice.random() < 0.3:
                self.start("old", old_code=True)
        elif victim is not None:
            self._harm(kind, victim, lasts)

    def _harm(self, kind: str, victim: Life, lasts: float) -> None:
        dice = self.dice
        self.note(f"{kind}: {victim.name} ({lasts:.1f} s)")
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
            case "cut off":
                kind = dice.choice(["blob", "table", "writes", "all"])
                victim.link.outages.append(Outage(kind, self.loop.time() + lasts, dice.random() < 0.5))
            case "leaves":
                if not victim.supervisor.frozen:
                    victim.processor.leave()

    def ask(self, kind: str, run_id: str = "") -> None:
        """Write a request row, as the command does."""
        key = f"{kind}-{self.dice.getrandbits(64):016x}"
        self.note(f"request: {kind}")
        self.ledger.insert("requests", key, {"kind": kind, "runId": run_id})

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
        """The faults end; everybody who ought to be there is started; then the fleet must heal."""
        self.note("calm: no more faults")
        self.calm = True
        self.weather.clear()
        control = self.ledger.control
        if control is not None and control.phase is not RunPhase.DRAINED and control.fingerprint == OLD_CODE:
            self.habits = Habits(plan_of(self.scenario.sources, self.scenario.counts, OLD_CODE))
            self.note("the old code has begun a run: everybody goes back to it")
        self.habits.poisoned = False
        self.habits.slow_batch = self.habits.slow_release = 0.0
        for life in self.lives.values():
            life.link.outages.clear()
            life.habits.poisoned = False
            life.supervisor.thaw()
            if life.container is not None:
                life.container.process.thaw()
        for timer in self._starting:
            timer.cancel()
        for number in range(self.scenario.processors):
            self.start(f"p{number}", delay=0.1)
        bound = self.heals_within()
        since = self.loop.time()
        while self.loop.time() < since + bound:
            await self._wait(0.25)
            if self.unhealed() is None:
                break
        else:
            raise Violation(f"L1: {bound:.0f} s after the last fault {self.unhealed()}")
        self.note(f"healed after {self.loop.time() - since:.1f} s")
        await self._stay()

    async def _stay(self) -> None:
        """S11: without a fault nothing moves and nobody else leads."""
        await self._wait(10 + 3 * self.timing.heartbeat_timeout_s)
        control = self.ledger.control
        await self._wait(3 * self.timing.heartbeat_timeout_s)
        after = self.ledger.control
        assert control is not None and after is not None
        if after.phase is RunPhase.RUNNING:
            demand(after.epoch == control.epoch, f"S11: epoch {control.epoch} became {after.epoch} without a fault")
            demand(after.version == control.version, f"S11: version {control.version} became {after.version}")
            demand(self.unhealed() is None, f"L1: healed, and then {self.unhealed()}")

    def heals_within(self) -> float:
        """How long it may take until all is well again, from any state."""
        timing = self.timing
        deaths = 4 * timing.heartbeat_timeout_s + 2 * 16 * timing.leader_timeout_s
        return HEALS_WITHIN * timing.heartbeat_s + deaths + 4 * self.habits.shutdown_s + 40.0

    def unhealed(self) -> str | None:
        """What is still wrong."""
        control = self.ledger.control
        if control is None:
            return "there is no control blob"
        alive = {name: life for name, life in self.lives.items() if life.supervisor.alive}
        if control.phase is RunPhase.DRAINED:
            return f"the run is drained, {list(alive)} live on, and no other run begins" if alive else None
        if not alive:
            return "nobody lives"
        if control.phase not in (RunPhase.RUNNING, RunPhase.DRAINING):
            return f"the run is {control.phase}"
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
        return None

    async def _drain(self) -> None:
        """The end: a drain, after which every row must be in the output exactly once, and nobody lives."""
        control = self.ledger.control
        assert control is not None
        if control.phase is RunPhase.RUNNING:
            self.ask("drain")
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
        left = [name for name, _ in self.ledger.list("runs/") if "/clean-" in name]
        demand(not left, f"S12: {left} were left after the clean-up")

    # S7: each row exactly once.

    def _drained(self, control: Control) -> None:
        """The output of a run that was just declared drained is what a serial reader would have written."""
        begin = self.fed.get(control.past[-2], {}) if len(control.past) > 1 else {}
        end = {
            number: control.positions.get(f"{SOURCE}/{number}", (0, 0))[1] for number in range(self.scenario.sources)
        }
        self.fed[control.run_id] = end
        rows = {number: range(begin.get(number, 0), to) for number, to in end.items()}
        for number, wanted in rows.items():
            got = [row for part in self._read(control.run_id, f"clean-{number}") for row in part]
            wrong = sorted(map(tuple, got)) != [(number, each) for each in wanted]
            demand(not wrong, f"S7: clean-{number} wrote {len(got)} rows of {len(wanted)}")
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
        blobs = MemoryAccount(self.ledger).blobs()
        found = drive(scan(f"runs/{run_id}/{task}", (0, 0), reads_max=None), blobs)
        return [json.loads(drive(fetch_part(part), blobs)) for part in found.parts]

    # Checks on what processors do.

    def check_command(self, life: Life, command: Command) -> None:
        """S4 and S5, at the moment a command is given."""
        view, control = life.processor.view, self.ledger.control
        if isinstance(command, Permit) and command.until > 0:
            bound = self.ledger.permit_bound(view.incarnation)
            true = life.clock.instant(command.until)
            slack = 0.06 * self.timing.heartbeat_timeout_s if self.scenario.clocks else 1e-6
            demand(true <= bound + slack, f"S4: {life.name} permits work until {true:.2f}, and {bound:.2f} is allowed")
        if isinstance(command, ReleaseTask) and control is not None and view.ending is None:
            owner = control.tasks[command.task].owner if command.task in control.tasks else None
            local = view.tasks.get(command.task)
            running = control.phase in (RunPhase.RUNNING, RunPhase.DRAINING)
            still = (
                owner is not None
                and local is not None
                and (owner.member, owner.generation) == (view.member, local.generation)
            )
            demand(not (running and still), f"S5: {life.name} releases {command.task}, which is still its own")

    def check_view(self, life: Life, view: View) -> None:
        """Nothing yet that only the view shows."""


def play(scenario: Scenario) -> Result:
    """Play one scenario to its end."""
    return World(scenario).play()


def start_all(work: Coroutine[Any, Any, T]) -> T:
    """Run something on virtual time, for tests."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
