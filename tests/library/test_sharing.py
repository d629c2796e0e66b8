"""The library without Spark: tasks of one's own, elector, membership, lock; in memory and as processes on Azurite."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samza_azure import Config, JobFailed, LeaderElectorListener, SharedTasks
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.coordinator import load_factory, load_utils_factory
from samza_azure.errors import ConfigError, StorageUnavailable
from samza_azure.group.rows import RequestKind, request_columns
from samza_azure.host.runs import RunLogs
from samza_azure.library.factory import settings
from samza_azure.library.group_tools import CANDIDATES, GroupUtils, config_of_group
from samza_azure.library.lease_lock import LeaseLock
from samza_azure.library.threaded import Stores, ThreadedCoordinator
from samza_azure.messages import Drain, DrainStep, ReleaseTask, StartTask
from samza_azure.metrics.observer import Observer
from samza_azure.storage.memory import MemoryAccount, MemoryStorage

EXAMPLE = Path(__file__).parents[2] / "examples" / "library" / "three.py"
JOB = """
app = { name = "three", main = "three:Mine" }
azure.storage.connect = "UseDevelopmentStorage=true"
job.coordinator.profile = "fast"
task.restart.limit = 1
"""
PATIENCE_S = 30.0


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class SharingGroup:
    """One account in memory, and what happened to each task, in order."""

    def __init__(self) -> None:
        self.storages = defaultdict[str, MemoryStorage](MemoryStorage)
        self.events: list[tuple[str, str, int]] = []
        self.lock = threading.Lock()
        self.ends: list[Callable[[], object]] = []

    def coordinator(self, name: str, group: str = "tasks") -> ThreadedCoordinator:
        account = MemoryAccount(self.storages[group])

        async def stores() -> Stores:
            return Stores(account.control_blob(), account.rows(), RunLogs(account.blobs()), account.aclose)

        return ThreadedCoordinator(settings(name, Config.parse(JOB)), stores, Observer(name))

    def member(self, name: str) -> "Mine":
        mine = Mine(self, name)
        mine.start()
        self.ends.append(mine.coordinator.stop)
        return mine

    def utils(self, name: str) -> GroupUtils:
        made = GroupUtils(
            lambda group: self.coordinator(name, group),
            lambda lock: LeaseLock(lock, lambda: MemoryAccount(self.storages["locks"])),
        )
        self.ends.append(made.close)
        return made


class Mine(SharedTasks):
    """Writes down what comes and goes."""

    def __init__(self, sharing: SharingGroup, name: str) -> None:
        super().__init__(sharing.coordinator(name), "part", 16)
        self.sharing, self.name = sharing, name

    def on_start(self, task: str, generation: int) -> None:
        with self.sharing.lock:
            self.sharing.events.append(("start", task, generation))

    def on_stop(self, task: str) -> None:
        with self.sharing.lock:
            self.sharing.events.append(("stop", task, 0))


@pytest.fixture
def sharing() -> Iterator[SharingGroup]:
    made = SharingGroup()
    yield made
    for end in made.ends:
        end()


def shares(members: list[Mine]) -> list[int]:
    return sorted(len(mine.tasks) for mine in members)


def test_three_members_share_sixteen_tasks_and_one_of_them_leads(sharing: SharingGroup) -> None:
    members = [sharing.member(name) for name in ("a", "b", "c")]
    until("balanced", lambda: shares(members) == [5, 5, 6])
    assert sorted(task for mine in members for task in mine.tasks) == sorted(f"part-{number}" for number in range(16))
    assert [mine.coordinator.is_leader for mine in members].count(True) == 1
    until("all may act", lambda: all(mine.may_act for mine in members))  # not while a heartbeat is late


def test_a_leaving_member_hands_its_tasks_over_and_no_task_has_two_owners(sharing: SharingGroup) -> None:
    members = [sharing.member(name) for name in ("a", "b", "c")]
    until("balanced", lambda: shares(members) == [5, 5, 6])
    leader = next(mine for mine in members if mine.coordinator.is_leader)
    leader.stop()
    rest = [mine for mine in members if mine is not leader]
    until("taken over", lambda: shares(rest) == [8, 8])
    assert (leader.tasks, leader.may_act) == ((), False)
    for task in {task for _, task, _ in sharing.events}:
        happened = [(what, generation) for what, name, generation in sharing.events if name == task]
        generations = [generation for what, generation in happened if what == "start"]
        assert [what for what, _ in happened] == (["start", "stop"] * 9)[: len(happened)]
        assert generations == sorted(set(generations))


class Slow(Mine):
    """Its `on_stop` returns when it has to be sooner."""

    def __init__(self, sharing: SharingGroup, name: str) -> None:
        super().__init__(sharing, name)
        self.stop_bys = list[float | None]()
        self.stops = threading.Event()

    def on_stop(self, task: str) -> None:
        self.stop_bys.append(self.stop_by)
        self.stops.set()
        if task == "part-0":
            until("a later notice is known", lambda: self.stop_by is not None)
            self.stop_bys.append(self.stop_by)


def test_a_notice_that_comes_while_a_task_is_stopped_is_seen_there_and_forgotten_by_the_next_start(
    sharing: SharingGroup,
) -> None:
    slow = Slow(sharing, "a")
    slow._thread.start()
    starts = [StartTask(f"part-{number}", 1, 1, True, "r", "g") for number in range(2)]
    for command in (*starts, ReleaseTask("part-0")):
        slow.on_command(command)
    assert slow.stops.wait(PATIENCE_S)
    slow.on_command(ReleaseTask("part-0", 7.0))
    slow.on_command(ReleaseTask("part-1", 9.0))
    until("both are stopped", lambda: len(slow.stop_bys) == 3)
    slow.on_command(StartTask("part-1", 2, 1, False, "r", "g"))
    slow.on_command(Drain(DrainStep.FLUSH))  # the notice was withdrawn
    until("stopped again", lambda: len(slow.stop_bys) == 4)
    slow.on_coordinator_stop()
    assert slow.stop_bys == [None, 7.0, 9.0, None]


class Broken(Mine):
    """Cannot start one of its tasks."""

    def on_start(self, task: str, generation: int) -> None:
        if task == "part-3":
            raise ValueError("this one is broken")
        super().on_start(task, generation)


def test_a_task_that_does_not_start_is_tried_again_and_then_fails_the_run_by_its_name(sharing: SharingGroup) -> None:
    broken = Broken(sharing, "a")
    broken.start()
    until("ended", lambda: broken.error is not None)
    with pytest.raises(JobFailed, match=r"Task part-3 failed: ValueError: this one is broken"):
        broken.stop()
    assert broken.tasks == ()


class Ends(Mine):
    """One of its tasks ends by itself, the first time without a reason and then with one."""

    def on_start(self, task: str, generation: int) -> None:
        super().on_start(task, generation)
        if task == "part-3":
            starts = [name for what, name, _ in self.sharing.events if (what, name) == ("start", task)]
            self.ended(task, "it broke" if len(starts) > 1 else "")


def test_a_task_that_ends_by_itself_starts_again_and_with_a_reason_it_has_failed(sharing: SharingGroup) -> None:
    ends = Ends(sharing, "a")
    ends.start()
    until("ended", lambda: ends.error is not None)
    with pytest.raises(JobFailed, match=r"Task part-3 failed: it broke"):
        ends.stop()
    of_it = [what for what, task, _ in sharing.events if task == "part-3"]
    assert of_it == ["start"] * 3  # two tries have failed, and one has only ended


def test_a_drain_gives_all_tasks_up_for_good(sharing: SharingGroup) -> None:
    mine = sharing.member("a")
    steps: list[str] = []
    mine.coordinator._listener.on_drain = lambda notification: steps.append(notification.reached)  # type: ignore[attr-defined]
    until("all run", lambda: len(mine.tasks) == 16)
    key = str(uuid.uuid4())
    sharing.storages["tasks"].insert("requests", key, dict(request_columns(RequestKind.DRAIN, key, "")))
    until("drained", lambda: isinstance(mine.coordinator, ThreadedCoordinator) and mine.coordinator.ending is not None)
    mine.stop()
    assert (mine.tasks, mine.error) == ((), None)
    assert steps.count("FLUSH") == 1
    assert len(set(steps)) == len(steps)  # each step once


class Told(LeaderElectorListener):
    """Remembers."""

    def __init__(self) -> None:
        self.said: list[int | None] = []

    def on_becoming_leader(self, epoch: int) -> None:
        self.said.append(epoch)

    def on_losing_leadership(self) -> None:
        self.said.append(None)


def test_one_of_two_candidates_is_elected_and_the_other_follows_with_a_higher_epoch(sharing: SharingGroup) -> None:
    told, electors = [Told(), Told()], [sharing.utils(name).leader_elector for name in ("a", "b")]
    for listener, elector in zip(told, electors, strict=True):
        elector.set_listener(listener)
    electors[0].try_become_leader()
    until("a leads", lambda: electors[0].is_leader)
    electors[1].try_become_leader()
    until("b knows", lambda: electors[1].epoch == 1)
    electors[0].resign_leadership()
    until("b leads", lambda: electors[1].is_leader)
    assert not electors[0].is_leader
    assert told[0].said == [1, None]
    until("b is told", lambda: told[1].said == [electors[1].epoch])
    assert electors[1].epoch > 1


def test_a_member_that_does_not_stand_is_not_elected_and_one_that_resigns_stays_a_member(sharing: SharingGroup) -> None:
    member, both = sharing.utils("a"), sharing.utils("b")
    member.cluster_membership.register_processor()
    both.cluster_membership.register_processor()
    until("both are in", lambda: two_in(member))
    both.leader_elector.try_become_leader()
    until("who stands leads", lambda: both.leader_elector.is_leader)
    assert not member.leader_elector.is_leader
    both.leader_elector.resign_leadership()
    assert not both.leader_elector.is_leader
    assert member.cluster_membership.processors() == ("a", "b")


def test_members_are_those_who_registered_and_have_not_left(sharing: SharingGroup) -> None:
    one, two = sharing.utils("a"), sharing.utils("b")
    assert one.cluster_membership.processors() == ()
    one.cluster_membership.register_processor()
    two.cluster_membership.register_processor()
    until("both are in", lambda: two_in(one))
    two.close()
    assert one.cluster_membership.processors() == ("a",)
    assert one.cluster_membership.number_of_processors() == 1


def two_in(utils: GroupUtils) -> bool:
    from samza_azure.errors import StorageUnavailable

    try:
        return utils.cluster_membership.processors() == ("a", "b")
    except StorageUnavailable:
        return False  # it has not begun yet


def test_locks_of_a_group_exclude_each_other_by_name(sharing: SharingGroup) -> None:
    one, two = sharing.utils("a"), sharing.utils("b")
    with one.get_lock("x") as token:
        assert token == 1
        assert two.get_lock("x").try_lock() is None
        with two.get_lock("y") as other:
            assert other == 1


def test_the_configuration_names_the_factory_of_both() -> None:
    path = "samza_azure.PassthroughJobCoordinatorFactory"
    config = Config.parse(JOB)
    assert not load_factory(path).get_job_coordinator("a", config).is_leader
    with load_utils_factory(path).get_coordination_utils("group", "a", config) as utils:
        utils.leader_elector.try_become_leader()
        until("the only one leads", lambda: utils.leader_elector.is_leader)
        with utils.get_lock("x") as token:
            assert token == 1
    with pytest.raises(ConfigError, match="has no method get_coordination_utils"):
        load_utils_factory("samza_azure.Config")


def test_a_group_has_a_container_and_a_table_of_its_own() -> None:
    config = Config.parse(JOB)
    group, stands = config_of_group(config, "reports"), config_of_group(config, "reports", CANDIDATES)
    assert len({each.storage.container for each in (config, group, stands)}) == 3
    assert len({each.storage.table for each in (config, group, stands)}) == 3
    assert group.storage.container != config.storage.container
    assert group.storage.table != config.storage.table
    assert config_of_group(config, "reports") == group


# Processes on Azurite.


@pytest.fixture(scope="module")
def emulator() -> Iterator[Azurite]:
    with Azurite().start() as azurite:
        yield azurite


def test_the_example_elects_a_leader_and_shares_all_partitions() -> None:
    ended = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=90)
    assert ended.returncode == 0, ended.stderr
    counts = {line.split()[0]: int(line.split()[3]) for line in ended.stdout.splitlines() if " with " in line}
    assert counts in ({"one": 5, "two": 8, "three": 16}, {"one": 6, "two": 8, "three": 16})
    assert "three leads with 16 partitions" in ended.stdout


MEMBER = """
import sys
from samza_azure import AzureJobCoordinatorFactory, Config, SharedTasks
class Mine(SharedTasks):
    def on_start(self, task, generation):
        print("start", task, generation, "leads" if self.coordinator.is_leader else "follows", flush=True)
name, job = sys.argv[1:]
with Mine(AzureJobCoordinatorFactory().get_job_coordinator(name, Config.parse(job)), "part", 16):
    sys.stdin.read()
"""


class Member:
    """A process, and what it said last of each task."""

    def __init__(self, name: str, connect: str) -> None:
        job = JOB.replace("UseDevelopmentStorage=true", connect)
        command = [sys.executable, "-c", MEMBER, name, job]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
        )
        self.generations: dict[str, int] = {}
        self.leads = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            _, task, generation, role = line.split()
            self.generations[task], self.leads = int(generation), role == "leads"


def owners(members: list[Member]) -> list[int]:
    """By the highest generation of each task, how many each has."""
    latest = {task: max(m.generations.get(task, 0) for m in members) for m in members for task in m.generations}
    return sorted(sum(m.generations.get(task) == latest[task] for task in latest) for m in members)


def test_when_a_process_is_killed_the_others_start_its_tasks_with_higher_generations(emulator: Azurite) -> None:
    members = [Member(name, emulator.connection_string) for name in ("a", "b", "c")]
    try:
        until("balanced", lambda: owners(members) == [5, 5, 6])
        victim = next((member for member in members if member.leads), members[0])
        before = dict(victim.generations)
        victim.process.kill()
        rest = [member for member in members if member is not victim]
        until("taken over", lambda: owners(rest) == [8, 8])
        now = {task: max(member.generations.get(task, 0) for member in rest) for task in before}
        assert all(now[task] > before[task] for task in before)
        for member in rest:
            member.process.communicate("", timeout=PATIENCE_S)
        assert [member.process.returncode for member in rest] == [0, 0]
    finally:
        for member in members:
            member.process.kill()


def test_a_candidate_that_could_not_join_does_when_it_is_asked_again() -> None:
    """Its account was away for too long; after that it was a candidate by name only."""
    account, trouble = MemoryAccount(), [StorageUnavailable("The account does not answer.")]

    async def stores() -> Stores:
        if trouble:
            raise trouble.pop()
        return Stores(account.control_blob(), account.rows(), RunLogs(account.blobs()), account.aclose)

    def coordinator(who: str) -> ThreadedCoordinator:
        return ThreadedCoordinator(settings("p0", Config.parse(JOB)), stores, Observer("p0"))

    utils = GroupUtils(coordinator, lambda name: LeaseLock(name, lambda: account))
    elector = utils.leader_elector
    elector.try_become_leader()
    gone = utils._stands.coordinator
    assert gone is not None and gone.wait(PATIENCE_S)
    elector.try_become_leader()
    until("it leads", lambda: elector.is_leader)
    elector.try_become_leader()
    assert elector.is_leader, "it is a candidate already"
    utils.close()
