"""A key or signature in a file that is written anew, as a mounted secret is: it counts after the next refusal."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from samza_azure.account import Secret, Storage
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import AccessDenied
from samza_azure.storage.connection import Account
from tests.storage.test_secrets import by_signature, signature_of

WRONG = "d3Jvbmcgd3Jvbmcgd3Jvbmc="


def wrong_key(connect: str) -> str:
    """The same with a key that does not open the account."""
    parts = [part.partition("=") for part in connect.split(";") if part]
    return ";".join(f"{name}={WRONG if name == 'AccountKey' else value}" for name, _, value in parts)


async def answers(account: Account) -> list[str]:
    """The answer to each kind of client, one after the other."""
    blobs, hints, control, rows = account.blobs(), account.hints(), account.control_blob(), account.rows()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: control.read(timeout=5),
        lambda: rows.query("members", timeout=5),
        lambda: asyncio.to_thread(blobs.list, ""),
        lambda: asyncio.to_thread(hints.poll),
    ]
    told = []
    for call in calls:
        try:
            await call()
            told.append("let in")
        except AccessDenied:
            told.append("refused")
    return told


@pytest.fixture
def place(azurite: Azurite, runner: asyncio.Runner, places: Callable[[str], Storage]) -> Storage:
    """A container and a table that are there."""
    made = places(azurite.connection_string)
    account = Account.from_config(made)
    account.ensure_created()
    account.close()
    return made


def by_file(place: Storage, file: Path) -> Account:
    """The account as a holder of the file's secret sees it."""
    return Account.from_config(Storage(Secret(file.read_text()), None, place.container, place.table, connect_file=file))


@pytest.mark.parametrize("kind", ["key", "signature"])
async def test_the_secret_file_is_read_again_after_a_refusal(
    kind: str, azurite: Azurite, place: Storage, tmp_path: Path
) -> None:
    right, wrong = azurite.connection_string, wrong_key(azurite.connection_string)
    if kind == "signature":
        right = by_signature(azurite, signature_of(azurite))
        wrong = right.replace("sig=", "sig=AAAA")
    file = tmp_path / "connect"
    file.write_text(wrong)
    account = by_file(place, file)
    assert await answers(account) == ["refused"] * 4
    file.write_text("half")  # as a reader sees it while it is written
    assert await answers(account) == ["refused"] * 4
    file.write_text(right + "\n")
    # The first call raises; it cannot be made again. All others, of both sides, have the new secret.
    assert await answers(account) == ["refused", *["let in"] * 3]
    file.unlink()
    assert await answers(account) == ["let in"] * 4
    account.close()
    await account.aclose()


async def test_a_call_that_can_be_made_again_is_not_refused(azurite: Azurite, place: Storage, tmp_path: Path) -> None:
    file = tmp_path / "connect"
    file.write_text(wrong_key(azurite.connection_string))
    account = by_file(place, file)
    file.write_text(azurite.connection_string)
    name = f"log/{uuid.uuid4().hex}"
    blobs = account.blobs()
    await asyncio.to_thread(blobs.create, name)
    assert await asyncio.to_thread(blobs.list, "log/")
    account.close()


async def test_a_signature_that_ends_is_replaced_by_the_next_one(
    azurite: Azurite, place: Storage, tmp_path: Path
) -> None:
    file = tmp_path / "connect"
    file.write_text(by_signature(azurite, signature_of(azurite, timedelta(seconds=1))))
    account = by_file(place, file)
    rows = account.rows()

    async def until_it_ends() -> None:
        while True:
            await rows.query("members", timeout=5)

    with pytest.raises(AccessDenied):
        await asyncio.wait_for(until_it_ends(), 30)
    file.write_text(by_signature(azurite, signature_of(azurite)))
    with pytest.raises(AccessDenied):
        await rows.query("members", timeout=5)
    assert list(await rows.query("members", timeout=5)) == []
    await account.aclose()


async def test_another_account_in_the_file_is_reported_and_not_used(
    azurite: Azurite, place: Storage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "connect"
    file.write_text(wrong_key(azurite.connection_string))
    account = by_file(place, file)
    file.write_text(azurite.connection_string.replace(f":{azurite.blob_port}/", ":1/"))
    assert await answers(account) == ["refused"] * 4
    assert "names another account" in caplog.text
    account.close()
    await account.aclose()
