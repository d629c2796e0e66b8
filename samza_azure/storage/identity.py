"""The identity of this machine or user: one credential and one token for all clients of the process.

A token of a managed identity or of `az login` may take seconds, and a call waits half a second in the profile `fast`.
So no call requests a token itself. One thread does, for all callers; it goes on if a call gives up. A token is renewed
in time, while calls go on with the old one. An account that refuses us may accept us again after a role was given back,
so after a refusal a new credential is made.

A request for a token that fails says nothing about the account, and may pass: the machine's endpoint is busy, restarts,
or does not know a new identity yet. So it becomes `NoToken`, with the text of azure-identity, and the account counts as
one that does not answer. The outcome of a request is a value; each caller that it fails raises an error of its own,
because Python adds to an error's traceback each time that it is raised.

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
from azure.core.exceptions import AzureError

from samza_azure.account import without_secrets
from samza_azure.errors import SignInFailed
from samza_azure.log_rate_limit import LogRateLimit

log = logging.getLogger(__name__)

#: How long the first token may take, and every later one: `az` and the machine's endpoint answer within seconds.
PATIENCE_S = 60.0
#: After this time a message says what is waited for.
TELL_AFTER_S = 2.0
#: How long before its end a token is renewed, if it does not say when.
RENEW_BEFORE_S = 300.0
#: The back-off after a failure, doubled up to the second; that is also the least time between two new credentials.
RETRY_S, RETRY_MOST_S = 1.0, 60.0
#: Makes the SDK request the token for each call; otherwise each client would cache one.
_AT_ONCE = 1
#: As many letters of azure-identity's text are kept: it tries eight ways, and says of each why it fails.
TEXT_MAX = 2000

#: What to do without a token.
REMEDY = "Give this machine a managed identity, or sign in with `az login`."

#: The purpose of a token: scopes, and what a challenge of the service adds.
_Purpose: TypeAlias = tuple[tuple[str, ...], str | None, str | None]


class Credential(Protocol):
    """The interface of azure.identity's credentials."""

    def get_token_info(self, *scopes: str, options: Any = None) -> AccessTokenInfo:
        """Return a token, new or cached."""


class NoToken(AzureError):
    """The identity gave no token, so nothing was sent to the account. The message has no secret in it."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """The outcome of a request without a token."""

    why: str


_Outcome: TypeAlias = AccessTokenInfo | _Failed


@dataclass(slots=True)
class _Token:
    """The state of the token for one purpose."""

    found: AccessTokenInfo | None = None
    renew_at: float = 0.0
    asked: "Future[_Outcome] | None" = None  # the one request under way, or the one that failed last
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
        self._rate_limit = LogRateLimit()
        self.asynchronous = _Asynchronous(self)

    @property
    def awaited(self) -> bool:
        """Whether a token is requested and there is no valid one meanwhile."""
        return any(each.asked is not None and not self._is_valid(each) for each in list(self._tokens.values()))

    def sign_in(self, scope: str, who: str) -> None:
        """Wait for the first token, and say so if it takes long."""
        waiting = self.ask((scope,), None)
        try:
            waiting.result(TELL_AFTER_S)
        except TimeoutError:
            log.warning(
                "Waiting for a token for %s, for at most %.0f s: the managed identity of this machine, or `az`, "
                "has not answered yet.",
                who,
                PATIENCE_S,
            )
        _result(waiting, PATIENCE_S - TELL_AFTER_S)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return a token, for clients that do not know `get_token_info`."""
        found = self.get_token_info(*scopes, options=options)
        return AccessToken(found.token, found.expires_on)

    def get_token_info(self, *scopes: str, options: Any = None) -> AccessTokenInfo:
        """Return the valid token, or wait for the requested one."""
        return _for_one_call(_result(self.ask(scopes, options), PATIENCE_S))

    def refused(self) -> None:
        """The account refused a token: get the next one from a new credential, which has nothing cached."""
        with self._lock:
            now = self._clock()
            if now < self._renewed_at + RETRY_MOST_S:
                return
            self._renewed_at, self._credential = now, None
            for token in self._tokens.values():
                token.renew_at = now  # it stays in use meanwhile: perhaps not every call was refused

    def ask(self, scopes: tuple[str, ...], options: Any) -> "Future[_Outcome]":
        """A future of the token, already done if there is a valid one, or if the last request has just failed."""
        given = options or {}
        purpose = scopes, given.get("claims"), given.get("tenant_id")
        with self._lock:
            token = self._tokens.setdefault(purpose, _Token())
        with token.lock:
            now = self._clock()
            if now >= token.renew_at and not self._is_asked(token, now):
                self._send(token, scopes, {name: value for name, value in given.items() if name != "enable_cae"}, now)
            if token.found is not None and self._is_valid(token):
                done: Future[_Outcome] = Future()
                done.set_result(token.found)
                return done
            assert token.asked is not None
            return token.asked

    def _is_valid(self, token: _Token) -> bool:
        return token.found is not None and self._clock() < token.found.expires_on

    def _is_asked(self, token: _Token, now: float) -> bool:
        """Whether a request is under way and not given up yet, or has just failed."""
        if token.asked is None:
            return False
        return now < (token.not_before if token.asked.done() else token.asked_at + PATIENCE_S)

    def _send(self, token: _Token, scopes: tuple[str, ...], options: Any, now: float) -> None:
        asked: Future[_Outcome] = Future()
        token.asked, token.asked_at = asked, now
        # Not on a pool of threads: the end of the process would wait for it.
        threading.Thread(target=self._fetch, args=(token, asked, scopes, options), name="token", daemon=True).start()

    def _fetch(self, token: _Token, asked: "Future[_Outcome]", scopes: tuple[str, ...], options: Any) -> None:
        try:
            credential = self._credential
            if credential is None:
                credential = self._credential = self._make()  # not under the lock: it may import much
            found = credential.get_token_info(*scopes, options=options)
        except Exception as error:  # noqa: BLE001  # all waiters are told
            failed = _Failed(_in_a_line(error))
            with token.lock:
                token.failures += 1
                token.not_before = self._clock() + min(RETRY_S * 2 ** (token.failures - 1), RETRY_MOST_S)
                goes_on = self._is_valid(token)
            if goes_on and self._rate_limit.is_due("renewal"):
                log.warning(
                    "The token could not be renewed; calls go on with the old one until it ends. %s", failed.why
                )
            asked.set_result(failed)
            return
        with token.lock:
            token.found, token.failures = found, 0
            half = (self._clock() + found.expires_on) / 2  # a short-lived one is not asked for again at each call
            token.renew_at = max(found.refresh_on or found.expires_on - RENEW_BEFORE_S, half)
            if token.asked is asked:
                token.asked = None
        asked.set_result(found)


class _Asynchronous:
    """The same token for asynchronous clients."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return a token, for clients that do not know `get_token_info`."""
        found = await self.get_token_info(*scopes, options=options)
        return AccessToken(found.token, found.expires_on)

    async def get_token_info(self, *scopes: str, options: Any = None) -> AccessTokenInfo:
        """Return the valid token, or wait for the requested one. If the waiting call ends first, the request goes on,
        for the next call."""
        waiting = self._identity.ask(scopes, options)
        if not waiting.done():
            await asyncio.shield(asyncio.wrap_future(waiting))
        return _for_one_call(_token_in(waiting.result()))


def signed_in(identity: Identity, scope: str, who: str) -> None:
    """Wait for a token for `who`, before anything is asked of it that has to be answered within seconds.

    Raises:
        SignInFailed: there is none.

    """
    try:
        identity.sign_in(scope, who)
    except NoToken as error:
        raise sign_in_failed(who, error) from error


def sign_in_failed(who: str, error: BaseException) -> SignInFailed:
    """The error of whoever has got no token for `who`."""
    return SignInFailed(f"There is no token for {who}, so nothing was sent. {REMEDY} The identity says: {error}")


def no_token_in(error: BaseException | None) -> NoToken | None:
    """The request for a token that failed, if an error of an SDK comes from one."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, NoToken):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


@cache
def of_this_process() -> Identity:
    """The process's identity: managed identity, `az login`, or others that azure.identity tries. It is never closed."""

    def make() -> Credential:
        from azure.identity import DefaultAzureCredential  # heavy, and not needed with a key

        return DefaultAzureCredential()

    return Identity(make)


def _for_one_call(found: AccessTokenInfo) -> AccessTokenInfo:
    return AccessTokenInfo(found.token, found.expires_on, token_type=found.token_type, refresh_on=_AT_ONCE)


def _result(waiting: "Future[_Outcome]", seconds: float) -> AccessTokenInfo:
    try:
        outcome = waiting.result(max(seconds, 0.0))
    except TimeoutError:
        outcome = _Failed(f"There was no answer within {PATIENCE_S:.0f} s.")
    return _token_in(outcome)


def _token_in(outcome: _Outcome) -> AccessTokenInfo:
    if isinstance(outcome, _Failed):
        raise NoToken(outcome.why)
    return outcome


def _in_a_line(error: Exception) -> str:
    """What azure-identity says, in one line of the log."""
    text = " ".join(without_secrets(str(error)).split()) or type(error).__name__
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
