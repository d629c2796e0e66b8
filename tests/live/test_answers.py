"""What the services say word for word: statuses, codes and headers that the adapters in storage/ read.

The contract itself is in tests/storage, and runs on a real account too if there is one. Here stands what lies below
it, as Azure documents it; Azurite's differences are in the one list, tests/storage/differences.py.
"""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.data.tables import UpdateMode
from azure.storage.blob import BlobClient, BlobLeaseClient

from tests.live.conftest import Service
from tests.storage.conftest import A
from tests.storage.differences import DONE

B = str(uuid.UUID(int=0xB))
IF_OLD: dict[str, Any] = {"etag": '"0x8D0000000000000"', "match_condition": MatchConditions.IfNotModified}


def said(call: Callable[[], object]) -> str:
    """The status and the code of a refusal, or "done"."""
    try:
        call()
    except HttpResponseError as error:
        response: Any = error.response
        code = getattr(error, "error_code", None) or response.headers.get("x-ms-error-code", "")
        return f"{error.status_code} {getattr(code, 'value', code)}".strip()
    return DONE


def lease(blob: BlobClient, lease_id: str) -> BlobLeaseClient:
    return BlobLeaseClient(blob, lease_id)


def write(blob: BlobClient, **conditions: Any) -> object:
    return blob.upload_blob(b"1", overwrite=True, **conditions)


def leased(service: Service, name: str) -> BlobClient:
    """A new blob, leased by A."""
    blob = service.blob(name)
    blob.upload_blob(b"0")
    lease(blob, A).acquire(60)
    return blob


def broken(service: Service, name: str) -> BlobClient:
    """The same, the lease broken with period 0."""
    blob = leased(service, name)
    BlobLeaseClient(blob).break_lease(0)
    return blob


def expired_and_written(service: Service, name: str) -> BlobClient:
    """A's lease has run out, and a client without a lease has written since."""
    blob = service.expired()
    write(blob)
    return blob


Call = Callable[[BlobClient], object]
STATES = {"leased": leased, "broken": broken, "expired, then written": expired_and_written}
CALLS: dict[str, Call] = {
    "acquire A": lambda blob: lease(blob, A).acquire(60),
    "acquire B": lambda blob: lease(blob, B).acquire(60),
    "acquire B if not changed": lambda blob: lease(blob, B).acquire(60, **IF_OLD),
    "renew A": lambda blob: lease(blob, A).renew(),
    "renew B": lambda blob: lease(blob, B).renew(),
    "break": lambda blob: BlobLeaseClient(blob).break_lease(0),
    "break if not changed": lambda blob: BlobLeaseClient(blob).break_lease(0, **IF_OLD),
    "release B": lambda blob: lease(blob, B).release(),
    "write": write,
    "write with A": lambda blob: write(blob, lease=A),
    "write with A if not changed": lambda blob: write(blob, lease=A, **IF_OLD),
    "write with B": lambda blob: write(blob, lease=B),
    "delete": lambda blob: blob.delete_blob(),
}
DOCUMENTED = {
    ("leased", "acquire A"): DONE,
    ("leased", "acquire B"): "409 LeaseAlreadyPresent",
    ("leased", "acquire B if not changed"): "412 ConditionNotMet",
    ("leased", "renew A"): DONE,
    ("leased", "renew B"): "409 LeaseIdMismatchWithLeaseOperation",
    ("leased", "break"): DONE,
    ("leased", "break if not changed"): "412 ConditionNotMet",
    ("leased", "release B"): "409 LeaseIdMismatchWithLeaseOperation",
    ("leased", "write"): "412 LeaseIdMissing",
    ("leased", "write with A"): DONE,
    ("leased", "write with A if not changed"): "412 ConditionNotMet",
    ("leased", "write with B"): "412 LeaseIdMismatchWithBlobOperation",
    ("leased", "delete"): "412 LeaseIdMissing",
    ("broken", "acquire B"): DONE,
    ("broken", "renew A"): "409 LeaseIsBrokenAndCannotBeRenewed",
    ("broken", "write with A"): "412 LeaseNotPresentWithBlobOperation",
    ("broken", "write"): DONE,
    ("expired, then written", "renew A"): "409 LeaseIdMismatchWithLeaseOperation",
    ("expired, then written", "acquire B"): DONE,
}


def check(service: Service, call: str, state: str, documented: str, ask: Callable[[], object]) -> None:
    """It answers as documented, or as it is known to differ; and a difference that is gone leaves the list."""
    answer = said(ask)
    known = {(one.call, one.state, one.documented): one.azurite for one in service.differences}
    assert answer == known.get((call, state, documented), documented)


@pytest.mark.parametrize(("state", "call"), DOCUMENTED)
def test_a_lease_is_answered_as_documented(service: Service, state: str, call: str) -> None:
    blob = STATES[state](service, f"{state} {call}")
    check(service, call, state, DOCUMENTED[state, call], lambda: CALLS[call](blob))


def test_a_break_with_period_0_breaks_at_once_and_for_good(service: Service) -> None:
    """Not after the rest of the lease: Azure/azure-storage-blob-go#216 doubted it."""
    blob = leased(service, "at once")
    assert BlobLeaseClient(blob).break_lease(0) == 0
    assert blob.get_blob_properties().lease.state == "broken"
    lease(blob, B).acquire(60)
    assert said(lambda: write(blob, lease=A)) == "412 LeaseIdMismatchWithBlobOperation"
    write(blob, lease=B)


def test_an_append_beside_the_end_is_a_412_and_a_second_creation_a_409(service: Service) -> None:
    blob = service.blob("log")
    blob.create_append_blob()
    blob.append_block(b"0123456789", appendpos_condition=0)
    refused = "412 AppendPositionConditionNotMet"
    assert [said(lambda at=at: blob.append_block(b"x", appendpos_condition=at)) for at in (0, 9, 11)] == [refused] * 3
    assert said(lambda: blob.create_append_blob(headers={"If-None-Match": "*"})) == "409 BlobAlreadyExists"
    assert said(lambda: service.blob("none").append_block(b"x", appendpos_condition=0)) == "404 BlobNotFound"
    assert blob.download_blob().readall() == b"0123456789"


@pytest.mark.parametrize(("start", "where"), [(10, "from the very end"), (11, "beyond"), (500, "beyond")])
def test_a_read_at_the_end_of_a_blob_is_a_416(service: Service, start: int, where: str) -> None:
    blob = service.blob(f"end {start}")
    blob.upload_blob(b"0123456789")
    assert blob.download_blob(9, 5).readall() == b"9"
    check(service, "read", where, "416 InvalidRange", lambda: blob.download_blob(start, 5).readall())


def test_a_read_of_what_has_not_changed_is_a_304(service: Service) -> None:
    blob = service.blob("same")
    etag = blob.upload_blob(b"0")["etag"]
    call = said(lambda: blob.download_blob(etag=etag, match_condition=MatchConditions.IfModified).readall())
    assert call.startswith("304")


def test_rows_are_refused_with_409_412_and_404(service: Service) -> None:
    table, row = service.table, {"PartitionKey": "p", "RowKey": "r", "beat": 1}
    old = table.create_entity(row)["etag"]
    assert said(lambda: table.create_entity(row)) == "409 EntityAlreadyExists"
    table.update_entity(row, UpdateMode.MERGE)
    if_old: dict[str, Any] = {"etag": old, "match_condition": MatchConditions.IfNotModified}
    refused = "412 UpdateConditionNotSatisfied"
    assert said(lambda: table.update_entity(row, UpdateMode.MERGE, **if_old)) == refused
    assert said(lambda: table.delete_entity("p", "r", **if_old)) == refused
    assert said(lambda: table.update_entity(row | {"RowKey": "none"}, UpdateMode.MERGE)) == "404 ResourceNotFound"


def test_writes_in_quick_succession_have_etags_of_their_own(service: Service) -> None:
    """An ETag that came twice would let a write through that was decided for another state."""
    blob = service.blob("quick")

    def write_both(number: int) -> tuple[str, str]:
        row = {"PartitionKey": "quick", "RowKey": "r", "beat": number}
        return service.table.upsert_entity(row)["etag"], blob.upload_blob(b"%d" % number, overwrite=True)["etag"]

    with ThreadPoolExecutor(4) as threads:
        etags = list(threads.map(write_both, range(100)))
    assert len({row for row, _ in etags}) == len({blob for _, blob in etags}) == 100
