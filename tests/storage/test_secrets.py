"""No key and no signature is shown: not in a repr, not in a log line, not in an error with all its causes."""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import SamzaAzureError, StorageUnavailable
from samza_azure.storage.address import from_connection_string
from samza_azure.storage.connection import Account

Connect = Callable[[str], Account]


def signature_of(
    azurite: Azurite,
    lasts: timedelta = timedelta(hours=1),
    *,
    begins: timedelta | None = None,
    services: str = "bt",
    resources: str = "sco",
    permissions: str = "rwdlacup",
) -> str:
    """A signature that opens Azurite's account for this long, and from now on unless it `begins` later."""
    emulator, now = from_connection_string(azurite.connection_string), datetime.now(UTC)
    return generate_account_sas(
        emulator.name,
        emulator.key or "",
        ResourceTypes.from_string(resources),
        AccountSasPermissions.from_string(permissions),
        start=None if begins is None else now + begins,
        expiry=now + (begins or timedelta()) + lasts,
        services=services,
    )


def by_signature(azurite: Azurite, signature: str) -> str:
    """A connection string with a signature and no key."""
    kept = [part for part in azurite.connection_string.split(";") if "Endpoint=" in part or "AccountName" in part]
    return ";".join([*kept, f"SharedAccessSignature={signature}"])


async def use(account: Account) -> list[str]:
    """Use everything that an account has, well or badly; what an operator would see of the errors."""
    blobs, hints, control, rows = account.blobs(), account.hints(), account.control_blob(), account.rows()
    shown = [repr(account), repr(blobs), repr(hints), repr(control), repr(rows), str(vars(account))]
    for call in (
        lambda: asyncio.to_thread(account.ensure_created),
        lambda: asyncio.to_thread(blobs.create, "log/0"),
        lambda: asyncio.to_thread(blobs.append, "log/0", b"rows", 7),
        lambda: asyncio.to_thread(blobs.read, "log/0", 0),
        lambda: asyncio.to_thread(blobs.list, ""),
        lambda: asyncio.to_thread(hints.publish, "log", {"length": 1}),
        lambda: asyncio.to_thread(hints.poll),
        lambda: control.create(b"0", timeout=5),
        lambda: control.read(timeout=5),
        lambda: control.read(timeout=0.000001),
        lambda: rows.insert("members", "one", {"beat": 1}, timeout=5),
        lambda: rows.query("members", timeout=5),
    ):
        try:
            await call()
        except SamzaAzureError as error:
            shown.append("".join(traceback.format_exception(error)))
    return shown


async def test_the_key_is_not_shown(azurite: Azurite, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good = from_connection_string(azurite.connection_string)
    wrong = azurite.connection_string.replace(str(good.key), str(good.key)[::-1].lstrip("=") + "==")
    gone = azurite.connection_string.replace(f":{azurite.blob_port}/", ":9/").replace(f":{azurite.table_port}/", ":9/")
    for text in (azurite.connection_string, wrong, gone):
        key = from_connection_string(text).key
        assert key
        shown = [repr(from_connection_string(text)), *await use(connect(text)), caplog.text]
        assert not [one for one in shown if key in one]
    assert len(caplog.records) > 20


async def test_the_signature_is_not_shown(azurite: Azurite, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good = by_signature(azurite, signature_of(azurite))
    wrong = good.replace("sig=", "sig=AAAA")
    gone = good.replace(f":{azurite.blob_port}/", ":9/").replace(f":{azurite.table_port}/", ":9/")
    for text in (good, wrong, gone):
        signature = str(from_connection_string(text).signature).partition("sig=")[2].partition("&")[0]
        assert signature
        shown = [repr(from_connection_string(text)), *await use(connect(text)), caplog.text]
        assert not [one for one in shown if signature in one]
    assert len(caplog.records) > 20


async def test_a_connection_that_does_not_come_about_shows_no_url(azurite: Azurite, connect: Connect) -> None:
    """aiohttp tells the whole URL then. And nothing was sent, so nothing can have happened."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:
        for _ in range(3):  # they are not accepted, and the next connection gets no answer at all
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        text = by_signature(azurite, signature_of(azurite)).replace(
            f":{azurite.blob_port}/", f":{full.getsockname()[1]}/"
        )
        with pytest.raises(StorageUnavailable) as raised:
            await connect(text).control_blob().create(b"0", timeout=10)
    assert type(raised.value) is StorageUnavailable
    assert "sig=" not in "".join(traceback.format_exception(raised.value))


async def test_a_signature_opens_the_account(azurite: Azurite, connect: Connect) -> None:
    account = connect(by_signature(azurite, signature_of(azurite)))
    account.ensure_created()
    account.blobs().create("log/0")
    assert account.blobs().append("log/0", b"rows", 0) == 4
    assert isinstance(await account.control_blob().create(b"0", timeout=5), str)
    assert isinstance(await account.rows().insert("members", "one", {"beat": 1}, timeout=5), str)


def test_the_supervisor_loads_neither_the_data_path_nor_the_identity() -> None:
    """It beats for the whole life of a job in a process that should start at once and stay small."""
    program = (
        "import sys\n"
        "import samza_azure.storage.connection, samza_azure.storage.control_blob, samza_azure.storage.rows\n"
        "ours = ['samza_azure.storage.blobs', 'samza_azure.storage.named_rows']\n"
        "unwanted = [*ours, 'azure.identity', 'pyarrow', 'pyspark']\n"
        "print([name for name in unwanted if name in sys.modules])\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(int(status['VmHWM'].split()[0]) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    unwanted, mebibytes = done.stdout.split("\n")[:2]
    assert unwanted == "[]"
    assert int(mebibytes) < 70
