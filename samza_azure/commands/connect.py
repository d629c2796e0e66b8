"""How commands connect to the account of a job, and what they read there."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from tenacity import Retrying, retry_if_exception_type, retry_if_not_exception_type, stop_after_delay, wait_fixed

from samza_azure.commands.requests import Asked, answer_to
from samza_azure.commands.terminal import say
from samza_azure.config import Config
from samza_azure.errors import ConfigError, SignInFailed, StorageUnavailable
from samza_azure.group.control import Control
from samza_azure.group.rows import ProcessorRow
from samza_azure.host.status import SeenSilent, control_of, read
from samza_azure.machine.clock import boot_time
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S

T = TypeVar("T")

#: How long a command tries to reach the account, in seconds, if it writes rows or has reached it before.
PATIENCE_S = 30.0
#: The same for a command that somebody waits for who wants to know or to ask something: one call that is not answered.
FIRST_S = CALL_S
POLL_S = 0.5
#: The part of a heartbeat after which one that was late has come, if its processor is alive.
LOOK_AGAIN = 1.25


def connect(config: Config, *, create: bool = True, to_empty: bool = False) -> Account:
    """The account, once its container and table exist. Waits up to `PATIENCE_S` for an account that does not answer.

    With `create=False`, for commands that only read or request, it waits up to `FIRST_S`, and raises `ConfigError` if
    they do not exist. Raises it also if they belong to another job; with `to_empty`, not for a table whose container
    was deleted.
    """
    if create:
        account = Account.from_config(config.storage)
        patient(tell=True)(account.ensure_created)
        return account
    found = connect_if_there(config, to_empty=to_empty)
    if found is None:
        raise ConfigError(absent(config))
    return found


def absent(config: Config) -> str:
    """What is said if the container or the table does not exist."""
    return (
        f"There is nothing of {config.app.name!r} in this account: no container {config.storage.container}, or no "
        f"table {config.storage.table}. Check the account and app.name; the first run or produce creates them."
    )


def connect_if_there(config: Config, *, to_empty: bool = False) -> Account | None:
    """The account, once it answers; None if its container and table do not exist. Creates nothing."""
    account = Account.from_config(config.storage)
    return account if patient(tell=True, seconds=FIRST_S)(lambda: account.exists(to_empty=to_empty)) else None


def sure_look(config: Config, account: Account) -> tuple[Control | None, list[ProcessorRow], set[str]]:
    """The control blob, the processors' rows, and the names of those that seem to be dead. If heartbeats are late, look
    once more: after an outage the next ones are on their way.
    """
    timing = config.coordinator.timing
    seen = SeenSilent(timing.heartbeat_s)
    control, rows = look(config, account)
    if any(each.doubtful(timing.heartbeat_timeout_s) for each in seen.note(rows, boot_time()).values()):
        time.sleep(LOOK_AGAIN * timing.heartbeat_s)
        control, rows = look(config, account)
    silent = seen.note(rows, boot_time())
    return control, rows, {name for name, each in silent.items() if each.gone(timing.heartbeat_timeout_s)}


def look(config: Config, account: Account, *, seconds: float = PATIENCE_S) -> tuple[Control | None, list[ProcessorRow]]:
    """The control blob and the processors' rows, read now. Waits up to `seconds` for an answer."""
    return with_rows(account, lambda blob, table: read(account), seconds=seconds)


class Looks:
    """Repeated `look`, over connections that are kept: opening one costs more than a request."""

    def __init__(self, account: Account) -> None:
        self._account, self._loop = account, asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._account.aclose())
        self._loop.close()

    def look(self) -> tuple[Control | None, list[ProcessorRow]]:
        """The control blob and the processors' rows, read now. Raise `StorageUnavailable` at once."""
        return self._loop.run(read(self._account))

    def answered(self, asked: Asked) -> str:
        """The leader's answer to a request so far; empty if there is none, or if nothing was requested."""
        return (self._loop.run(answer_to(self._account.rows(), asked.key)) or "") if asked.key else ""


def with_rows(
    account: Account,
    ask: Callable[[Any, Any], Coroutine[Any, Any, T]],
    *,
    tell: bool = False,
    seconds: float = PATIENCE_S,
) -> T:
    """Run one asynchronous exchange with the control blob and the table, and retry while the account does not answer.

    `tell`: report that, as for the first call of a command.
    """

    async def once() -> T:
        try:
            return await ask(account.control_blob(), account.rows())
        finally:
            await account.aclose()

    return patient(tell=tell, seconds=seconds)(lambda: asyncio.run(once()))


def patient(*, tell: bool, seconds: float = PATIENCE_S) -> Retrying:
    """Retries every second for `seconds`; not for want of a token, since azure-identity has tried several times."""
    return Retrying(
        retry=retry_if_exception_type(StorageUnavailable) & retry_if_not_exception_type(SignInFailed),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(1),
        reraise=True,
        before_sleep=lambda state: (
            say("The storage account does not answer; trying again.") if tell and state.attempt_number == 1 else None
        ),
    )


def answered(account: Account, asked: Asked) -> str | None:
    """The leader's answer to a request so far; empty if there is none, or if nothing was requested.

    None: the request is deleted, as answered requests are once the run is drained.
    """
    return with_rows(account, lambda blob, table: answer_to(table, asked.key)) if asked.key else ""


__all__ = [
    "FIRST_S",
    "LOOK_AGAIN",
    "PATIENCE_S",
    "POLL_S",
    "Looks",
    "absent",
    "answered",
    "connect",
    "connect_if_there",
    "control_of",
    "look",
    "patient",
    "sure_look",
    "with_rows",
]
