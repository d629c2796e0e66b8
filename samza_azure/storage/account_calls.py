"""What the service's answers mean: a value to return, or an error that says whose fault it is.

The one rule: *a write that may have happened is never called a failure*. Unless it certainly failed, it is `Unsettled`.
That nothing was sent is certain only if no connection was made; that nothing was done, if Azure says so by an error
code. A status without such a code may come from a proxy in between and proves nothing.

Messages contain the operation and Azure's code, never a URL, header or body: those can carry signatures. Only the text
of azure-identity is kept, without what looks secret.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import NoReturn, TypeAlias, TypeVar

from azure.core.exceptions import AzureError, HttpResponseError

from samza_azure.errors import AccessDenied, SamzaAzureError, SignInFailed, StorageUnavailable, Unsettled
from samza_azure.outcomes import Missing, NotModified, Refused
from samza_azure.storage.address import Address
from samza_azure.storage.identity import REMEDY, Identity, NoToken
from samza_azure.storage.refusals import refusal
from samza_azure.storage.secret_file import SecretFile

Reading: TypeAlias = Refused | Missing | NotModified
T = TypeVar("T")

# One of our conditions did not hold: this is definitive, and nothing was changed.
_REFUSED = frozenset(
    {
        "AppendPositionConditionNotMet",
        "BlobAlreadyExists",
        "BlockCountExceedsLimit",
        "ConditionNotMet",
        "ContainerAlreadyExists",
        "EntityAlreadyExists",
        "InvalidBlobType",
        "LeaseAlreadyBroken",
        "LeaseAlreadyPresent",
        "LeaseIdMismatchWithBlobOperation",
        "LeaseIdMismatchWithLeaseOperation",
        "LeaseIdMissing",
        "LeaseIsBreakingAndCannotBeAcquired",
        "LeaseIsBreakingAndCannotBeChanged",
        "LeaseIsBrokenAndCannotBeRenewed",
        "LeaseLost",
        "LeaseNotPresentWithBlobOperation",
        "LeaseNotPresentWithLeaseOperation",
        "TableAlreadyExists",
        "UpdateConditionNotSatisfied",
    }
)
_MISSING = frozenset({"BlobNotFound", "ContainerNotFound", "EntityNotFound", "ResourceNotFound"})
# The service did not accept the request, or container or table are missing now: nothing was changed.
_NOT_NOW = frozenset(
    {
        "AccountBeingCreated",
        "ContainerBeingDeleted",
        "ServerBusy",
        "TableBeingDeleted",
        "TableNotFound",
        "TooManyRequests",
    }
)
#: What to do if no connection can be made.
EMULATOR_AWAY = "No emulator listens there: start samza-azure dev, or samza-azure azurite"
ACCOUNT_AWAY = "Is the account's name right? See DNS, private endpoints and firewalls between this machine and it"
EMULATOR_SILENT = "If that lasts, start samza-azure dev, or samza-azure azurite, anew"
ACCOUNT_SILENT = "If that lasts, see the health of Azure Storage in its region, and proxies and firewalls on the way"
# Statuses that say the same whatever the code: the service lacks time or room, not the request sense.
_TOO_MANY, _TOO_LATE = 429, 408


@dataclass(frozen=True, slots=True)
class AccountCalls:
    """Makes the calls to one account and reads their answers.

    If a secret in a URL opens the account, the SDK's error is not chained to ours, because it may contain that URL.
    """

    where: Address
    identity: Identity | None = None
    file: SecretFile | None = None

    def make(self, call: Callable[[], T], doing: str, *, write: bool) -> T | Reading:
        """Make one synchronous call. If it is refused and there is a new secret, make it again: nothing was done."""
        while True:
            used = self._secret
            try:
                return call()
            except AzureError as error:
                if not self._has_new_secret(error, used):
                    return self.reading(error, doing, write=write)

    async def wait(self, call: Callable[[], Awaitable[T]], doing: str, *, write: bool, timeout: float) -> T | Reading:
        """Like `make` for an asynchronous call, for at most `timeout` seconds from now."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    used = self._secret
                    try:
                        return await call()
                    except AzureError as error:
                        if not self._has_new_secret(error, used):
                            return self.reading(error, doing, write=write)
        except TimeoutError as error:
            token = ", and no token of the identity yet" if self.identity and self.identity.awaited else ""
            failed = f"{doing}: no answer from {self.where.host} within {timeout:g} s{token}"
            self._raise(error, f"{failed}. {self._remedy(error)}", write=write)

    @property
    def _secret(self) -> int:
        return self.file.version if self.file else 0

    def _has_new_secret(self, error: AzureError, used: int) -> bool:
        return self.file is not None and is_refusal(error) and self.file.read_again() != used

    def reading(self, error: AzureError, doing: str, *, write: bool) -> Reading:
        """Translate an error of the SDK: return it if it is a plain answer, otherwise raise our error for it."""
        cause = self._cause(error)
        host = self.where.host
        if isinstance(error, NoToken):
            raise SignInFailed(
                f"{doing}: there is no token for {host}, so nothing was sent. {REMEDY} The identity says: {error}"
            ) from cause
        status = error.status_code if isinstance(error, HttpResponseError) else None
        code = error_code(error)
        if is_refusal(error):
            if self.identity is not None:
                self.identity.refused()
            found = refusal(code, self.where, now=time.time(), answered=_answered_at(error))
            raise AccessDenied(
                f"{doing}: the storage account {host} refuses us ({code}). {found.why}", may_pass=found.may_pass
            ) from cause
        after_s = retry_after_s(error)
        if code in _NOT_NOW or (code and status == _TOO_MANY):
            raise StorageUnavailable(f"{doing}: {host} answers {code}.", after_s=after_s) from cause
        if status == 304:
            return NotModified()
        if status in (409, 412) and code in _REFUSED:
            return Refused(code)
        if status == 404 and code in _MISSING:
            return Missing(container=code == "ContainerNotFound")
        if status in (401, 403, 407):
            between = f"a proxy or firewall between this machine and {host} answers {status}, without a code of Azure's"
            remedy = "Ask who runs it, or see the variables HTTPS_PROXY and NO_PROXY"
            self._raise(error, f"{doing}: {between}. {remedy}", write=write, after_s=after_s)
        if status is None or status >= 500 or status == _TOO_LATE or not code:
            reason = code or (f"status {status}" if status else _why(error))
            failed = f"{doing}: {host} cannot be reached or failed ({reason})"
            self._raise(error, f"{failed}. {self._remedy(error)}", write=write, after_s=after_s)
        raise SamzaAzureError(f"{doing}: {host} does not accept it ({status} {code}).") from cause

    def _remedy(self, error: Exception) -> str:
        if nothing_was_sent(error):
            return EMULATOR_AWAY if self.where.is_local else ACCOUNT_AWAY
        return EMULATOR_SILENT if self.where.is_local else ACCOUNT_SILENT

    def _cause(self, error: Exception) -> Exception | None:
        return None if self.where.signature is not None else error

    def _raise(self, error: Exception, message: str, *, write: bool, after_s: float = 0.0) -> NoReturn:
        if write and not nothing_was_sent(error):
            raise Unsettled(f"{message}. It may have happened nevertheless.", after_s=after_s) from self._cause(error)
        raise StorageUnavailable(f"{message}.", after_s=after_s) from self._cause(error)


def is_refusal(error: AzureError) -> bool:
    """Whether the account refuses us, or refuses us this operation. Without a code of Azure's, somebody else does."""
    status = error.status_code if isinstance(error, HttpResponseError) else None
    return status in (401, 403) and bool(error_code(error))


def error_code(error: AzureError) -> str:
    """Azure's error code, empty if the answer has none."""
    code = getattr(error, "error_code", None)
    response = getattr(error, "response", None)
    if code is None and response is not None:
        code = response.headers.get("x-ms-error-code") or _code_in_body(response.text())
    return str(getattr(code, "value", code) or "")


def _code_in_body(body: str) -> str:
    """The code in the body of a table's answer, which has it only there."""
    try:
        return str(json.loads(body)["odata.error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""


def retry_after_s(error: AzureError) -> float:
    """For how many seconds the account asks not to be called; 0 if it names no number."""
    response = getattr(error, "response", None)
    named = str(response.headers.get("Retry-After", "")) if response is not None else ""
    return float(named) if named.isascii() and named.isdecimal() else 0.0


def _answered_at(error: AzureError) -> float | None:
    """The account's time when it answered, in seconds since 1970."""
    response = getattr(error, "response", None)
    try:
        return parsedate_to_datetime(response.headers["Date"]).timestamp() if response is not None else None
    except (LookupError, TypeError, ValueError):
        return None


def nothing_was_sent(error: Exception) -> bool:
    """Whether the request was certainly not sent: the connection was refused, or was not made in time."""
    inner = getattr(error, "inner_exception", None)
    return type(inner).__name__ in {
        "ClientConnectorError",  # aiohttp: refused, unreachable
        "ClientConnectorDNSError",
        "ClientConnectorCertificateError",
        "ClientConnectorSSLError",
        "ConnectionTimeoutError",
        "NewConnectionError",  # requests: the same
        "NameResolutionError",
        "ConnectTimeout",
        "ConnectTimeoutError",
    }


def _why(error: AzureError) -> str:
    return type(error.inner_exception or error).__name__
