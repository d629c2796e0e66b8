"""Three guards of one command, through what can happen to a group. The command witnesses that it was never there twice.

The tests of the first group share it and run in their order.
"""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.group.notice import Left
from samza_azure.machine.clock import wall_ms
from tests.host.fake_metadata import FakeMetadata

from .guards import PATIENCE_S, Guards

NAMES = ("g0", "g1", "g2")
#: Probes, page and `/decommission` on the first free port.
PROBED = "processor.port = 19480"


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
    made = Guards(emulator, tmp_path_factory.mktemp("guards"), more=f"metrics.prometheus.port = 19464\n{PROBED}")
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


def test_each_answers_probes_and_serves_the_page_of_the_group(guards: Guards) -> None:
    """Those that stand by are as alive and ready as the one whose command runs."""
    guards.until("all are ready", lambda: all(guards.is_ready(name) for name in NAMES))
    assert {guards.call(name, "/livez")[0] for name in NAMES} == {200}
    owner = guards.owner().name
    for name in NAMES:
        status, page = guards.call(name, "/")
        assert status == 200 and page.startswith("<!doctype html>")
        status, shown = guards.call(name, "/state.json")
        assert status == 200 and (shown["app"], shown["verdict"]["state"]) == ("guarded", "running")
        assert {each["id"] for each in shown["processors"]} == set(NAMES)
        assert [(each["name"], each["owner"], each["phase"]) for each in shown["tasks"]] == [
            ("command-0", owner, "RUNNING")
        ]


def test_a_notice_that_is_withdrawn_lets_a_guard_run_the_command_again(guards: Guards) -> None:
    """It stays meanwhile, without the command, and is not ready; the page says what it has handed over."""
    leaver, before = guards.owner().name, len(guards.noted())
    assert guards.call(leaver, "/decommission", "POST", '{"why": "a trial"}')[0] == 202
    assert guards.starts(before + 1) != leaver
    guards.until("it is decommissioned", lambda: guards.call(leaver, "/decommission")[1]["state"] == "DECOMMISSIONED")
    status, said = guards.call(leaver, "/readyz")
    assert status == 503 and said["reason"] == "leaving"
    assert said["message"] == "The processor will go (a trial): 1 of 1 tasks handed over."
    said = "decommissioned (a trial): 1 of 1 tasks handed over"
    guards.until("the page says it", lambda: said in [each["going"] for each in page_of(guards, leaver)["processors"]])
    assert guards.call(leaver, "/decommission", "DELETE")[0] == 202
    guards.until("it is ready", lambda: guards.is_ready(leaver))
    others = [name for name in NAMES if name != leaver]
    for name in others:  # only one guard is left that can have it
        guards.call(name, "/decommission", "POST", "{}")
    guards.until("it runs the command again", lambda: guards.owner().name == leaver)
    for name in others:
        guards.call(name, "/decommission", "DELETE")
    guards.until("all are ready", lambda: all(guards.is_ready(name) for name in NAMES))
    assert guards.guards[leaver].process.poll() is None


def page_of(guards: Guards, name: str) -> dict[str, Any]:
    status, shown = guards.call(name, "/state.json")
    assert status == 200
    return dict(shown)


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


def test_the_failure_of_the_power_is_passed_on_as_sigterm_and_hands_over(guards: Guards) -> None:
    leaver, before = guards.owner(), len(guards.noted())
    leaver.process.send_signal(signal.SIGPWR)
    assert guards.starts(before + 1) != leaver.name
    assert leaver.process.wait() == 0
    assert guards.noted("SIGTERM")[-1] == guards.noted()[-2]
    guards.start(leaver.name, guards.witness("deaf"))


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


def test_a_notice_while_a_deaf_command_has_its_time_to_end_shortens_that(new_group: Callable[..., Guards]) -> None:
    group = new_group(shutdown_ms=4 * round(PATIENCE_S) * 1000, more=PROBED)
    two_of_them(group, "deaf")
    leaver = group.owner()
    leaver.process.send_signal(signal.SIGTERM)
    waits = {"command-0": Left.RUNS}
    group.until("it has its time to end", lambda: group.call(leaver.name, "/decommission")[1].get("left") == waits)
    body = json.dumps({"why": "Preempt", "by_ms": wall_ms() + 8000})
    assert group.call(leaver.name, "/decommission", "POST", body)[0] == 202
    assert group.starts(2) != leaver.name
    assert leaver.process.wait() == 0


def test_a_machine_that_will_go_hands_the_command_over_and_gets_it_back_if_it_stays(
    new_group: Callable[..., Guards],
) -> None:
    """Scheduled Events, of a metadata service for each of two machines. The first event is cancelled."""
    with FakeMetadata() as one, FakeMetadata() as other:
        group = new_group(more=f'{PROBED}\n[host]\nnotices = "azure"\nmetadata = "${{METADATA}}"')
        services = {"g0": one, "g1": other}
        for name, service in services.items():
            group.start(name, group.witness("serve"), METADATA=service.url)
        first = group.starts(1)
        (second,) = services.keys() - {first}
        group.until("both are ready", lambda: group.is_ready(first) and group.is_ready(second))
        event = services[first].schedule("Preempt", resources=["vm_1", "vm_2"])
        assert group.starts(2) == second
        assert not group.is_ready(first)
        services[first].remove(event)
        group.until("it stays", lambda: group.is_ready(first))
        last = services[second].schedule("Terminate")
        assert group.starts(3) == first
        group.until("approved", lambda: services[second].approved == [last])
        assert services[first].approved == [], "it concerned another machine, too"
        assert [each.process.poll() for each in group.guards.values()] == [None, None]


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
