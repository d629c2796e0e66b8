"""Three guards of one command, through what can happen to a group. The command witnesses that it was never there twice.

The tests of the first group share it and run in their order.
"""

import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

from samza_azure.commands.azurite.emulator import Azurite

from .guards import PATIENCE_S, Guards

NAMES = ("g0", "g1", "g2")


@pytest.fixture
def new_group(emulator: Azurite, tmp_path: Path) -> Iterator[Callable[..., Guards]]:
    made: list[Guards] = []

    def make(**settings: object) -> Guards:
        made.append(Guards(emulator, tmp_path, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for group in made:
        group.close()


@pytest.fixture(scope="module")
def guards(emulator: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guards]:
    made = Guards(emulator, tmp_path_factory.mktemp("guards"), more="metrics.prometheus.port = 19464")
    try:
        for name in NAMES:
            made.start(name, made.witness("deaf"))
        yield made
    finally:
        made.close()


def two_of_them(group: Guards, how: str) -> None:
    """Start two guards of a command that ends when both have joined."""
    for name in NAMES[:2]:
        group.start(name, group.witness(how))
    group.until("both have joined", lambda: bool(group.noted()) and "standing by" in group.said())
    Path(f"{group.notes}.go").touch()


def test_one_of_three_runs_the_command(guards: Guards) -> None:
    assert guards.starts(1) in NAMES


def test_each_serves_the_metrics_that_its_job_file_asks_for(guards: Guards) -> None:
    guards.until("all three serve", lambda: guards.said().count("metrics on port") == 3)

    def served(port: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return bytes(answer.read())

    ports = re.findall(r"metrics on port (\d+)", guards.said())
    guards.until("all have measured something", lambda: all(b"samza_azure_" in served(port) for port in ports))


def test_a_guard_is_killed_and_another_one_starts_the_command(guards: Guards) -> None:
    """Of the first one's command, which ignores signals and has left its session, nothing is left by then."""
    victim, before = guards.owner(), len(guards.noted())
    victim.process.kill()
    victim.process.wait()
    assert guards.starts(before + 1) != victim.name
    guards.start(victim.name, guards.witness("deaf"))


def test_a_frozen_guards_command_does_not_outlive_its_permit(guards: Guards) -> None:
    victim, before = guards.owner(), len(guards.noted())
    victim.process.send_signal(signal.SIGSTOP)
    try:
        assert guards.starts(before + 1) != victim.name
    finally:
        victim.process.send_signal(signal.SIGCONT)


def test_a_frozen_keeper_is_replaced_by_its_guard(guards: Guards) -> None:
    victim, before = guards.owner(), len(guards.noted())
    os.kill(victim.keeper, signal.SIGSTOP)
    victim.cut_off()
    try:
        assert guards.starts(before + 1) != victim.name
    finally:
        victim.join()


def test_a_killed_keeper_takes_its_command_along_and_the_same_guard_starts_it_again(guards: Guards) -> None:
    victim, before = guards.owner(), len(guards.noted())
    os.kill(victim.keeper, signal.SIGKILL)
    assert guards.starts(before + 1) == victim.name


def test_a_guard_that_is_cut_off_ends_its_command(guards: Guards) -> None:
    victim, before = guards.owner(), len(guards.noted())
    victim.cut_off()
    try:
        assert guards.starts(before + 1) != victim.name
    finally:
        victim.join()


def test_after_an_outage_the_command_starts_again(guards: Guards) -> None:
    before = len(guards.noted())
    services = [guards.emulator.pid, guards.emulator.table_pid]
    for service in services:
        os.kill(service, signal.SIGSTOP)
    try:
        said = "no heartbeat was accepted in time"
        owner = guards.folder / f"{guards.owner().name}.log"
        known = owner.read_text().count(said)
        guards.until("ended", lambda: owner.read_text().count(said) > known)
    finally:
        for service in services:
            os.kill(service, signal.SIGCONT)
    guards.starts(before + 1)


def test_signals_are_passed_on_and_a_deaf_command_is_killed_before_its_successor_starts(guards: Guards) -> None:
    leaver, before = guards.owner(), len(guards.noted())
    leaver.process.send_signal(signal.SIGUSR1)
    guards.until("passed on", lambda: bool(guards.noted("SIGUSR1")))
    leaver.process.send_signal(signal.SIGINT)
    assert guards.starts(before + 1) != leaver.name
    assert leaver.process.wait() == 0
    assert guards.noted("SIGINT") == guards.noted()[-2:-1]


def test_a_drain_ends_all_guards_with_0(guards: Guards) -> None:
    assert guards.command("status").returncode == 0
    assert guards.command("drain", "--wait", "--timeout", "30").returncode == 0
    living = [each.process for each in guards.guards.values()]
    assert [process.wait() for process in living] == [0, 0, 0], guards.said()
    assert guards.noted("SIGTERM")[-1] == guards.noted()[-1]


def test_a_deaf_command_is_killed_before_the_machine_ends(new_group: Callable[..., Guards]) -> None:
    """The patience with a command is longer than the notice, and than the wait for its successor."""
    group = new_group(shutdown_ms=4 * round(PATIENCE_S) * 1000)
    two_of_them(group, "deaf")
    leaver = group.owner()
    assert group.command("decommission", leaver.name, "--by", "8s").returncode == 0
    assert group.starts(2) != leaver.name
    assert leaver.process.poll() is None, "the notice may be withdrawn, so it stays"
    assert group.noted("SIGTERM") == group.noted()[:1]


def test_a_command_that_fails_is_tried_again_then_elsewhere_and_then_all_end_with_1(
    new_group: Callable[..., Guards],
) -> None:
    group = new_group(more="task.restart.limit = 1")
    two_of_them(group, "fail")
    assert [each.process.wait() for each in group.guards.values()] == [1, 1]
    # A guard that has failed tries again after half a second, unless the leader has given the task away by then.
    assert sorted(name for name, _ in groupby(name for _, name in group.noted())) == ["g0", "g1"]
    assert "the command exited with code 3; its output says why" in group.said()


def test_a_command_that_ends_with_0_ends_the_run_for_all(new_group: Callable[..., Guards]) -> None:
    group = new_group()
    two_of_them(group, "done")
    assert [each.process.wait() for each in group.guards.values()] == [0, 0], group.said()
    assert len(group.noted()) == 1
