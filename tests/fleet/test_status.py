"""What `status` and its exit code say of a fleet that falls silent, and for how long they say anything else."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.status import NOBODY, NOT_WELL, Onlooker
from samza_azure.config import Config
from samza_azure.page.watch import Watcher
from samza_azure.storage.connection import Account

from .group_members import GroupOnAzurite
from .test_health import frozen

#: How soon they have to say it.
SOON_S = 10.0


@pytest.fixture(scope="module")
def group(emulator: Azurite) -> Iterator[GroupOnAzurite]:
    made = GroupOnAzurite(emulator, tasks=2)
    try:
        made.start("p0", "p1")
        made.settled()
        yield made
    finally:
        made.close()


def command(group: GroupOnAzurite, folder: Path, name: str, *options: str) -> tuple[int, str, float]:
    """Exit code, what was said, and how long it took."""
    (folder / "job.toml").write_text(group.job)
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "samza_azure", name, str(folder / "job.toml"), *options],
        env=os.environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr, time.monotonic() - begun


def onlooker(group: GroupOnAzurite) -> Onlooker:
    config = Config.parse(group.job)
    return Onlooker(config, Account.from_config(config.storage))


def words(text: str) -> str:
    """Without the breaks of lines."""
    return " ".join(text.split())


def test_a_fleet_whose_tasks_all_run_is_well(group: GroupOnAzurite, tmp_path: Path) -> None:
    code, said, _ = command(group, tmp_path, "status")
    run_id = group.status()["run_id"]
    assert code == 0 and f"RUNNING: Run {run_id}: 2 of 2 tasks run on 2 processors." in words(said), said


def test_an_account_that_does_not_answer_is_said_to_be_away_and_nothing_else(
    emulator: Azurite, group: GroupOnAzurite, tmp_path: Path
) -> None:
    """`status --watch` showed the last picture for half a minute, and ended."""
    seen = onlooker(group)
    shown, away = seen.latest()
    assert shown is not None and (shown["verdict"]["state"], away) == ("running", "")
    with frozen(emulator):
        begun = time.monotonic()
        last, away = seen.latest()
        assert time.monotonic() < begun + SOON_S and last == shown
        assert away.startswith("AWAY: ") and re.search(r"What is shown is \d+ s old\.$", away), away
        code, _, took_s = command(group, tmp_path, "status")
        assert (code, took_s < SOON_S) == (3, True)
    states = list[str]()
    while states[-1:] != ["running"]:  # meanwhile a heartbeat may be late, or a leader missing
        shown, away = seen.latest()
        assert time.monotonic() < begun + 3 * SOON_S and shown is not None and away == "", (states, away)
        states.append(shown["verdict"]["state"])
    assert "stopped" not in states
    group.settled()


def test_a_leader_that_stands_still_is_named_until_another_one_has_its_tasks(group: GroupOnAzurite) -> None:
    """Another one takes over before it counts as dead, and its tasks were RUNNING meanwhile."""
    told = list[str]()
    for _ in range(3):  # a look on a busy machine may take longer than a take-over
        leader = group.status()["leader"]
        group.pause(leader)
        try:
            begun, judged = time.monotonic(), onlooker(group).sure()
            while judged["verdict"]["exit_code"] == 0 and judged["leader"] == leader:
                assert time.monotonic() < begun + SOON_S
                judged = onlooker(group).sure()
        finally:
            group.resume(leader)
        group.settled()
        told.append(judged["verdict"]["text"])
        if judged["verdict"]["exit_code"] == NOT_WELL and leader in told[-1]:
            return
    pytest.fail(f"It was not named: {told}")


def test_a_fleet_that_was_killed_is_not_called_running(group: GroupOnAzurite, tmp_path: Path) -> None:
    """It was, forever: who had died was shown as it had reported last."""
    seen, begun, codes = onlooker(group), time.monotonic(), []
    group.kill("p0", "p1")
    while onlooker(group).sure()["verdict"]["exit_code"] == 0:  # each as if it were the only look
        assert time.monotonic() < begun + SOON_S
    while time.monotonic() < begun + SOON_S and codes[-1:] != [NOBODY]:
        shown = seen.shown()
        codes.append(shown["verdict"]["exit_code"])
        time.sleep(0.2)  # the pace of looking
    assert codes[-1] == NOBODY and codes == sorted(codes, key=[0, NOT_WELL, NOBODY].index), codes
    assert (shown["phase"], {each["phase"] for each in shown["tasks"]}) == ("STOPPED", {"SILENT"})

    code, said, took_s = command(group, tmp_path, "status")
    assert (code, took_s < SOON_S) == (NOBODY, True)
    assert "STOPPED: No processor runs: none sends heartbeats. The next start resumes the run. For " in words(said)
    assert "RUNNING" not in said and "ACTIVE" not in said

    run = f"run {shown['run_id']}"
    for asked, says in (
        (("stop", "--wait"), "No processor runs. None has sent a heartbeat lately: p0, p1."),
        (("drain", "--cancel"), f"{run.capitalize()} is not draining."),
        (("drain",), "No processor runs. The drain begins when one starts."),
        (
            ("drain", "--cancel"),
            f"No processor runs. The next one to start cancels the drain of {run}.",
        ),
    ):
        code, said, took_s = command(group, tmp_path, *asked)
        assert (code, took_s < SOON_S) == (0, True) and says in said, (asked, code, took_s, said)

    async def opened() -> list[str]:
        """What a page says that is opened now."""
        watcher = Watcher(Config.parse(group.job))
        states = [watcher.document["verdict"]["state"]]
        try:
            while states[-1] != "stopped" and time.monotonic() < begun + 60:
                states.append((await watcher.state())["verdict"]["state"])
                await asyncio.sleep(0.1)
        finally:
            await watcher.close()
        return states

    assert list(dict.fromkeys(asyncio.run(opened()))) == ["looking", "stopped"]
