"""What `drain` answers at moments that a real group passes too quickly. On the account in memory."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

import pyarrow as pa
import pytest

from samza_azure.commands import reach, waiting
from samza_azure.commands.ask import Asked, ask_cancel, ask_drain
from samza_azure.config import Config
from samza_azure.errors import ConfigError, JobFailed, SamzaAzureError, StorageUnavailable, TimedOut
from samza_azure.group.control import NAME, Control, Failure, Member, RunPhase, Stop, encode
from samza_azure.group.notification import DrainNotification
from samza_azure.group.requests import ALREADY_DRAINING, CANCELLED
from samza_azure.group.rows import (
    MEMBERS,
    REQUESTS,
    ProcessorRow,
    ProcessorState,
    RequestKind,
    columns,
    request_columns,
)
from samza_azure.messages import DrainStep
from samza_azure.storage.connection import Account
from samza_azure.storage.limits import HINTS
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from samza_azure.storage.source_stream import SourceWriter

T = TypeVar("T")
#: Ends a test that hangs.
PATIENCE_S = 20.0
CONFIG = Config.parse(
    """
app = { name = "asked", id = "i", main = "none:none" }
azure.storage.connect = "UseDevelopmentStorage=true"
job.coordinator.profile = "fast"
"""
)

FREEZE = DrainNotification("u", "run", step=DrainStep.FREEZE, history=("FREEZE",))
FLUSH = replace(FREEZE, step=DrainStep.FLUSH, history=("FREEZE", "FLUSH"))
RUNNING = Control("g", run_id="run", phase=RunPhase.RUNNING, sources={"in": 1}, members=(Member("p1", "life"),))
FAILED = replace(RUNNING, phase=RunPhase.FAILED, failure=Failure("clean", "clean-0", "no", ""))
ROW = ProcessorRow("p1", "life", state=ProcessorState.ACTIVE)


def test_a_drain_that_failed_while_it_flushed_is_not_cancelled_because_the_next_start_resumes_it() -> None:
    rows = MemoryAccount().rows()
    said = r"Run run failed while it flushed: its drain can no longer be cancelled\. The next start resumes the flush\."
    with pytest.raises(ConfigError, match=said):
        asyncio.run(ask_cancel(replace(FAILED, drain=FLUSH), rows, ""))
    assert asyncio.run(ask_cancel(replace(FAILED, drain=FREEZE), rows, "")).key


class Play(Link):
    """What each look at the group finds, None: the account is away. The last look is repeated. A look begins with the
    control blob."""

    def __init__(self, *looks: tuple[Control, ProcessorRow] | None) -> None:
        self.storage, self._looks = MemoryStorage(), list(looks)
        self.account = cast(Account, MemoryAccount(self.storage, link=self))  # it has the same methods
        self.storage.control_create(b"")

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        if operation == "control.read" and self._looks:
            if (look := self._looks.pop(0)) is None:
                raise StorageUnavailable("The account is away.")
            control, row = look
            self.storage.delete(NAME)
            self.storage.control_create(encode(control))
            for old in self.storage.query(MEMBERS):
                self.storage.remove(MEMBERS, old.key, old.etag)
            self.storage.insert(MEMBERS, row.processor, columns(row))
        return effect()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.01)
    monkeypatch.setattr(waiting, "LOOK_S", 0.01)


def test_waiting_until_all_is_read_says_what_it_waits_for_and_ends_when_nobody_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    play = Play(
        (replace(RUNNING, run_id="", phase=RunPhase.NONE), ROW),
        (RUNNING, replace(ROW, state=ProcessorState.LEFT)),
        (RUNNING, ROW),
        (replace(RUNNING, phase=RunPhase.DRAINING, drain=FREEZE), ROW),
        (RUNNING, replace(ROW, state=ProcessorState.LEFT, ending="2 Why.")),
    )
    writer = SourceWriter(play.account.blobs(), play.account.hints(), "in", 1)
    writer.write(pa.table({"n": [1, 2]}))
    writer.flush()
    with pytest.raises(ConfigError, match=r"No processor is alive\. p1 ended with 2: Why\. No drain was requested"):
        waiting.wait_until_read(CONFIG, play.account, PATIENCE_S)
    assert capsys.readouterr().err.splitlines() == [
        "No run is in progress yet. Waiting for it to begin.",
        "No processor runs. The rows are read when one starts.",
        "2 rows left to read.",
        "2 rows left to read. Run run drains already: it may end before it has read them.",
    ]


def test_processors_that_are_silent_are_named_as_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.1)  # a gap between two looks counts for at most twice that
    play = Play((replace(RUNNING, run_id="", phase=RunPhase.NONE), ROW))
    with pytest.raises(TimedOut):
        waiting.wait_until_read(CONFIG, play.account, 2 * CONFIG.coordinator.timing.heartbeat_timeout_s)
    assert "No processor has sent a heartbeat lately. The rows are read when one starts." in capsys.readouterr().err


DRAINED = replace(RUNNING, phase=RunPhase.DRAINED, drain=FLUSH, past=("run",))


def test_a_failed_run_is_waited_for_while_a_processor_that_can_resume_it_has_not_taken_part_in_it() -> None:
    again = replace(ROW, incarnation="next life")
    play = Play((replace(FAILED, drain=FLUSH), again), (DRAINED, again))
    assert waiting.wait_for_drain(CONFIG, play.account, Asked("run"), PATIENCE_S).startswith("Run run is drained")


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        replace(ROW, state=ProcessorState.LEFT),
        ProcessorRow("p2", "life", state=ProcessorState.ACTIVE, fingerprint="another pipeline"),
        ProcessorRow("p2", "life", state=ProcessorState.ACTIVE, too_old_for=2),
    ],
)
def test_a_failed_run_is_not_waited_for_where_nobody_resumes_it(row: ProcessorRow) -> None:
    with pytest.raises(JobFailed, match="Run run failed in task clean-0: no"):
        waiting.wait_for_drain(CONFIG, Play((FAILED, row), (DRAINED, row)).account, Asked("run"), PATIENCE_S)
    with pytest.raises(ConfigError, match="Run run is FAILED: it no longer reads"):
        waiting.wait_until_read(CONFIG, Play((FAILED, row), (DRAINED, row)).account, PATIENCE_S)


def test_rows_are_waited_for_while_a_failed_run_can_be_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    again = replace(ROW, incarnation="next life")
    waiting.wait_until_read(CONFIG, Play((FAILED, again), (RUNNING, again)).account, PATIENCE_S)
    assert capsys.readouterr().err == "Run run failed. Waiting for a processor to resume it.\n"


FROZEN = replace(RUNNING, phase=RunPhase.DRAINING, drain=FREEZE)
STOPPED = replace(RUNNING, stop=Stop("s", (Member("p1", "life"),)))


@pytest.mark.parametrize(
    ("after", "said"),
    [(RUNNING, r"was cancelled\. The run goes on\."), (STOPPED, r"was cancelled by a stop\. The next start resumes")],
)
@pytest.mark.parametrize("was_seen", [True, False])
def test_waiting_for_a_drain_says_what_cancelled_it(after: Control, said: str, *, was_seen: bool) -> None:
    play = Play(*[(FROZEN, ROW)] * was_seen, (after, ROW))
    answer = {**request_columns(RequestKind.DRAIN, "u", "run"), "answer": CANCELLED}
    play.storage.insert(REQUESTS, "u", answer)
    with pytest.raises(SamzaAzureError, match=said):
        waiting.wait_for_drain(CONFIG, play.account, Asked("run", "u"), PATIENCE_S)


def test_waiting_for_a_drain_outlasts_an_outage_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reach, "PATIENCE_S", 0.0)
    play = Play((FROZEN, ROW), None, None, (DRAINED, ROW))
    assert waiting.wait_for_drain(CONFIG, play.account, Asked("run"), PATIENCE_S).startswith("Run run is drained")
    assert capsys.readouterr().err.count("The account does not answer. The drain goes on when it does.") == 1
    with pytest.raises(TimedOut, match=r"It goes on, and nothing is lost\. No task has started\."):
        waiting.wait_for_drain(CONFIG, Play((FROZEN, ROW), *[None] * 9).account, Asked("run"), 0.05)


def test_waiting_for_a_drain_says_that_nobody_runs(capsys: pytest.CaptureFixture[str]) -> None:
    gone = replace(ROW, state=ProcessorState.LEFT)
    play = Play((FROZEN, ROW), (FROZEN, gone), (FROZEN, gone), (DRAINED, gone))
    waiting.wait_for_drain(CONFIG, play.account, Asked("run"), PATIENCE_S)
    assert capsys.readouterr().err.count("No processor runs. The drain goes on when one starts.") == 1


def test_the_failure_of_another_run_is_not_that_of_the_run_that_is_to_drain(capsys: pytest.CaptureFixture[str]) -> None:
    later = replace(DRAINED, run_id="next", past=("run", "next"))
    play = Play((FAILED, ROW), (later, ROW))
    assert waiting.wait_for_drain(CONFIG, play.account, Asked("next", "u"), PATIENCE_S).startswith(
        "Run next is drained"
    )
    said = "Run run failed. The drain of run next begins when that run is resumed and has ended."
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("by", ["the command", "the leader"])
def test_a_drain_that_was_under_way_and_is_gone_was_cancelled(by: str) -> None:
    asked = Asked("run", already=ALREADY_DRAINING) if by == "the command" else Asked("run", "u")
    play = Play((RUNNING, ROW))
    if asked.key:
        answer = {**request_columns(RequestKind.DRAIN, "u", "run"), "answer": ALREADY_DRAINING}
        play.storage.insert(REQUESTS, "u", answer)
    with pytest.raises(SamzaAzureError, match=r"was cancelled\. The run goes on\."):
        waiting.wait_for_drain(CONFIG, play.account, asked, PATIENCE_S)


def test_only_the_drain_of_the_run_in_progress_is_hinted_at() -> None:
    """The hint of a mistyped run would stay for ever, and every container reads the hints."""
    play = Play((RUNNING, ROW))
    for run_id in ("typo", "", "run"):
        asyncio.run(ask_drain(RUNNING, play.account.rows(), run_id))
    assert [row.key.split("|")[1] for row in play.storage.query(HINTS)] == ["run", "run"]
