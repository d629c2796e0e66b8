"""The page over HTTP: who may see it, what a browser may do with it, and how it is updated.

It is open to this machine only, unless a token or a proxy in front authenticates users. A page of another site cannot
read it: no other origin may read, and without a token the Host header is checked, against DNS rebinding. Behind a proxy
nothing is checked here: the proxy has to check the Host and the user, and nobody else may reach the port.
"""

import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from aiohttp import web

from samza_azure.errors import SamzaAzureError
from samza_azure.host.loopback import LOOPBACK, host_of, is_loopback
from samza_azure.page.watch import Watcher

__all__ = ["FILES", "Access", "add_page", "is_loopback"]

COOKIE = "samza-azure-page"
#: Only our own files, no inline code or style, no frames.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SCRIPTS = ("page", "columns", "day", "graph", "lines", "news", "table", "texts")
FILES = {
    "": ("index.html", "text/html"),
    **{f"{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
    "page.css": ("page.css", "text/css"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
#: The interval of keep-alive lines while there is no new document.
ALIVE_S = 15.0

PageHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see the page: this machine; or any client with the token; or all that a proxy in front lets through."""

    token: str = ""
    behind_proxy: bool = False

    def refused(self, request: web.Request) -> str | None:
        """Why the request is refused; None if it is not."""
        if self.behind_proxy:
            return None
        if self.token:
            header = request.headers.get("Authorization", "")
            # Any other scheme of authorization is for a proxy in front.
            given = header[7:] if header.startswith("Bearer ") else request.cookies.get(COOKIE, "")
            return None if self.is_token(given) else "Show the token: open the page with ?token=TOKEN once."
        if request.remote is None or not is_loopback(request.remote):
            return "This page is for its own machine only. Use `samza-azure ui`, or forward a port."
        if host_of(request) not in LOOPBACK:
            return (
                "This page is only served as 127.0.0.1 or localhost. Open it by one of these names, or, if a proxy "
                "in front checks the Host and the user, serve it with `samza-azure ui --behind-proxy`."
            )
        return None

    def is_token(self, given: str) -> bool:
        """Compare in constant time."""
        return bool(self.token) and hmac.compare_digest(_raw(given), _raw(self.token))


def _raw(text: str) -> bytes:
    """The bytes as they were sent: a header, or an environment variable, need not be UTF-8."""
    return text.encode(errors="surrogateescape")


def _now(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the time at which it is sent: the clock of the browser may be wrong."""
    return {**document, "now_ms": time.time_ns() // 1_000_000}


def add_page(app: web.Application, watcher: Callable[[], Watcher], access: Access, base: str = "") -> None:
    """Serve the page at `base`/. `watcher` is called on the loop, from the first request on."""

    def guarded(handler: PageHandler) -> PageHandler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if (why := access.refused(request)) is not None:
                return web.Response(status=403, text=f"{why}\n", headers=HEADERS)
            return await handler(request)

        return answer

    async def root(request: web.Request) -> web.StreamResponse:
        """Turn a token in the URL into a cookie, so that it does not stay in the history and in logs."""
        if access.is_token(request.query.get("token", "")):
            seen = web.HTTPSeeOther(f"{base}/", headers=HEADERS)
            # Lax: the cookie has to come with a link in a chat or a mail. No request here changes anything.
            seen.set_cookie(COOKIE, access.token, path=f"{base}/", httponly=True, samesite="Lax")
            raise seen
        return await guarded(file)(request)

    async def file(request: web.Request) -> web.StreamResponse:
        name, kind = FILES[request.path.removeprefix(f"{base}/")]
        body = files("samza_azure.page").joinpath("static", name).read_bytes()
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

    async def state(request: web.Request) -> web.StreamResponse:
        return web.json_response(_now(await watcher().state()), headers=HEADERS)

    async def last_day(request: web.Request) -> web.StreamResponse:
        try:
            found = await watcher().day()
        except SamzaAzureError:
            found = {}  # the verdict says why
        return web.json_response(found, headers=HEADERS)

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        source = watcher()
        async with source.watched() as later:
            version = 0  # the document before the first reading says nothing
            with suppress(ConnectionResetError):  # the client has gone
                while True:
                    if await later(version, ALIVE_S):
                        version = source.version
                        text = json.dumps(_now(source.document), separators=(",", ":"))
                        await response.write(f"id: {version}\ndata: {text}\n\n".encode())
                    else:
                        await response.write(b": nothing new\n\n")
        return response

    async def with_slash(request: web.Request) -> web.StreamResponse:
        """Without the slash the page's relative links would lead beside it."""
        raise web.HTTPFound(request.rel_url.with_path(f"{base}/", keep_query=True), headers=HEADERS)

    app.router.add_get(f"{base}/", root)
    if base:
        app.router.add_get(base, with_slash)
    for path in FILES.keys() - {""}:
        app.router.add_get(f"{base}/{path}", guarded(file))
    app.router.add_get(f"{base}/state.json", guarded(state))
    app.router.add_get(f"{base}/day.json", guarded(last_day))
    # A HEAD would wait forever: a stream has no end, and its body is discarded.
    app.router.add_get(f"{base}/events", guarded(events), allow_head=False)
