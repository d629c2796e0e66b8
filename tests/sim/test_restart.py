"""A processor that is restarted soon after its death keeps its tasks: one new version, and no other processor ever has
them."""

from dataclasses import replace

import pytest

from samza_azure.group.rows import RequestKind
from samza_azure.group.view import Settings
from simulator.processors import OTHER_STAGES
from tests.sim.test_ending import Story, played


class Restarted(Story):
    """Processors that know that their predecessor is gone, as those on one machine with a directory of their own do."""

    def _settings(self, name: str) -> Settings:
        return replace(super()._settings(name), holds_directory=True)

    container_s = 0.2  # until the containers of those that start from now on are up

    def _start(self, name: str, code: str) -> None:
        super()._start(name, code)
        if name not in self.stuck:
            self.lives[name].plan_start_s = self.container_s

    def _where(self) -> dict[str, str]:
        return {task: each.owner.processor for task, each in self.control.tasks.items() if each.owner is not None}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("container_s", [0.2, 4.0], ids=["its container is soon up", "its container takes a while"])
def test_a_processor_back_within_the_death_timeout_keeps_its_tasks(seed: int, container_s: float) -> None:
    class Back(Restarted):
        async def _play(self) -> None:
            await self._runs()
            await self._wait(3 * self.timing.debounce_s)
            where, version, victim = self._where(), self.control.version, self._life(leads=False)
            victim.crash()
            self.container_s = container_s
            self.start(victim.name, delay=1.0)

            def is_well() -> bool:
                assert self._where() == where, "a task has moved"
                return self.control.version > version and self.unhealed() is None

            await self._until("its tasks run again", is_well, 2 * self.timing.heartbeat_timeout_s)
            versions = self.control.version
            await self._wait(2 * self.timing.heartbeat_timeout_s)
            assert (self._where(), self.control.version) == (where, versions)

    played(Back(seed))


def test_the_tasks_of_one_whose_container_does_not_come_up_move_after_a_death_timeout() -> None:
    class Stuck(Restarted):
        async def _play(self) -> None:
            await self._runs()
            victim = self._life(leads=False)
            self.stuck = {victim.name}
            victim.crash()
            self.start(victim.name, delay=1.0)
            bound = 2 * self._handled_within(leads=False)
            await self._until("others run them", lambda: victim.name not in self._where().values(), bound)

    played(Stuck(1))


class Drained(Restarted):
    """An orchestrator starts again whatever ends."""

    def _settings(self, name: str) -> Settings:
        return replace(super()._settings(name), restarted=self.numbers[name] > 1)

    def _replace_soon(self, run_id: str) -> None:
        """No operator sends them away: what those do that stand by is the story."""


def test_a_drained_fleet_that_is_restarted_stands_by_with_one_leader() -> None:
    """It changed its leader with each restart, forever. It makes no more calls than a group that is calm."""

    class Calm(Drained):
        async def _play(self) -> None:
            await self._runs()
            self.ask(RequestKind.DRAIN)
            names = [f"p{number}" for number in range(self.scenario.processors)]
            await self._until("all have been restarted", lambda: all(self.numbers[name] > 1 for name in names))
            await self._wait(4 * self.timing.leader_timeout_s)
            epoch, numbers, calls = self.control.epoch, dict(self.numbers), self.ledger.cost.calls
            await self._wait(60.0)
            assert (self.control.epoch, dict(self.numbers)) == (epoch, numbers)
            calls = self.ledger.cost.calls - calls
            assert self.ledger.cost.usual(calls, 60.0, self.timing, len(names), 0.0) is None
            assert all(self.lives[name].supervisor.alive for name in names)

    played(Calm(1))


def test_changed_code_begins_the_next_run_among_those_that_stand_by() -> None:
    class Upgraded(Drained):
        async def _play(self) -> None:
            await self._runs()
            self.ask(RequestKind.DRAIN)
            names = [f"p{number}" for number in range(self.scenario.processors)]
            await self._until("all have been restarted", lambda: all(self.numbers[name] > 1 for name in names))
            self.start("new", code=OTHER_STAGES)
            await self._until("the next run has begun", lambda: self.control.fingerprint == OTHER_STAGES, 30.0)

    played(Upgraded(1))


def test_upgraded_code_that_was_started_soon_after_a_drain_ends_with_its_own_run() -> None:
    """It was mistaken for a restart of the old code, and stood by for an upgrade when its own run was drained."""

    class Upgraded(Drained):
        async def _play(self) -> None:
            await self._runs()
            self.code = OTHER_STAGES
            self.ask(RequestKind.DRAIN)
            await self._until("the next run has begun", lambda: self.control.fingerprint == OTHER_STAGES)
            names, starts = {f"p{number}" for number in range(self.scenario.processors)}, dict(self.numbers)
            await self._until("all take part", lambda: {each.processor for each in self.control.members} == names)
            self.ask(RequestKind.DRAIN)
            await self._until("all have ended", lambda: all(self.numbers[name] > starts[name] for name in names))

    played(Upgraded(1))
