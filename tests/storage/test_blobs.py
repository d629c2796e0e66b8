"""What `Blobs` promises, on memory and on Azurite."""

import re
from collections.abc import Callable

import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import AccessDenied, SamzaAzureError, Unsettled
from samza_azure.group.control import Control
from samza_azure.host.copies import KEPT, keep_copy
from samza_azure.logs.names import COPIES
from samza_azure.logs.operations import Span
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.connection import Account
from tests.storage.conftest import A, AnyAccount
from tests.storage.proxy import Front, Reply, Request


def test_an_append_to_an_immutable_blob_is_refused(account: AnyAccount) -> None:
    blobs = account.blobs()
    blobs.put("large/1", b"rows")
    assert blobs.append("large/1", b"more", 4) == Refused("InvalidBlobType")


@pytest.mark.parametrize("size", [0, (100 << 20) + 1])
def test_an_append_that_azure_would_not_take_is_not_sent(account: AnyAccount, size: int) -> None:
    blobs = account.blobs()
    blobs.create("log/0")
    with pytest.raises(ValueError, match="is possible"):
        blobs.append("log/0", bytes(size), 0)


def test_an_append_may_have_100_mebibytes(account: AnyAccount) -> None:
    blobs = account.blobs()
    blobs.create("log/0")
    assert blobs.append("log/0", bytes(100 << 20), 0) == 100 << 20
    assert blobs.read("log/0", (100 << 20) - 2) == Span(bytes(2), 100 << 20)


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, None, b"0123456789"),
        (0, 3, b"012"),
        (4, 3, b"456"),
        (8, 100, b"89"),
        (4, None, b"456789"),
        (10, None, b""),
        (10, 5, b""),
        (11, None, b""),
        (500, 5, b""),
    ],
)
def test_a_read_gives_the_bytes_that_are_there_and_the_size_of_all(
    account: AnyAccount, start: int, length: int | None, expected: bytes
) -> None:
    blobs = account.blobs()
    blobs.create("log/0")
    blobs.append("log/0", b"0123456789", 0)
    assert blobs.read("log/0", start, length) == Span(expected, 10)


@pytest.mark.parametrize("start", [0, 1])
def test_a_read_of_an_empty_blob_gives_nothing(account: AnyAccount, start: int) -> None:
    blobs = account.blobs()
    blobs.create("log/0")
    assert blobs.read("log/0", start) == Span(b"", 0)
    assert blobs.read("log/0", start, 16) == Span(b"", 0)


@pytest.mark.parametrize("length", [0, -1])
def test_a_read_of_no_bytes_is_not_sent(account: AnyAccount, length: int) -> None:
    with pytest.raises(ValueError, match="ask for at least one"):
        account.blobs().read("log/0", 0, length)


async def test_a_blob_that_is_leased_is_not_deleted(account: AnyAccount) -> None:
    control = account.control_blob()
    await control.create(b"0", timeout=5)
    await control.acquire(A, seconds=60, timeout=5)
    with pytest.raises(SamzaAzureError, match="LeaseIdMissing"):
        account.blobs().delete("control.json")
    assert account.blobs().read("control.json", 0) == Span(b"0", 1)


def test_a_large_blob_is_written_in_blocks_and_only_once(account: AnyAccount) -> None:
    """From a view, as a file that lies on disk is sent."""
    blobs = account.blobs()
    first = bytes(range(256)) * (1 << 16) + b"and the rest"
    assert blobs.put("large/2", memoryview(first)) is True
    assert blobs.put("large/2", memoryview(first[:-1])) is False
    assert blobs.read("large/2", 0) == Span(first, len(first))


def test_a_listing_has_the_names_below_the_prefix_in_order_with_their_sizes(account: AnyAccount) -> None:
    blobs = account.blobs()
    for name in ("runs/a/00000010", "runs/a/00000002", "runs/b/00000001"):
        blobs.create(name)
    blobs.append("runs/a/00000010", b"rows", 0)
    assert list(blobs.list("runs/a/")) == [("runs/a/00000002", 0), ("runs/a/00000010", 4)]
    assert [name for name, _ in blobs.list("")] == ["runs/a/00000002", "runs/a/00000010", "runs/b/00000001"]
    assert list(blobs.list("streams/")) == []


def test_a_deletion_may_be_repeated(account: AnyAccount) -> None:
    blobs = account.blobs()
    blobs.create("log/0")
    blobs.delete("log/0")
    blobs.delete("log/0")
    assert blobs.read("log/0", 0) == Missing()


def test_many_blobs_are_deleted_in_one_call_and_missing_ones_are_ignored(account: AnyAccount) -> None:
    blobs = account.blobs()
    names = [f"runs/r/by-carrier_2.x-{number}/00000000" for number in range(300)]
    for name in names[:20]:
        blobs.create(name)
    blobs.create("runs/r/other")
    assert blobs.delete_many(names[:256]) == {}
    assert blobs.delete_many(names[256:]) == {}
    assert list(blobs.list("runs/")) == [("runs/r/other", 0)]


async def test_blobs_that_cannot_be_deleted_are_reported_and_the_others_are_deleted(account: AnyAccount) -> None:
    blobs, control = account.blobs(), account.control_blob()
    await control.create(b"0", timeout=5)
    await control.acquire(A, seconds=60, timeout=5)
    for name in ("a", "z"):
        blobs.create(name)
    assert blobs.delete_many(["a", "control.json", "z"]) == {"control.json": "LeaseIdMissing"}
    assert [name for name, _ in blobs.list("")] == ["control.json"]


class KeepsOne(Front):
    """In front of the blobs of an emulator: blobs with `kept` in their names are not deleted, whether the deletion is
    asked for alone or is a part of a batch."""

    def __init__(self, target: int, reply: Reply, kept: str = "kept") -> None:
        self._target, self._reply, self._kept = target, reply, kept
        super().__init__()

    def instead(self, request: Request) -> Reply | None:
        return self._reply if request.method == "DELETE" and self._kept in request.path else None

    def passed_on(self, request: Request) -> tuple[int, Request]:
        return self._target, request

    def answer(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        if "comp=batch" not in request.path:
            return super().answer(request)
        parts = []
        for number, name in enumerate(re.findall(rb"DELETE (\S+)", request.body)):
            code = f"x-ms-error-code: {self._reply.code}\r\n" if self._reply.code else ""
            said = f"{self._reply.status} No\r\n{code}" if self._kept.encode() in name else "202 Accepted\r\n"
            head = f"--p\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
            parts.append(f"{head}HTTP/1.1 {said}\r\n")
        return 202, [("Content-Type", "multipart/mixed; boundary=p")], "".join([*parts, "--p--"]).encode()


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (409, "BlobImmutableDueToPolicy", {"kept": "BlobImmutableDueToPolicy"}),
        (403, "BlobImmutableDueToPolicy", {"kept": "BlobImmutableDueToPolicy"}),
        (409, "BlobImmutableDueToLegalHold", {"kept": "BlobImmutableDueToLegalHold"}),
        (412, "LeaseIdMissing", {"kept": "LeaseIdMissing"}),
        (404, "BlobNotFound", {}),
        (403, "AuthorizationPermissionMismatch", AccessDenied),
        (403, "AuthorizationFailure", AccessDenied),
        (401, "AuthenticationFailed", AccessDenied),
        (403, None, Unsettled),
        (503, "ServerBusy", Unsettled),
    ],
)
def test_a_refusal_of_access_is_told_from_what_a_policy_keeps(
    azurite: Azurite,
    connect: Callable[[str], Account],
    status: int,
    code: str | None,
    expected: dict[str, str] | type[SamzaAzureError],
) -> None:
    """A part of a batch that was refused for want of a right counted as kept by a policy."""
    with KeepsOne(azurite.blob_port, Reply(status, code)) as front:
        account = connect(azurite.connection_string.replace(f":{azurite.blob_port}/", f":{front.port}/"))
        account.create()
        if isinstance(expected, dict):
            assert account.blobs().delete_many(["gone", "kept"]) == expected
        else:
            with pytest.raises(expected, match=r"kept|not all were answered"):
                account.blobs().delete_many(["gone", "kept"])


def test_a_copy_is_kept_although_older_ones_may_not_be_deleted(
    azurite: Azurite, connect: Callable[[str], Account]
) -> None:
    """It counted as one that cannot be kept: the log said so, and it was written again every few seconds."""
    with KeepsOne(azurite.blob_port, Reply(403, "AuthorizationPermissionMismatch"), "control") as front:
        account = connect(azurite.connection_string.replace(f":{azurite.blob_port}/", f":{front.port}/"))
        account.create()
        for revision in range(KEPT + 1):
            keep_copy(account.blobs(), Control("a" * 32, revision=revision))
        assert len(account.blobs().list(COPIES)) == KEPT + 1


def test_names_may_hold_what_the_names_of_streams_and_tasks_hold(account: AnyAccount) -> None:
    blobs = account.blobs()
    name = "runs/1763719200000-0a1b2c3d/by-carrier_2.x/00000000"
    assert blobs.create(name) is True
    assert list(blobs.list("runs/1763719200000-0a1b2c3d/")) == [(name, 0)]
