"""What is left of a drained run is deleted: on each storage, in a hierarchical namespace, and under a legal hold."""

import asyncio
import logging
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence

import pytest
from rich.console import Console

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.show import status_view
from samza_azure.errors import StateLost
from samza_azure.group.actions import CleanRun, CreateControl
from samza_azure.group.answers import Kept
from samza_azure.group.control import Control, RunPhase
from samza_azure.host.copies import keep_copy
from samza_azure.host.perform import perform
from samza_azure.host.runs import RunLogs
from samza_azure.host.status import document
from samza_azure.logs.names import BINDING, copy_name
from samza_azure.logs.record import FORMAT, INTERMEDIATE, Slice, Writer, header_size
from samza_azure.logs.task_log import LogLimits
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.stream_io.log import take_over
from simulator.sdk import SdkAccount
from tests.storage.conftest import AnyAccount

#: Large batches go to blobs of their own, and a few records fill a blob.
LIMITS = LogLimits(roll_records=3, record_bytes=600)
HELD = "BlobImmutableDueToPolicy"


def task(blobs: Blobs, name: str, *, intermediate: bool, run: str = "r") -> None:
    """A task's log of several blobs, with large ones beside them."""
    writer, _ = take_over(
        blobs,
        f"runs/{run}/{name}",
        group_id=bytes(16),
        task=name,
        writer=Writer(1, 1),
        first=True,
        may_append=lambda: True,
        meta={INTERMEDIATE: intermediate},
        limits=LIMITS,
    )
    for batch in range(4):
        writer.append(batch, slices=[Slice(0, bytes(700), 1)], files={f"offsets/{batch}": b"state"})


def fill(blobs: Blobs) -> list[str]:
    """Two tasks between streams and one that writes an output; the names of what is to stay."""
    for name, intermediate in (("clean-0", True), ("clean-1", True), ("daily-0", False)):
        task(blobs, name, intermediate=intermediate)
    task(blobs, "clean-0", intermediate=True, run="other")
    return [name for name in names_of(blobs) if "/daily-0/" in name or name.startswith("runs/other/")]


def names_of(blobs: Blobs) -> list[str]:
    return [name for name, _ in blobs.list("") if name != BINDING]


async def test_the_logs_of_a_drained_run_go_and_its_output_stays(account: AnyAccount) -> None:
    blobs = account.blobs()
    stay = fill(blobs)
    assert sum("/large/" in name for name in stay) >= 4
    assert await RunLogs(blobs).clean("r") is None
    assert names_of(blobs) == stay
    assert await RunLogs(blobs).clean("r") is None


async def test_no_group_begins_where_a_drained_run_has_left_only_copies(account: AnyAccount) -> None:
    """Its control blob is lost. A new group would read the sources from their beginning, and double all rows."""
    blobs, control = account.blobs(), Control("a" * 32, revision=7, run_id="r", phase=RunPhase.DRAINED)
    task(blobs, "clean-0", intermediate=True)
    keep_copy(blobs, control)
    assert await RunLogs(blobs).clean("r") is None
    assert names_of(blobs) == [copy_name(7)]
    create = CreateControl(Control("b" * 32))
    arguments = account.control_blob(), account.rows(), RunLogs(blobs)
    with pytest.raises(StateLost, match=r"copies of it below control/.*samza-azure recover JOB"):
        await perform(create, "p1", *arguments, limit=5_000_000, timeout=5.0)
    blobs.delete_many([copy_name(7)])  # as `delete JOB --all` does, and the control blob after them
    assert isinstance(await perform(create, "p1", *arguments, limit=5_000_000, timeout=5.0), str)


def hierarchical() -> SdkAccount:
    storage = MemoryStorage()
    storage.hierarchical = True
    return SdkAccount(storage)


def test_directories_are_no_blobs() -> None:
    blobs = hierarchical().blobs()
    blobs.create("runs/r/clean-0/00000000")
    assert list(blobs.list("runs/")) == [("runs/r/clean-0/00000000", 0)]


def test_in_a_hierarchical_namespace_directories_are_left_alone() -> None:
    blobs = hierarchical().blobs()
    stay = fill(blobs)
    assert asyncio.run(RunLogs(blobs).clean("r")) is None
    assert names_of(blobs) == stay


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_blob_is_deleted_with_its_snapshots(
    azurite: Azurite, connect: Callable[[str], Account], one_by_one: bool
) -> None:
    """As a backup makes them: the service refuses to delete a blob that has some."""
    account = connect(azurite.connection_string)
    account.ensure_created()
    blobs = account.blobs()
    task(blobs, "clean-0", intermediate=True)
    names = names_of(blobs)
    container = account._synchronous().container
    for name in names:
        container.get_blob_client(name).create_snapshot()
    if one_by_one:
        for name in names:
            blobs.delete(name)
    else:
        assert asyncio.run(RunLogs(blobs).clean("r")) is None
    assert [each.name for each in container.list_blobs(include=["snapshots"])] == [BINDING]


@pytest.mark.parametrize("account", [MemoryAccount, SdkAccount])
def test_blobs_that_cannot_be_deleted_are_counted_and_the_others_are_deleted(
    account: type[MemoryAccount] | type[SdkAccount], caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    blobs = account(storage).blobs()
    stay = fill(blobs)
    runs = RunLogs(blobs)
    storage.held = dict.fromkeys(["runs/r/clean-1/00000001"], HELD)
    assert asyncio.run(runs.clean("r")) == Kept(1, HELD)
    assert names_of(blobs) == sorted([*stay, *storage.held])
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith("1 blobs of the drained run r cannot be deleted, runs/r/clean-1/00000001 for one (Blob")

    storage.held = {}
    assert asyncio.run(runs.clean("r")) is None
    assert names_of(blobs) == stay


@pytest.mark.parametrize("harm", ["damaged", "of a later release"])
def test_a_log_that_cannot_be_read_ends_no_leader_and_keeps_nothing_else(harm: str) -> None:
    """The error ended the leader with 1, and each one after it; a later format was looked at again without a pause."""
    account = MemoryAccount()
    blobs = account.blobs()
    stay = fill(blobs)
    task(blobs, "tidy-0", intermediate=True, run="r")
    lone, one_of_two = "runs/r/tidy-0/00000000", "runs/r/clean-0/00000000"
    for name in (lone, one_of_two):
        data = account.storage._blobs[name].data
        if harm == "damaged":
            data[:4] = b"????"
        else:  # a header that is whole, and says that it needs another reader
            size = header_size(bytes(data), blob=name, position=0)
            data[4:6] = (FORMAT + 1).to_bytes(2, "little")
            data[size - 4 : size] = zlib.crc32(data[: size - 4]).to_bytes(4, "little")
    unread = [name for name in names_of(blobs) if "/tidy-0/" in name]

    clean = perform(
        CleanRun("r"), "p1", account.control_blob(), account.rows(), RunLogs(blobs), limit=5_000_000, timeout=5.0
    )
    answer = asyncio.run(clean)
    assert isinstance(answer, Kept)
    assert answer.count == 1
    assert lone in answer.code
    assert names_of(blobs) == sorted([*stay, *unread])


def test_status_shows_what_could_not_be_deleted() -> None:
    shown = document("app", Control("g", past=("r",), uncleaned=("r",), kept={"r": 3}), [])
    assert shown["kept"] == {"r": 3}
    with (console := Console(width=100)).capture() as screen:
        console.print(status_view(shown))
    assert "3 blobs of the drained run r cannot be deleted; they are tried again" in screen.get()


def test_a_large_blob_that_is_kept_is_found_again_by_its_log() -> None:
    storage = MemoryStorage()
    blobs = MemoryAccount(storage).blobs()
    stay = fill(blobs)
    held = next(name for name in names_of(blobs) if name.startswith("runs/r/large/clean-0/"))
    storage.held = {held: HELD}
    assert asyncio.run(RunLogs(blobs).clean("r")) == Kept(2, HELD)
    assert names_of(blobs) == sorted([*stay, held, "runs/r/clean-0/00000000"])
    storage.held = {}
    assert asyncio.run(RunLogs(blobs).clean("r")) is None
    assert names_of(blobs) == stay


class Held:
    """Blobs whose deletions take as long as a test wants."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.batches = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._blobs, name)

    def delete_many(self, names: Sequence[str]) -> Mapping[str, str]:
        self.batches += 1
        self.begun.set()
        assert self.may_end.wait(60)
        return self._blobs.delete_many(names)


def test_a_leader_that_ends_does_not_wait_for_its_deletions() -> None:
    slow = Held(MemoryAccount().blobs())
    fill(slow)  # type: ignore[arg-type]

    async def leader() -> None:
        cleaning = asyncio.create_task(RunLogs(slow).clean("r"))  # type: ignore[arg-type]
        assert await asyncio.to_thread(slow.begun.wait, 30)
        cleaning.cancel()

    asyncio.run(leader())  # it would wait for a thread of the loop's own
    deleting = next(thread for thread in threading.enumerate() if thread.name == "clean-up")
    slow.may_end.set()
    deleting.join()
    assert slow.batches == 1  # what was sent ends, and nothing more is begun
