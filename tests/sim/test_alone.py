"""Groups of one: whatever starts, dies, freezes or is cut off, no version gives tasks to two processors."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from samza_azure.errors import Verdict
from samza_azure.group.actions import Finish
from samza_azure.group.control import RunPhase
from samza_azure.group.rows import RequestKind
from samza_azure.group.view import Settings
from samza_azure.messages import Phase
from simulator.ledger import demand
from simulator.life import Life
from simulator.network import Outage
from tests.sim.test_ending import Story, played, two_of

LOOK_S = 0.1


class Alone(Story):
    """Three processors, each of which is to be alone. An orchestrator starts again what was refused."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.refused: list[str] = []
        self.standbys: set[str] = set()  # those with the other factory

    def _settings(self, name: str) -> Settings:
        return replace(super()._settings(name), alone=name not in self.standbys)

    def ended(self, life: Life, finish: Finish) -> None:
        if finish.code is not Verdict.REFUSED:
            super().ended(life, finish)
            return
        life.supervisor.alive, self.last_ended = False, life
        demand("runs this job" in finish.message, f"Exit: {life.name} ended with 2: {finish.message}")
        demand(life.name not in self.standbys, f"Exit: {life.name} is not to be alone")
        self.refused.append(life.name)
        self.start(life.name, delay=self._back())

    async def _play(self) -> None:
        for number in range(self.scenario.processors):
            self.start(f"p{number}", delay=self.dice.choice([0.0, self.dice.uniform(0.0, 5.0)]))
        await self._one_runs_all()
        await self._story()
        self.ask(RequestKind.DRAIN)
        await self._until("drained, and the output is exact", lambda: self.control.phase is RunPhase.DRAINED, 120.0)

    async def _story(self) -> None:
        """What happens."""

    async def _until(self, what: str, is_so: Callable[[], bool], bound: float = 60.0, step: float = LOOK_S) -> None:
        def one_at_most() -> bool:
            owners, control = sorted(self._owners()), self.ledger.control
            is_alone = (
                control is not None and control.leader is not None and control.leader.processor not in self.standbys
            )
            demand(len(owners) <= 1 or not is_alone, f"Alone: {owners} have tasks in one version")
            return is_so()

        await super()._until(what, one_at_most, bound, step)

    def _owners(self) -> set[str]:
        tasks = self.ledger.control.tasks.values() if self.ledger.control is not None else ()
        return {each.owner.processor for each in tasks if each.owner is not None}

    def _where(self) -> Life | None:
        """The life of the processor that runs all tasks, if one does."""
        for name in self._owners():
            life = self.lives[name]
            local = life.processor.view.work.tasks
            mine = {task: each.owner.generation for task, each in self.control.tasks.items() if each.owner is not None}
            runs = {task: each.generation for task, each in local.items() if each.phase is Phase.RUNNING}
            if life.supervisor.alive and mine and mine == runs and len(mine) == len(self.control.tasks):
                return life
        return None

    async def _one_runs_all(self, but: Life | None = None) -> Life:
        await self._until("one runs all tasks", lambda: self._where() not in (None, but), 90.0)
        found = self._where()
        assert found is not None
        return found


@pytest.mark.parametrize("seed", two_of(4))
def test_of_several_that_start_one_runs_all_and_the_others_are_refused_again_and_again(seed: int) -> None:
    class Started(Alone):
        async def _story(self) -> None:
            life, version = self._where(), self.control.version
            assert life is not None
            others = {f"p{number}" for number in range(self.scenario.processors)} - {life.name}
            await self._until("each was refused", lambda: min(map(self.refused.count, others)) >= 2, 120.0)
            assert life.name not in self.refused
            assert (self._where(), self.control.version) == (life, version), "nothing has moved"

    played(Started(seed))


@pytest.mark.parametrize("seed", two_of(4))
def test_when_it_dies_or_freezes_or_is_cut_off_another_start_has_all_tasks(seed: int) -> None:
    class Lost(Alone):
        async def _story(self) -> None:
            for what in self.dice.sample(["dies", "leaves", "freezes", "is cut off"], 4):
                life = await self._one_runs_all()
                self.note(f"{life.name} {what}")
                if what == "dies":
                    life.crash()
                    self.start(life.name, delay=self.dice.uniform(20.0, 40.0))
                elif what == "leaves":
                    life.leave()
                elif what == "freezes":
                    life.freeze(60.0, supervisor=True, container=self.dice.random() < 0.5)
                else:
                    life.link.outages.append(Outage("all", self.loop.time() + 60.0, hangs=self.dice.random() < 0.5))
                await self._one_runs_all(but=life)
            await self._wait(60.0)

    played(Lost(seed))


@pytest.mark.parametrize("seed", range(2))
def test_one_with_the_other_factory_stands_by_and_takes_over(seed: int) -> None:
    class Standby(Alone):
        async def _story(self) -> None:
            life, version = self._where(), self.control.version
            assert life is not None
            self.standbys = {"standby"}
            self.start("standby")
            await self._until("it has joined", lambda: "standby" in self.lives)
            await self._wait(30.0)
            assert (self._where(), self.control.version) == (life, version), "it has no task"
            life.crash()
            standby = await self._one_runs_all(but=life)
            assert standby.name == "standby"
            self.start(life.name)
            await self._until("the other is refused", lambda: life.name in self.refused, 60.0)
            assert self._where() is standby

    played(Standby(seed))
