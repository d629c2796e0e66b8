"""The identity of this machine or user: one credential and one token for all clients of the process.

A token of a managed identity or of `az login` may take seconds, and a call waits half a second in the profile `fast`.
So no call asks for a token itself. One thread does, for all who wait; a call that gives up leaves it at work. A token
is renewed in time, while the calls go on with the one that is there. An account that refuses us may know us again
after a role was given back, so after a refusal the credential is made anew and asked again.

Synchronous clients use `Identity`, asynchronous ones its `asynchronous` side.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeAlias

from azure.core.credentials import AccessToken, AccessTokenInfo
from azure.core.exceptions import ServiceRequestError

log = logging.getLogger(__name__)

#: How long the first token may take, and every later one: `az` and the machine's endpoint answer within seconds.
PATIENCE_S = 60.0
#: Whoever waits for so long is told what for.
TELL_AFTER_S = 2.0
#: A token is renewed so long before it ends, if it does not say when.
RENEW_BEFORE_S = 300.0
#: After a failure the next try comes after so long, doubled up to this; so does the next one after a refusal.
RETRY_S, RETRY_MOST_S = 1.0, 60.0
#: Told to the SDK, which would else keep a token of its own in each client: ask again for each call.
_AT_ONCE = 1

#: What a token is for: scopes, and what a challenge of the service adds.
_Purpose: TypeAlias = tuple[tuple[str, ...], str | None, str | None]


class Credential(Protocol):
    """What azure.identity has of every kind."""

    def get_token_info(self, *scopes: str, options: Any = None) -> AccessTokenInfo:
        """A token, asked for now or kept."""


@dataclass(slots=True)
class _Token:
    """What is known of the token for one purpose."""

    found: AccessTokenInfo | None = None
    renew_at: float = 0.0
    asked: "Future[AccessTokenInfo] | None" = None  # the one request under way, or the one that failed last
    asked_at: float = 0.0
    failures: int = 0
    not_before: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Identity:
    """The synchronous side, and what both sides share."""

    def __init__(self, make: Callable[[], Credential], *, clock: Callable[[], float] = time.time) -> None:
        self._make, self._clock = make, clock
        self._credential: Credential | None = None
        self._tokens: dict[_Purpose, _Token] = {}
        self._lock = threading.Lock()
        self._renewed_at = -RETRY_MOST_S
        self.asynchronous = _Asynchronous(self)

    @property
    def awaited(self) -> bool:
        """Is there a token that is asked for and that calls cannot do without?"""
        return any(each.asked is not None and not self._is_valid(each) for each in list(self._tokens.values()))

    def sign_in(self, scope: str, who: str) -> None:
        """Wait for the first token, and say so if it takes long."""
        waiting = self.ask((scope,), None)
        try:
            waiting.result(TELL_AFTER_S)
            return
        except TimeoutError:
            log.warning(
                "Waiting for a token for %s, for at most %.0f s: the managed identity of this machine, or `az`, "
                "has not answered yet.",
                who,
                PATIENCE_S,
            )
        _result(waiting)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """For clients that know no other way."""
        found = self.get_token_info(*scopes, options=options)
        return AccessToken(found.token, found.expires_on)

    def get_token_info(self, *scopes: str, options: Any = None) -> AccessTokenInfo:
        """The token that is there, or the one that is asked for."""
        return _for_one_call(_result(self.ask(scopes, options)))

    def refused(self) -> None:
        """The account refused a token: let the next one come from a credential that remembers nothing."""
        with self._lock:
            now = self._clock()
            if now < self._renewed_at + RETRY_MOST_S:
                return
            self._renewed_at, self._credential = now, None
            for token in self._tokens.values():
                token.renew_at = now  # meanwhile it serves: not every call may have been refused

    def ask(self, scopes: tuple[str, ...], options: Any) -> "Future[AccessTokenInfo]":
        """What to wait for: done already if there is a token that is good for a call."""
        given = options or {}
        purpose = scopes, given.get("claims"), given.get("tenant_id")
        with self._lock:
            token = self._tokens.setdefault(purpose, _Token())
        with token.lock:
            now = self._clock()
            if now >= token.renew_at and not self._is_asked(token, now):
                self._send(token, scopes, {name: value for name, value in given.items() if name != "enable_cae"}, now)
            if token.found is not None and self._is_valid(token):
                done: Future[AccessTokenInfo] = Future()
                done.set_result(token.found)
                return done
            assert token.asked is not None
            return token.asked

    def _is_valid(self, token: _Token) -> bool:
        return token.found is not None and self._clock() < token.found.expires_on

    def _is_asked(self, token: _Token, now: float) -> bool:
        """A request is under way that is not given up yet, or has failed a moment ago."""
        if token.asked is None:
            return False
        return now < (token.not_before if token.asked.done() else token.asked_at + PATIENCE_S)

    def _send(self, token: _Token, scopes: tuple[str, ...], options: Any, now: float) -> None:
        asked: Future[AccessTokenInfo] = Future()
        token.asked, token.asked_at = asked, now
        # Not on a pool of threads: the end of the process would wait for it.
        threading.Thread(target=self._fetch, args=(token, asked, scopes, options), name="token", daemon=True).start()

    def _fetch(self, token: _Token, asked: "Future[AccessTokenInfo]", scopes: tuple[str, ...], options: Any) -> None:
        try:
            credential = self._credential
            if credential is None:
                credential = self._credential = self._make()  # not under the lock: it may import much
            found = credential.get_token_info(*scopes, options=options)
        except Exception as error:  # noqa: BLE001  # it is passed on to all who wait
            with token.lock:
                token.failures += 1
                token.not_before = self._clock() + min(RETRY_S * 2 ** (token.failures - 1), RETRY_MOST_S)
            asked.set_exception(error)
            return
        with token.lock:
            token.found, token.failures = found, 0
            token.renew_at = found.refresh_on or found.expires_on - RENEW_BEFORE_S
            if token.asked is asked:
                token.asked = None
        asked.set_result(found)


class _Asynchronous:
    """The same token for asynchronous clients."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """For clients that know no other way."""
        found = await self.get_token_info(*scopes, options=options)
        return AccessToken(found.token, found.expires_on)

    async def get_token_info(self, *scopes: str, options: Any = None) -> AccessTokenInfo:
        """The token that is there, or the one that is asked for. The call that waits may end first: the request for
        the token goes on, and is there for the next call."""
        waiting = self._identity.ask(scopes, options)
        if waiting.done():
            return _for_one_call(waiting.result())
        return _for_one_call(await asyncio.shield(asyncio.wrap_future(waiting)))


@cache
def of_this_process() -> Identity:
    """Managed identity, `az login` and what else azure.identity tries. Never closed: it lives as long as we do."""

    def make() -> Credential:
        from azure.identity import DefaultAzureCredential  # heavy, and not for those who have a key

        return DefaultAzureCredential()

    return Identity(make)


def _for_one_call(found: AccessTokenInfo) -> AccessTokenInfo:
    return AccessTokenInfo(found.token, found.expires_on, token_type=found.token_type, refresh_on=_AT_ONCE)


def _result(waiting: "Future[AccessTokenInfo]") -> AccessTokenInfo:
    try:
        return waiting.result(PATIENCE_S)
    except TimeoutError:
        raise ServiceRequestError(f"no token within {PATIENCE_S:.0f} s") from None
