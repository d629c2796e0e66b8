"""A fleet in one thread: the production `Processor` over a faulty network, with its containers, from one seed.

All events are drawn from the seed and written into a history, so the same seed gives the same history. First
come the faults, drawn for each seed, then a calm. After the faults the fleet must heal within a bound (L1), and after a
drain each row of the input must be in the output exactly once (S7). Under mild trouble that never ends the work must
continue (L2). What the ledger cannot see is checked here and in `promises.py`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from random import Random

from samza_azure.group.control import Control, RunPhase
from samza_azure.group.rows import RequestKind
from samza_azure.host.deaths import Deaths
from samza_azure.logs.names import RUNS
from samza_azure.storage.memory import MemoryAccount, SimulatedAccount
from simulator.container import CLEANERS
from simulator.faults import Faults
from simulator.healing import blind_within, handled_within, heals_within, idle, led_by, not_given_on, unhealed
from simulator.ledger import Violation, demand
from simulator.life import Life
from simulator.network import Outage
from simulator.processors import FailOver, Result
from simulator.promises import (
    FAIR_SHARE,
    Watch,
    applies,
    is_able,
    runs_within,
    stated,
    unshared,
    vacant,
    vacant_at_most,
    within,
)
from simulator.scenario import Scenario, draw
from simulator.steps import RARE, STEPS

#: A run fails within this time if all its tasks do, unless it is drained before.
FAILS_WITHIN_S = 90.0
#: The interval between checks of the world.
LOOK_S = 0.25
#: Under mild trouble each task runs for at least this share of the time (L2).
RUNNING_SHARE = 0.95
#: The time within which all processors are started at the beginning.
STARTS_WITHIN_S = 10.0
#: The longest wait, before a lull, for earlier faults to end.
LULL_S = 30.0
#: In a steered fleet, the share of waiting faults that wait for the pairs of fault and step that have met least.
STEERED = 0.7


class _Alarm(logging.Handler):
    """Makes an error in the log of a processor a failure of the seed."""

    def __init__(self, world: "World") -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.broken(self._world.loop, {"message": record.getMessage()})


class World(Faults):
    """One scenario and its simulation."""

    def __init__(self, scenario: Scenario, account: Callable[..., SimulatedAccount] = MemoryAccount) -> None:
        super().__init__(scenario, account)
        self.blind = ""  # a processor that never reaches the blob again
        self._watch = Watch(self.ledger, self.lives, self.weather, clocks=scenario.clocks)

    def play(self) -> Result:
        """Play from the first start to the last check."""
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self.broken)
        alarm = _Alarm(self)
        logger = logging.getLogger("samza_azure.host.processor")
        logger.addHandler(alarm)
        logger.propagate = False
        try:
            self.loop.run_until_complete(self._play())
        except Exception as error:  # noqa: BLE001 -- any error is the result of this seed
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

    async def _play(self) -> None:
        self._raise_storm()
        for number in range(self.scenario.processors):
            self.start(f"p{number}", delay=self.dice.choice([0.0, self.dice.uniform(0, STARTS_WITHIN_S)]))
        await (self._mild_trouble() if self.scenario.style == "mild" else self._faults())
        await self._calm_down()
        await self._drain()

    async def _faults(self) -> None:
        """Inject faults one after the other, at any moment or when a certain step begins next."""
        scenario, dice = self.scenario, self.dice
        self._look()
        if scenario.lasting:
            self.loop.call_later(dice.uniform(0, scenario.fault_s / 2), self._outlast_a_lease)
        if scenario.throttled:  # once at least
            lasts = dice.uniform(1, 3) * self.timing.heartbeat_timeout_s
            self.loop.call_later(dice.uniform(0, scenario.fault_s), self._throttle, lasts)
        lull_at = dice.uniform(0, scenario.fault_s / 2) if scenario.lulls and applies(self.weather) else float("inf")
        await self._wait(dice.uniform(0, 3 * self.timing.heartbeat_timeout_s))
        while self.loop.time() < scenario.fault_s:
            if scenario.watched and not any(life.supervisor.alive for life in self.lives.values()):
                self._go_back()
                self._raise_storm()
                for number in range(scenario.processors):
                    self.start(f"p{number}", delay=self._back())
            if self.loop.time() >= lull_at and await self._lull():
                lull_at = float("inf")
            elif scenario.faults:
                if dice.random() < scenario.aimed:
                    if scenario.rare and dice.random() < STEERED:
                        self._aim(*dice.choice(scenario.rare))
                    else:
                        self._aim(dice.choice(scenario.aims or scenario.faults), dice.choice((*STEPS, *RARE, *RARE)))
                else:
                    self._fault(dice.choice(scenario.faults))
            await self._wait(dice.expovariate(1 / scenario.every_s))

    async def _lull(self) -> bool:
        """Kill one processor, with no other fault for as long as healing may take, to check Bound. False if the fleet
        does not come to rest soon."""
        self.is_lull, until = True, self.loop.time() + LULL_S
        while self.loop.time() < until and not self._is_at_rest():
            await self._wait(LOOK_S)
        if is_possible := self._is_at_rest():
            control, leads = self._control, self.dice.random() < 0.5
            owners = {each.owner.processor for each in control.tasks.values() if each.owner is not None}
            assert control.leader is not None, "at rest"
            victim = self.lives[control.leader.processor] if leads else self.lives[self.dice.choice(sorted(owners))]
            self.note(f"{victim.name} dies in a lull")
            self.faults += 1
            victim.crash()
            self._disturb()
            bound = vacant_at_most(self.timing, control, len(self.lives), "a task", self.weather, replicas=False)
            await self._wait(within(bound, clocks=self.scenario.clocks) + 4 * LOOK_S)
            self.start(victim.name)
        self.is_lull = False
        return is_possible

    def _is_at_rest(self) -> bool:
        """Whether a run is in progress, no processor is starting or leaving, and no fault lasts."""
        alive, control = [life for life in self.lives.values() if life.supervisor.alive], self.ledger.control
        stays = len(alive) > 1 and not any(life.asked_to_leave or life.processor.view.ending for life in alive)
        is_quiet = self._quiet_from < self.loop.time() - self.timing.heartbeat_s
        if not (stays and is_quiet) or control is None or control.leader is None or control.stop is not None:
            return False
        return control.phase is RunPhase.RUNNING and not vacant(control, alive)

    def _look(self) -> None:
        """While there are faults, check repeatedly which tasks wait, what is vacant, and what grows."""
        try:
            self._watch.look(self.habits.shutdown_s, self._quiet_from)
        except Violation as error:
            self.broken(self.loop, {"exception": error})
        if not self.calm and self.failed is None:
            self.loop.call_later(LOOK_S, self._look)

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
            demand(
                changes <= 1 + 2 * (self.faults + self.replaced),
                f"S11: {self.faults} faults, and {changes} times another leader",
            )
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
        await self._bear_vandals()
        await self._lose_container()
        if (lost := await self._lose_one()) is not None:
            await self._get_back(lost)
        control, alive = self.ledger.control, sum(life.supervisor.alive for life in self.lives.values())
        if self.scenario.lasting and alive > 2 and control is not None and control.phase is RunPhase.RUNNING:
            await self._half_blind("reads", is_news=True)
            self.lives[self.blind].link.outages.clear()
            self.blind = ""

    async def _lose_container(self) -> None:
        """Let one container end or hang in the calm, in every second world, and check Bound: its tasks run elsewhere as
        soon as those of a dead processor, and are balanced again when the next container is ready."""
        dice, control, timing = Random(f"container {self.scenario.seed}"), self._control, self.timing
        owners = {each.owner.processor for each in control.tasks.values() if each.owner is not None}
        alive = [life for life in self.lives.values() if life.supervisor.alive]
        is_calm = control.phase is RunPhase.RUNNING and not control.given_up and not self.unhealed()
        if not is_calm or len(alive) < 2 or dice.random() < 0.5:
            return
        victim, hangs = self.lives[dice.choice(sorted(owners))], dice.random() < 0.5
        bound = stated(timing, control, len(alive)).container_lost + runs_within(
            timing, len(alive), self.habits.start_s
        )
        bound = within(bound, clocks=self.scenario.clocks)
        self.note(f"the container of {victim.name} {'hangs' if hangs else 'ends'}, and nothing else happens")
        victim.deaths, usual = Deaths(victim.deaths.limit), victim.plan_start_s
        victim.plan_start_s = 4 * bound  # the next one takes too long to wait for
        if hangs:
            victim.freeze(bound, supervisor=False, container=True)
        else:
            victim.container_dies()
        after = f"Bound: {{:.1f}} s after the container of {victim.name} was lost {{}}"
        await self._hold(bound, lambda: idle(self._control, self.lives, victim.name), after)
        self.ledger.seen["judged Bound after a container was lost"] += 1
        victim.plan_start_s = usual
        await self._hold(
            8 * bound,
            lambda: self.unhealed() or self.ledger.lacks_container(victim.name),
            "L1: {:.0f} s after a container was lost {}",
        )

    async def _lose_one(self) -> str | None:
        """Kill one processor in the calm, and check Bound: its tasks run elsewhere within the promised time. Returns
        the processor, if one could be killed.
        """
        control = self._control
        alive = [name for name, life in self.lives.items() if life.supervisor.alive]
        if control.phase is not RunPhase.RUNNING or control.leader is None or len(alive) < 2 or self.unhealed():
            return None
        victim = self._one(self.dice.random() < 0.5)
        leads = victim.name == control.leader.processor
        self.note(f"{victim.name} dies, and nothing else happens")
        victim.crash()
        bounds, since = stated(self.timing, control, len(alive)), self.loop.time()
        clocks = self.scenario.clocks
        after = f"Bound: {{:.1f}} s after {victim.name} died {{}}"
        if leads:
            await self._hold(
                within(bounds.leaderless, clocks=clocks),
                lambda: led_by(self._control, control.epoch),
                after,
            )
        bound = within(bounds.leader_lost if leads else bounds.follower_lost, clocks=clocks) + since - self.loop.time()
        await self._hold(bound, lambda: not_given_on(self._control, self.lives), after)
        stated_s = bounds.leader_lost if leads else bounds.follower_lost
        self.result.fail_over = FailOver("the leader" if leads else "a follower", self.loop.time() - since, stated_s)
        self.ledger.seen[f"judged Bound after {self.result.fail_over.of} died"] += 1
        bound = within(runs_within(self.timing, len(alive), self.habits.start_s), clocks=clocks)
        after = "Bound: {:.1f} s after its tasks were given to others {}"
        if self.scenario.replicas:  # they go to who has one, run and append there, and only then move to an even share
            await self._hold(bound, lambda: self.unhealed(balanced=False), after)
            bound += within(self.timing.barrier_timeout_s, clocks=clocks)
        await self._hold(bound, self.unhealed, after)
        return victim.name

    async def _get_back(self, lost: str) -> None:
        """Start the lost processor again in the calm, and check Idle: it gets its share of the tasks in time."""
        self.note(f"{lost} comes back, and nothing else happens")
        self.start(lost, delay=0.1)
        await self._hold(
            self.heals_within(),
            lambda: None if is_able(self.lives[lost], self._control) else f"{lost} cannot run tasks",
            "L1: {:.0f} s after it was started {}",
        )
        has_too_few = bool(unshared(self._control, self.lives.values()))
        replicas = bool(self.scenario.replicas)
        bound = vacant_at_most(self.timing, self._control, len(self.lives), FAIR_SHARE, self.weather, replicas=replicas)
        await self._hold(
            within(bound, clocks=self.scenario.clocks),
            lambda: f"{lost} has not its share" if unshared(self._control, self.lives.values()) else None,
            "Idle: {:.1f} s after it could run tasks {}",
        )
        self.ledger.seen["judged Idle in calm"] += has_too_few

    async def _heal(self, bound: float, otherwise: str) -> None:
        """Wait until the fleet has healed, which must be within the bound."""
        await self._hold(bound, self.unhealed, otherwise)

    async def _hold(self, bound: float, trouble: Callable[[], str | None], otherwise: str) -> None:
        """Wait until the trouble is over, which must be within the bound."""
        since = self.loop.time()
        while (wrong := trouble()) is not None:
            demand(self.loop.time() < since + bound, otherwise.format(bound, wrong))
            await self._wait(LOOK_S)
        self.note(f"healed after {self.loop.time() - since:.1f} s")

    async def _stay(self) -> None:
        """Check S11: without a fault no task moves and the leader stays."""
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
                self.ledger.seen["judged Cost in calm"] += 1
                reports = len(after.tasks) * seconds / (self.habits.batch_s / 2)  # the highest rate of batches
                wrong = self.ledger.cost.usual(calls, seconds, self.timing, alive, reports)
                demand(wrong is None, f"{wrong}, in calm")

    async def _bear_vandals(self) -> None:
        """Check Vandal, in the calm: nothing that strangers write into the table changes anything."""
        before, alive = self._control, {name for name, life in self.lives.items() if life.supervisor.alive}
        if before.phase is not RunPhase.RUNNING or self.unhealed() is not None:
            return
        dice = Random(f"vandal {self.scenario.seed}")
        self.note("strangers write into the table")
        for _ in range(3):
            self._vandalize(dice)
            await self._wait(self.timing.heartbeat_timeout_s)
        after, still = self._control, {name for name, life in self.lives.items() if life.supervisor.alive}
        self.ledger.seen["judged Vandal"] += 1
        demand(still == alive, f"Vandal: {sorted(alive - still)} ended")
        demand(after.epoch == before.epoch, f"Vandal: epoch {before.epoch} became {after.epoch}")
        same = after.version == before.version or after.given_up != before.given_up
        demand(same, f"Vandal: version {before.version} became {after.version}")
        same = after.phase in (before.phase, RunPhase.FAILED) and after.stop is None
        demand(same, f"Vandal: the run is {after.phase}, and {after.stop} is to stop")

    def heals_within(self) -> float:
        """The time within which the fleet heals, from any state."""
        return heals_within(self.timing, self.ledger.control, self.habits.shutdown_s)

    def unhealed(self, *, balanced: bool = True) -> str | None:
        """The first trouble found; None if the fleet has healed. Without `balanced`, shares may differ."""
        return unhealed(self.ledger, self.lives, self.blind, balanced=balanced)

    # L2: trouble that never ends.

    async def _mild_trouble(self) -> None:
        """Errors and slow calls all the time, a short pause each minute; then deaths; then a half-blind processor."""
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
        if len(self.lives) > 2:  # of two processors, a blind one and one that leaves, none could lead
            is_news = Random(f"half blind {self.scenario.seed}").random() < 0.5
            await self._half_blind("blob", is_news=is_news)

    async def _go_on(self) -> None:
        """Check S11, the leader stays, and L2, each task runs nearly always."""
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
        """Let one processor send heartbeats but no longer read the control blob. Its tasks must move: with `is_news`,
        because it does not adopt the version after another has left; otherwise, because it notices its blindness."""
        if not is_news:  # nor anything from a processor that has just started
            await self._wait(10.0)
            await self._heal(self.heals_within(), "L2: {:.0f} s after a start {}")
        victim = self._one(False)
        for _ in range(round(self._handled_within(leads=True))):
            control = self._control
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
        clocks, start_s = self.scenario.clocks, self.habits.start_s
        bound = blind_within(self.timing, start_s, is_news=is_news, clocks=clocks)
        await self._heal(bound, "L2: {:.0f} s after a processor lost sight of the blob {}")

    def _one(self, leads: bool) -> Life:
        """The leader, or any other processor."""
        control = self.ledger.control
        leader = control.leader.processor if control is not None and control.leader is not None else ""
        alive = [life for life in self.lives.values() if life.supervisor.alive]
        return self.dice.choice([life for life in alive if (life.name == leader) == leads] or alive)

    def _handled_within(self, leads: bool) -> float:
        return handled_within(self.timing, self.habits.start_s, leads=leads)

    @property
    def _control(self) -> Control:
        assert self.ledger.control is not None
        return self.ledger.control

    # The end.

    async def _drain(self) -> None:
        """Drain the run. Then each row must be in the output exactly once, and no processor may be left."""
        control = self._control
        if control.phase is RunPhase.RUNNING:
            self.ask(RequestKind.DRAIN)
            if self.scenario.lasting:
                await self._fail_in_the_drain()
        await self._end("after the drain was requested")
        if not self._control.cleaned and self._is_left_to_the_next():
            self.again = ""  # it cleans up, and begins no run, as upgraded code would
            self.start("p0", code=self._control.fingerprint)
            await self._wait(LOOK_S)
            await self._end("after a processor came back to clean up")
        demand(self._control.cleaned, "S12: all processors are gone, and the drained run is not cleaned up")
        # A request to create a blob that lands after the clean-up leaves an empty blob, which cannot be prevented.
        found = self.ledger.list(RUNS)
        left = [name for name, size in found if size > 0 and any(f"/{stage}-" in name for stage in CLEANERS)]
        demand(not left, f"S12: {left} were left after the clean-up")

    async def _end(self, since: str) -> None:
        """Wait until the run is drained and all processors have ended."""
        begun, bound = self.loop.time(), self.heals_within()
        while self.loop.time() < begun + bound:
            await self._wait(0.5)
            living = [name for name, life in self.lives.items() if life.supervisor.alive]
            if self._control.phase is RunPhase.DRAINED and not living:
                return
        raise Violation(f"L1: {bound:.0f} s {since} the run is {self._control.phase}, {living} live")

    def _is_left_to_the_next(self) -> bool:
        """Whether the clean-up is up to the next processor that starts: all were stopped, or the leader was killed when
        the others had nothing left to do, and nobody has started it again."""
        leader, stop, last = self._control.leader, self._control.stop, self.last_ended
        is_killed = leader is not None and self.lives[leader.processor].finish is None
        is_stopped = stop is not None and last is not None and last.processor.view.member in stop.members
        return is_killed or is_stopped or (last is not None and last.asked_to_leave)

    async def _fail_in_the_drain(self) -> None:
        """Let user code fail until the run has failed. Processors that come back then continue the drain."""
        self.habits.poisoned = 1.0
        failed, until = self.ledger.seen["phase FAILED"], self.loop.time() + FAILS_WITHIN_S
        while self.ledger.seen["phase FAILED"] == failed and self.loop.time() < until:
            await self._wait(LOOK_S)
        self.habits.cure()


def play(scenario: Scenario) -> Result:
    """Play one scenario to its end."""
    return World(scenario).play()


__all__ = ["FailOver", "Result", "Scenario", "World", "draw", "play"]
