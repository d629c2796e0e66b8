"""A key or signature in a file that is written anew, as a mounted secret is: it counts after the next refusal."""

import asyncio
import inspect
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from samza_azure.account import Secret, Storage
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import AccessDenied
from samza_azure.storage.blobs import BLOCK_BYTES, AzureBlobs
from samza_azure.storage.connection import Account
from samza_azure.storage.control_blob import AzureControlBlob
from samza_azure.storage.named_rows import AzureNamedRows
from samza_azure.storage.rows import AzureRows
from samza_azure.storage.transactions import Act, AzureTransactions, Write
from tests.storage.test_secrets import by_signature, signature_of

ID = str(uuid.UUID(int=0xA))
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
    assert await answers(account) == ["let in"] * 4  # the first call is made again
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


#: A call of each kind, with what it is given. Some are refused or find nothing, which is an answer as well.
CALLS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "blobs": {
        "create": lambda blobs: blobs.create("log/1"),
        "append": lambda blobs: blobs.append("log/0", b"rows", 0),
        "read": lambda blobs: blobs.read("log/0", 0),
        "put": lambda blobs: blobs.put("large/1", bytes(BLOCK_BYTES + 1)),
        "put_file": lambda blobs: blobs.put_file("file/1", Path(__file__)),
        "list": lambda blobs: blobs.list("log/"),
        "list_with_ages": lambda blobs: blobs.list_with_ages("log/"),
        "delete": lambda blobs: blobs.delete("log/1"),
        "delete_many": lambda blobs: blobs.delete_many(["log/1", "log/2"]),
    },
    "readers": {
        "publish": lambda rows: rows.publish("orders/a", {"at": "x"}),
        "poll": lambda rows: rows.poll(),
        "remove": lambda rows: rows.remove("orders/a"),
    },
    "transactions": {
        "transact": lambda rows: rows.transact([Write(Act.INSERT, "one", {"beat": 1})]),
        "query": lambda rows: rows.query("a", "z"),
    },
    "control_blob": {
        "create": lambda control: control.create(b"0", timeout=5),
        "read": lambda control: control.read(timeout=5),
        "write": lambda control: control.write(b"1", etag='"0x1"', lease_id=ID, timeout=5),
        "acquire": lambda control: control.acquire(ID, seconds=15, timeout=5),
        "renew": lambda control: control.renew(ID, timeout=5),
        "break_now": lambda control: control.break_now(timeout=5),
        "release": lambda control: control.release(ID, timeout=5),
    },
    "rows": {
        "insert": lambda rows: rows.insert("members", "one", {}, timeout=5),
        "merge": lambda rows: rows.merge("members", "one", {}, etag='W/"1"', timeout=5),
        "replace": lambda rows: rows.replace("members", "one", {}, etag='W/"1"', timeout=5),
        "get": lambda rows: rows.get("members", "one", timeout=5),
        "query": lambda rows: rows.query("members", timeout=5),
        "delete": lambda rows: rows.delete("members", "one", etag='W/"1"', timeout=5),
    },
}
INTERFACES: dict[str, Any] = {
    "blobs": AzureBlobs,
    "readers": AzureNamedRows,
    "transactions": AzureTransactions,
    "control_blob": AzureControlBlob,
    "rows": AzureRows,
}


@pytest.mark.parametrize("side", CALLS)
async def test_whichever_call_is_refused_first_is_made_again_with_the_new_secret(
    side: str, azurite: Azurite, place: Storage, tmp_path: Path
) -> None:
    """A reader's first refused call is the read of a range, a lock's is the renewal of its lease."""
    public = {name for name, member in vars(INTERFACES[side]).items() if callable(member) and name[0] != "_"}
    assert CALLS[side].keys() == public - {"where"}, "that is no call of the service"
    for name, call in CALLS[side].items():
        file = tmp_path / name
        file.write_text(wrong_key(azurite.connection_string))
        account = by_file(place, file)
        client = account.transactions("p") if side == "transactions" else getattr(account, side)()
        file.write_text(azurite.connection_string)
        if inspect.iscoroutinefunction(getattr(client, name)):
            await call(client)
        else:
            await asyncio.to_thread(call, client)
        account.close()
        await account.aclose()
