"""Connections between ports of real processes: what is heard of one that is killed, frozen, rung at, or hostile."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from samza_azure.group.bells import token_of
from samza_azure.group.rows import Bell, address_inside
from samza_azure.group.view import Doorbell, OwnIncarnation, Settings, View
from samza_azure.host.bells import (
    CONNECTIONS,
    NONCE,
    PROOF,
    REFUSED_S,
    ROUTE,
    Bells,
    add_bell,
    address_for_others,
    proof,
)

SECRET, LIFE = b"secret", "life of p1"
TOKEN = token_of(SECRET, LIFE)
#: Serves the route in a process of its own, and says at which port.
SERVER = """
import asyncio, sys
from types import SimpleNamespace
from aiohttp import web
from samza_azure.group.view import Doorbell, OwnIncarnation, Settings, View
from samza_azure.host.bells import add_bell

async def serve():
    app = web.Application()
    view = View(Settings("p1", doorbell=Doorbell("127.0.0.1", 1, b"secret")), OwnIncarnation("life of p1"))
    add_bell(app, SimpleNamespace(view=view, rung=lambda: None))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


class Heard:
    """What a processor's connections have told it."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.news = asyncio.Event()
        self.counts = True
        self.bells = Bells(self.hear)

    def hear(self, incarnation: str) -> bool:
        self.gone.append(incarnation)
        self.news.set()
        return self.counts

    async def is_open(self) -> None:
        """Wait until it holds a connection."""
        await until(lambda: bool(self.bells._open))


async def another(
    heard: "Heard", path: str, answers: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.AppRunner:
    """Another program at the port at which a processor is said to be."""
    app = web.Application()
    app.router.add_get(path, answers)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    heard.bells.hold({LIFE: Bell("127.0.0.1", runner.addresses[0][1], TOKEN)})
    return runner


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not holds():  # noqa: ASYNC110  # nobody tells when a connection opens
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(view: Any = None, rung: Callable[[], None] = lambda: None) -> AsyncIterator[tuple[int, web.AppRunner]]:
    """The route in this process."""
    known = View(Settings("p1", doorbell=Doorbell("127.0.0.1", 1, SECRET)), OwnIncarnation(LIFE))
    app = web.Application()
    add_bell(app, SimpleNamespace(view=view or known, rung=rung))  # type: ignore[arg-type]
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1]), runner
    finally:
        await runner.cleanup()


def played(story: Callable[[Heard], Awaitable[None]]) -> None:
    async def play() -> None:
        heard = Heard()
        try:
            await story(heard)
        finally:
            await heard.bells.close()

    asyncio.run(play())


@contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has a bell, and its port."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server, int(server.stdout.readline())
        finally:
            server.kill()


def test_the_end_of_a_process_is_heard_at_once_and_its_freeze_is_not() -> None:
    async def story(heard: Heard) -> None:
        heard.counts = False
        heard.bells.hold({LIFE: Bell("127.0.0.1", port, TOKEN)})
        await heard.is_open()
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(heard.news.wait(), 0.5)
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.wait_for(heard.news.wait(), 5.0)
        assert heard.gone == [LIFE]
        assert not heard.bells._held[LIFE].done(), "it did not count, so it tries again"

    with serving() as (server, port):
        played(story)


def test_a_processor_that_ends_does_not_wait_for_one_that_is_frozen() -> None:
    async def story(heard: Heard) -> None:
        heard.bells.hold({LIFE: Bell("127.0.0.1", port, TOKEN)})
        await heard.is_open()
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.wait_for(heard.bells.close(), 5.0)

    with serving() as (server, port):
        played(story)


def test_a_port_cannot_lead_a_processor_elsewhere() -> None:
    async def story(heard: Heard) -> None:
        asked: list[str] = []

        async def lead(request: web.Request) -> web.StreamResponse:
            asked.append(request.path)
            return web.Response(status=302, headers={"Location": "/elsewhere"})

        runner = await another(heard, "/{any}", lead)
        await until(lambda: bool(asked))
        await asyncio.sleep(0.3)
        await runner.cleanup()
        assert asked == [ROUTE]

    played(story)


def test_headers_that_are_no_text_are_refused_like_any_other() -> None:
    async def story(heard: Heard) -> None:
        async with served() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            lines = [f"GET {ROUTE} HTTP/1.1", "Host: one", f"{NONCE}: \xff", f"{PROOF}: \xff", "", ""]
            writer.write("\r\n".join(lines).encode("latin-1"))
            assert b" 403 " in await asyncio.wait_for(reader.readline(), 20.0)
            writer.close()

    played(story)


def test_a_connection_that_is_closed_while_the_port_stays_open_says_nothing() -> None:
    """So it is after a restart, behind a proxy, and where another process has got the port."""

    async def story(heard: Heard) -> None:
        ended = list[str]()

        async def listen(request: web.Request) -> web.StreamResponse:
            connection = web.WebSocketResponse()
            await connection.prepare(request)
            await connection.send_str(proof(TOKEN, "answers", request.headers[NONCE]))
            ended.append(request.path)
            return connection

        runner = await another(heard, ROUTE, listen)
        await until(lambda: len(ended) > 1)  # else there is no second connection
        await runner.cleanup()
        assert heard.gone == []

    played(story)


def test_who_does_not_know_the_token_cannot_pretend_to_be_a_processor_that_ends() -> None:
    async def story(heard: Heard) -> None:
        asked = asyncio.Event()

        async def listen(request: web.Request) -> web.StreamResponse:
            connection = web.WebSocketResponse()
            await connection.prepare(request)
            await connection.send_str(proof("another token", "answers", request.headers[NONCE]))
            asked.set()
            return connection

        runner = await another(heard, ROUTE, listen)
        await asyncio.wait_for(asked.wait(), 20.0)
        await runner.cleanup()
        await asyncio.sleep(2 * REFUSED_S)  # by then its port has been judged
        assert heard.gone == []

    played(story)


def test_a_ring_is_heard() -> None:
    async def story(heard: Heard) -> None:
        rung = asyncio.Event()
        async with served(rung=rung.set) as (port, _):
            heard.bells.hold({LIFE: Bell("127.0.0.1", port, TOKEN)})
            await heard.is_open()
            heard.bells.ring()
            await asyncio.wait_for(rung.wait(), 20.0)
            heard.bells.hold({})
            await until(lambda: not heard.bells._open)
        assert heard.gone == [], "it was not wanted any more"

    played(story)


@pytest.mark.parametrize(
    ("token", "status"), [(TOKEN, 101), ("guessed", 403), (token_of(SECRET, "its former life"), 403)]
)
def test_only_who_knows_the_token_of_this_incarnation_may_connect(token: str, status: int) -> None:
    async def story(heard: Heard) -> None:
        async with served() as (port, _), aiohttp.ClientSession() as session:
            headers = {NONCE: "n", PROOF: proof(token, "asks", "n")}
            url = f"http://127.0.0.1:{port}{ROUTE}"
            try:
                async with session.ws_connect(url, headers=headers):
                    found = 101
            except aiohttp.WSServerHandshakeError as error:
                found = error.status
        assert found == status

    played(story)


def test_a_stranger_rings_no_more_than_ten_times_a_second_and_sends_nothing_else() -> None:
    async def story(heard: Heard) -> None:
        rings: list[int] = []
        async with served(rung=lambda: rings.append(1)) as (port, _), aiohttp.ClientSession() as session:
            headers = {NONCE: "n", PROOF: proof(TOKEN, "asks", "n")}
            async with session.ws_connect(f"http://127.0.0.1:{port}{ROUTE}", headers=headers) as connection:
                assert (await connection.receive()).data == proof(TOKEN, "answers", "n")
                for _ in range(300):
                    await connection.send_bytes(b"")
                await connection.send_bytes(b"a payload")
                assert (await connection.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        assert 1 <= len(rings) < 100

    played(story)


def test_a_port_takes_a_bounded_number_of_connections() -> None:
    async def story(heard: Heard) -> None:
        headers = {NONCE: "n", PROOF: proof(TOKEN, "asks", "n")}
        async with served() as (port, _), aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            url = f"http://127.0.0.1:{port}{ROUTE}"
            held = [await session.ws_connect(url, headers=headers) for _ in range(CONNECTIONS)]
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await session.ws_connect(url, headers=headers)
            for each in held:
                await each.close()

    played(story)


def test_a_processor_without_bells_has_no_such_route() -> None:
    async def story(heard: Heard) -> None:
        view = View(Settings("p1"), OwnIncarnation(LIFE))
        async with served(view) as (port, _), aiohttp.ClientSession() as session:
            assert (await session.get(f"http://127.0.0.1:{port}{ROUTE}")).status == 404

    played(story)


def test_bells_are_for_one_private_network() -> None:
    assert address_for_others("127.0.0.1") == address_for_others("localhost") == "127.0.0.1"
    assert address_for_others("10.1.2.3") == "10.1.2.3"
    assert address_for_others("20.1.2.3") is None
    assert address_for_others("example.com") is None
    found = address_for_others("0.0.0.0")
    assert found is None or address_inside(found) == found
