"""Azure's table of lease outcomes, as the REST reference has it, on memory and on Azurite.

Its columns about Breaking leases are absent: we break with period 0 only.
"""

import uuid
from collections.abc import Awaitable, Callable

import pytest

from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Content, ControlBlob
from tests.storage.conftest import A, AnyAccount, Storages
from tests.storage.differences import DONE

SECONDS = 5.0
B = str(uuid.UUID(int=0xB))

Operation = Callable[[ControlBlob, str], Awaitable[object]]

OPERATIONS: dict[str, Operation] = {
    "write with A": lambda control, etag: control.write(b"1", etag=etag, lease_id=A, timeout=SECONDS),
    "write with B": lambda control, etag: control.write(b"1", etag=etag, lease_id=B, timeout=SECONDS),
    "read with A": lambda control, etag: control.read(lease_id=A, timeout=SECONDS),
    "read with B": lambda control, etag: control.read(lease_id=B, timeout=SECONDS),
    "read": lambda control, etag: control.read(timeout=SECONDS),
    "acquire A": lambda control, etag: control.acquire(A, seconds=60, timeout=SECONDS),
    "acquire B": lambda control, etag: control.acquire(B, seconds=60, timeout=SECONDS),
    "renew A": lambda control, etag: control.renew(A, timeout=SECONDS),
    "renew B": lambda control, etag: control.renew(B, timeout=SECONDS),
    "break": lambda control, etag: control.break_now(timeout=SECONDS),
    "release A": lambda control, etag: control.release(A, timeout=SECONDS),
    "release B": lambda control, etag: control.release(B, timeout=SECONDS),
}

# What succeeds; everything else is refused. A held the lease, if it was held at all.
SUCCEEDS = {
    "available": {"read", "acquire A", "acquire B"},
    "leased": {"write with A", "read with A", "read", "acquire A", "renew A", "break", "release A"},
    "broken": {"read", "acquire A", "acquire B", "break", "release A"},
    "expired": {"read", "acquire A", "acquire B", "renew A", "break", "release A"},
}


async def lease_in_state(control: ControlBlob, state: str) -> str:
    """Bring a new control blob into a state; its ETag."""
    etag = await control.create(b"0", timeout=SECONDS)
    assert isinstance(etag, str)
    if state != "available":
        assert await control.acquire(A, seconds=60, timeout=SECONDS) is None
    if state == "broken":
        assert await control.break_now(timeout=SECONDS) is None
    return etag


def succeeded(answer: object) -> bool:
    """Whether a call was not refused."""
    return not isinstance(answer, Refused | Missing)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("state", ["available", "leased", "broken"])
async def test_a_lease_call_has_the_documented_outcome(account: AnyAccount, state: str, operation: str) -> None:
    control = account.control_blob()
    etag = await lease_in_state(control, state)
    answer = await OPERATIONS[operation](control, etag)
    assert succeeded(answer) == (operation in SUCCEEDS[state]), answer


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_lease_that_ran_out_has_the_documented_outcome(storages: Storages, operation: str) -> None:
    control = await storages.expired()
    content = await control.read(timeout=SECONDS)
    assert isinstance(content, Content)
    answer = await OPERATIONS[operation](control, content.etag)
    known = {one.call: one.azurite == DONE for one in storages.differences if one.state == "expired"}
    assert succeeded(answer) == known.get(operation, operation in SUCCEEDS["expired"]), answer
