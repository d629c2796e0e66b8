"""The page as it is served: access, what a browser is allowed, what it costs, and its updates."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from samza_azure.commands import run, ui
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.explain import page, record
from samza_azure.group.control import Control
from samza_azure.group.rows import MEMBERS, RECORD
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import OwnIncarnation, Settings, View
from samza_azure.host.last_day import LastDay, encoded
from samza_azure.machine.clock import boot_time
from samza_azure.page import watch
from samza_azure.page.document import Lines
from samza_azure.page.server import FILES, Access, add_page, is_loopback
from samza_azure.page.watch import CALLS, Watcher
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S
from tests.storage.proxy import Guard, Mode, Proxy

JOB = """
app = {{ name = "seen", id = "{id}", main = "none:none" }}
azure.storage.connect = "{connect}"
job.coordinator.profile = "fast"
"""


@pytest.fixture(scope="module")
def emulator() -> Iterator[Azurite]:
    with Azurite().start() as azurite:
        yield azurite


def job(connect: str) -> Config:
    return Config.parse(JOB.format(id=uuid.uuid4().hex[:8], connect=connect))


@asynccontextmanager
async def served(config: Config, access: Access = Access(), base: str = "") -> AsyncIterator[tuple[str, Watcher]]:  # noqa: B008  # it is frozen
    """Its address, and what reads the account."""
    watcher = Watcher(config)
    app = web.Application()
    add_page(app, lambda: watcher, access, base)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{base}/", watcher
    finally:
        await runner.cleanup()
        await watcher.close()


def play(story: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def begin() -> None:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            await story(session)

    asyncio.run(begin())


def test_each_file_is_there_with_a_policy_that_allows_our_files_alone(emulator: Azurite) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with served(job(emulator.connection_string)) as (address, _):
            for name, (_, kind) in FILES.items():
                async with session.get(address + name) as answer:
                    assert (answer.status, answer.content_type) == (200, kind)
                    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
                    assert "unsafe" not in answer.headers["Content-Security-Policy"]
                    assert "Access-Control-Allow-Origin" not in answer.headers
                    text = await answer.text()
                    assert " style=" not in text and "onclick" not in text and "innerHTML" not in text

    play(story)


@pytest.mark.parametrize("path", ["", "page.js", "state.json", "events"])
def test_a_name_that_was_made_to_point_here_is_refused(emulator: Azurite, path: str) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with served(job(emulator.connection_string)) as (address, _):
            for host, status in (("evil.example", 403), ("evil.example:80", 403), ("127.0.0.1.evil.example:80", 403)):
                async with session.get(address + path, headers={"Host": host}) as answer:
                    assert answer.status == status
                    assert "--behind-proxy" in await answer.text()
            async with session.get(address, headers={"Host": "localhost:1234"}) as answer:
                assert answer.status == 200

    play(story)


def test_a_token_is_asked_for_and_becomes_a_cookie(emulator: Azurite) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with served(job(emulator.connection_string), Access("secret"), "/fleet") as (address, _):
            for given in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "samza-azure-page=wrong"}):
                async with session.get(address + "state.json", headers=given) as answer:
                    assert answer.status == 403
            async with session.get(address + "state.json", headers={"Authorization": "Bearer secret"}) as answer:
                assert answer.status == 200
            async with session.get(address + "?token=wrong") as answer:
                assert answer.status == 403
            async with session.get(address + "?token=secret") as answer:
                assert answer.status == 200 and "secret" not in str(answer.url)
            async with session.get(address + "state.json") as answer:  # with the cookie
                assert answer.status == 200

    play(story)


def test_the_cookie_comes_with_a_link_from_elsewhere(emulator: Azurite) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with (
            served(job(emulator.connection_string), Access("secret")) as (address, _),
            session.get(address + "?token=secret", allow_redirects=False) as answer,
        ):
            assert answer.status == 303 and "SameSite=Lax" in answer.headers["Set-Cookie"]

    play(story)


def test_a_base_path_without_its_slash_leads_to_the_page(emulator: Azurite) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with (
            served(job(emulator.connection_string), Access("secret"), "/fleet") as (address, _),
            session.get(address.rstrip("/") + "?token=secret") as answer,
        ):
            assert answer.status == 200 and answer.url.path == "/fleet/"

    play(story)


def test_a_head_request_of_the_events_is_refused(emulator: Azurite) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with (
            served(job(emulator.connection_string)) as (address, watcher),
            asyncio.timeout(30),
            session.head(address + "events") as answer,
        ):
            assert answer.status == 405 and not watcher._watched

    play(story)


def test_a_token_is_asked_for_on_this_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ui.access_of("127.0.0.1", False).token == ""
    assert len(ui.access_of("0.0.0.0", False).token) > 20
    monkeypatch.setenv(ui.VARIABLE, "secret")
    assert ui.access_of("127.0.0.1", False) == ui.access_of("0.0.0.0", False) == Access("secret")
    assert ui.access_of("127.0.0.1", True) == Access(behind_proxy=True)


def test_a_document_that_cannot_be_made_does_not_end_the_reading(
    emulator: Azurite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        config = job(emulator.connection_string)
        account = await joined(config)
        async with (
            served(config) as (address, watcher),
            asyncio.timeout(30),
            session.get(address + "events") as news,
        ):
            assert "starting" in str(await read_event(news))
            with monkeypatch.context() as broken:
                broken.setattr(watcher, "_made", lambda *_: 1 / 0)
                while "ZeroDivisionError" not in str(await read_event(news)):
                    pass
            while "starting" not in str(await read_event(news)):
                pass
        await account.aclose()
        account.close()

    play(story)
    assert "The page could not show what was read." in caplog.text


def test_a_proxy_in_front_may_call_it_as_it_likes(emulator: Azurite) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with (
            served(job(emulator.connection_string), Access(behind_proxy=True)) as (address, _),
            session.get(address, headers={"Host": "fleet.example"}) as answer,
        ):
            assert answer.status == 200

    play(story)


def test_bytes_that_are_no_text_are_refused_and_not_repeated(emulator: Azurite) -> None:
    async def status(port: int, header: bytes) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /state.json HTTP/1.1\r\nConnection: close\r\n" + header + b"\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return head.split()[1], body

    async def story(_: aiohttp.ClientSession) -> None:
        config = job(emulator.connection_string)
        async with served(config) as (address, _):
            said, body = await status(int(address.split(":")[2].strip("/")), b"Host: caf\xe9.example")
            assert said == b"403" and b"caf" not in body
        async with served(config, Access("secret")) as (address, _):
            port = int(address.split(":")[2].strip("/"))
            said, _ = await status(port, b"Host: a\r\nAuthorization: Bearer caf\xe9")
            assert said == b"403"

    play(story)


def test_credentials_of_another_kind_do_not_hide_the_cookie(emulator: Azurite) -> None:
    """As a proxy in front adds them, which asks for a password of its own."""

    async def story(session: aiohttp.ClientSession) -> None:
        async with served(job(emulator.connection_string), Access("secret")) as (address, _):
            given = {"Authorization": "Basic dTpw", "Cookie": "samza-azure-page=secret"}
            async with session.get(address + "state.json", headers=given) as answer:
                assert answer.status == 200
            async with session.get(address + "state.json", headers={"Authorization": "secret"}) as answer:
                assert answer.status == 403

    play(story)


@pytest.mark.parametrize("token", ["plain", "a+b&c=d#e%20f/é"])
def test_the_address_that_is_printed_holds_the_token(token: str) -> None:
    assert URL(ui.address("127.0.0.1", 80, "/fleet", token)).query["token"] == token


@pytest.mark.parametrize("path", ["{x}", "a/{y:.*}", "a?b", "a b"])
def test_a_base_path_that_is_no_plain_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="--base-path"):
        ui.base_of(path)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("", "should be an address of this machine"),  # it would be every address
        ("[::1]", "should be an address of this machine"),
        ("a" * 64, "should be an address of this machine"),
        ("192.0.2.1", "Choose another --port, or another address of this machine as --host"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_refused(tmp_path: Path, host: str, said: str) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB.format(id="x", connect="UseDevelopmentStorage=true"))
    with pytest.raises(ConfigError, match=said):
        ui.command(file, port=0, host=host)


def test_a_base_path_needs_no_slashes() -> None:
    assert [ui.base_of(path) for path in ("", "/", "fleet", "/a/b.c/")] == ["", "", "/fleet", "/a/b.c"]


async def joined(config: Config) -> Account:
    """The account, with a processor that never writes again."""
    account = Account.from_config(config.storage)
    await asyncio.to_thread(account.ensure_created)
    values = {"incarnation": "1", "beat": 1, "state": "ACTIVE"}
    assert isinstance(await account.rows().insert(MEMBERS, "p0", values, timeout=5), str)
    return account


async def state_of(session: aiohttp.ClientSession, address: str) -> str:
    async with session.get(address + "state.json") as answer:
        return str((await answer.json())["verdict"]["state"])


def test_a_page_that_polls_sees_that_a_fleet_is_dead(emulator: Azurite) -> None:
    """However much time passes between two questions."""

    async def story(session: aiohttp.ClientSession) -> None:
        config = job(emulator.connection_string)
        account = await joined(config)
        async with served(config) as (address, watcher), asyncio.timeout(30):
            assert await state_of(session, address) == "starting"
            while await state_of(session, address) != "stopped":  # noqa: ASYNC110  # so rarely does a page ask
                await asyncio.sleep(4 * watcher._timing.heartbeat_s)
        await account.aclose()
        account.close()

    play(story)


def test_a_failed_read_does_not_count_as_silence(emulator: Azurite) -> None:
    """While the account is away no heartbeat is accepted; the first answer afterwards still shows the rows
    from before."""
    connect = emulator.connection_string

    async def story(session: aiohttp.ClientSession) -> None:
        with Guard(emulator.table_port, lambda method, path: False) as tables:
            config = job(connect.replace(f":{emulator.table_port}/", f":{tables.port}/"))
            account = await joined(config)
            async with served(config) as (address, watcher):
                assert await state_of(session, address) == "starting"
                tables.refuses = lambda method, path: True
                begun = boot_time()
                while boot_time() < begun + 2 * watcher._timing.heartbeat_timeout_s:
                    await watcher.look()
                    assert watcher.document["verdict"]["state"] == "away"
                tables.refuses = lambda method, path: False
                await watcher.look()
                assert watcher.document["verdict"]["state"] == "looking", "whether a heartbeat comes now"
            await account.aclose()
            account.close()

    play(story)


def test_a_container_that_was_deleted_is_named(emulator: Azurite) -> None:
    """Its table is still there, so the processors' rows can be read: the state of the run is what was lost."""

    async def story(session: aiohttp.ClientSession) -> None:
        config = job(emulator.connection_string)
        account = await joined(config)
        async with served(config) as (address, watcher):
            assert await state_of(session, address) == "starting"
            await asyncio.to_thread(account._synchronous().container.delete_container)
            await watcher.look()
            said = watcher.document["verdict"]
            assert said["state"] == "away"
            assert f"The container {config.storage.container} is gone" in said["text"]
            await asyncio.to_thread(account._synchronous().table.delete_table)
            await watcher.look()
            assert f"the table {config.storage.table} is gone" in watcher.document["verdict"]["text"]
        await account.aclose()
        account.close()

    play(story)


def test_an_account_that_does_not_answer_is_called_once_per_reading(emulator: Azurite) -> None:
    """And it has been away since the look began."""

    async def story(session: aiohttp.ClientSession) -> None:
        connect = emulator.connection_string
        with Proxy(emulator.blob_port) as blobs, Proxy(emulator.table_port) as tables:
            passed = connect.replace(f":{emulator.blob_port}/", f":{blobs.port}/")
            config = job(passed.replace(f":{emulator.table_port}/", f":{tables.port}/"))
            account = await joined(config)
            async with served(config) as (address, watcher):
                assert await state_of(session, address) == "starting"
                blobs.mode = tables.mode = Mode.HOLD_ANSWERS
                before = blobs.connections + tables.connections
                await watcher.look()
                said = watcher.document["verdict"]
                assert said["state"] == "away" and said["since_s"] >= CALL_S
                assert blobs.connections + tables.connections == before, "the look had its connections already"
            await account.aclose()
            account.close()

    play(story)


def test_an_account_without_anything_is_empty_and_nothing_is_made_there(emulator: Azurite) -> None:
    async def story(session: aiohttp.ClientSession) -> None:
        async with (
            served(job(emulator.connection_string)) as (address, _),
            session.get(address + "state.json") as answer,
        ):
            assert (await answer.json())["verdict"]["state"] == "empty"

    play(story)


def test_the_page_costs_two_reads_at_a_time_and_none_while_it_is_closed(emulator: Azurite) -> None:
    """Viewers at the same time cause one read. No right to write is needed."""
    connect = emulator.connection_string

    async def story(session: aiohttp.ClientSession) -> None:
        with (
            Guard(emulator.blob_port, lambda method, path: method not in ("GET", "HEAD")) as blobs,
            Guard(emulator.table_port, lambda method, path: method != "GET") as tables,
        ):
            guarded = connect.replace(f":{emulator.blob_port}/", f":{blobs.port}/")
            config = job(guarded.replace(f":{emulator.table_port}/", f":{tables.port}/"))
            straight = Account.from_config(Config.parse(JOB.format(id=config.app.id, connect=connect)).storage)
            await asyncio.to_thread(straight.ensure_created)
            async with served(config) as (address, watcher):
                async with session.get(address) as answer:
                    assert answer.status == 200
                assert blobs.seen == tables.seen == []
                await watcher.look()  # the first one also asks whether a control blob was deleted
                blobs.seen.clear()
                tables.seen.clear()
                await asyncio.gather(*(watcher.look() for _ in range(5)))
                assert len(blobs.seen) + len(tables.seen) == CALLS
                priced = page(watcher._timing, processors=1) * (watcher._timing.heartbeat_s / 3600)
                assert (priced.read, priced.table) == (len(blobs.seen), len(tables.seen)), "what explain says of a look"
                async with session.get(address + "events") as news:
                    first = await read_event(news)
                    assert first["verdict"]["state"] == "stopped" and first["processors"] == []
                    values = {"incarnation": "1", "beat": 1, "state": "ACTIVE"}
                    assert isinstance(await straight.rows().insert(MEMBERS, "p0", values, timeout=5), str)
                    while not (found := await read_event(news))["processors"]:
                        pass
                    assert found["processors"][0]["id"] == "p0"
                begun = len(tables.seen)
                while watcher._watched:  # noqa: ASYNC110  # the server has no event for it
                    await asyncio.sleep(0.05)  # the server notices that its reader has gone with its next news
                assert len(tables.seen) - begun <= 2
                assert len(blobs.seen) == len(tables.seen)
            assert blobs.refused == tables.refused == []
            await straight.aclose()
            straight.close()

    play(story)


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.7", False),
        ("10.0.0.7", False),
    ],
)
def test_this_machine_is_known_by_any_of_its_addresses(address: str, is_ours: bool) -> None:
    """A socket for both versions shows the old ones in the new form."""
    assert is_loopback(address) is is_ours


def test_each_document_of_the_page_has_the_time_it_was_sent(emulator: Azurite) -> None:
    """So a browser with a wrong clock does not call it old."""

    async def story(session: aiohttp.ClientSession) -> None:
        async with served(job(emulator.connection_string)) as (address, watcher):
            async with session.get(address + "state.json") as answer:
                first = (await answer.json())["now_ms"]
            async with session.get(address + "events") as news:
                second = (await read_event(news))["now_ms"]
            assert first <= second  # type: ignore[operator]
            assert "now_ms" not in watcher.document

    play(story)


def test_a_processor_draws_its_curves_before_its_page_is_opened(
    emulator: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what the processor knows: a page that is opened after an alert shows what was before. No call is made for
    it."""
    lines = Lines()
    monkeypatch.setattr(watch, "lines_of", lambda config: lines)
    view = View(Settings("a", PROFILES["default"]), OwnIncarnation("1"))
    view.own.control, view.others.scanned_at = Control("g"), boot_time()

    async def story(session: aiohttp.ClientSession) -> None:
        config = job(emulator.connection_string)
        app = web.Application()
        run.page_of(config, SimpleNamespace(view=view))(app)  # type: ignore[arg-type]
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with asyncio.timeout(20):
            while not lines.points:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.01)
        account = Account.from_config(config.storage)
        await asyncio.to_thread(account.ensure_created)
        async with session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/state.json") as answer:
            assert (await answer.json())["keeping_up"]["since_ms"] == lines.points[0][0]
        await runner.cleanup()
        await account.aclose()
        account.close()

    play(story)


def test_the_last_day_is_read_once_a_minute_and_nothing_is_written(emulator: Azurite) -> None:
    """However many look. What others wrote there costs the history alone."""
    connect = emulator.connection_string

    async def story(session: aiohttp.ClientSession) -> None:
        with Guard(emulator.table_port, lambda method, path: method != "GET") as tables:
            config = job(connect.replace(f":{emulator.table_port}/", f":{tables.port}/"))
            straight = Account.from_config(Config.parse(JOB.format(id=config.app.id, connect=connect)).storage)
            async with served(config) as (address, _):
                async with session.get(address + "day.json") as answer:
                    assert (answer.status, await answer.json()) == (200, {}), "there is no account yet"
                await asyncio.to_thread(straight.ensure_created)
                now_ms = time.time_ns() // 1_000_000
                kept = encoded(LastDay(((now_ms, 7, None, 2.0),)))
                assert isinstance(await straight.rows().insert(RECORD, RECORD, kept, timeout=5), str)
                tables.seen.clear()
                for _ in range(2):
                    async with session.get(address + "day.json") as answer:
                        assert (await answer.json())["points"] == [[now_ms, 7, None, 2.0]]
                assert len(tables.seen) == record().table / 60 == 1
            assert tables.refused == []
            await straight.aclose()
            straight.close()

    play(story)


async def read_event(news: aiohttp.ClientResponse) -> dict[str, object]:
    """The next document of a stream of events."""
    while not (line := await asyncio.wait_for(news.content.readline(), 30)).startswith(b"data: "):
        assert line
    return json.loads(line.removeprefix(b"data: "))  # type: ignore[no-any-return]
