"""Connections to the ports of other processors: whose process ends is known at once, and a ring says *read now*.

Both are hints; `group/bells.py` says what follows from them. The port is `processor.port`, the route `/bell`, and what
goes over it a WebSocket with empty messages. Client and server prove to each other that they know the token of the
server's incarnation, which only readers of the table know, without sending it; the comparison takes constant time.

*Closed, then refused* means that the process has ended and its machine lives. The first connections after the end may
still succeed, since the kernel closes the listening socket a moment later: 0 to 50 ms, on a busy machine up to 180 ms
were measured. A port that still opens after that, or does not answer, says nothing: a machine that is lost, a process
that is frozen, a restart, another process at the same port.
"""

import asyncio
import hmac
import logging
import random
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from samza_azure.coordinator import JobCoordinator
from samza_azure.group.bells import token_of
from samza_azure.group.rows import Bell, address_inside
from samza_azure.machine.clock import boot_time

if TYPE_CHECKING:
    from aiohttp import ClientSession, ClientWebSocketResponse, web

__all__ = ["ROUTE", "Bells", "add_bell", "address_for_others"]

log = logging.getLogger(__name__)

ROUTE = "/bell"
NONCE, PROOF = "X-Bell-Nonce", "X-Bell-Proof"
#: How soon after the end of a connection its port must refuse another one; the first wait between two tries, doubled up
#: to the longest.
REFUSED_S, TRY_S, TRY_MOST_S = 0.25, 0.002, 0.016
#: The wait before a connection is tried again, doubled up to the second; and the longest wait for a proof.
AGAIN_S, AGAIN_MOST_S, PROOF_S = 0.5, 60.0, 3.0
#: So long a connection that is not wanted any more waits for the other side, which may be frozen.
CLOSE_S = 0.5
#: A port takes so many connections at once, and passes on one ring in so many seconds.
CONNECTIONS, RING_S = 128, 0.1


class Bells:
    """The connections that one processor holds. All of it on one loop's thread."""

    def __init__(self, gone: Callable[[str], bool]) -> None:
        """`gone` is called with an incarnation whose process has ended, and returns whether that counts."""
        self._gone = gone
        self._wanted: Mapping[str, Bell] = {}
        self._held: dict[str, asyncio.Task[None]] = {}
        self._open: dict[str, ClientWebSocketResponse] = {}
        self._ringing: set[asyncio.Task[None]] = set()
        self._session: ClientSession | None = None

    def hold(self, wanted: Mapping[str, Bell]) -> None:
        if wanted == self._wanted:
            return
        for incarnation, bell in self._wanted.items():
            if wanted.get(incarnation) != bell:
                self._held.pop(incarnation).cancel()
        for incarnation, bell in wanted.items():
            if self._wanted.get(incarnation) != bell:
                self._held[incarnation] = asyncio.get_running_loop().create_task(self._hold(incarnation, bell))
        self._wanted = dict(wanted)

    def ring(self) -> None:
        for connection in self._open.values():
            ringing = asyncio.get_running_loop().create_task(_ring(connection))
            self._ringing.add(ringing)
            ringing.add_done_callback(self._ringing.discard)

    async def close(self) -> None:
        """End all of them."""
        tasks = [*self._held.values(), *self._ringing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _hold(self, incarnation: str, bell: Bell) -> None:
        from aiohttp import ClientError

        self._session = self._session or _session()
        again_s = AGAIN_S
        while True:
            was_open = False
            with suppress(ClientError, OSError, TimeoutError):
                was_open = await self._listen(self._session, incarnation, bell)
            is_over = was_open and await is_refused(bell)
            if is_over and self._gone(incarnation):
                return
            again_s = AGAIN_MOST_S if is_over else AGAIN_S if was_open else min(2 * again_s, AGAIN_MOST_S)
            await asyncio.sleep(again_s * (0.75 + random.random() / 2))

    async def _listen(self, session: "ClientSession", incarnation: str, bell: Bell) -> bool:
        """Connect, and wait until the connection ends. Return whether it was one to that incarnation."""
        from aiohttp import ClientWSTimeout

        nonce = secrets.token_hex(16)
        host = f"[{bell.host}]" if ":" in bell.host else bell.host
        headers = {NONCE: nonce, PROOF: proof(bell.token, "asks", nonce)}
        async with asyncio.timeout(PROOF_S):
            connection = await session.ws_connect(
                f"http://{host}:{bell.port}{ROUTE}",
                headers=headers,
                max_msg_size=256,
                timeout=ClientWSTimeout(ws_close=CLOSE_S),
            )
        async with connection:
            answer = str((await connection.receive(timeout=PROOF_S)).data)
            if not is_proof(answer, bell.token, "answers", nonce):
                return False
            self._open[incarnation] = connection
            try:
                async for _ in connection:
                    break  # the other side never says anything more
            finally:
                del self._open[incarnation]
            return True


def _session() -> "ClientSession":
    """For calls of what rows name, which must not lead to anything else."""
    from aiohttp import ClientError, ClientSession, TraceConfig, TraceRequestRedirectParams

    async def refuse(session: ClientSession, context: object, found: TraceRequestRedirectParams) -> None:
        found.response.close()
        raise ClientError("A bell does not redirect.")

    tracing = TraceConfig()
    tracing.on_request_redirect.append(refuse)
    return ClientSession(trace_configs=[tracing])


async def _ring(connection: "ClientWebSocketResponse") -> None:
    with suppress(OSError, RuntimeError):
        await connection.send_bytes(b"")


def proof(token: str, who: str, nonce: str) -> str:
    """What shows that one knows the token."""
    return hmac.digest(_bytes(token), _bytes(f"{who} {nonce}"), "sha256").hex()


def is_proof(shown: str, token: str, who: str, nonce: str) -> bool:
    """Whether that was shown, compared in constant time."""
    return hmac.compare_digest(_bytes(shown), proof(token, who, nonce).encode())


def _bytes(text: str) -> bytes:
    """A header that is no UTF-8 is read with lone surrogates, which cannot be encoded."""
    return text.encode(errors="replace")


async def is_refused(bell: Bell) -> bool:
    """Whether the port refuses a connection, now or within `REFUSED_S`; the last try may take as long again."""
    until, wait_s = boot_time() + REFUSED_S, TRY_S
    while boot_time() < until:
        try:
            async with asyncio.timeout(REFUSED_S):
                _, writer = await asyncio.open_connection(bell.host, bell.port)
            writer.close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            pass  # the kernel had taken it, and then closed the listening socket
        except (OSError, TimeoutError):
            return False
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, TRY_MOST_S)
    return False


def add_bell(app: "web.Application", coordinator: JobCoordinator) -> None:
    """Serve the route."""
    from aiohttp import WSMsgType, web

    count = 0

    async def listen(request: "web.Request") -> "web.StreamResponse":
        nonlocal count
        view = getattr(coordinator, "view", None)
        nonce, shown = request.headers.get(NONCE, ""), request.headers.get(PROOF, "")
        if view is None or view.settings.doorbell is None:
            return web.Response(status=404)
        token = token_of(view.settings.doorbell.secret, view.incarnation)
        if not is_proof(shown, token, "asks", nonce):
            return web.Response(status=403)
        if count >= CONNECTIONS:
            return web.Response(status=503)
        count += 1
        try:
            connection, rung_at = web.WebSocketResponse(max_msg_size=16), -1e9
            await connection.prepare(request)
            await connection.send_str(proof(token, "answers", nonce))
            async for message in connection:
                if message.type is not WSMsgType.BINARY or message.data:
                    break  # a ring says nothing
                if boot_time() >= rung_at + RING_S:
                    rung_at = boot_time()
                    coordinator.rung()
            return connection
        finally:
            count -= 1

    app.router.add_get(ROUTE, listen)


def address_for_others(host: str) -> str | None:
    """The address under which other processors reach a port that is served at `host`. None: only from outside of a
    private network, so there are no bells."""
    found = host
    if host in ("0.0.0.0", "::"):  # noqa: S104  # it is read, not bound
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("2001:db8::1" if ":" in host else "192.0.2.1", 9))  # sends nothing
                found = probe.getsockname()[0]
            except OSError:
                found = "::1" if ":" in host else "127.0.0.1"
    elif host == "localhost":
        found = "127.0.0.1"
    return address_inside(found)
