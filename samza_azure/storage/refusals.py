"""Why an account refuses us, what to do about it, and whether it may pass without a change of the configuration.

Azure's error code tells most of it. A wrong key, a wrong clock and a signature that has ended share one code; they are
told apart by the times in the signature and by the time at which the account has answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

from samza_azure.account import is_this_machine
from samza_azure.storage.address import Address

#: By how many seconds a machine's clock may differ from the account's. Azure allows requests with a key 15 minutes.
CLOCK_S = 900.0
#: The same for tokens, which allow less.
TOKEN_CLOCK_S = 300.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the account refuses us, with the remedy. `may_pass`: another try later may be let in."""

    why: str
    may_pass: bool = False


ROLES = (
    "A processor needs Storage Blob Data Contributor on the container and Storage Table Data Contributor on the table; "
    "to drain or stop, Blob Data Reader and Table Data Contributor suffice; to look, Reader on both."
)
#: What these codes mean whoever asks.
_BY_CODE: Mapping[str, Refusal] = {
    "AuthorizationFailure": Refusal(
        "Its network rules do not let this machine in: allow this network or address in the account's firewall, or "
        "check that the account's name leads to its private endpoint here.",
        may_pass=True,
    ),
    "AccountIsDisabled": Refusal(
        "The account is disabled, as those of a disabled subscription are: see the subscription in the portal.",
        may_pass=True,
    ),
    "InsufficientAccountPermissions": Refusal("The account allows no such operation at present.", may_pass=True),
    "KeyBasedAuthenticationNotPermitted": Refusal(
        "The account admits neither keys nor signatures made with them: set azure.storage.account and use an identity."
    ),
}
#: Codes that begin with this are about the key in a vault with which the account encrypts.
_OF_VAULT = "KeyVault"
_VAULT = Refusal(
    "The account cannot use the key in the key vault that it encrypts with: check that the vault and the key exist, "
    "that the key is enabled, and that the account's own identity may use it.",
    may_pass=True,
)
#: What a signature lacks.
_OF_SIGNATURE: Mapping[str, str] = {
    "AuthorizationServiceMismatch": "is not for both blobs and tables (ss=bt)",
    "AuthorizationResourceTypeMismatch": "is not for containers and objects (srt=co)",
    "AuthorizationPermissionMismatch": "lacks a permission: a processor needs sp=rwdlacu, to look sp=rl suffices",
    "UnauthorizedBlobOverwrite": "lacks the permission to write (sp=w)",
    "AuthorizationSourceIPMismatch": "is for other addresses (sip) than this machine's",
    "AuthorizationProtocolMismatch": "is for https only (spr), and the endpoint is http",
}
#: The account does not accept key, signature or token.
_NOT_ACCEPTED = frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"})


def refusal(code: str, where: Address, *, now: float, answered: float | None) -> Refusal:
    """What Azure's `code` means for a request that was opened as `where` says.

    `now` is this machine's time and `answered` the account's in its answer, if it had one; in seconds since 1970.
    """
    if code == "AuthorizationFailure" and is_this_machine(urlsplit(where.blob_url).hostname or ""):
        code = "AuthenticationFailed"  # an emulator says so
    if code in _NOT_ACCEPTED:
        found = _not_accepted(where, now, answered)
    elif where.by_identity and code == "AuthorizationPermissionMismatch":
        found = Refusal(f"The identity lacks a role here, or a new one does not count yet. {ROLES}", may_pass=True)
    elif where.signature is not None and code in _OF_SIGNATURE:
        found = Refusal(f"The signature in {where.setting} {_OF_SIGNATURE[code]}. Make another one.")
    elif code.startswith(_OF_VAULT):
        found = _VAULT
    else:
        found = _BY_CODE.get(code) or Refusal("Azure's documentation tells what this code means.", may_pass=True)
    if where.file is None or found.may_pass:
        return found
    return Refusal(f"{found.why} The file is read again at each refusal.", may_pass=True)


def _not_accepted(where: Address, now: float, answered: float | None) -> Refusal:
    if where.signature is not None:
        return _of_signature(where.signature, where.setting, now if answered is None else answered)
    ahead_s = 0.0 if answered is None else now - answered
    if abs(ahead_s) > (TOKEN_CLOCK_S if where.by_identity else CLOCK_S):
        return Refusal(
            f"This machine's clock is {abs(ahead_s) / 60:.0f} minutes {'ahead of' if ahead_s > 0 else 'behind'} the "
            "account's: set it right, for example with chrony.",
            may_pass=True,
        )
    if where.by_identity:
        return Refusal(
            "It does not accept the token of this identity, which has to belong to the account's tenant.", may_pass=True
        )
    return Refusal(f"Check the key or signature in {where.setting}: was it replaced in the account, or cut off here?")


def _of_signature(signature: str, setting: str, now: float) -> Refusal:
    """Times of a signature count by the account's clock. `ske` and `skt` are those of a user's key."""
    times = {name: _time(values[-1]) for name, values in parse_qs(signature).items() if name in _TIMES}
    ends = min((at for name in ("se", "ske") if (at := times.get(name)) is not None), default=None)
    begins = max((at for name in ("st", "skt") if (at := times.get(name)) is not None), default=None)
    if ends is not None and now >= ends:
        return Refusal(f"The signature in {setting} ended at {_shown(ends)}. Make another one.")
    if begins is not None and now < begins:
        return Refusal(
            f"The signature in {setting} begins only at {_shown(begins)}, and the account's clock says "
            f"{_shown(now)}. Make those that count at once without a beginning (st).",
            may_pass=True,
        )
    return Refusal(
        f"Check the key or signature in {setting}: was the key that made it replaced in the account, its policy "
        "deleted, or the text cut off here?"
    )


_TIMES = frozenset({"se", "ske", "st", "skt"})


def _time(text: str) -> float | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def _shown(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
