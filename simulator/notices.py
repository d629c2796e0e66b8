"""Noticed deaths: a processor is told that it will go, and at the deadline it dies, whatever happens.

A notice may be withdrawn, or come too late to be of any use. One that comes in time, while there is nothing else wrong
and another processor to take over, must be heeded in time: *Notice*.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from samza_azure.group.control import Control, RunPhase
from samza_azure.group.timing import Timing
from samza_azure.storage.memory import MemoryAccount, SimulatedAccount
from simulator.ledger import CLOCK_RATE, demand
from simulator.life import Life
from simulator.processors import Processors
from simulator.promises import CALL_S, applies, is_able, vacant
from simulator.scenario import Scenario

#: How many seconds of notice there are.
NOTICES_S = (0.0, 1.0, 5.0, 15.0, 30.0, 60.0)
#: The calls between a notice and the release of a task, one after another, with a few that are under way.
CALLS = 10


def handed_over_within(timing: Timing, work_s: float, release_s: float) -> float:
    """How long a processor takes to hand over, if nothing else is wrong: the leader's next scan, its own next look, a
    batch and the release; a leader that goes hands over after the same time at the latest."""
    return 2 * timing.scan_s + timing.heartbeat_s + work_s + release_s + CALLS * CALL_S


@dataclass(frozen=True, slots=True)
class NoticedDeath:
    """One death to come, and whether everything is as it has to be for *Notice*."""

    life: Life
    told_at: float
    dies_at: float
    is_judged: bool


class Notices(Processors):
    """Processors that are told that they will go."""

    def __init__(self, scenario: Scenario, account: Callable[..., SimulatedAccount] = MemoryAccount) -> None:
        super().__init__(scenario, account)
        self._notice_dice = Random(f"notices {scenario.seed}")
        self._gone_on: set[str] = set()  # those whose end was decided

    def _tell(self, kind: str) -> int:
        """Tell some processors that they will go. Return how many were told."""
        dice, alive = self._notice_dice, [life for life in self.lives.values() if self._may_be_told(life)]
        victims = self._of(kind, alive)
        seconds = dice.choice(NOTICES_S)
        control, begun = self.ledger.control, self.loop.time()
        others = [life for life in alive if life not in victims]
        is_judged = self._is_quiet(others) and seconds >= self._bound()
        for life in victims:
            self.note(f"{kind}: {life.name} will go in {seconds:g} s")
            self.ledger.steps.meet("noticed")
            self._disturb()
            life.notice("event", seconds)
            if kind == "notice withdrawn":
                self.loop.call_later(seconds * dice.random(), self._take_back, life)
            else:
                death = NoticedDeath(life, begun, begun + seconds, is_judged and control is not None)
                self.loop.call_later(seconds, self._die, death)
        return len(victims)

    def _may_be_told(self, life: Life) -> bool:
        return life.supervisor.alive and not life.asked_to_leave and not life.processor.view.notices

    def _of(self, kind: str, alive: Sequence[Life]) -> list[Life]:
        dice, control = self._notice_dice, self.ledger.control
        if not alive:
            return []
        if kind == "noticed, all":
            return list(alive)
        if kind == "noticed, several":
            return dice.sample(alive, min(len(alive), 2))
        leader = control.leader.processor if control is not None and control.leader is not None else ""
        leads = [life for life in alive if life.name == leader]
        return leads if kind == "noticed, the leader" and leads else [dice.choice(alive)]

    def _is_quiet(self, others: Sequence[Life]) -> bool:
        """Whether a run is in progress, all is well, and one of the others can take tasks."""
        control, weather = self.ledger.control, self.weather
        is_calm = not max(weather.tail, weather.refused, weather.lost, weather.late, self.habits.slow_release)
        if control is None or not applies(weather) or not is_calm or self.scenario.style == "busy":
            return False
        if control.phase is not RunPhase.RUNNING or control.stop is not None or control.leader is None:
            return False
        alive = [life for life in self.lives.values() if life.supervisor.alive]
        is_still = self._quiet_from < self.loop.time() - 2 * self.timing.heartbeat_s and not vacant(control, alive)
        adopted = all(life.processor.view.own.control is not None for life in alive)
        return is_still and adopted and any(self._can_take(life, control) for life in others)

    def _can_take(self, life: Life, control: Control) -> bool:
        has_joined = any(member.incarnation == life.processor.view.incarnation for member in control.members)
        return has_joined and is_able(life, control) and not life.supervisor.frozen

    def _bound(self) -> float:
        habits = self.habits
        work_s = habits.work_s * (20.0 if habits.slow_batch else 1.0)
        return handed_over_within(self.timing, work_s, habits.release_s) / (CLOCK_RATE if self.scenario.clocks else 1.0)

    def _take_back(self, life: Life) -> None:
        if life.supervisor.alive:
            self.note(f"{life.name} stays after all")
            self._disturb()
            life.take_back("event")

    def _die(self, death: NoticedDeath) -> None:
        """It dies now. If nothing else has happened since, it has handed over everything."""
        life, control = death.life, self.ledger.control
        if not life.supervisor.alive or self.calm or not life.processor.view.notices:
            return
        if death.is_judged and control is not None and self._quiet_from <= death.told_at:
            self.ledger.seen["judged Notice"] += 1
            me, late = life.processor.view.incarnation, f"{death.dies_at - death.told_at:g} s after its notice"
            owned = [task for task, each in control.tasks.items() if each.owner and each.owner.incarnation == me]
            demand(not owned, f"Notice: {life.name} still has {owned} {late}")
            leads = control.leader is not None and control.leader.incarnation == me
            demand(not leads, f"Notice: {life.name} still leads {late}")
            works = [task for task, local in life.processor.view.work.tasks.items() if not local.closed]
            demand(not works, f"Notice: {life.name} has not released {works} {late}")
        self.note(f"{life.name} dies, as it was told")
        self._disturb()
        life.crash()
        self.start(life.name, delay=self._notice_dice.uniform(0.5, 10.0))


__all__ = ["NOTICES_S", "Notices", "handed_over_within"]
