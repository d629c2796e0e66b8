"""One life of a processor: the production `Processor`, a container, the channel between them, and its own clock."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol, TypeVar, cast

from samza_azure.group.actions import Finish
from samza_azure.group.answers import Kept
from samza_azure.group.control import Control
from samza_azure.group.notice import Notice
from samza_azure.group.rows import REQUESTS
from samza_azure.group.timing import LISTEN_S
from samza_azure.group.view import Settings
from samza_azure.host.copies import keep_copy
from samza_azure.host.deaths import Deaths
from samza_azure.host.processor import ContainerLost, ContainerSilent, Doorbells, Processor
from samza_azure.host.runs import RunLogs, lost_control
from samza_azure.messages import Command, Kill, Phase, Ready, Report, TaskReport
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import Link, SimulatedAccount
from simulator.container import Container, Habits
from simulator.freshness import Freshness
from simulator.ledger import Ledger, Violation
from simulator.loop import Process
from simulator.network import FaultyLink, Weather

T = TypeVar("T")
#: A container that says nothing for this long is killed, as with the default of `task.shutdown.ms`.
SILENCE_S = 30.0
#: A clock's rate is wrong by at most this much.
RATE_ERROR = 0.1
#: How far the machines' wall clocks differ: nothing may depend on them.
WALL_ERROR_S = 3600.0


class LifeContext(Protocol):
    """The part of the world that a life uses."""

    dice: Random
    weather: Weather
    ledger: Ledger

    def instant(self) -> float:
        """The true time."""

    def account(self, link: Link) -> SimulatedAccount:
        """The storage, over this link."""

    def note(self, text: str) -> None:
        """Add a line to the history."""

    def ended(self, life: "Life", finish: Finish) -> None:
        """Called when the processor has ended."""

    def turned(self, life: "Life") -> None:
        """Called when the processor has had a turn."""

    def port_closed(self, life: "Life") -> None:
        """Called when the process of the processor has ended."""

    def check_command(self, life: "Life", command: Command) -> None:
        """Check what must hold when a command is given to the container."""


class Clock:
    """One machine's clock and random numbers. The machine may sleep, so its clock may jump forwards, never back."""

    def __init__(self, instant: Callable[[], float], dice: Random, *, wrong: bool) -> None:
        self._instant, self._dice = instant, dice
        self._rate = 1 + (dice.uniform(-RATE_ERROR, RATE_ERROR) if wrong else 0.0)
        self._origin = dice.uniform(0, 1e6)
        self._wall = dice.uniform(-WALL_ERROR_S, WALL_ERROR_S) if wrong else 0.0

    def now(self) -> float:
        """The local time."""
        return self._origin + self._instant() * self._rate

    def instant(self, local: float) -> float:
        """The true time of a local time."""
        return (local - self._origin) / self._rate

    def jump(self, seconds: float) -> None:
        """Jump forwards, as after a sleep of the machine."""
        self._origin += seconds

    def wall_ms(self) -> int:
        """The wall time of this machine."""
        return 1_700_000_000_000 + int((self._wall + self._instant()) * 1000)

    def random(self) -> float:
        """At least 0, below 1."""
        return self._dice.random()

    def fresh_id(self) -> str:
        """An id that was never returned before."""
        return f"{self._dice.getrandbits(128):032x}"


class _Asks(BaseException):
    """Raised by a call that has no answer yet. No ordinary handler catches it."""

    def __init__(self, operation: str, effect: Callable[[], Any]) -> None:
        self.operation, self.effect = operation, effect


class _Answered:
    """Blobs for a synchronous function: its first calls get these answers, the next one raises `_Asks`."""

    def __init__(self, blobs: Blobs, answers: Sequence[Any]) -> None:
        self._blobs, self._answers = blobs, iter(answers)

    def list(self, prefix: str) -> Any:
        return self._answer("blobs.list", lambda: self._blobs.list(prefix))

    def read(self, name: str, start: int, length: int | None = None) -> Any:
        return self._answer("blobs.read", lambda: self._blobs.read(name, start, length))

    def put(self, name: str, data: bytes) -> Any:
        return self._answer("blobs.put", lambda: self._blobs.put(name, data))

    def delete_many(self, names: Sequence[str]) -> Any:
        return self._answer("blobs.delete", lambda: self._blobs.delete_many(names))

    def _answer(self, operation: str, effect: Callable[[], Any]) -> Any:
        for answer in self._answers:
            return answer
        raise _Asks(operation, effect)


class SimulatedRuns(RunLogs):
    """`RunLogs` without a thread."""

    def __init__(self, account: SimulatedAccount) -> None:
        super().__init__(account.blobs())
        self._account = account

    async def refuse_if_any(self) -> None:
        storage = self._account.storage
        if (error := await self._account.carry("blobs.list", lambda: lost_control(storage), 10.0)) is not None:
            raise error

    async def keep_copy(self, control: Control) -> None:
        await self._over_the_network(lambda blobs: keep_copy(blobs, control))

    async def clean(self, run_id: str) -> Kept | None:
        def clean(blobs: Blobs) -> Kept | None:
            self._blobs = blobs
            return self._clean(run_id, threading.Event())

        return await self._over_the_network(clean)

    async def _over_the_network(self, call: Callable[[Blobs], T]) -> T:
        """The real work; its calls go over the network. It is run again for each of them, with the answers of the
        earlier ones, and repeats the same steps up to there."""
        answers: list[Any] = []
        while True:
            try:
                return call(cast(Blobs, _Answered(self._account.storage, answers)))
            except _Asks as asked:
                answers.append(await self._account.carry(asked.operation, asked.effect, 10.0))


class Life:
    """One life, from a start to an end or a crash."""

    def __init__(
        self,
        world: LifeContext,
        clock: Clock,
        number: int,
        settings: Settings,
        habits: Habits,
        plan_start_s: float,
        bells: Doorbells | None = None,
    ) -> None:
        self.world, self.clock, self.name, self.number = world, clock, settings.processor, number
        self.supervisor = Process(f"{self.name}.{number}")
        self.link = FaultyLink(self.name, number, world.weather, world.dice, world.ledger.seen, world.ledger.steps)
        self.link.refused, self.link.sent = self._answered, self._sent
        self.account = world.account(self.link)
        self.container: Container | None = None
        self.containers = 0
        self.deaths = Deaths(settings.restart_limit)
        self._started_at = 0.0  # by the clock of this machine
        self.finish: Finish | None = None
        self.asked_to_leave = False
        self.freezes = 0
        self._told: set[str] = set()  # by what it was told that it will go
        self.rung_at: dict[str, float] = {}  # incarnation that is said to have ended -> when it was told so
        self._freshness = Freshness()
        self.plan_start_s = plan_start_s
        self.habits = habits
        self.processor = Processor(
            settings,
            self.account.control_blob(),
            self.account.rows(),
            SimulatedRuns(self.account),
            clock,
            tell=self._tell,
            watch=lambda view: world.turned(self),
            bells=bells,
        )
        self.work = self.supervisor.spawn(self._live())
        self._start_container()

    async def _live(self) -> None:
        self.finish = await self.processor.run()
        self.world.note(f"{self.name} ends with {self.finish.code}: {self.finish.message.splitlines()[0]}")
        self._end_container()
        self.world.ended(self, self.finish)
        self.world.port_closed(self)

    def crash(self) -> None:
        """Kill the whole processor, with its container."""
        self.supervisor.kill()
        self._end_container()
        self.world.port_closed(self)

    def hear_end(self, incarnation: str) -> None:
        """Tell it that a connection to this incarnation was closed and refused."""
        self.supervisor.spawn(self._hear_end(incarnation))

    def hear_ring(self) -> None:
        """Tell it that there is something to read."""
        self.supervisor.spawn(self._hear_ring())

    async def _hear_end(self, incarnation: str) -> None:
        if self.processor.gone(incarnation):
            self.rung_at[incarnation] = asyncio.get_running_loop().time()

    async def _hear_ring(self) -> None:
        self.processor.rung()

    def leave(self) -> None:
        """Ask it to leave, as a signal does. It may be asked more than once."""
        self.asked_to_leave = True
        self.supervisor.spawn(self._leave())

    def notice(self, source: str, seconds: float) -> None:
        """Tell it that it will go in so many seconds."""
        by, by_ms = self.clock.now() + seconds, self.clock.wall_ms() + int(seconds * 1000)
        self.supervisor.spawn(self._hear_notice(source, Notice("an event", by, by_ms)))

    async def _hear_notice(self, source: str, notice: Notice) -> None:
        self._told.add(source)
        self._note_told()
        self.processor.notice(source, notice)

    def take_back(self, source: str) -> None:
        """Tell it that it stays after all."""
        self.supervisor.spawn(self._hear_withdrawal(source))

    async def _hear_withdrawal(self, source: str) -> None:
        self._told.discard(source)
        self._note_told()
        self.processor.withdraw(source)

    async def _leave(self, gave_up: str = "") -> None:
        self._told.add("a signal")
        self._note_told()
        self.processor.leave(gave_up)

    def _note_told(self) -> None:
        """Note until when it knows that it will go: calls that it has sent by then may land later."""
        until = float("inf") if self._told else self.world.instant()
        self.world.ledger.told_until[self.name, self.number] = until

    def container_dies(self) -> None:
        """Kill only the container; the supervisor notices and starts another, or gives up."""
        if self.container is None:
            return
        self._end_container()
        self.supervisor.spawn(self._hear(ContainerLost()))
        self.deaths = self.deaths.after(self.clock.now() - self._started_at)
        if self.deaths.are_too_many:
            self.supervisor.spawn(self._leave(f"the container ended {self.deaths.in_a_row} times in a row"))
        else:
            self.supervisor.at(self.deaths.back_off_s, self._start_container)

    def freeze(self, seconds: float, *, supervisor: bool, container: bool) -> None:
        """Stop for a while."""
        self.freezes += 1
        if supervisor:
            self.supervisor.freeze(seconds)
        if container and self.container is not None:
            self.container.process.freeze(seconds)
            self.supervisor.spawn(self._listen(self.container))

    async def _listen(self, container: Container) -> None:
        """Count for how long a ready container says nothing, and kill it after too long, as the supervisor does."""
        silent_s = 0.0
        while container is self.container and container.process.frozen and self.processor.view.work.container:
            if silent_s >= SILENCE_S:
                self.world.note(f"{self.name} kills its container, which hangs")
                self.container_dies()
                return
            await asyncio.sleep(LISTEN_S)
            if container is not self.container:
                return  # it was killed meanwhile, and its silence says nothing of the next one
            silent_s += LISTEN_S
            await self._hear(ContainerSilent(silent_s))
        if container is self.container:
            await self._hear(ContainerSilent(0.0))

    def calm_down(self) -> None:
        """End the faults of this life."""
        self.link.outages.clear()
        self.link.late_write = None
        for source in list(self.processor.view.notices):
            self.take_back(source)
        self.habits.cure()
        self.supervisor.thaw()
        if self.container is not None:
            self.container.process.thaw()

    @property
    def running(self) -> dict[str, int]:
        """The tasks that run or are drained, with their generations. A later container has no drained task to run."""
        if self.container is None:
            return {}
        kept = self.processor.view.work.tasks.items()
        drained = {task: local.generation for task, local in kept if local.closed and local.phase is Phase.DRAINED}
        return drained | {
            task: work.start.generation
            for task, work in self.container.tasks.items()
            if work.phase in (Phase.RUNNING, Phase.DRAINED)
        }

    def _start_container(self) -> None:
        if self.finish is not None:
            return
        self.containers += 1
        self._started_at = self.clock.now()
        process = Process(f"{self.name}.{self.number} container {self.containers}")
        world = self.world
        container = Container(
            self.name,
            process,
            self.account,
            self.habits,
            world.dice,
            self.clock.now,
            world.ledger.steps,
            say=self._say,
            note=world.note,
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
        if isinstance(report, TaskReport) and self.container is not None:
            self._judge(self.world.ledger.runs_on(self.container.tasks[report.task].start.run_id, report))
        self.supervisor.spawn(self._hear(report))

    async def _hear(self, report: Report | ContainerLost | ContainerSilent) -> None:
        self.processor.hear(report)

    def _tell(self, command: Command) -> None:
        self.world.check_command(self, command)
        if isinstance(command, Kill):
            self.world.note(f"{self.name} kills its container, which hangs, since others have its tasks")
            self.container_dies()
        elif self.container is not None:
            self.container.process.spawn(self._obey(self.container, command))

    async def _obey(self, container: Container, command: Command) -> None:
        container.obey(command)

    def _sent(self, operation: str) -> None:
        ledger = self.world.ledger
        requests = len(ledger.keys(REQUESTS)) if operation == "rows.merge" else 0
        self._judge(ledger.cost.sent(self.name, self.number, operation, self.world.instant(), requests))
        self._judge(self._freshness.look(self.processor.view.others.members))

    def _judge(self, wrong: str | None) -> None:
        if wrong is not None:  # a failure of the seed, not an error for the caller
            asyncio.get_running_loop().call_exception_handler({"message": wrong, "exception": Violation(wrong)})

    def _answered(self, operation: str, answer: object) -> None:
        if operation == "control.write" and type(answer).__name__ == "Refused":
            self.world.ledger.deposed[self.name, self.number] = self.world.instant()
        if operation == "rows.delete" and type(answer).__name__ == "Refused":
            cost, now = self.world.ledger.cost, self.world.instant()
            self._judge(cost.counted(self.name, self.number, "rows.delete, refused,", now))


__all__ = ["RATE_ERROR", "Clock", "Life"]
