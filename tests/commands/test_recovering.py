"""What `samza-azure recover` takes for the newest control blob, and what it says if it finds none."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from samza_azure.commands.recover import recover
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.group import control as control_blob
from samza_azure.group.control import Assignment, Control, Member, RunPhase
from samza_azure.host.copies import keep_copy
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Content
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
