"""`samza-azure ui`: serve the status page while this command runs. It reads the account and writes nothing."""

import asyncio
import os
import re
import secrets
from typing import Annotated
from urllib.parse import quote

import typer
from aiohttp import web

from samza_azure.commands.job import Job, load_seen
from samza_azure.commands.terminal import say
from samza_azure.config import Config
from samza_azure.config.sections import HOST_PATTERN, HOST_RULE
from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.page.server import Access, add_page, is_loopback
from samza_azure.page.watch import Watcher
from samza_azure.storage.connection import Account

VARIABLE = "SAMZA_AZURE_PAGE_TOKEN"


def command(
    job: Job,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free port.")] = 8421,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Any but a loopback address needs a token, which is shown.")
    ] = ("127.0.0.1"),
    base_path: Annotated[str, typer.Option(help="The path under which a proxy serves the page.")] = "",
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="Leave it to a proxy in front to check the Host and the user.")
    ] = False,
) -> None:
    """Serve the status page to a browser, until Ctrl-C: is it healthy, does it keep up, what happened.

    Example: samza-azure ui job.toml --port 8421
    """
    config = load_seen(job)
    base = base_of(base_path)
    if not re.fullmatch(HOST_PATTERN, host):
        raise ConfigError(f"--host {host!r} {HOST_RULE}.")
    try:
        asyncio.run(_serve(config, host, port, base, access_of(host, behind_proxy)))
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {host}, port {port}: {error.strerror}. "
            "Choose another --port, or another address of this machine as --host."
        ) from error
    except KeyboardInterrupt:
        pass


async def _serve(config: Config, host: str, port: int, base: str, access: Access) -> None:
    account = Account.from_config(config.storage)
    watcher = Watcher(config, account)
    app = web.Application()
    add_page(app, lambda: watcher, access, base)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        say(f"The status page is at {address(host, runner.addresses[0][1], base, access.token)}")
        await _refuse_others(account, config.coordinator.timing.heartbeat_s)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        await watcher.close()


async def _refuse_others(account: Account, pause_s: float) -> None:
    """Raise `ConfigError` if container or table belong to others, as soon as the account answers."""
    while True:
        try:
            await asyncio.to_thread(account.exists)
        except (StorageUnavailable, AccessDenied):
            await asyncio.sleep(pause_s)
        else:
            return


def access_of(host: str, behind_proxy: bool) -> Access:
    """Who may see the page: with the token of the environment, which may be given for a loopback address as well."""
    token = os.environ.get(VARIABLE, "")
    if behind_proxy:
        return Access(behind_proxy=True)
    return Access(token if token or _is_loopback(host) else secrets.token_urlsafe(24))


def base_of(path: str) -> str:
    """A --base-path as a prefix of each path, without a slash at its end; raise `ConfigError` if it is invalid."""
    if not re.fullmatch(r"[\w.~/-]*", path, re.ASCII):  # braces would be a pattern for the router
        raise ConfigError(
            f"--base-path {path!r} is not a valid path: it may only have letters, digits and - . _ ~ /. "
            "Give the path that the proxy passes on, such as /fleet."
        )
    return f"/{path.strip('/')}" if path.strip("/") else ""


def address(host: str, port: int, base: str, token: str) -> str:
    """The URL of the page, with the token if there is one."""
    shown = f"[{host}]" if ":" in host else host
    query = f"?token={quote(token, safe='')}" if token else ""
    return f"http://{shown}:{port}{base}/{query}"


def _is_loopback(host: str) -> bool:
    try:
        return is_loopback(host)
    except ValueError:
        return host == "localhost"
