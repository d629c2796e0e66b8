"""What the service's answer means: a reading that is returned, or whose fault it is.

The one rule: *what may have happened is never called a failure*. A write that did not surely fail is `Unsettled`.
That nothing was sent is certain only when no connection came about; that nothing was done, when Azure says so by a
code of its own. A status without such a code may come from a proxy in between and proves nothing.

Messages hold what was being done and Azure's code, never a URL, header or body: those can carry signatures.
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

# A condition of ours did not hold: definitive, and nothing was changed.
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
# It knows who we are, and that is not enough: a role may be on its way.
_NO_RIGHT = frozenset({"AuthorizationPermissionMismatch", "InsufficientAccountPermissions"})
# To an identity that is a rule of the firewall, which may be on its way, too. The emulator says it of a wrong key.
_NO_RIGHT_OR_WRONG_KEY = "AuthorizationFailure"
# The service did not take the request, or what holds the blobs and rows is not there now: nothing was changed.
_NOT_NOW = frozenset({"ContainerBeingDeleted", "ServerBusy", "TableBeingDeleted", "TableNotFound"})


@dataclass(frozen=True, slots=True)
class Calls:
    """Makes the calls to one account and reads their answers. `remedy` tells the user what to mend if it refuses us;
    with `quiet` the SDK's own error is not shown behind ours, because it may hold a URL with a signature."""

    account: str
    remedy: str
    quiet: bool = False
    identity: Identity | None = None
    file: SecretFile | None = None

    def make(self, call: Callable[[], T], doing: str, *, write: bool) -> T | Reading:
        """Make one synchronous call, to its end. With a new secret it is made again: what is refused was not done."""
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
        """What an error of the SDK says, if it is a plain answer to our question. Otherwise raise whose fault it is."""
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
            raise StorageUnavailable(f"{doing}: {self.account} answers {code}.") from cause
        if status == 304:
            return NotModified()
        if status in (409, 412) and code in _REFUSED:
            return Refused(code)
        if status == 404 and code in _MISSING:
            return Missing()
        if status is None or status >= 500 or not code:
            reason = code or (f"status {status}" if status else _why(error))
            self._raise(error, f"{doing}: {self.account} cannot be reached or failed ({reason})", write=write)
        raise SamzaAzureError(f"{doing}: {self.account} does not accept it ({status} {code}).") from cause

    def _raise(self, error: Exception, message: str, *, write: bool) -> NoReturn:
        cause = None if self.quiet else error
        if write and not nothing_was_sent(error):
            raise Unsettled(f"{message}. It may have happened all the same.") from cause
        raise StorageUnavailable(f"{message}.") from cause


def is_refusal(error: AzureError) -> bool:
    """Whether the account does not let us in, or not do this."""
    status = error.status_code if isinstance(error, HttpResponseError) else None
    return status in (401, 403) or isinstance(error, ClientAuthenticationError)


def error_code(error: AzureError) -> str:
    """Azure's own code, empty if the answer has none."""
    code = getattr(error, "error_code", None)
    response = getattr(error, "response", None)
    if code is None and response is not None:
        code = response.headers.get("x-ms-error-code") or _code_in_body(response.text())
    return str(getattr(code, "value", code) or "")


def _code_in_body(body: str) -> str:
    """The code in the body of a table's answer, which has it nowhere else."""
    try:
        return str(json.loads(body)["odata.error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""


def nothing_was_sent(error: Exception) -> bool:
    """Whether the request surely never left: the connection was refused, or did not come about in time."""
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
