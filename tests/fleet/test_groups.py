"""Groups of other sizes: many that start at once, and more processors than tasks."""

from collections import Counter
from collections.abc import Callable, Iterator

import psutil
import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.group.timing import PROFILES
from samza_azure.machine.clock import boot_time

from .group_members import GroupOnAzurite, processes

NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def new_group(emulator: Azurite) -> Iterator[Callable[..., GroupOnAzurite]]:
    """Makes a group that shares this many tasks."""
    made: list[GroupOnAzurite] = []

    def make(tasks: int, profile: str = "fast", more: str = "") -> GroupOnAzurite:
        made.append(GroupOnAzurite(emulator, tasks, profile, more))
        return made[-1]

    yield make
    for group in made:
        group.close()


@pytest.mark.parametrize(
    ("profile", "count", "within_s"), [("fast", 8, 0.0), pytest.param("default", 20, 2.0, marks=pytest.mark.long)]
)
def test_processors_that_are_released_together_share_evenly_and_soon(
    new_group: Callable[..., GroupOnAzurite], profile: str, count: int, within_s: float
) -> None:
    """`fast` takes a processor for dead after 1.5 s. Twenty on two cores wait longer than that for their turn, and say
    so in a warning; eight do not."""
    group, gate = new_group(2 * count, profile), processes.Event()
    group.start(*(f"p{number:02}" for number in range(count)), gate=gate, within_s=within_s)
    group.until(lambda: "some do not wait", lambda: all(life.of("waits") for life in group.members.values()))
    gate.set()
    released = boot_time()
    shown = group.settled()
    took_s = boot_time() - released
    assert Counter(len(each["tasks"]) for each in shown["processors"]) == {2: count}
    # A version per debounce is what a slow machine keeps, too. With `fast` (0.5 s, dead after 1.5 s) the count says how
    # slow the machine is; `tests/sim/test_cost.py` counts there, by the clock of the simulator.
    assert profile == "fast" or len(group.versions()) <= max(3, 1 + took_s / PROFILES[profile].debounce_s)


@pytest.mark.parametrize("leaders", [NAMES[-1:], pytest.param(NAMES, marks=pytest.mark.long)], ids=["last", "each"])
def test_a_processor_without_a_task_is_a_standby_under_any_leader(
    leaders: list[str], new_group: Callable[..., GroupOnAzurite]
) -> None:
    """Four groups at the same time, each led by another one; or only that of the last name."""
    groups = {leader: new_group(2) for leader in leaders}
    for leader, group in groups.items():
        group.start(leader)
    for leader, group in groups.items():
        group.settled()
        group.start(*(name for name in NAMES if name != leader))
    for leader, group in groups.items():
        shown = group.settled()
        assert shown["leader"] == leader
        assert sorted(len(each["tasks"]) for each in shown["processors"]) == [0, 0, 1, 1]
        group.kill(leader)
    for leader, group in groups.items():
        after = group.settled()
        assert sorted(len(each["tasks"]) for each in after["processors"] if each["id"] != leader) == [0, 1, 1]


def connected_to(process: psutil.Process) -> int:
    """How many connections others hold to its port."""
    found = process.net_connections("tcp")
    ports = {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}
    return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port in ports for each in found)


def test_with_bells_a_killed_leader_is_followed_long_before_anybody_would_suspect_it(
    new_group: Callable[..., GroupOnAzurite],
) -> None:
    """Without them it may be silent for 5 s."""
    group = new_group(2, "default", "processor.port = 0\nprocessor.bells = true\n")
    group.start("p0", "p1")
    before = group.settled()
    leader = psutil.Process(group.members[before["leader"]].process.pid)
    group.until(lambda: f"not connected: {leader.net_connections()}", lambda: connected_to(leader) == 1)
    killed_at = boot_time()
    group.kill(before["leader"])
    group.until(lambda: "nobody leads", lambda: group.status()["epoch"] > before["epoch"])
    assert boot_time() - killed_at < PROFILES["default"].leader_timeout_s
    assert group.settled()["leader"] != before["leader"]
