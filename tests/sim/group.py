"""A group of processors on virtual time whose tasks start at once, each over a link of its own that a test arranges."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TypeVar

from samza_azure.group.control import Control
from samza_azure.group.timing import Timing
from samza_azure.group.view import Settings
from samza_azure.host.copies import keep_copy
from samza_azure.host.processor import Processor
from samza_azure.host.runs import RunLogs
from samza_azure.library.shared_tasks import plan_of
from samza_azure.messages import Command, Phase, Ready, ReleaseTask, StartTask, TaskReport
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage

T = TypeVar("T")
LATENCY_S = 0.005
#: How many tasks the group has.
TASKS = 8


class Slow(Link):
    """Sending takes time. Calls other than those of a table are distinguished by their names."""

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        await asyncio.sleep(LATENCY_S)
        return effect()


class NoLogs(RunLogs):
    """There are none, and none are made. Copies of the control blob are kept after `copy_s` of virtual time."""

    copy_s = LATENCY_S

    async def refuse_if_any(self) -> None:
        return

    async def keep_copy(self, control: Control) -> None:
        await asyncio.sleep(self.copy_s)
        keep_copy(self._blobs, control)

    async def clean(self, run_id: str) -> None:
        return


class Member:
    """A processor on virtual time whose tasks start at once."""

    def __init__(
        self,
        name: str,
        timing: Timing,
        storage: MemoryStorage,
        link: Link,
        life: str = "",
        account: type[MemoryAccount] = MemoryAccount,
    ) -> None:
        self.name, self.link = name, link
        self.loop, self.dice = asyncio.get_running_loop(), Random(name + life)
        client = account(storage, link=link)
        self.runs = NoLogs(client.blobs())
        self.processor = Processor(
            Settings(name, timing),
            client.control_blob(),
            client.rows(),
            self.runs,
            self,
            tell=self.tell,
        )
        self.processor.hear(Ready(plan_of("part", TASKS)))
        self.life = self.loop.create_task(self.processor.run())

    @property
    def running(self) -> list[str]:
        """Its tasks that run."""
        return [task for task, local in self.processor.view.work.tasks.items() if local.phase is Phase.RUNNING]

    def now(self) -> float:
        return self.loop.time()

    def wall_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def random(self) -> float:
        return self.dice.random()

    def fresh_id(self) -> str:
        return f"{self.dice.getrandbits(128):032x}"

    def tell(self, command: Command) -> None:
        match command:
            case StartTask(task=task, generation=generation, attempt=attempt):
                self.loop.call_soon(self.processor.hear, TaskReport(task, generation, attempt, Phase.RUNNING))
            case ReleaseTask(task=task):
                local = self.processor.view.work.tasks[task]
                gone = TaskReport(task, local.generation, local.attempt, Phase.RELEASED)
                self.loop.call_soon(self.processor.hear, gone)


def leader_of(members: list[Member]) -> Member | None:
    """The leader, if there is one."""
    return next((each for each in members if each.processor.view.leads and not each.life.done()), None)
