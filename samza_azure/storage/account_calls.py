"""What the service's answers mean: a value to return, or an error that says whose fault it is.

The one rule: *a write that may have happened is never called a failure*. Unless it certainly failed, it is `Unsettled`.
That nothing was sent is certain only if no connection was made; that nothing was done, if Azure says so by an error
code. A status without such a code may come from a proxy in between and proves nothing.

Messages contain the operation and Azure's code, never a URL, header or body: those can carry signatures.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from samza_azure.errors import AccessDenied, SamzaAzureError, StorageUnavailable, Unsettled
from samza_azure.storage.identity import Identity
from samza_azure.storage.interface import Missing, NotModified, Refused
from samza_azure.storage.secret_file import SecretFile

Reading: TypeAlias = Refused | Missing | NotModified
T = TypeVar("T")

# A condition of ours did not hold: this is definitive, and nothing was changed.
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
# The service knows us, but a right is missing: a new role assignment may take effect soon.
_NO_RIGHT = frozenset({"AuthorizationPermissionMismatch", "InsufficientAccountPermissions"})
# For an identity this is a firewall rule, which may change soon, too. The emulator answers this for a wrong key.
_NO_RIGHT_OR_WRONG_KEY = "AuthorizationFailure"
# The service did not accept the request, or container or table are missing now: nothing was changed.
_NOT_NOW = frozenset({"ContainerBeingDeleted", "ServerBusy", "TableBeingDeleted", "TableNotFound"})


@dataclass(frozen=True, slots=True)
class AccountCalls:
    """Makes the calls to one account and reads their answers. `remedy` tells the user what to do if it refuses us;
    with `quiet` the SDK's error is not chained to ours, because it may contain a URL with a signature."""

    account: str
    remedy: str
    quiet: bool = False
    identity: Identity | None = None
    file: SecretFile | None = None

    def make(self, call: Callable[[], T], doing: str, *, write: bool) -> T | Reading:
        """Make one synchronous call. If it is refused and there is a new secret, make it again: nothing was done."""
        used = self.file.version if self.file else 0
        try:
            return call()
        except AzureError as error:
            if self.file is None or not is_refusal(error) or self.file.read_again() == used:
                return self.reading(error, doing, write=write)
        return self.make(call, doing, write=write)

    async def wait(self, call: Awaitable[T], doing: str, *, write: bool, timeout: float) -> T | Reading:
        """Make one asynchronous call, for at most `timeout` seconds from now."""
        try:
            async with asyncio.timeout(timeout):
                return await call
        except TimeoutError as error:
            token = ", and no token of the identity yet" if self.identity and self.identity.awaited else ""
            self._raise(error, f"{doing}: no answer from {self.account} within {timeout:g} s{token}", write=write)
        except AzureError as error:
            return self.reading(error, doing, write=write)

    def reading(self, error: AzureError, doing: str, *, write: bool) -> Reading:
        """Translate an error of the SDK: return it if it is a plain answer, otherwise raise our error for it."""
        cause = None if self.quiet else error
        status = error.status_code if isinstance(error, HttpResponseError) else None
        code = error_code(error)
        if is_refusal(error):
            if self.identity is not None:
                self.identity.refused()
            if self.file is not None:
                self.file.read_again()
            raise AccessDenied(
                f"{doing}: the storage account {self.account} refuses us ({code or 'no credential'}). {self.remedy}",
                may_pass=code in _NO_RIGHT or (code == _NO_RIGHT_OR_WRONG_KEY and self.identity is not None),
            ) from cause
        if code in _NOT_NOW:
            after_s = retry_after_s(error)
            raise StorageUnavailable(f"{doing}: {self.account} answers {code}.", after_s=after_s) from cause
        if status == 304:
            return NotModified()
        if status in (409, 412) and code in _REFUSED:
            return Refused(code)
        if status == 404 and code in _MISSING:
            return Missing(container=code == "ContainerNotFound")
        if status is None or status >= 500 or not code:
            reason = code or (f"status {status}" if status else _why(error))
            self._raise(error, f"{doing}: {self.account} cannot be reached or failed ({reason})", write=write)
        raise SamzaAzureError(f"{doing}: {self.account} does not accept it ({status} {code}).") from cause

    def _raise(self, error: Exception, message: str, *, write: bool) -> NoReturn:
        cause = None if self.quiet else error
        if write and not nothing_was_sent(error):
            raise Unsettled(f"{message}. It may have happened nevertheless.") from cause
        raise StorageUnavailable(f"{message}.") from cause


def is_refusal(error: AzureError) -> bool:
    """Whether the account refuses us, or refuses us this operation."""
    status = error.status_code if isinstance(error, HttpResponseError) else None
    return status in (401, 403) or isinstance(error, ClientAuthenticationError)


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
