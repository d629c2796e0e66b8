"""What `samza-azure recover` takes for the newest control blob, and what it says if it finds none."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from samza_azure.commands.recover import LOOKED_AT, copies_in, recover
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.group import control as control_blob
from samza_azure.group.control import Assignment, Control, Member, RunPhase
from samza_azure.group.recovery import ABSURD
from samza_azure.host.copies import KEPT, keep_copy
from samza_azure.logs.names import copy_name
from samza_azure.logs.operations import Span
from samza_azure.outcomes import Missing
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs, Content
from samza_azure.storage.limits import LEASED_BYTES_MAX
from samza_azure.storage.memory import MemoryAccount

JOB = """
app = { name = "flights", main = "flights:none" }
azure.storage.connect = "UseDevelopmentStorage=true"
"""
DRAINED = Control("a" * 32, revision=7, run_id="r1", phase=RunPhase.DRAINED, positions={"flights/0": (0, 90)})


@pytest.fixture
def account() -> MemoryAccount:
    return MemoryAccount()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "job.toml").write_text(JOB)
    return Config.load(tmp_path / "job.toml")


def recovered(config: Config, account: MemoryAccount) -> str:
    return recover(config, cast(Account, account), yes=True)


def put(account: MemoryAccount, *names: str, data: bytes = b"x") -> None:
    for name in names:
        account.blobs().put(name, data)


def test_it_says_that_a_job_has_never_run_only_if_nothing_of_a_run_is_left(
    config: Config, account: MemoryAccount
) -> None:
    put(account, "streams/binding.json", "streams/flights/0/00000000")
    with pytest.raises(ConfigError, match=r"it has never run\. Start it\.$"):
        recovered(config, account)


@pytest.mark.parametrize("name", ["control/0000000000000007", "runs/r1/daily-0/00000000"])
def test_a_copy_that_cannot_be_read_or_a_log_shows_that_a_job_has_run(
    config: Config, account: MemoryAccount, name: str
) -> None:
    put(account, name)
    with pytest.raises(ConfigError, match=r"nobody knows where the run began to read.* --all\.$") as refused:
        recovered(config, account)
    assert "never run" not in str(refused.value)


def test_a_damaged_control_blob_shows_that_a_job_may_have_run(config: Config, account: MemoryAccount) -> None:
    asyncio.run(account.control_blob().create(b"x", timeout=1.0))
    with pytest.raises(ConfigError, match=r"The container has control\.json, but neither .* that can be read"):
        recovered(config, account)


@pytest.mark.parametrize("name", ["files/out/r1.write-0.00000000.parquet", "tables/flights/a.parquet"])
def test_files_that_a_run_may_have_written_are_named(config: Config, account: MemoryAccount, name: str) -> None:
    put(account, name)
    with pytest.raises(ConfigError, match=rf"If it has never run, and others wrote what is below {name[:5]}"):
        recovered(config, account)


def test_a_drained_run_that_has_left_no_log_is_brought_back(config: Config, account: MemoryAccount) -> None:
    keep_copy(account.blobs(), DRAINED)
    assert "run r1 is drained, and the next one begins where it ended" in recovered(config, account)


def test_copies_of_two_groups_are_named_with_what_leaves_them(config: Config, account: MemoryAccount) -> None:
    """As after a `delete JOB --all` that was interrupted: its control blob is that of a fresh group."""
    keep_copy(account.blobs(), DRAINED)
    asyncio.run(account.control_blob().create(control_blob.encode(Control("b" * 32, revision=8)), timeout=1.0))
    with pytest.raises(
        ConfigError, match=r"2 groups: of a+ control/0{15}7; of b+ control\.json\. .* --all that was int"
    ):
        recovered(config, account)


def test_a_run_that_is_lost_is_left_as_it_was(config: Config, account: MemoryAccount) -> None:
    """Only the lease of a leader that has died may be taken by then, and the blob says so."""
    member = Member("p1", "c" * 32)
    run = replace(DRAINED, phase=RunPhase.RUNNING, leader=member, tasks={"daily-0": Assignment(first=False)})

    async def dies() -> None:
        blob = account.control_blob()
        etag = await blob.create(control_blob.encode(run), timeout=1.0)
        await blob.acquire("d" * 32, seconds=60, timeout=1.0, etag=str(etag))

    asyncio.run(dies())
    with pytest.raises(ConfigError, match=r"The logs of daily-0 are gone"):
        recovered(config, account)
    found = asyncio.run(account.control_blob().read(timeout=1.0))
    assert isinstance(found, Content)
    left = control_blob.decode(found.data)
    assert left == replace(run, revision=run.revision + 1, leader=None, nonce=left.nonce)


class Counted:
    """Blobs in memory, which count what is read."""

    def __init__(self, account: MemoryAccount) -> None:
        self._blobs, self.sizes = account.blobs(), list[int]()

    def list(self, prefix: str) -> Sequence[tuple[str, int]]:
        return self._blobs.list(prefix)

    def read(self, name: str, start: int, length: int | None = None) -> Span | Missing:
        found = self._blobs.read(name, start, length)
        self.sizes.append(len(found.data) if isinstance(found, Span) else 0)
        return found


def revisions(account: MemoryAccount) -> tuple[list[int], list[int]]:
    """Those of the copies that were found, and the sizes of what was read."""
    counted = Counted(account)
    return [each.revision for each in copies_in(cast(Blobs, counted)).values()], counted.sizes


def test_no_more_copies_are_read_than_a_leader_keeps(account: MemoryAccount) -> None:
    for revision in range(100, 300):
        put(account, copy_name(revision), data=control_blob.encode(replace(DRAINED, revision=revision)))
    found, sizes = revisions(account)
    assert found == list(range(299, 299 - KEPT, -1))
    assert len(sizes) == KEPT


def test_a_copy_behind_others_that_nobody_can_read_is_found(
    account: MemoryAccount, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_copy(account.blobs(), DRAINED)
    put(account, *map(copy_name, range(100, 100 + KEPT + 1)))
    found, sizes = revisions(account)
    assert (found, len(sizes)) == ([7], KEPT + 2)
    assert f"The copy {copy_name(100)} is left out" in capsys.readouterr().err
    put(account, *map(copy_name, range(200, 200 + LOOKED_AT)))
    found, sizes = revisions(account)
    assert (found, len(sizes)) == ([], LOOKED_AT)
    assert f"{KEPT + 2} older copies are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data", "reads"),
    [
        (copy_name(9), bytes(LEASED_BYTES_MAX + 1), 0),
        ("control/9", control_blob.encode(replace(DRAINED, revision=9)), 0),
        ("control/0000000000000009/0000000000000009", control_blob.encode(replace(DRAINED, revision=9)), 0),
        (copy_name(9), control_blob.encode(replace(DRAINED, revision=10)), 1),
        (copy_name(ABSURD), control_blob.encode(replace(DRAINED, revision=ABSURD)), 0),
        (copy_name(9), control_blob.encode(replace(DRAINED, revision=9, epoch=ABSURD)), 1),
        (copy_name(9), control_blob.encode(replace(DRAINED, revision=9, version=ABSURD)), 1),
    ],
    ids=["too large", "short name", "long name", "another revision", "revision", "epoch", "version"],
)
def test_a_blob_that_is_no_copy_is_left_out_with_a_line(
    account: MemoryAccount, capsys: pytest.CaptureFixture[str], name: str, data: bytes, reads: int
) -> None:
    keep_copy(account.blobs(), DRAINED)
    put(account, name, data=data)
    found, sizes = revisions(account)
    assert (found, len(sizes)) == ([7], 1 + reads)
    assert f"The copy {name} is left out: " in capsys.readouterr().err
