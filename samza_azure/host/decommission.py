"""The route `/decommission` of a processor's port: tell it that it will go, that it will not, or ask how far it is.

For this machine only, as for its preStop hook or a script that watches for the end of the machine. A page that a
browser has open may send such requests, too, but none with a body of JSON, or with another method than GET and POST,
without asking first: that is refused.
"""

import asyncio
import json
import threading
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.group.notice import PORT, Availability, Going
from samza_azure.host.loopback import not_of_this_machine
from samza_azure.host.scheduled_events import Told
from samza_azure.machine.clock import boot_time, wall_ms

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["ROUTE", "add_decommission", "app_of", "listen"]

ROUTE = "/decommission"


def app_of(config: Config) -> dict[str, str]:
    """What tells the processors of this job from those of others on this machine."""
    return {"container": config.storage.container, "table": config.storage.table}


def shown(going: Going | None) -> dict[str, Any]:
    """How far a processor is, as the route says it."""
    if going is None:
        return {"state": str(Availability.SCHEDULABLE)}
    return {**asdict(going), "state": str(going.state)}


def listen(told: Told, of: dict[str, str], port: int) -> None:
    """Serve the route alone, at a port of this machine, until the process ends. Raise ConfigError if that cannot be."""
    from aiohttp import web

    is_up: Future[None] = Future()

    async def live() -> None:
        app = web.Application()
        add_decommission(app, told, of)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            is_up.set_exception(error)
            return
        is_up.set_result(None)
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(live()), name="notices", daemon=True).start()
    try:
        is_up.result()
    except OSError as error:
        raise ConfigError(
            f"Port {port} of 127.0.0.1 cannot be opened ({error.strerror}). Choose another one."
        ) from error


def add_decommission(app: "web.Application", coordinator: Told, of: dict[str, str]) -> None:
    """Serve the route."""
    from aiohttp import web  # not at the top: a processor without a port needs none, and must start fast

    def answer(status: int = 200) -> web.Response:
        view = getattr(coordinator, "view", None)
        who = {"processor": view.me if view is not None else "", **of}
        return web.json_response(
            {**who, **shown(coordinator.going)}, status=status, headers={"Cache-Control": "no-store"}
        )

    async def tell(request: web.Request) -> web.Response:
        if (why := not_of_this_machine(request)) is not None:
            return web.Response(status=403, text=f"{why}\n")
        if request.method == "DELETE":
            coordinator.recommission(PORT)
            return answer(202)
        if request.method == "GET":
            return answer()
        if request.content_type != "application/json":
            text = "Send a body of JSON with the header Content-Type: application/json, such as {}.\n"
            return web.Response(status=415, text=text)
        try:
            why, by = _asked(await request.text())
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        coordinator.decommission(why, by=by, source=PORT)
        return answer(202)

    for method in ("GET", "POST", "DELETE"):
        app.router.add_route(method, ROUTE, tell)


def _asked(text: str) -> tuple[str, float | None]:
    """The reason in a request's body, and the deadline by the clock of processes. Raise `ValueError`."""
    form = 'The body should be like {"why": "scale-in", "by_ms": 1789560000000}, in milliseconds since 1970, or {}.'
    try:
        fields = json.loads(text)
    except ValueError:
        raise ValueError(form) from None
    if not isinstance(fields, dict) or not fields.keys() <= {"why", "by_ms"}:
        raise ValueError(form)
    why, by_ms = fields.get("why", "a request on its port"), fields.get("by_ms")
    if not isinstance(why, str) or not (by_ms is None or (type(by_ms) is int and 0 < by_ms < 1 << 53)):
        raise ValueError(form)
    return why, None if by_ms is None else boot_time() + (by_ms - wall_ms()) / 1000
