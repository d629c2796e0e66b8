"""What `ControlBlob` promises, on memory and on Azurite: conditional writes under a lease."""

import uuid

from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Content, ControlBlob
from tests.storage.conftest import A, AnyAccount

SECONDS = 5.0
B = str(uuid.UUID(int=0xB))


async def created(control: ControlBlob, data: bytes = b"0") -> str:
    """Create the control blob; its ETag."""
    etag = await control.create(data, timeout=SECONDS)
    assert isinstance(etag, str)
    return etag


async def test_a_control_blob_may_have_five_megabytes(account: AnyAccount) -> None:
    control = account.control_blob()
    etag = await created(control, bytes(5_120_000))
    assert await control.read(timeout=SECONDS) == Content(bytes(5_120_000), etag)


async def test_a_lease_on_no_blob_says_that_it_is_missing(account: AnyAccount) -> None:
    control = account.control_blob()
    assert await control.acquire(A, seconds=60, timeout=SECONDS) == Missing()
    assert await control.renew(A, timeout=SECONDS) == Missing()
    assert await control.break_now(timeout=SECONDS) == Missing()
    assert await control.release(A, timeout=SECONDS) == Missing()
    assert isinstance(await control.write(b"1", etag='"0x1"', lease_id=A, timeout=SECONDS), Refused)


async def test_leased_blobs_of_different_names_know_nothing_of_each_other(account: AnyAccount) -> None:
    for name in ("locks/one", "locks/two"):
        assert isinstance(await account.leased_blob(name).create(b"0", timeout=SECONDS), str)
        assert await account.leased_blob(name).acquire(A, seconds=60, timeout=SECONDS) is None
    assert await account.control_blob().read(timeout=SECONDS) == Missing()


async def test_the_holder_renews_for_the_time_it_leased_and_may_lease_again_for_another(
    account: AnyAccount,
) -> None:
    control = account.control_blob()
    await created(control)
    assert await control.acquire(A, seconds=15, timeout=SECONDS) is None
    assert await control.acquire(A, seconds=60, timeout=SECONDS) is None
    assert await control.renew(A, timeout=SECONDS) is None
    assert isinstance(await control.acquire(B, seconds=15, timeout=SECONDS), Refused)
