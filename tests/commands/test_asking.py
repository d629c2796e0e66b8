"""What a group does when a command asks for something: stop, drain, think better of it. On the emulator, without Spark.

The members live on threads of this process, the commands are processes of their own, as a user would start them.
"""

import asyncio
import json
import os
import pty
import queue
import re
import signal as signals
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from samza_azure import (
    Config,
    ConfigError,
    DrainMonitor,
    DrainNotification,
    DrainNotifications,
    SharedTasks,
    SourceWriter,
)
from samza_azure.commands import decommission
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.check import against_run
from samza_azure.commands.requests import Asked, ask_drain
from samza_azure.coordinator import load_factory
from samza_azure.errors import Ending
from samza_azure.group.control import Control, RunPhase, signal, signalled
from samza_azure.group.requests import ALREADY_DRAINED
from samza_azure.group.rows import (
    LEADER,
    MEMBERS,
    REQUESTS,
    LeaderRow,
    ProcessorRow,
    ProcessorState,
    columns,
    leader_columns,
    leader_row,
)
from samza_azure.host.asking import asker, write_drain_early
from samza_azure.host.status import document, read
from samza_azure.logs.record import Writer
from samza_azure.storage.connection import Account
from samza_azure.stream_io.log import LogReader, take_over
from tests.commands.forked import run

PATIENCE_S = 30.0
JOB = """
app = {{ name = "asked", id = "{id}", main = "none:none" }}
azure.storage.connect = "${{CONNECT}}"
job.coordinator.profile = "fast"
"""


def running(run_id: str) -> Control:
    return Control("g", run_id=run_id, phase=RunPhase.RUNNING)


class Member(SharedTasks):
    """Its tasks read a source, as far as the leader can tell, and never report that they have stopped for a drain."""

    def __init__(self, config: Config, name: str, count: int, *, reads: bool) -> None:
        super().__init__(load_factory(config.coordinator.factory).get_job_coordinator(name, config), "part", count)
        self.steps: list[str] = []
        self.may_let_go = threading.Event()
        self.may_let_go.set()
        if reads:
            [stage] = self._plan.stages
            self._plan = replace(self._plan, stages=(replace(stage, inputs=("in",)),), sources={"in": count})

    def on_stop(self, task: str) -> None:
        self.may_let_go.wait(PATIENCE_S)

    def on_drain(self, notification: DrainNotification) -> None:
        self.steps.append(notification.reached)

    @property
    def ending(self) -> Ending | None:
        return self.coordinator.ending  # type: ignore[attr-defined, no-any-return]


class Group:
    """Members and the job file that they share with the commands."""

    def __init__(self, emulator: Azurite, directory: Path, more: str = "") -> None:
        self.environment = {**os.environ, "CONNECT": emulator.connection_string}
        self.job = directory / "job.toml"
        self.job.write_text(JOB.format(id=uuid.uuid4().hex[:8]) + more)
        self.config = Config.load(self.job, environment=self.environment)
        self.account = Account.from_config(self.config.storage)
        self.account.ensure_created()
        self.runner = asyncio.Runner()
        self.members: list[Member] = []

    def start(self, *names: str, count: int = 4, reads: bool = True) -> list[Member]:
        started = [Member(self.config, name, count, reads=reads) for name in names]
        for member in started:
            member.start()
        self.members += started
        return started

    def close(self) -> None:
        for member in self.members:
            member.may_let_go.set()
            member.stop()
        self.runner.run(self.account.aclose())
        self.runner.close()
        self.account.close()

    def produce(self, rows: int) -> None:
        """Write rows into the source that the members seem to read."""
        with SourceWriter(self.account.blobs(), self.account.hints(), "in", 2) as writer:
            for number in range(rows):
                writer.write(pa.table({"v": [number]}))

    def begin(self, name: str, *options: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "samza_azure", name, str(self.job), *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def command(self, name: str, *options: str) -> tuple[int, str, str]:
        ended = run(name, str(self.job), *options, env=self.environment)
        return ended.returncode, ended.stdout, ended.stderr

    def status(self) -> dict[str, Any]:
        return document("asked", *self.runner.run(read(self.account)))

    def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(shown := self.status()):
            assert time.monotonic() < deadline, f"{what}: {shown}"
            time.sleep(0.2)  # the pace of asking
        return shown

    def leader(self) -> LeaderRow:
        row = self.runner.run(self.account.rows().get(LEADER, LEADER, timeout=10))
        assert row is not None
        return leader_row(row.etag, row.values)

    def write(self, partition: str, key: str, values: Mapping[str, str | int | bool]) -> None:
        answer = self.runner.run(self.account.rows().insert(partition, key, values, timeout=10))
        assert isinstance(answer, str)


def all_run(shown: dict[str, Any]) -> bool:
    return bool(shown["tasks"]) and all(task["phase"] == "RUNNING" for task in shown["tasks"])


def generations(shown: dict[str, Any]) -> dict[str, int]:
    return {task["name"]: task["generation"] for task in shown["tasks"]}


@pytest.fixture
def group(emulator: Azurite, tmp_path: Path) -> Iterator[Group]:
    group = Group(emulator, tmp_path)
    yield group
    group.close()


def test_a_status_that_is_watched_through_a_pipe_is_printed_at_each_change(group: Group) -> None:
    """It was printed only when the command was interrupted. On a terminal it takes the place of the last one."""
    group.start("a")
    group.until("all run", all_run)
    process, (drawn, terminal) = group.begin("status", "--watch"), pty.openpty()
    command = [sys.executable, "-m", "samza_azure", "status", str(group.job), "--watch"]
    environment = {**group.environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    on_terminal = subprocess.Popen(command, env=environment, stdout=terminal, stderr=terminal)
    os.close(terminal)
    deadline = threading.Timer(PATIENCE_S, lambda: (process.kill(), on_terminal.kill()))
    deadline.start()
    try:
        assert process.stdout is not None
        assert any(line.startswith("a (leads)") for line in process.stdout)
        first = until_drawn(drawn, b"a (leads)")
        group.start("b")
        assert any(line.startswith("b ") for line in process.stdout)
        second = until_drawn(drawn, b"\nb ")
        assert b"\x1b[1A" in second and b"a (leads)" in second.rpartition(b"\x1b[2K")[2], "drawn anew, in place"
        assert b"b " not in first.rpartition(b"a (leads)")[2].partition(b"task")[0]
        for each in (process, on_terminal):
            each.send_signal(signals.SIGINT)
            assert each.wait(PATIENCE_S) == 0
    finally:
        deadline.cancel()
        process.kill()
        on_terminal.kill()
        os.close(drawn)


def until_drawn(terminal: int, text: bytes) -> bytes:
    """What a terminal is sent until this text is part of it."""
    found = b""
    while text not in found:
        found += os.read(terminal, 1 << 16)  # an error once the command has ended
    return found


def test_status_has_what_is_behind_of_each_source_and_each_task(group: Group) -> None:
    """No task of this fleet reads, so none reports a position: its backlog is unknown."""
    group.produce(5)
    group.start("a", count=2)
    group.until("all run", all_run)
    shown = json.loads(group.command("status", "--json")[1])
    assert sum(each["rows"] for each in shown["behind"].values()) == 5
    for each in shown["behind"].values():
        assert (each["is_all"], each["pace"], each["event_ms"], each["size"] > 0) == (True, None, None, True)
        assert 0 <= each["appended_s"] < PATIENCE_S
    assert [task["behind"] for task in shown["tasks"]] == [None, None]
    rows = [line.split() for line in group.command("status")[1].splitlines() if line.startswith("in/")]
    assert [row[:2] for row in rows] == [[name, str(each["rows"])] for name, each in shown["behind"].items()]


def test_a_stopped_run_is_resumed_by_the_next_start(group: Group) -> None:
    members = group.start("a", "b")
    before = group.until("all run", all_run)
    run_id = before["run_id"]

    code, said, progress = group.command("stop", "--wait")
    no_logs = "How far in is read is not known: no task has reported it, and no log says it.\n"
    assert (code, progress) == (0, f"Stop of run {run_id} requested.\n{no_logs}")
    assert said.startswith(f"Run {run_id} is stopped after ") and said.endswith(" s.\n")
    stopped = Ending(0, f"Run {run_id} is stopped. The next start resumes it.")
    assert [member.coordinator.wait(PATIENCE_S) and member.ending for member in members] == [stopped, stopped]  # type: ignore[attr-defined]
    assert group.status()["phase"] == "STOPPED"
    assert group.command("stop", "--wait") == (0, "No processor runs.\n", "")

    group.start("a", "c")
    after = group.until("all run again", lambda shown: all_run(shown) and shown["phase"] == "RUNNING")
    assert (after["run_id"], after["stop"]) == (run_id, None)
    assert all(generations(after)[task] > generation for task, generation in generations(before).items())


def test_check_says_before_a_start_what_it_would_do_with_the_present_run(
    group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    [member] = group.start("a")
    run_id = group.until("all run", all_run)["run_id"]
    assert against_run(group.config, member._plan) == 0
    said = f"Run {run_id} has this pipeline: a start of this code goes on with it, without a drain.\n"
    assert capsys.readouterr().out == said
    assert against_run(group.config, replace(member._plan, fingerprint="0" * 64)) == 2
    assert "Drain the run with the old code" in capsys.readouterr().out


def test_a_stop_says_what_is_not_read_at_once_or_when_all_have_left(group: Group) -> None:
    group.produce(3)
    group.start("a", count=2)
    group.until("all run", all_run)
    requested = f"Stop of run {group.status()['run_id']} requested.\n"
    code, _, progress = group.command("stop")
    left = "Not read so far: 3 rows of in. The next start goes on with those that are still unread then.\n"
    assert (code, progress) == (0, requested + left)
    group.until("all have left", lambda shown: shown["phase"] == "STOPPED")

    group.start("b", count=2)
    group.until("all run again", lambda shown: all_run(shown) and shown["phase"] == "RUNNING")
    group.produce(1)
    ends, left = {}, 0
    for number in (0, 1):  # their logs say that they have read one row, if there is one
        source = LogReader(group.account.blobs(), f"streams/in/{number}")
        found = source.scan((0, 0), 1)
        ends[f"in/{number}"], left = found.end, left + source.scan(found.end).rows
        writer, _ = take_over(
            group.account.blobs(),
            f"runs/{group.status()['run_id']}/part-{number}",
            group_id=bytes(16),
            task=f"part-{number}",
            writer=Writer(1, 1),
            first=True,
            may_append=lambda: True,
            meta={"stream": "out"},
        )
        writer.append(0, read=ends)
    assert 0 < left < 4
    code, _, progress = group.command("stop", "--wait")
    assert (code, progress) == (0, f"{requested}Not read: {left} rows of in. The next start goes on with them.\n")
    shown = json.loads(group.command("status", "--json")[1])
    assert (shown["phase"], sum(each["rows"] for each in shown["behind"].values())) == ("STOPPED", left)


def test_a_stop_of_a_fleet_that_was_killed_ends_and_does_not_stop_the_next_one(group: Group) -> None:
    [member] = group.start("a")
    before = group.until("all run", all_run)
    member.stop()
    group.write(MEMBERS, "ghost", columns(ProcessorRow("ghost", "f" * 32, adopted=2, state=ProcessorState.ACTIVE)))

    code, said, _ = group.command("stop", "--wait")
    silent = "None has sent a heartbeat lately: ghost.\n"  # if it takes longer until the command looks
    assert (code, said.endswith((" s. ghost did not answer.\n", silent))) == (0, True), said

    [member] = group.start("a")
    after = group.until("all run again", all_run)
    assert (after["run_id"], after["stop"]) == (before["run_id"], None)
    group.until("the ghost is dead", lambda shown: [p["state"] for p in shown["processors"]] == ["ACTIVE", "DEAD"])
    assert (member.ending, all_run(group.status())) == (None, True)


def test_a_drain_is_cancelled_before_it_flushes_and_nothing_has_happened(group: Group) -> None:
    group.start("a", "b")
    before = group.until("all run", all_run)
    run_id = before["run_id"]
    assert group.command("drain", "--cancel") == (0, f"Run {run_id} is not draining.\n", "")

    waiting = group.begin("drain", "--wait")
    group.until("frozen", lambda shown: (shown["drain"] or {}).get("step") == "FREEZE")
    assert group.command("drain", "--cancel") == (0, f"The drain of run {run_id} is cancelled; the run goes on.\n", "")
    _, progress = waiting.communicate(timeout=30)
    assert waiting.returncode == 1
    assert f"The drain of run {run_id} was cancelled. The run goes on." in progress
    after = group.status()
    assert (after["phase"], after["drain"], generations(after)) == ("RUNNING", None, generations(before))


def test_a_drain_that_is_not_waited_for_says_what_is_not_read_so_far(group: Group) -> None:
    group.produce(3)
    group.start("a", count=2)
    run_id = group.until("all run", all_run)["run_id"]
    left = "Not read so far: 3 rows of in. The next run begins with those that are still unread then.\n"
    assert group.command("drain") == (0, "", f"Drain of run {run_id} requested.\n{left}")


def test_a_drain_is_requested_before_the_control_blob_is_read_and_only_once(group: Group) -> None:
    """The leader row names the run, and that is enough: the group drains after one read of the row."""
    group.start("a")
    run_id = group.until("all run", all_run)["run_id"]
    assert write_drain_early(group.account, "another") is None, "the run that is meant is not the one that runs"
    group.until("the row says it", lambda _: signalled(group.leader().signal) == (run_id, RunPhase.RUNNING))
    early = write_drain_early(group.account, "")
    assert early is not None and early.run_id == run_id
    group.until("draining", lambda shown: shown["phase"] == "DRAINING")
    control, _ = group.runner.run(read(group.account))
    asked = group.runner.run(ask_drain(control, group.account.rows(), "", early))
    assert asked == Asked(run_id, early.key)
    group.until("the row says that, too", lambda _: signalled(group.leader().signal) == (run_id, RunPhase.DRAINING))
    assert write_drain_early(group.account, "") is None, "it drains already, says the row"
    assert [row.key for row in group.runner.run(group.account.rows().query(REQUESTS, timeout=10))] == [early.key]


def test_a_run_that_begins_while_a_drain_is_requested_is_not_drained_in_its_place(group: Group) -> None:
    """The leader row named the run before: it is out of date, or that run has been drained since, and no
    command waits."""
    group.write(LEADER, LEADER, leader_columns(LeaderRow(1, 1, signal(running("old")), "", 1)))
    early = write_drain_early(group.account, "")
    assert early is not None and early.run_id == "old"
    ours = DrainNotification(early.key, "old")

    def asked(control: Control, run_id: str = "") -> Asked:
        return group.runner.run(ask_drain(control, group.account.rows(), run_id, early))

    drained = replace(running("old"), phase=RunPhase.DRAINED, past=("old",))
    assert asked(drained) == asked(drained, "old") == Asked("old", already=ALREADY_DRAINED)
    assert asked(replace(drained, drain=ours)) == Asked("old", early.key), "drained before anybody looked"
    later = replace(running("new"), past=("old",))
    assert asked(replace(later, drains=(ours,))) == Asked("old", early.key)
    assert asked(later, "old") == Asked("old", already=ALREADY_DRAINED)
    for unclear, said in ((later, "run new"), (Control("g"), "none")):
        with pytest.raises(ConfigError, match=f"Run old was in progress a moment ago, and now it is {said}."):
            asked(unclear)
    requests = group.runner.run(group.account.rows().query(REQUESTS, timeout=10))
    assert [row.key for row in requests] == [early.key], "no other run was asked to drain"


@pytest.mark.parametrize("has_arrived", [True, False])
def test_a_request_whose_answer_was_lost_is_written_once_and_for_no_other_run(
    group: Group, *, has_arrived: bool
) -> None:
    group.write(LEADER, LEADER, leader_columns(LeaderRow(1, 1, signal(running("run")), "", 1)))
    early = write_drain_early(group.account, "")
    assert early is not None and early.is_written
    rows, lost = group.account.rows(), replace(early, is_written=False)
    if not has_arrived:
        [row] = group.runner.run(rows.query(REQUESTS, timeout=10))
        group.runner.run(rows.delete(REQUESTS, row.key, etag=row.etag, timeout=10))
    asked = group.runner.run(ask_drain(running("run"), rows, "", lost))
    assert [row.key for row in group.runner.run(rows.query(REQUESTS, timeout=10))] == [asked.key]
    assert (asked.run_id, asked.key == early.key) == ("run", has_arrived)
    with pytest.raises(ConfigError, match="now it is run next"):
        group.runner.run(ask_drain(running("next"), rows, "", lost))


@pytest.mark.parametrize("signal_of_row", ["", ":RUNNING:-", "a/b|c:RUNNING:-", "run", "run:RUNNINGS:-"])
def test_garbage_in_the_leader_row_requests_nothing(group: Group, signal_of_row: str) -> None:
    group.write(LEADER, LEADER, leader_columns(LeaderRow(1, 1, signal_of_row, "", 1)))
    assert write_drain_early(group.account, "") is None
    assert group.runner.run(group.account.rows().query(REQUESTS, timeout=10)) == []


def test_a_drain_is_requested_before_the_clients_that_wait_for_it_are_imported() -> None:
    """They are most of the command's start, and the fleet drains meanwhile."""
    program = "import sys, samza_azure.cli, samza_azure.commands.drain; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "azure.data.tables" in loaded
    assert not {"aiohttp", "azure.storage.blob", "samza_azure.commands.draining"} & {*loaded}


@pytest.mark.parametrize("phase", sorted({*RunPhase} - {RunPhase.RUNNING}))
def test_only_a_run_that_runs_is_drained_by_the_leader_row_alone(group: Group, phase: RunPhase) -> None:
    assert write_drain_early(group.account, "") is None, "no processor has ever run"
    row = LeaderRow(1, 1, signal(replace(running("run"), phase=phase)), "", 1)
    group.write(LEADER, LEADER, leader_columns(row))
    assert write_drain_early(group.account, "") is None
    assert group.runner.run(group.account.rows().query(REQUESTS, timeout=10)) == []


def test_after_flush_there_is_no_way_back_and_the_commands_say_so(group: Group) -> None:
    [member] = group.start("a", reads=False)
    run_id = group.until("all run", all_run)["run_id"]
    member.may_let_go.clear()
    assert group.command("drain") == (0, "", f"Drain of run {run_id} requested.\n")
    group.until("flushing", lambda shown: (shown["drain"] or {}).get("step") == "FLUSH")
    end = "samza-azure drain --wait waits for its end.\n"
    since = rf", final since \d\d:\d\d:\d\d, asked by {re.escape(asker())}"
    flushes = f"samza-azure: Run {run_id} is already flushing{since}"
    code, said, progress = group.command("drain", "--cancel")
    assert (code, said) == (2, "")
    assert re.fullmatch(f"{flushes}: its drain can no longer be cancelled. {end}", progress)
    code, said, progress = group.command("stop")
    assert (code, said) == (2, "")
    assert re.fullmatch(f"{flushes}: it ends by itself and can no longer be stopped. {end}", progress)
    code, _, progress = group.command("drain", "--wait", "--timeout", "0.5")
    assert code == 4
    assert re.search(
        r"not over after 0.5 s. It goes on, .*0 of 4 tasks are done. part-0 [A-Z_]+ on a; part-1", progress
    )
    member.may_let_go.set()
    assert group.command("drain", "--wait", "--timeout", "30")[0] == 0
    code, said, progress = group.command("drain", "--cancel")
    assert (code, said) == (2, "")
    assert re.search(f"Run {run_id} is drained{since}. That cannot be undone", progress)


def test_the_listener_gets_each_step_once_and_drained_last(group: Group) -> None:
    [member] = group.start("a", reads=False)
    run_id = group.until("all run", all_run)["run_id"]
    code, said, _ = group.command("drain", "--wait", "--timeout", "30")
    assert code == 0
    took = "taken up after .* s, sources stopped after .* s, flushed after .* s"
    assert re.search(f"drain DRAINED of run {run_id}, asked by {re.escape(asker())} at .*, {took}", said)
    assert member.coordinator.wait(PATIENCE_S)  # type: ignore[attr-defined]
    shown, steps = group.status()["drain"], ["FREEZE", "FLUSH", "DRAINED"]
    assert member.steps == steps or member.steps == steps[1:]  # no reader: the first two may be one write
    assert (shown["run_id"], shown["history"], shown["asked_by"]) == (run_id, steps, asker())
    assert shown["at_ms"] == sorted(shown["at_ms"]) and len(shown["at_ms"]) == 3 and shown["asked_ms"] > 0


def test_the_next_run_remembers_how_the_last_one_was_drained(group: Group) -> None:
    group.start("a", reads=False)
    first = group.until("all run", all_run)["run_id"]
    assert group.command("drain", "--wait", "--timeout", "30")[0] == 0
    group.start("b", count=5, reads=False)
    shown = group.until("the next run", lambda shown: all_run(shown) and shown["run_id"] != first)
    assert shown["drain"] is None
    assert [(each["run_id"], each["step"], each["ends"]) for each in shown["drains"]] == [(first, "DRAINED", {})]
    assert f"drain DRAINED of run {first}, asked by" in group.command("status")[1].replace("\n", " ")


def test_drain_wait_ends_when_every_processor_has_ended(group: Group) -> None:
    [member] = group.start("a")
    run_id = group.until("all run", all_run)["run_id"]
    waiting = group.begin("drain", "--wait")
    group.until("frozen", lambda shown: (shown["drain"] or {}).get("step") == "FREEZE")
    member.stop()
    [misfit] = group.start("b", count=5)
    assert misfit.coordinator.wait(PATIENCE_S)  # type: ignore[attr-defined]
    assert misfit.ending is not None and misfit.ending.code == 2
    said, progress = waiting.communicate(timeout=60)
    assert (waiting.returncode, said) == (2, "")
    assert f"No processor is alive. b ended with 2: {misfit.ending.message}" in progress
    assert "The request stays" in progress
    assert group.command("drain", "--wait")[0] == 2  # a second command need not wait either
    group.members.remove(misfit)
    with pytest.raises(ConfigError, match="has another pipeline than this processor"):
        misfit.stop()

    group.start("c", reads=True)  # the request stays
    group.until("draining", lambda shown: shown["phase"] == "DRAINING" and shown["run_id"] == run_id)
    assert group.command("drain", "--cancel")[0] == 0


def test_ctrl_c_says_what_a_command_that_waits_leaves_behind(group: Group) -> None:
    waiting = group.begin("drain", "--run-id", "1", "--wait")
    assert waiting.stderr is not None
    for line in waiting.stderr:
        if line == "No processor runs. The drain begins when one starts.\n":
            break
    waiting.send_signal(signals.SIGINT)
    said = waiting.communicate(timeout=PATIENCE_S)
    assert said == ("", "The drain goes on without this command. `drain --wait` shows it again.\n")
    assert waiting.returncode == 130
    assert group.command("drain", "--cancel", "--run-id", "1")[0] == 0


Watch = tuple[DrainNotifications, DrainMonitor, "queue.SimpleQueue[DrainNotification]"]


def watching(group: Group, run_id: str) -> Watch:
    """A monitor beside the group, and what it says."""
    drains, heard = DrainNotifications.of(group.config), queue.SimpleQueue[DrainNotification]()
    monitor = DrainMonitor(drains, run_id, 0.05)
    monitor.register_drain_callback(heard.put)
    monitor.start()
    return drains, monitor, heard


def test_a_monitor_beside_a_group_calls_back_when_the_drain_is_final(group: Group) -> None:
    group.start("a", reads=False)
    run_id = group.until("all run", all_run)["run_id"]
    drains, monitor, heard = watching(group, run_id)
    asked = drains.write()
    assert (asked.run_id, drains.read().malformed) == (run_id, 0)
    drain = heard.get(timeout=PATIENCE_S)
    assert (drain.uuid, drain.run_id, drain.step) == (asked.uuid, run_id, "FLUSH")
    assert monitor.state == "STOPPED"
    group.until("drained", lambda shown: shown["phase"] == "DRAINED")
    drains.clean(run_id)
    assert drains.read().notifications == ()
    known = drains.wanted(run_id)  # the rows are gone, the control blob knows
    assert known is not None and known.uuid == asked.uuid


def test_the_drains_of_a_job_that_has_never_run_are_kept_for_its_first_run(group: Group) -> None:
    """Its account has neither the container nor the table: the first call creates them."""
    storage = replace(group.config.storage, container=f"new-{uuid.uuid4().hex}", table=f"new{uuid.uuid4().hex}")
    drains = DrainNotifications.of(replace(group.config, storage=storage))
    assert (drains.read().notifications, drains.wanted("r1")) == ((), None)
    with pytest.raises(ConfigError, match="No run is in progress"):
        drains.write()
    asked = drains.write("r1")
    assert drains.wanted("r1") == asked
    assert DrainNotifications.of(replace(group.config, storage=storage)).read().notifications == (asked,)
    assert (drains.clean("r2"), drains.clean("r1"), drains.wanted("r1")) == (0, 1, None)


def test_a_monitor_says_nothing_of_a_drain_that_is_cancelled(group: Group) -> None:
    group.start("a")
    run_id = group.until("all run", all_run)["run_id"]
    drains, monitor, heard = watching(group, run_id)
    drains.write()
    group.until("frozen", lambda shown: (shown["drain"] or {}).get("step") == "FREEZE")
    assert drains.wanted(run_id) is None
    assert group.command("drain", "--cancel")[0] == 0
    assert drains.wanted(run_id) is None
    assert (heard.empty(), monitor.state, monitor.failures) == (True, "RUNNING", 0)
    monitor.stop()


def test_a_drain_that_no_leader_has_accepted_is_cancelled_by_the_next_start(group: Group) -> None:
    nobody = "No processor runs. The drain begins when one starts.\n"
    assert group.command("drain", "--run-id", "1") == (0, "", f"Drain of run 1 requested.\n{nobody}")
    assert group.command("drain", "--cancel", "--run-id", "1") == (
        0,
        "No processor runs. The next one to start cancels the drain of run 1.\n",
        "",
    )
    group.config = replace(group.config, app=replace(group.config.app, run_id="1"))
    group.start("a", reads=False)
    shown = group.until("all run", all_run)
    assert (shown["phase"], shown["drain"]) == ("RUNNING", None)
    assert group.command("drain", "--cancel")[1] == f"Run {shown['run_id']} is not draining.\n"


def test_requests_that_cannot_be_obeyed_are_ignored(group: Group) -> None:
    group.write(REQUESTS, "strange", {"kind": "dance", "runId": 7, "uuid": True})
    group.write(REQUESTS, "huge", {"kind": "drain", **{f"body{number}": "x" * 30_000 for number in range(15)}})
    group.write(REQUESTS, "elsewhere", {"kind": "drain", "runId": "a run that never comes"})
    [member] = group.start("a", reads=False)
    shown = group.until("all run", all_run)
    assert (shown["phase"], shown["drain"]) == ("RUNNING", None)
    assert group.command("drain", "--wait", "--timeout", "30")[0] == 0
    assert member.coordinator.wait(PATIENCE_S)  # type: ignore[attr-defined]


def test_a_decommissioned_member_hands_over_stays_and_comes_back(group: Group) -> None:
    group.start("a", "b")
    group.until("both have tasks", lambda shown: all_run(shown) and owners(shown) == {"a", "b"})
    code, said, progress = group.command("decommission", "b", "--by", "1min", "--wait", "--timeout", "30")
    assert (code, said) == (0, "b DECOMMISSIONED: 2 of 2 tasks handed over.\n"), progress
    assert progress.startswith("The decommissioning of b is requested.\n")
    shown = group.until("a runs all", lambda shown: all_run(shown) and owners(shown) == {"a"})
    assert {each["id"] for each in shown["processors"] if each["state"] != "LEFT"} == {"a", "b"}
    assert group.command("decommission", "b", "--wait")[:2] == (0, said), "once more changes nothing"
    assert group.command("decommission", "b", "--cancel")[:2] == (0, "b gets tasks again.\n")
    group.until("both have tasks again", lambda shown: all_run(shown) and owners(shown) == {"a", "b"})


@pytest.mark.parametrize(
    ("processor", "options", "told"),
    [
        ("x", {}, "x cannot be decommissioned: There is no processor of this name. No processor runs."),
        ("x", {"by": "soon"}, "is neither a duration, such as 30s, nor a time, such as 2026-12-01T18:00:00Z."),
        ("x", {"by": "2020-01-01T00:00:00Z"}, "is over. Name a time to come, or leave it out."),
        ("x", {"by": "2090-01-01T00:00:00"}, "has no time zone. Add one: 2090-01-01T00:00:00Z is UTC."),
        ("x", {"cancel": True, "wait": True}, "--cancel goes without --by and --wait."),
        ("x", {"timeout": 5.0}, "--timeout bounds a wait. Add --wait, or leave it out."),
        (None, {}, "No processor of this job answers on this machine. Name one by its ID, or set processor.port"),
    ],
    ids=str,
)
def test_a_decommissioning_that_cannot_be_asked_for_says_why(
    group: Group, monkeypatch: pytest.MonkeyPatch, processor: str | None, options: dict[str, Any], told: str
) -> None:
    monkeypatch.setenv("CONNECT", group.environment["CONNECT"])
    asked = {"by": None, "wait": False, "timeout": None, "cancel": False, **options}
    with pytest.raises(ConfigError, match=re.escape(told)):
        decommission.command(group.job, processor, **asked)


def owners(shown: dict[str, Any]) -> set[str]:
    return {task["owner"] for task in shown["tasks"]}


def test_two_thousand_tasks_of_one_processor_are_all_reported(group: Group) -> None:
    group.start("a", count=2_000, reads=False)
    shown = group.until("all run", all_run)
    assert len(shown["tasks"]) == 2_000
