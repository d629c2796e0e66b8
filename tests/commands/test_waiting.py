"""What `drain` answers at moments that a real group passes too quickly. On the account in memory."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar, cast

import pyarrow as pa
import pytest

from samza_azure.commands import waiting
from samza_azure.commands.draining import drain
from samza_azure.commands.requests import Asked, ask_cancel, ask_drain
from samza_azure.commands.wait_limit import WaitLimit
from samza_azure.config import Config
from samza_azure.errors import ConfigError, JobFailed, SamzaAzureError, StorageUnavailable, TimedOut
from samza_azure.group.control import NAME, Control, Failure, Member, RunPhase, Stop, encode
from samza_azure.group.notification import DrainNotification
from samza_azure.group.requests import ACCEPTED, ALREADY_DRAINING, CANCELLED
from samza_azure.group.rows import (
    MEMBERS,
    REQUESTS,
    ProcessorRow,
    ProcessorState,
    RequestKind,
    columns,
    request_columns,
)
from samza_azure.host.status import control_of
from samza_azure.messages import DrainStep
from samza_azure.storage.connection import Account
from samza_azure.storage.limits import HINTS
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from samza_azure.stream_io.source_stream import SourceWriter

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
FROZEN = replace(RUNNING, phase=RunPhase.DRAINING, drain=FREEZE)
FLUSHES = replace(FROZEN, drain=FLUSH)
ROW = ProcessorRow("p1", "life", state=ProcessorState.ACTIVE)


def test_a_drain_that_failed_while_it_flushed_is_not_cancelled_because_the_next_start_resumes_it() -> None:
    flushed, frozen = (Play((replace(FAILED, drain=drain), ROW)).account for drain in (FLUSH, FREEZE))
    said = r"Run run failed while it flushed: its drain can no longer be cancelled\. The next start resumes the flush\."
    with pytest.raises(ConfigError, match=said):
        asyncio.run(ask_cancel(flushed, ""))
    assert asyncio.run(ask_cancel(frozen, "")).key


def test_a_drain_that_the_leader_takes_up_while_its_cancellation_is_asked_for_is_cancelled() -> None:
    """The blob was read before the requests: in between the drain had left the one and was not yet in the other, so
    the command said that the run was not draining, with 0, and the run drained for good."""
    play = Play((RUNNING, ROW), (FROZEN, ROW))
    control = asyncio.run(control_of(play.account))
    asked = asyncio.run(ask_drain(control, play.account.rows(), ""))

    async def ask() -> Asked:
        with play.before("control.read", lambda: play.answer(asked.key, "accepted")):
            return await ask_cancel(play.account, "")

    cancelled = asyncio.run(ask())
    assert cancelled.key and not cancelled.already


class Play(Link):
    """What each look at the group finds, None: the account is away. The last look is repeated. A look begins with the
    control blob."""

    def __init__(self, *looks: tuple[Control, ProcessorRow] | None) -> None:
        self.storage, self._looks = MemoryStorage(), list(looks)
        self._then: tuple[str, Callable[[], None]] | None = None
        self.account = cast(Account, MemoryAccount(self.storage, link=self))  # it has the same methods
        self.storage.control_create(b"")

    @contextmanager
    def before(self, operation: str, then: Callable[[], None]) -> Iterator[None]:
        """Do something before the next such call has its effect."""
        self._then = operation, then
        yield
        assert self._then is None, f"{operation} was not called"

    def answer(self, key: str, text: str) -> None:
        """What the leader does."""
        row = next(row for row in self.storage.query(REQUESTS) if row.key == key)
        self.storage.update(REQUESTS, key, {"answer": text}, row.etag, merge=True)

    @property
    def looks_left(self) -> int:
        return len(self._looks)

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        if self._then is not None and self._then[0] == operation:
            (_, then), self._then = self._then, None
            then()
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


def test_when_caught_up_reports_what_it_waits_for_and_ends_without_processors(
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
        waiting.wait_until_read(CONFIG, play.account, WaitLimit(PATIENCE_S))
    assert capsys.readouterr().err.splitlines() == [
        "No run is in progress yet. Waiting for it to begin.",
        "No processor runs. The rows are read when one starts.",
        "2 rows left to read.",
        "2 rows left to read. Run run drains already: it may end before it has read them.",
    ]


def test_processors_that_are_silent_are_named_as_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.1)  # a gap between two reads counts for at most twice that
    play = Play((replace(RUNNING, run_id="", phase=RunPhase.NONE), ROW))
    with pytest.raises(TimedOut):
        waiting.wait_until_read(CONFIG, play.account, WaitLimit(2 * CONFIG.coordinator.timing.heartbeat_timeout_s))
    assert "No processor has sent a heartbeat lately. The rows are read when one starts." in capsys.readouterr().err


DRAINED = replace(RUNNING, phase=RunPhase.DRAINED, drain=FLUSH, past=("run",))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_drain_says_at_its_end_which_rows_are_not_read(
    capsys: pytest.CaptureFixture[str], *, is_damaged: bool
) -> None:
    """That they cannot be counted is no failure of the drain."""
    play = Play((RUNNING, ROW), (replace(DRAINED, positions={"in/0": (0, 0)}), ROW))
    with SourceWriter(play.account.blobs(), play.account.hints(), "in", 1) as writer:
        writer.write(pa.table({"n": [1, 2]}))
    if is_damaged:
        [(name, size)] = play.account.blobs().list("streams/")
        play.account.blobs().append(name, b"x" * 100, size)
    drain(CONFIG, play.account, "", None, WaitLimit(PATIENCE_S), wait=True, when_caught_up=False)
    said = capsys.readouterr()
    assert said.out.startswith("Run run is drained")
    if is_damaged:
        assert "How many rows are not read is unknown: No record begins here" in said.err
    else:
        assert said.err.endswith("Not read: 2 rows of in. The next run begins with them.\n")


def test_a_failed_run_is_waited_for_while_a_processor_that_can_resume_it_has_not_taken_part_in_it() -> None:
    again = replace(ROW, incarnation="next life")
    play = Play((replace(FAILED, drain=FLUSH), again), (DRAINED, again))
    assert waiting.wait_for_drain(CONFIG, play.account, Asked("run"), WaitLimit(PATIENCE_S)).startswith(
        "Run run is drained"
    )


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        replace(ROW, state=ProcessorState.LEFT),
        ProcessorRow("p2", "life", state=ProcessorState.ACTIVE, fingerprint="another pipeline"),
        ProcessorRow("p2", "life", state=ProcessorState.ACTIVE, too_old_for=2),
    ],
)
def test_a_command_does_not_wait_for_a_failed_run_that_no_processor_resumes(row: ProcessorRow) -> None:
    with pytest.raises(JobFailed, match="Run run failed in task clean-0: no"):
        waiting.wait_for_drain(CONFIG, Play((FAILED, row), (DRAINED, row)).account, Asked("run"), WaitLimit(PATIENCE_S))
    with pytest.raises(ConfigError, match="Run run is FAILED: it no longer reads"):
        waiting.wait_until_read(CONFIG, Play((FAILED, row), (DRAINED, row)).account, WaitLimit(PATIENCE_S))


def test_rows_are_waited_for_while_a_failed_run_can_be_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    again = replace(ROW, incarnation="next life")
    waiting.wait_until_read(CONFIG, Play((FAILED, again), (RUNNING, again)).account, WaitLimit(PATIENCE_S))
    assert capsys.readouterr().err == "Run run failed. Waiting for a processor to resume it.\n"


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
        waiting.wait_for_drain(CONFIG, play.account, Asked("run", "u"), WaitLimit(PATIENCE_S))


@pytest.mark.parametrize(("after", "said"), [(RUNNING, r"The run goes on\."), (STOPPED, "by a stop")])
def test_a_drain_that_was_accepted_and_cancelled_before_the_first_read_is_over(after: Control, said: str) -> None:
    """The command waited forever: the blob showed no drain, and the answer of the leader did not say so."""
    play = Play((after, ROW))
    play.storage.insert(REQUESTS, "u", {**request_columns(RequestKind.DRAIN, "u", "run"), "answer": ACCEPTED})
    with pytest.raises(SamzaAzureError, match=rf"was cancelled.*{said}"):
        waiting.wait_for_drain(CONFIG, play.account, Asked("run", "u"), WaitLimit(PATIENCE_S))


def test_drain_wait_reports_an_outage_and_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    play = Play((FROZEN, ROW), None, None, (DRAINED, ROW))
    assert waiting.wait_for_drain(CONFIG, play.account, Asked("run"), WaitLimit(PATIENCE_S)).startswith(
        "Run run is drained"
    )
    assert capsys.readouterr().err.count("The account does not answer. The drain goes on when it does.") == 1
    with pytest.raises(TimedOut, match=r"It goes on, and nothing is lost\. No task has started\."):
        waiting.wait_for_drain(CONFIG, Play((FROZEN, ROW), *[None] * 9).account, Asked("run"), WaitLimit(0.05))


def test_waiting_for_rows_survives_an_outage_and_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    """One call without an answer ended the command with 3, and no drain was requested."""
    play = Play((RUNNING, ROW), None, (RUNNING, ROW))
    writer = SourceWriter(play.account.blobs(), play.account.hints(), "in", 1)
    writer.write(pa.table({"n": [1, 2]}))
    writer.flush()
    with pytest.raises(TimedOut):
        waiting.wait_until_read(CONFIG, play.account, WaitLimit(0.3))
    away = "The account does not answer. The rows are read when it does."
    assert capsys.readouterr().err.splitlines() == ["2 rows left to read.", away, "2 rows left to read."]


def test_rows_that_are_read_after_the_blob_end_no_drain_that_is_over() -> None:
    """The fleet had drained and left between the two reads, one of its processors with an error: the command reported
    that no processor was left, and exited with 2."""
    gone = replace(ROW, state=ProcessorState.LEFT, ending="2 Why.")
    play = Play((FLUSHES, gone), (DRAINED, gone))
    assert waiting.wait_for_drain(CONFIG, play.account, Asked("run"), WaitLimit(PATIENCE_S)).startswith(
        "Run run is drained"
    )
    with pytest.raises(ConfigError, match="No processor is alive"):
        waiting.wait_for_drain(CONFIG, Play((FLUSHES, gone)).account, Asked("run"), WaitLimit(PATIENCE_S))


def test_rows_are_waited_for_in_one_run() -> None:
    """If the run ended and the next one began in between, the next one was drained."""
    later = replace(RUNNING, run_id="next", past=("run",))
    play = Play((RUNNING, ROW), (later, ROW))
    writer = SourceWriter(play.account.blobs(), play.account.hints(), "in", 1)
    writer.write(pa.table({"n": [1, 2]}))
    writer.flush()
    with pytest.raises(ConfigError, match=r"Run run has ended, and run next has begun\. No drain"):
        waiting.wait_until_read(CONFIG, play.account, WaitLimit(PATIENCE_S))


def test_a_drain_without_a_leader_does_not_go_on() -> None:
    play = Play((RUNNING, ROW))
    with pytest.raises(TimedOut, match=r"No leader has begun it yet; the request stays\."):
        waiting.wait_for_drain(CONFIG, play.account, Asked("run"), WaitLimit(0.05))


def test_a_cancellation_whose_request_the_clean_up_has_deleted_came_too_late() -> None:
    """It waited for 30 s, and said that no leader had answered."""
    play = Play((DRAINED, ROW))
    with pytest.raises(ConfigError, match=r"cannot be cancelled: already drained"):
        waiting.wait_for_cancel(CONFIG, play.account, Asked("run", "gone"), PATIENCE_S)


def test_waiting_for_a_drain_reports_that_no_processor_runs(capsys: pytest.CaptureFixture[str]) -> None:
    gone = replace(ROW, state=ProcessorState.LEFT)
    play = Play((FROZEN, ROW), (FROZEN, gone), (FROZEN, gone), (DRAINED, gone))
    waiting.wait_for_drain(CONFIG, play.account, Asked("run"), WaitLimit(PATIENCE_S))
    assert capsys.readouterr().err.count("No processor runs. The drain goes on when one starts.") == 1


def test_a_drain_of_a_run_that_has_not_begun_says_which_one_is_in_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TimedOut):
        waiting.wait_for_drain(CONFIG, Play((RUNNING, ROW)).account, Asked("typo", "u"), WaitLimit(0.1))
    said = "Run run is in progress. The drain is for a run typo, which has not begun."
    assert " ".join(capsys.readouterr().err.split()).count(said) == 1


def test_the_failure_of_another_run_is_not_that_of_the_run_that_is_to_drain(capsys: pytest.CaptureFixture[str]) -> None:
    later = replace(DRAINED, run_id="next", past=("run", "next"))
    play = Play((FAILED, ROW), (later, ROW))
    assert waiting.wait_for_drain(CONFIG, play.account, Asked("next", "u"), WaitLimit(PATIENCE_S)).startswith(
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
        waiting.wait_for_drain(CONFIG, play.account, asked, WaitLimit(PATIENCE_S))


def test_only_the_drain_of_the_run_in_progress_is_hinted_at() -> None:
    """The hint of a mistyped run would stay forever, and every container reads the hints."""
    play = Play((RUNNING, ROW))
    for run_id in ("typo", "", "run"):
        asyncio.run(ask_drain(RUNNING, play.account.rows(), run_id))
    assert [row.key.split("|")[1] for row in play.storage.query(HINTS)] == ["run", "run"]


def test_the_limit_of_a_command_counts_for_all_that_it_waits_for() -> None:
    """Until the rows are read and until the drain is over it was counted twice, one after the other."""
    limit = WaitLimit(0.2)
    with pytest.raises(TimedOut, match=r"Not all rows are read after 0\.2 s"):
        waiting.wait_until_read(CONFIG, Play((replace(RUNNING, phase=RunPhase.NONE), ROW)).account, limit)
    play, looked = Play(*[(FROZEN, ROW)] * 50), 50
    with pytest.raises(TimedOut, match=r"The drain is not over after 0\.2 s"):
        waiting.wait_for_drain(CONFIG, play.account, Asked("run"), limit)
    assert play.looks_left == looked - 1
    assert not WaitLimit(None).is_over
