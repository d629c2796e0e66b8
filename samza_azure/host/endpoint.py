"""A thread that monitors this process: it answers `/livez`, `/readyz` and `/metrics`, and notifies systemd.

These answers come from memory. The thread has an event loop of its own, so that it still answers when the coordinator's
loop or the main thread is stuck.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from samza_azure.errors import ConfigError
from samza_azure.host.health import TICK_S, Health
from samza_azure.host.notify import notify

__all__ = ["PORTS", "ROUTES", "Endpoint"]

log = logging.getLogger(__name__)

ROUTES = ("/livez", "/readyz", "/metrics")
#: A machine may run several processors from one job file; each takes the first free port from the configured one on.
PORTS = 100

#: Metrics in Prometheus's format, with the content type; None if this process has none.
Metrics = Callable[[], "tuple[bytes, str] | None"]


class Endpoint:
    """Monitors and serves from `start` to the end of the process."""

    def __init__(
        self, health: Health, metrics: Metrics = lambda: None, more: Callable[[Any], None] = lambda app: None
    ) -> None:
        """`more` adds other routes to the application, such as the status page's. Those may read the storage."""
        self._health, self._metrics, self._more = health, metrics, more
        self._joined = False

    def start(self, host: str, port: int | None) -> int | None:
        """Start to monitor, and to listen if there is a port; 0: any free port. Return the port."""
        # Imported here because the main thread will fork: an import on another thread might register hooks in mid-fork.
        from aiohttp import web

        result: list[int | None | OSError] = []
        listening = threading.Event()

        async def live() -> None:
            try:
                result.append(None if port is None else await self._listen(web, host, port))
            except OSError as error:
                result.append(error)
                return
            finally:
                listening.set()
            await self._watch()

        threading.Thread(target=lambda: asyncio.run(live()), name="endpoint", daemon=True).start()
        listening.wait()
        if isinstance(result[0], OSError):
            raise ConfigError(
                f"processor.port is {port}, but no port from there on can be opened on {host}: {result[0].strerror}. "
                "Choose another port, or another address of this machine as processor.host."
            ) from result[0]
        return result[0]

    async def _listen(self, web: Any, host: str, port: int) -> int:
        app = web.Application()

        async def answer(request: Any) -> Any:
            if request.path == "/metrics":
                shown = self._metrics()
                if shown is None:
                    return web.Response(status=404, text="This processor serves no metrics; see docs/metrics.md.\n")
                return web.Response(body=shown[0], headers={"Content-Type": shown[1]})
            status, document = self._health.live() if request.path == "/livez" else self._health.ready()
            return web.json_response(document, status=status, headers={"Cache-Control": "no-store"})

        for route in ROUTES:
            app.router.add_get(route, answer)
        self._more(app)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        last = min(port + PORTS, 65536) - 1 if port else 0
        for number in range(port, last + 1):
            try:
                await web.TCPSite(runner, host, number).start()
            except OSError:
                if number == last:
                    raise
            else:
                break
        return int(runner.addresses[0][1])

    async def _watch(self) -> None:
        while True:
            try:
                self._health.tick()
                self._tell()
            except Exception:  # systemd's watchdog would end a processor that works
                log.exception("A look at this processor's health failed; the next one is in %g s.", TICK_S)
            await asyncio.sleep(TICK_S)

    def _tell(self) -> None:
        """Notify systemd. A stuck processor sends no WATCHDOG=1, so systemd's watchdog ends it."""
        if not self._joined and self._health.ready()[0] == 200:
            self._joined = True
            notify("READY=1")
        if self._health.alive:
            notify("WATCHDOG=1")
