"""Access that is taken away after joining, and given back or not. Two processors on virtual time, in memory."""

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from samza_azure.errors import AccessDenied
from samza_azure.group.actions import Finish, StorageAction
from samza_azure.group.answers import Answer, Denied
from samza_azure.group.control import Control
from samza_azure.group.ending import GIVEN_UP
from samza_azure.group.timing import DENIED_S, PROFILES, ROLE_S
from samza_azure.group.view import Settings
from samza_azure.host.processor import WAITS_FOR_ROLE, Processor
from samza_azure.host.runs import RunLogs
from samza_azure.library.shared_tasks import plan_of
from samza_azure.messages import Command, Permit, Phase, Ready, ReleaseTask, StartTask, TaskReport
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from simulator.loop import VirtualLoop

T = TypeVar("T")
TIMING = PROFILES["default"]
LATENCY_S = 0.005
REASON = "The storage account refuses us (AuthenticationFailed). Check the key."
#: A processor that ends hands over first, and waits for that as long as for any other step of its end.
FAREWELL_S = 100.0


class Guarded(Link):
    """Refuses operations of some kinds."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()
        self.may_pass = False

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        await asyncio.sleep(LATENCY_S)
        if operation.startswith(self.refused):
            raise AccessDenied(REASON, may_pass=self.may_pass)
        return effect()


class NoLogs(RunLogs):
    """There are none, and no thread is needed to see it."""

    async def refuse_if_any(self) -> None:
        return


class Member:
    """A processor whose tasks start at once."""

    def __init__(self, name: str, storage: MemoryStorage) -> None:
        self.link, self.loop, self.permit = Guarded(), asyncio.get_running_loop(), 0.0
        self.denials: list[str] = []
        account = MemoryAccount(storage, link=self.link)
        self.processor = Processor(
            Settings(name, TIMING),
            account.control_blob(),
            account.rows(),
            NoLogs(account.blobs()),
            self,
            tell=self.tell,
            called=self.called,
        )
        self.processor.hear(Ready(plan_of("part", 4)))
        self.life = self.loop.create_task(self.processor.run())

    @property
    def running(self) -> list[str]:
        """Its tasks that run and may append."""
        tasks = self.processor.view.work.tasks.items()
        return [task for task, local in tasks if local.phase is Phase.RUNNING and self.now() < self.permit]

    def now(self) -> float:
        return self.loop.time()

    def wall_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def random(self) -> float:
        return random.random()

    def fresh_id(self) -> str:
        return uuid.uuid4().hex

    def called(self, action: StorageAction, answer: Answer, seconds: float) -> None:
        if isinstance(answer, Denied):
            self.denials.append(type(action).__name__)

    def tell(self, command: Command) -> None:
        match command:
            case Permit(until=until):
                self.permit = until
            case StartTask(task=task, generation=generation, attempt=attempt):
                self.loop.call_soon(self.processor.hear, TaskReport(task, generation, attempt, Phase.RUNNING))
            case ReleaseTask(task=task):
                local = self.processor.view.work.tasks[task]
                gone = TaskReport(task, local.generation, local.attempt, Phase.RELEASED)
                self.loop.call_soon(self.processor.hear, gone)


def play(story: Callable[[Member, Member], Coroutine[Any, Any, None]]) -> None:
    """A leader and a follower that share four tasks, and then the story."""

    async def begin() -> None:
        storage = MemoryStorage(asyncio.get_running_loop().time)
        members = [Member(name, storage) for name in ("a", "b")]
        await until(lambda: [len(member.running) for member in members] == [2, 2])
        members.sort(key=lambda member: not member.processor.view.leads)
        try:
            await story(*members)
        finally:
            for member in members:
                member.life.cancel()
            await asyncio.sleep(1)

    VirtualLoop().run_until_complete(begin())


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> float:
    """How long it took."""
    begun = asyncio.get_running_loop().time()
    while not holds():
        assert asyncio.get_running_loop().time() < begun + seconds, "it does not happen"
        await asyncio.sleep(0.05)
    return asyncio.get_running_loop().time() - begun


def test_a_processor_that_is_refused_pauses_and_resumes_when_it_is_admitted_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(leader: Member, follower: Member) -> None:
        follower.link.refused = ("",)
        paused = await until(lambda: not follower.running)
        assert paused <= TIMING.heartbeat_s + 0.1  # not at the self-stop deadline, which is three heartbeats later
        await until(lambda: len(leader.running) == 4)
        await asyncio.sleep(DENIED_S / 2)
        follower.link.refused = ()
        await until(lambda: (len(leader.running), len(follower.running)) == (2, 2))
        await until(lambda: follower.processor.view.calls.denied == {}, 2 * DENIED_S)  # it may do less than before
        await asyncio.sleep(2 * DENIED_S)
        assert not follower.life.done()

    play(story)
    said = [record.getMessage() for record in caplog.records if "account" in record.getMessage()]
    assert said == [
        f"{REASON} It worked before. This processor ends if that lasts 120 s.",
        "The storage account no longer refuses this processor.",
    ]


@pytest.mark.parametrize("refused", ["", "rows."])
def test_a_processor_that_is_refused_for_two_minutes_exits_with_5(refused: str) -> None:
    async def story(leader: Member, follower: Member) -> None:
        for member in (leader, follower):
            member.link.refused = (refused,)
        await until(lambda: not leader.running and not follower.running)
        await asyncio.sleep(DENIED_S - 10)
        assert not leader.life.done() and not follower.life.done()
        await until(lambda: leader.life.done() and follower.life.done(), 20 + FAREWELL_S)
        assert leader.life.result() == follower.life.result() == Finish(5, f"{REASON} {GIVEN_UP}")

    play(story)


def test_a_group_that_loses_the_right_to_write_the_control_blob_ends() -> None:
    async def story(leader: Member, follower: Member) -> None:
        for member in (leader, follower):  # it may still be read, which is no sign that all is well
            member.link.refused = ("control.write", "control.renew", "control.acquire", "control.break")
        follower.link.refused += ("control.release",)
        await until(leader.life.done, 3 * DENIED_S + FAREWELL_S)
        assert leader.life.result().code == 5
        assert {"RenewLease", "BreakLease"} & set(leader.denials)

    play(story)


def test_refusals_that_are_far_apart_end_no_processor() -> None:
    async def story(leader: Member, follower: Member) -> None:
        for _ in range(4):
            before = len(follower.denials)
            follower.link.refused = ("",)
            await until(lambda before=before: len(follower.denials) > before)  # type: ignore[misc]
            follower.link.refused = ()
            await asyncio.sleep(DENIED_S)
        control = follower.processor.view.control
        assert not follower.life.done() and isinstance(control, Control) and len(control.members) == 2

    play(story)


class Newcomer(Member):
    """Lacks a right from the beginning, which it may get."""

    def __init__(self, name: str, storage: MemoryStorage) -> None:
        super().__init__(name, storage)
        self.link.refused, self.link.may_pass = ("rows.insert",), True


@pytest.mark.parametrize("after_s", [ROLE_S - 10, None])
def test_a_processor_that_lacks_a_right_before_joining_tries_for_ten_minutes(
    after_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        begun = asyncio.get_running_loop().time()
        newcomer = Newcomer("a", MemoryStorage(asyncio.get_running_loop().time))
        await asyncio.sleep(after_s or ROLE_S - 10)
        assert not newcomer.life.done() and not newcomer.running
        if after_s is None:
            await until(newcomer.life.done)
            assert newcomer.life.result() == Finish(3, REASON)  # another start may be let in
            assert asyncio.get_running_loop().time() - begun >= ROLE_S
        else:
            newcomer.link.refused = ()
            await until(lambda: len(newcomer.running) == 4)
            newcomer.life.cancel()
            await asyncio.sleep(1)

    VirtualLoop().run_until_complete(story())
    said = [record.getMessage() for record in caplog.records if WAITS_FOR_ROLE in record.getMessage()]
    assert said == [f"{REASON} {WAITS_FOR_ROLE}"] * 10
