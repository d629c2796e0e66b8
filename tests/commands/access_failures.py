"""How access to an account fails: what a machine's identity or the account says, and what follows from it.

The table of `docs/accounts.md` has the same rows; tests/test_docs.py compares them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from enum import Enum

import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import AccessDenied, SamzaAzureError, SignInFailed, StorageUnavailable, Verdict
from tests.storage.cloud import Azure, Says
from tests.storage.proxy import NO_ROLE, Reply
from tests.storage.test_secret_file import WRONG
from tests.storage.test_secrets import signature_of


@dataclass(frozen=True, slots=True)
class Follows:
    """What a failure leads to: the word for it in the documents, and what each of us does."""

    word: str
    exits: Verdict  # a command at once, and a processor that has not joined when it gives up
    error: type[SamzaAzureError]  # of a Reader or a SourceWriter that begins
    waits: bool  # a Reader or a SourceWriter that was let in before
    ends: Verdict | None  # a processor that has joined, after two minutes


class Outcome(Enum):
    """The four things that may follow."""

    NO_TOKEN = Follows("no token", Verdict.UNREACHABLE, SignInFailed, waits=True, ends=None)
    NO_ANSWER = Follows("no answer", Verdict.UNREACHABLE, StorageUnavailable, waits=True, ends=None)
    MAY_PASS = Follows("refused for now", Verdict.UNREACHABLE, AccessDenied, waits=True, ends=Verdict.ACCESS_LOST)
    FOR_GOOD = Follows("refused", Verdict.REFUSED, AccessDenied, waits=False, ends=Verdict.ACCESS_LOST)


class By(Enum):
    """What opens the account."""

    IDENTITY = "an identity"
    KEY = "a key"
    FILE = "a key in a file"
    SIGNATURE = "a signature"


@dataclass(frozen=True, slots=True)
class Failure:
    """One way in which access fails, by what the metadata service says or by what the account answers."""

    what: str  # as the documents call it
    by: By
    outcome: Outcome
    says: str  # a part of the message
    breaks: Callable[[Azure, pytest.MonkeyPatch], None]
    opens: Callable[[Azurite], str] | None = None  # a bad signature or key to begin with, instead of `breaks`
    always: bool = False  # the same whatever opens the account

    def __str__(self) -> str:
        return f"{self.opened_by}: {self.what}"

    @property
    def opened_by(self) -> str:
        """What opens the account, as the documents call it."""
        return "anything" if self.always else self.by.value


def says(what: Says) -> Callable[[Azure, pytest.MonkeyPatch], None]:
    """The metadata service says this."""

    def breaks(azure: Azure, patch: pytest.MonkeyPatch) -> None:
        azure.metadata.says = what

    return breaks


def answers(
    status: int, code: str | None, ahead: timedelta = timedelta()
) -> Callable[[Azure, pytest.MonkeyPatch], None]:
    """The account, or something before it, answers this. Its clock may be ahead of this machine's."""

    def answer() -> Reply:
        return Reply(status, code, {"Date": format_datetime(datetime.now(UTC) + ahead, usegmt=True)})

    def breaks(azure: Azure, patch: pytest.MonkeyPatch) -> None:
        azure.refuses = lambda request: answer()

    return breaks


def refuses_connections(azure: Azure, patch: pytest.MonkeyPatch) -> None:
    """No metadata service."""
    patch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:9")


def no_role(azure: Azure, patch: pytest.MonkeyPatch) -> None:
    """What a principal without a role is told."""
    azure.refuses = lambda request: NO_ROLE


def bad_signature(**options: object) -> Callable[[Azurite], str]:
    """A signature that the emulator itself refuses."""
    return lambda azurite: f"SharedAccessSignature={signature_of(azurite, **options)}"  # type: ignore[arg-type]


NO_TOKEN, NO_ANSWER, MAY_PASS, FOR_GOOD = Outcome
IDENTITY, KEY, FILE, SIGNATURE = By
_KEY_VAULT = "cannot use the key in the key vault"
_ENDED = answers(403, "AuthenticationFailed", timedelta(hours=3))

FAILURES = [
    Failure(
        "the token service knows no identity: 400", IDENTITY, NO_TOKEN, "Identity not found", says(Says.NO_IDENTITY)
    ),
    Failure("the token service is busy: 429", IDENTITY, NO_TOKEN, "Temporarily too busy", says(Says.BUSY)),
    Failure("the token service fails: 500", IDENTITY, NO_TOKEN, "Temporarily too busy", says(Says.BROKEN)),
    Failure(
        "the token service refuses the connection", IDENTITY, NO_TOKEN, "there is no token for", refuses_connections
    ),
    Failure("the token service does not answer", IDENTITY, NO_TOKEN, "There was no answer within", says(Says.NOTHING)),
    Failure("the token service answers with no JSON", IDENTITY, NO_TOKEN, "JSON is invalid", says(Says.NO_JSON)),
    Failure("its answer is cut off", IDENTITY, NO_TOKEN, "JSON is invalid", says(Says.SECRET_IN_IT)),
    Failure("its answer has no token", IDENTITY, NO_TOKEN, "there is no token for", says(Says.NO_TOKEN_IN_IT)),
    Failure("`AuthorizationPermissionMismatch`", IDENTITY, MAY_PASS, "The identity lacks a role here", no_role),
    Failure(
        "`AuthorizationFailure`",
        IDENTITY,
        MAY_PASS,
        "network rules do not let this machine in",
        answers(403, "AuthorizationFailure"),
        always=True,
    ),
    Failure(
        "`InvalidAuthenticationInfo`",
        IDENTITY,
        MAY_PASS,
        "does not accept the token",
        answers(401, "InvalidAuthenticationInfo"),
    ),
    Failure(
        "`AuthenticationFailed`, and this machine's clock is wrong",
        IDENTITY,
        MAY_PASS,
        "clock is 10 minutes behind",
        answers(401, "AuthenticationFailed", timedelta(minutes=10, seconds=5)),
    ),
    Failure(
        "`AccountIsDisabled`", KEY, MAY_PASS, "account is disabled", answers(403, "AccountIsDisabled"), always=True
    ),
    Failure(
        "`InsufficientAccountPermissions`",
        KEY,
        MAY_PASS,
        "allows no such operation at present",
        answers(403, "InsufficientAccountPermissions"),
        always=True,
    ),
    Failure(
        "`KeyVaultEncryptionKeyNotFound`",
        KEY,
        MAY_PASS,
        _KEY_VAULT,
        answers(403, "KeyVaultEncryptionKeyNotFound"),
        always=True,
    ),
    Failure(
        "`KeyVaultAccessTokenCannotBeAcquired`",
        KEY,
        MAY_PASS,
        _KEY_VAULT,
        answers(403, "KeyVaultAccessTokenCannotBeAcquired"),
        always=True,
    ),
    Failure(
        "any other code with 401 or 403",
        KEY,
        MAY_PASS,
        "Azure's documentation tells what this code means",
        answers(403, "SomethingNew"),
        always=True,
    ),
    Failure(
        "403 or 401 without a code", KEY, NO_ANSWER, "a proxy or firewall between", answers(403, None), always=True
    ),
    Failure("407", KEY, NO_ANSWER, "a proxy or firewall between", answers(407, None), always=True),
    Failure(
        "`AuthenticationFailed`, and this machine's clock is wrong",
        KEY,
        MAY_PASS,
        "clock is 20 minutes ahead of",
        answers(403, "AuthenticationFailed", -timedelta(minutes=20, seconds=5)),
    ),
    Failure(
        "`AuthenticationFailed`",
        KEY,
        FOR_GOOD,
        "Check the key or signature in azure.storage.connect",
        answers(403, "AuthenticationFailed"),
        lambda azurite: f"AccountKey={WRONG}",
    ),
    Failure(
        "`KeyBasedAuthenticationNotPermitted`",
        KEY,
        FOR_GOOD,
        "set azure.storage.account and use an identity",
        answers(403, "KeyBasedAuthenticationNotPermitted"),
    ),
    Failure(
        "`AuthenticationFailed`",
        FILE,
        MAY_PASS,
        "The file is read again at each refusal",
        answers(403, "AuthenticationFailed"),
    ),
    Failure(
        "`AuthenticationFailed`, and it has ended",
        SIGNATURE,
        FOR_GOOD,
        "The signature in azure.storage.connect ended at",
        _ENDED,
        bad_signature(lasts=timedelta(minutes=-1)),
    ),
    Failure(
        "`AuthenticationFailed`, and it has not begun",
        SIGNATURE,
        MAY_PASS,
        "begins only at",
        answers(403, "AuthenticationFailed", -timedelta(hours=3)),
        bad_signature(begins=timedelta(minutes=30)),
    ),
    Failure(
        "`AuthorizationServiceMismatch`",
        SIGNATURE,
        FOR_GOOD,
        "is not for both blobs and tables",
        answers(403, "AuthorizationServiceMismatch"),
        bad_signature(services="t"),
    ),
    Failure(
        "`AuthorizationResourceTypeMismatch`",
        SIGNATURE,
        FOR_GOOD,
        "is not for containers and objects",
        answers(403, "AuthorizationResourceTypeMismatch"),
        bad_signature(resources="s"),
    ),
    Failure(
        "`AuthorizationPermissionMismatch`",
        SIGNATURE,
        FOR_GOOD,
        "lacks a permission",
        answers(403, "AuthorizationPermissionMismatch"),
        bad_signature(permissions="d"),
    ),
    Failure(
        "`AuthorizationSourceIPMismatch`",
        SIGNATURE,
        FOR_GOOD,
        "is for other addresses",
        answers(403, "AuthorizationSourceIPMismatch"),
    ),
    Failure(
        "`AuthorizationProtocolMismatch`",
        SIGNATURE,
        FOR_GOOD,
        "is for https only",
        answers(403, "AuthorizationProtocolMismatch"),
    ),
]
