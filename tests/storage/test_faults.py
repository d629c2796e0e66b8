"""What a fault on the way means: nothing happened, or it is unknown and a read will tell."""

import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import AccessDenied, SamzaAzureError, StorageUnavailable, Unsettled
from samza_azure.logs.operations import Span
from samza_azure.outcomes import Refused
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Content, Row

from .proxy import Answering, Mode, Proxy

SECONDS = 5.0
#: An answer that is held never comes; the SDK by itself would wait for it for a minute and more.
IN_TIME_S = 20.0
A = str(uuid.UUID(int=0xA))

Connect = Callable[[str], Account]


def with_ports(azurite: Azurite, blob_port: int, table_port: int) -> str:
    """Azurite's connection string, by way of other ports."""
    text = azurite.connection_string
    return text.replace(f":{azurite.blob_port}/", f":{blob_port}/").replace(
        f":{azurite.table_port}/", f":{table_port}/"
    )


@pytest.fixture
def to_blobs(azurite: Azurite) -> Iterator[Proxy]:
    """A proxy before the blob service."""
    with Proxy(azurite.blob_port) as proxy:
        yield proxy


@pytest.fixture
def to_tables(azurite: Azurite) -> Iterator[Proxy]:
    """A proxy before the table service."""
    with Proxy(azurite.table_port) as proxy:
        yield proxy


@pytest.fixture
def account(azurite: Azurite, to_blobs: Proxy, to_tables: Proxy, connect: Connect) -> Account:
    """An account that is reached by way of the proxies."""
    account = connect(with_ports(azurite, to_blobs.port, to_tables.port))
    account.ensure_created()
    return account


# The answer is lost.


def test_an_append_whose_answer_is_lost_is_unsettled_and_a_read_settles_it(account: Account, to_blobs: Proxy) -> None:
    blobs = account.blobs()
    blobs.create("log/0")
    to_blobs.mode = Mode.LOSE_ONE_ANSWER
    with pytest.raises(Unsettled, match="Appending 4 bytes to log/0"):
        blobs.append("log/0", b"rows", 0)
    assert blobs.read("log/0", 0) == Span(b"rows", 4)


def test_a_request_that_is_lost_is_unsettled_too_and_a_read_settles_it(account: Account, to_blobs: Proxy) -> None:
    blobs = account.blobs()
    blobs.create("log/0")
    to_blobs.mode = Mode.LOSE_REQUESTS
    with pytest.raises(Unsettled):
        blobs.append("log/0", b"rows", 0)
    to_blobs.mode = Mode.PASS
    assert blobs.read("log/0", 0) == Span(b"", 0)


def test_a_read_whose_connection_is_closed_in_place_of_an_answer_is_sent_once_more(
    account: Account, to_blobs: Proxy, to_tables: Proxy
) -> None:
    """A service closes a connection that was idle, perhaps just when a request is sent on it."""
    blobs, hints = account.blobs(), account.hints()
    blobs.create("log/0")
    hints.publish("runs/1/clean-0", {"length": 1})
    for proxy, read in (
        (to_blobs, lambda: list(blobs.list("log/"))),
        (to_blobs, lambda: blobs.read("log/0", 0)),
        (to_tables, hints.poll),
    ):
        proxy.mode = Mode.LOSE_ONE_ANSWER
        assert read()
        assert proxy.mode is Mode.PASS
        proxy.mode = Mode.LOSE_ANSWERS
        before = proxy.connections
        with pytest.raises(StorageUnavailable):
            read()
        assert proxy.connections - before <= 2
        proxy.mode = Mode.PASS


def test_an_answer_that_does_not_come_ends_the_wait_in_time(account: Account, to_blobs: Proxy) -> None:
    blobs = account.blobs(timeout_s=0.5)
    blobs.create("log/0")
    to_blobs.mode = Mode.HOLD_ANSWERS
    began = time.monotonic()
    with pytest.raises(Unsettled):
        blobs.append("log/0", b"rows", 0)
    with pytest.raises(StorageUnavailable):
        blobs.read("log/0", 0)
    assert time.monotonic() - began < IN_TIME_S
    to_blobs.mode = Mode.PASS
    assert blobs.read("log/0", 0) == Span(b"rows", 4)


def test_a_download_that_breaks_off_is_an_error(account: Account, to_blobs: Proxy) -> None:
    blobs = account.blobs()
    blobs.create("log/0")
    blobs.append("log/0", bytes(1 << 20), 0)
    to_blobs.mode = Mode.BREAK_ANSWERS
    with pytest.raises(StorageUnavailable) as raised:
        blobs.read("log/0", 0)
    assert not isinstance(raised.value, Unsettled)


def test_a_hint_whose_answer_is_lost_is_unsettled_and_a_poll_that_fails_is_not(
    account: Account, to_tables: Proxy
) -> None:
    hints = account.hints()
    to_tables.mode = Mode.LOSE_ANSWERS
    with pytest.raises(Unsettled):
        hints.publish("runs/1/clean-0", {"length": 1})
    with pytest.raises(StorageUnavailable) as raised:
        hints.poll()
    assert not isinstance(raised.value, Unsettled)
    to_tables.mode = Mode.PASS
    assert hints.poll() == {"runs/1/clean-0": {"length": 1}}


async def test_a_control_write_whose_answer_is_lost_is_unsettled_and_not_sent_again(
    account: Account, to_blobs: Proxy
) -> None:
    """On a connection that was kept alive aiohttp would send the PUT again and be refused by its own first copy."""
    control = account.control_blob()
    await control.read(timeout=SECONDS)  # opens the connection
    to_blobs.mode = Mode.LOSE_ONE_ANSWER
    with pytest.raises(Unsettled, match=r"Creating control.json.*It may have happened"):
        await control.create(b"0", timeout=SECONDS)
    read = await control.read(timeout=SECONDS)
    assert isinstance(read, Content) and read.data == b"0"
    await control.acquire(A, seconds=60, timeout=SECONDS)
    to_blobs.mode = Mode.LOSE_ONE_ANSWER
    with pytest.raises(Unsettled):
        await control.write(b"1", etag=read.etag, lease_id=A, timeout=SECONDS)
    read = await control.read(timeout=SECONDS)
    assert isinstance(read, Content) and read.data == b"1"


async def test_a_lease_call_whose_answer_is_lost_is_unsettled(account: Account, to_blobs: Proxy) -> None:
    control = account.control_blob()
    await control.create(b"0", timeout=SECONDS)
    to_blobs.mode = Mode.LOSE_ANSWERS
    with pytest.raises(Unsettled):
        await control.acquire(A, seconds=60, timeout=SECONDS)
    to_blobs.mode = Mode.PASS
    assert isinstance(await control.read(lease_id=A, timeout=SECONDS), Content)


async def test_a_read_whose_answer_is_lost_is_a_plain_failure(
    account: Account, to_blobs: Proxy, to_tables: Proxy
) -> None:
    to_blobs.mode = to_tables.mode = Mode.LOSE_ANSWERS
    for call in (
        account.control_blob().read(timeout=SECONDS),
        account.rows().get("members", "one", timeout=SECONDS),
        account.rows().query("members", timeout=SECONDS),
    ):
        with pytest.raises(StorageUnavailable) as raised:
            await call
        assert not isinstance(raised.value, Unsettled)


async def test_a_row_whose_answer_is_lost_is_unsettled_and_a_read_settles_it(
    account: Account, to_tables: Proxy
) -> None:
    rows = account.rows()
    await rows.get("members", "one", timeout=SECONDS)  # opens the connection
    to_tables.mode = Mode.LOSE_ONE_ANSWER
    with pytest.raises(Unsettled):
        await rows.insert("members", "one", {"beat": 1}, timeout=SECONDS)
    read = await rows.get("members", "one", timeout=SECONDS)
    assert read is not None and read.values == {"beat": 1}
    to_tables.mode = Mode.LOSE_ONE_ANSWER
    with pytest.raises(Unsettled):
        await rows.replace("members", "one", {"beat": 2}, etag=read.etag, timeout=SECONDS)
    read = await rows.get("members", "one", timeout=SECONDS)
    assert read is not None and read.values == {"beat": 2}
    to_tables.mode = Mode.LOSE_ONE_ANSWER
    with pytest.raises(Unsettled):
        await rows.delete("members", "one", etag=read.etag, timeout=SECONDS)
    assert await rows.get("members", "one", timeout=SECONDS) is None


async def test_a_scan_of_thousands_of_rows_has_the_timeout_for_each_page(account: Account, to_tables: Proxy) -> None:
    """It had it for all of them together, so a large group on a slow line never saw its members."""
    table, many = account._asynchronous().table, range(2001)
    for first in range(0, len(many), 100):
        rows = [{"PartitionKey": "members", "RowKey": f"p{number}"} for number in many[first : first + 100]]
        await table.submit_transaction([("create", each) for each in rows])
    to_tables.mode, to_tables.delay_s = Mode.SLOW_REQUESTS, 2.0
    assert len(await account.rows().query("members", timeout=4.0)) == len(many)
    to_tables.delay_s = 1.0
    with pytest.raises(StorageUnavailable, match=r"no answer from .* within 0.5 s"):
        await account.rows().query("members", timeout=0.5)


async def test_an_asynchronous_call_ends_within_its_timeout(
    account: Account, to_blobs: Proxy, to_tables: Proxy
) -> None:
    control, rows = account.control_blob(), account.rows()
    etag = await rows.insert("members", "one", {"beat": 1}, timeout=SECONDS)
    assert isinstance(etag, str)
    to_blobs.mode = to_tables.mode = Mode.HOLD_ANSWERS
    began = time.monotonic()
    with pytest.raises(Unsettled, match=r"no answer from 127.0.0.1:\d+ within 0.3 s"):
        await control.create(b"0", timeout=0.3)
    with pytest.raises(Unsettled):
        await rows.merge("members", "one", {"beat": 2}, etag=etag, timeout=0.3)
    with pytest.raises(StorageUnavailable):
        await rows.query("members", timeout=0.3)
    assert time.monotonic() - began < IN_TIME_S
    to_blobs.mode = to_tables.mode = Mode.PASS
    assert isinstance(await control.read(timeout=SECONDS), Content)


async def test_a_lost_answer_does_not_reach_the_next_call(account: Account, to_tables: Proxy) -> None:
    rows = account.rows()
    for key in ("one", "two"):
        await rows.insert("members", key, {"name": key}, timeout=SECONDS)
    to_tables.mode = Mode.HOLD_ANSWERS
    with pytest.raises(StorageUnavailable):
        await rows.get("members", "one", timeout=0.2)
    to_tables.mode = Mode.PASS
    read = await rows.get("members", "two", timeout=SECONDS)
    assert read is not None and read.values == {"name": "two"}


# The service is frozen.


async def test_an_append_to_a_frozen_storage_is_settled_by_reading(connect: Connect) -> None:
    with Azurite() as azurite:
        account = connect(azurite.connection_string)
        account.ensure_created()
        blobs, rows = account.blobs(timeout_s=0.5), account.rows()
        blobs.create("log/0")
        etag = await rows.insert("members", "one", {"beat": 1}, timeout=SECONDS)
        assert isinstance(etag, str)
        os.kill(azurite.pid, signal.SIGSTOP)
        with pytest.raises(Unsettled):
            blobs.append("log/0", b"rows", 0)
        with pytest.raises(Unsettled):
            await rows.merge("members", "one", {"beat": 2}, etag=etag, timeout=0.5)
        os.kill(azurite.pid, signal.SIGCONT)
        assert blobs.read("log/0", 0) in (Span(b"", 0), Span(b"rows", 4))
        read = await rows.get("members", "one", timeout=SECONDS)
        assert isinstance(read, Row) and read.values in ({"beat": 1}, {"beat": 2})


# Nothing is sent.


@pytest.fixture
def unreachable(azurite: Azurite, connect: Connect) -> Account:
    """An account at a port without a server."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    return connect(with_ports(azurite, *ports))


def test_a_refused_connection_means_that_nothing_happened(unreachable: Account) -> None:
    blobs, hints = unreachable.blobs(), unreachable.hints()
    for call in (
        unreachable.ensure_created,
        lambda: blobs.create("log/0"),
        lambda: blobs.append("log/0", b"rows", 0),
        lambda: blobs.put("large/1", b"rows"),
        lambda: blobs.delete("log/0"),
        lambda: blobs.read("log/0", 0),
        lambda: blobs.list(""),
        lambda: hints.publish("log", {"length": 1}),
        hints.poll,
    ):
        with pytest.raises(StorageUnavailable, match=r"127.0.0.1:\d+ cannot be reached") as raised:
            call()
        assert not isinstance(raised.value, Unsettled)


async def test_a_refused_connection_means_that_nothing_happened_asynchronously(unreachable: Account) -> None:
    control, rows = unreachable.control_blob(), unreachable.rows()
    for call in (
        control.create(b"0", timeout=SECONDS),
        control.read(timeout=SECONDS),
        control.write(b"1", etag='"0x1"', lease_id=A, timeout=SECONDS),
        control.acquire(A, seconds=60, timeout=SECONDS),
        control.renew(A, timeout=SECONDS),
        control.break_now(timeout=SECONDS),
        control.release(A, timeout=SECONDS),
        rows.insert("members", "one", {}, timeout=SECONDS),
        rows.merge("members", "one", {}, etag='W/"1"', timeout=SECONDS),
        rows.replace("members", "one", {}, etag='W/"1"', timeout=SECONDS),
        rows.get("members", "one", timeout=SECONDS),
        rows.query("members", timeout=SECONDS),
        rows.delete("members", "one", etag='W/"1"', timeout=SECONDS),
    ):
        with pytest.raises(StorageUnavailable) as raised:
            await call
        assert not isinstance(raised.value, Unsettled)


# The service answers, but not with what was asked for.

NOTHING_HAPPENED = {
    (503, "ServerBusy"),
    (429, "TooManyRequests"),
    (429, "AnyCode"),
    (409, "AccountBeingCreated"),
    (409, "ContainerBeingDeleted"),
    (409, "TableBeingDeleted"),
}
NOBODY_KNOWS = {
    (408, "RequestTimeout"),
    (408, None),
    (429, None),
    (401, None),  # whoever refuses us, it is not the account
    (403, None),
    (407, None),
    (500, "InternalError"),
    (500, "OperationTimedOut"),
    (503, None),  # a proxy's or load balancer's, not Azure's
    (502, None),
    (504, None),
    (412, None),
    (404, None),
    (409, None),
    (302, None),
}


@pytest.mark.parametrize(("status", "code"), sorted(NOTHING_HAPPENED | NOBODY_KNOWS, key=str))
async def test_an_answer_counts_for_what_it_proves_and_is_asked_for_once(
    azurite: Azurite, connect: Connect, status: int, code: str | None
) -> None:
    with Answering(status, code) as server:
        account = connect(with_ports(azurite, server.port, server.port))
        blobs, hints, control, rows = account.blobs(), account.hints(), account.control_blob(), account.rows()
        expected = Unsettled if (status, code) in NOBODY_KNOWS else StorageUnavailable
        after_s = 1.0  # the server sends Retry-After each time
        writes = (
            lambda: asyncio.to_thread(blobs.append, "log/0", b"rows", 0),
            lambda: asyncio.to_thread(blobs.create, "log/0"),
            lambda: asyncio.to_thread(hints.publish, "log", {"length": 1}),
            lambda: control.write(b"1", etag='"0x1"', lease_id=A, timeout=SECONDS),
            lambda: control.acquire(A, seconds=60, timeout=SECONDS),
            lambda: rows.insert("members", "one", {}, timeout=SECONDS),
            lambda: rows.merge("members", "one", {}, etag='W/"1"', timeout=SECONDS),
        )
        for write in writes:
            with pytest.raises(StorageUnavailable) as raised:
                await write()
            assert (type(raised.value), raised.value.after_s) == (expected, after_s)
        reads = (
            lambda: asyncio.to_thread(blobs.read, "log/0", 0),
            lambda: asyncio.to_thread(hints.poll),
            lambda: control.read(timeout=SECONDS),
            lambda: rows.get("members", "one", timeout=SECONDS),
        )
        for read in reads:
            with pytest.raises(StorageUnavailable) as raised:
                await read()
            assert (type(raised.value), raised.value.after_s) == (StorageUnavailable, after_s)
        assert len(server.requests) == len(writes) + len(reads), server.requests


@pytest.mark.parametrize(("status", "code"), [(413, "RequestBodyTooLarge"), (400, "InvalidInput")])
async def test_a_request_that_azure_rejects_is_not_repeated(
    azurite: Azurite, connect: Connect, status: int, code: str
) -> None:
    with Answering(status, code) as server:
        account = connect(with_ports(azurite, server.port, server.port))
        with pytest.raises(SamzaAzureError, match=f"does not accept it \\({status} {code}\\)") as raised:
            account.blobs().append("log/0", b"rows", 0)
        assert type(raised.value) is SamzaAzureError
        with pytest.raises(SamzaAzureError, match=code):
            await account.rows().insert("members", "one", {}, timeout=SECONDS)


def test_the_size_is_asked_for_if_the_answer_to_a_read_behind_the_end_does_not_tell(
    azurite: Azurite, connect: Connect
) -> None:
    with Answering(416, "InvalidRange") as server:
        blobs = connect(with_ports(azurite, server.port, server.port)).blobs()
        assert blobs.read("log/0", 3) == Span(b"", 3)


# The account refuses us.

WRONG_KEY = "d3Jvbmcta2V5LXdyb25nLWtleQ=="


def with_key(text: str, key: str) -> str:
    """A connection string with another key."""
    parts = [part for part in text.split(";") if part and not part.startswith("AccountKey=")]
    return ";".join([*parts, f"AccountKey={key}"])


async def test_a_wrong_key_is_denied_and_the_setting_named(azurite: Azurite, connect: Connect) -> None:
    account = connect(with_key(azurite.connection_string, WRONG_KEY))
    blobs, hints, control, rows = account.blobs(), account.hints(), account.control_blob(), account.rows()
    for call in (
        lambda: asyncio.to_thread(account.ensure_created),
        lambda: asyncio.to_thread(blobs.read, "log/0", 0),
        lambda: asyncio.to_thread(blobs.append, "log/0", b"rows", 0),
        lambda: asyncio.to_thread(hints.poll),
        lambda: control.read(timeout=SECONDS),
        lambda: control.acquire(A, seconds=60, timeout=SECONDS),
        lambda: rows.get("members", "one", timeout=SECONDS),
        lambda: rows.insert("members", "one", {}, timeout=SECONDS),
    ):
        with pytest.raises(AccessDenied, match="Check the key or signature in azure\\.storage\\.connect") as raised:
            await call()
        assert WRONG_KEY not in str(raised.value)


async def test_a_deleted_container_is_an_error_and_not_a_fresh_start(azurite: Azurite, connect: Connect) -> None:
    account = connect(azurite.connection_string)  # never created
    with pytest.raises(StorageUnavailable, match="is gone"):
        account.blobs().create("log/0")
    with pytest.raises(StorageUnavailable, match="is gone"):
        account.blobs().list("")
    with pytest.raises(StorageUnavailable, match="is gone"):
        await account.control_blob().create(b"0", timeout=SECONDS)
    with pytest.raises(StorageUnavailable, match="TableNotFound"):
        await account.rows().query("members", timeout=SECONDS)
    with pytest.raises(StorageUnavailable, match="TableNotFound"):
        await account.rows().insert("members", "one", {}, timeout=SECONDS)
    assert not isinstance(account.blobs().append("log/0", b"rows", 0), Refused)
