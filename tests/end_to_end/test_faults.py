"""One warm fleet of three processors through one fault after another; after each the rows are exact.

The tests of this file share the fleet and run in their order. The last one drains it with data in flight, and the
result equals the batch over everything. `make test` has the same in parts: tests/fleet has each fault without Spark,
the simulator the death of a leader or an owner in a drain, tests/spark a flush that begins again, and
test_first_hour.py a processor with Spark that is killed.
"""

import signal
import time
from collections import Counter

import psutil
import pytest

from .real_processes import PATIENCE_S, JobOnAzurite, daily, daily_rows, followers_task

pytestmark = pytest.mark.long  # three JVMs, of which some start again
CHUNK = 6_000


def test_three_processors_share_all_tasks(world: JobOnAzurite) -> None:
    shown = world.start("p0", "p1", "p2")
    assert sorted(Counter(task["owner"] for task in shown["tasks"]).values()) == [1, 1, 2]
    world.produce(CHUNK)
    world.exact()


def test_the_leader_is_killed(world: JobOnAzurite) -> None:
    before = world.settled()
    producer = world.producing(CHUNK, 2_000)
    tree = world.tree(before["leader"])
    world.jvm(before["leader"]).send_signal(signal.SIGSTOP)
    world.fleet.send(before["leader"], signal.SIGKILL)
    world.fleet.processes[before["leader"]].wait()
    _, alive = psutil.wait_procs(tree, timeout=30)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == [], "its tree, though its JVM hangs"
    after = world.settled(lambda shown: shown["epoch"] > before["epoch"])
    assert after["leader"] != before["leader"]
    assert producer.wait() == 0
    world.exact()
    world.start(before["leader"])


def test_a_follower_is_killed(world: JobOnAzurite) -> None:
    before = world.settled()
    victim = next(name for name in world.fleet.alive() if name != before["leader"])
    producer = world.producing(CHUNK, 2_000)
    world.fleet.send(victim, signal.SIGKILL)
    world.fleet.processes[victim].wait()
    world.settled()
    assert producer.wait() == 0
    world.exact()
    world.start(victim)


@pytest.mark.parametrize("what", ["jvm", "container"])
def test_a_dead_and_a_hung_container_give_their_tasks_away_before_the_next_is_ready(
    world: JobOnAzurite, what: str
) -> None:
    """Their tasks waited for the start of another JVM, and after a hang for task.shutdown.ms before that. The reason
    was a call of py4j that failed, or an outage that there was not."""
    before = world.settled()
    killed, frozen = (name for name in world.fleet.alive() if name != before["leader"])
    logs = {name: world.fleet.log_file(name).read_text() for name in (killed, frozen)}

    def said(name: str) -> list[str]:
        return world.fleet.log_file(name).read_text().removeprefix(logs[name]).splitlines()

    producer = world.producing(CHUNK, 2_000)
    getattr(world, what)(killed).kill()
    getattr(world, what)(frozen).suspend()
    # One after the other: the first may have its next container while the second still hangs.
    for name in (killed, frozen):
        world.fleet.wait_until(
            f"{name} owns no task",
            lambda shown, name=name: name not in {task["owner"] for task in shown["tasks"]},
            PATIENCE_S,
        )
        assert not any("container ready" in line for line in said(name))
    assert producer.wait() == 0
    world.exact()
    world.settled(lambda shown: {task["owner"] for task in shown["tasks"]} >= {killed, frozen})
    whose = "its JVM" if what == "jvm" else "it"
    for name, why in ((killed, f"{whose} was killed by signal 9 (SIGKILL)"), (frozen, "it or its JVM did not answer")):
        (end,) = (line for line in said(name) if why in line)
        assert "the next one starts in" in end
        assert not any("paused" in line or "py4j" in line for line in said(name))


def test_a_processor_is_frozen_for_longer_than_the_death_timeout(world: JobOnAzurite) -> None:
    before = world.settled()
    victim = next(name for name in world.fleet.alive() if name != before["leader"])
    incarnation = next(row["incarnation"] for row in before["processors"] if row["id"] == victim)
    producer = world.producing(CHUNK, 2_000)
    world.signal_tree(victim, signal.SIGSTOP)
    try:
        world.settled(lambda shown: victim not in {task["owner"] for task in shown["tasks"]})
    finally:
        world.signal_tree(victim, signal.SIGCONT)
    world.settled(
        lambda shown: (
            any(row["id"] == victim and row["incarnation"] != incarnation for row in shown["processors"])
            and victim in {task["owner"] for task in shown["tasks"]}
        )
    )
    assert producer.wait() == 0
    world.exact()


def test_a_fourth_joins_and_one_leaves(world: JobOnAzurite) -> None:
    before = world.settled()
    producer = world.producing(CHUNK, 1_000)
    world.start("p3")
    leaver = next(name for name in world.fleet.alive() if name not in (before["leader"], "p3"))
    world.fleet.send(leaver, signal.SIGTERM)
    assert world.fleet.processes[leaver].wait(60) == 0
    world.settled()
    assert producer.wait() == 0
    world.exact()


def test_the_storage_is_out_of_reach_for_twenty_seconds(world: JobOnAzurite) -> None:
    before = world.settled()
    alive = world.fleet.alive()
    producer = world.producing(CHUNK, 2_000)
    world.emulator_signal(signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            assert world.fleet.alive() == alive
            time.sleep(0.5)  # how long the outage lasts, not a hope
    finally:
        world.emulator_signal(signal.SIGCONT)
    assert producer.wait() == 0
    world.exact()
    world.settled()
    assert world.fleet.alive() == alive
    assert before["run_id"] == world.fleet.status()["run_id"]


def test_a_drain_with_data_in_flight_fires_everything_once_though_leader_and_container_die(world: JobOnAzurite) -> None:
    settled = world.settled()
    leader = settled["leader"]
    other = followers_task(settled)
    world.kill_at(leader, "supervisor", "after FLUSH")
    world.kill_at(other["owner"], "container", f"before the end of {other['stage']}")
    for name in [name for name in world.fleet.processes if name not in world.fleet.alive()]:
        world.fleet.processes.pop(name)
    before = world.produced
    producer = world.producing(6 * CHUNK, 4_000)
    ended = world.command("drain", "--wait", "--timeout", "120")
    assert ended.returncode == 0, ended.stderr
    assert world.kills_to_come() == []
    codes = world.fleet.exit_codes(60)
    assert codes.pop(leader) == -signal.SIGKILL
    assert set(codes.values()) == {0}
    assert producer.wait() == 0
    read = world.rows_up_to_positions()
    assert before <= read.num_rows <= world.produced
    assert daily_rows(world.stream("daily-delays")) == daily(read)
    shown = world.fleet.status()
    assert (shown["phase"], shown["drain"]["step"]) == ("DRAINED", "DRAINED")
    assert {task["phase"] for task in shown["tasks"]} == {"DRAINED"}
    assert "No log holds" in world.command("export", "by-carrier", "--to", str(world.directory / "x.parquet")).stderr
    assert world.secrets_told() == []
