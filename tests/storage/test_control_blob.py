"""What `ControlBlob` promises, on memory and on Azurite: conditional writes under a lease."""

import asyncio
import uuid

from samza_azure.storage.interface import Content, ControlBlob, Missing, NotModified, Refused
from tests.storage.conftest import A, AnyAccount

SECONDS = 5.0
B = str(uuid.UUID(int=0xB))


async def created(control: ControlBlob, data: bytes = b"0") -> str:
    """Create the control blob; its ETag."""
    etag = await control.create(data, timeout=SECONDS)
    assert isinstance(etag, str)
    return etag


async def test_the_control_blob_is_created_once(account: AnyAccount) -> None:
    control = account.control_blob()
    assert await control.read(timeout=SECONDS) == Missing()
    etag = await created(control, b"first")
    assert isinstance(await control.create(b"second", timeout=SECONDS), Refused)
    assert await control.read(timeout=SECONDS) == Content(b"first", etag)


async def test_a_read_can_be_spared_while_nothing_changed(account: AnyAccount) -> None:
    control = account.control_blob()
    first = await created(control)
    await control.acquire(A, seconds=60, timeout=SECONDS)
    assert await control.read(unless_etag=first, timeout=SECONDS) == NotModified()
    second = await control.write(b"1", etag=first, lease_id=A, timeout=SECONDS)
    assert isinstance(second, str) and second != first
    assert await control.read(unless_etag=first, timeout=SECONDS) == Content(b"1", second)


async def test_a_write_needs_the_etag_and_the_lease(account: AnyAccount) -> None:
    control = account.control_blob()
    first = await created(control)
    assert isinstance(await control.write(b"1", etag=first, lease_id=A, timeout=SECONDS), Refused)
    await control.acquire(A, seconds=60, timeout=SECONDS)
    second = await control.write(b"1", etag=first, lease_id=A, timeout=SECONDS)
    assert isinstance(second, str)
    assert await control.write(b"2", etag=first, lease_id=A, timeout=SECONDS) == Refused("ConditionNotMet")
    assert isinstance(await control.write(b"2", etag=second, lease_id=B, timeout=SECONDS), Refused)
    assert await control.read(timeout=SECONDS) == Content(b"1", second)


async def test_a_control_blob_may_have_five_megabytes(account: AnyAccount) -> None:
    control = account.control_blob()
    etag = await created(control, bytes(5_120_000))
    assert await control.read(timeout=SECONDS) == Content(bytes(5_120_000), etag)


async def test_lease_calls_do_not_change_the_etag(account: AnyAccount) -> None:
    control = account.control_blob()
    etag = await created(control)
    await control.acquire(A, seconds=60, timeout=SECONDS)
    await control.renew(A, timeout=SECONDS)
    await control.break_now(timeout=SECONDS)
    await control.acquire(B, seconds=60, timeout=SECONDS)
    await control.release(B, timeout=SECONDS)
    assert await control.read(unless_etag=etag, timeout=SECONDS) == NotModified()


async def test_a_lease_on_no_blob_says_that_it_is_missing(account: AnyAccount) -> None:
    control = account.control_blob()
    assert await control.acquire(A, seconds=60, timeout=SECONDS) == Missing()
    assert await control.renew(A, timeout=SECONDS) == Missing()
    assert await control.break_now(timeout=SECONDS) == Missing()
    assert await control.release(A, timeout=SECONDS) == Missing()
    assert isinstance(await control.write(b"1", etag='"0x1"', lease_id=A, timeout=SECONDS), Refused)


async def test_a_changed_etag_keeps_the_lease_from_being_taken_or_broken(account: AnyAccount) -> None:
    control = account.control_blob()
    first = await created(control)
    await control.acquire(A, seconds=60, timeout=SECONDS)
    second = await control.write(b"1", etag=first, lease_id=A, timeout=SECONDS)
    assert isinstance(second, str)
    assert await control.break_now(etag=first, timeout=SECONDS) == Refused("ConditionNotMet")
    assert await control.renew(A, timeout=SECONDS) is None
    assert await control.break_now(etag=second, timeout=SECONDS) is None
    assert await control.acquire(B, seconds=60, etag=first, timeout=SECONDS) == Refused("ConditionNotMet")
    assert await control.acquire(B, seconds=60, etag=second, timeout=SECONDS) is None


async def test_a_renewal_can_be_conditional_on_the_etag(account: AnyAccount) -> None:
    lock = account.leased_blob("locks/one")
    first = await lock.create(b"0", timeout=SECONDS)
    assert isinstance(first, str)
    assert await lock.acquire(A, seconds=60, timeout=SECONDS) is None
    assert await lock.renew(A, etag=first, timeout=SECONDS) is None
    assert isinstance(await lock.write(b"1", etag=first, lease_id=A, timeout=SECONDS), str)
    assert await lock.renew(A, etag=first, timeout=SECONDS) == Refused("ConditionNotMet")


async def test_leased_blobs_of_different_names_know_nothing_of_each_other(account: AnyAccount) -> None:
    for name in ("locks/one", "locks/two"):
        assert isinstance(await account.leased_blob(name).create(b"0", timeout=SECONDS), str)
        assert await account.leased_blob(name).acquire(A, seconds=60, timeout=SECONDS) is None
    assert await account.control_blob().read(timeout=SECONDS) == Missing()


async def test_a_broken_lease_fences_its_holder_at_once(account: AnyAccount) -> None:
    control = account.control_blob()
    etag = await created(control)
    await control.acquire(A, seconds=60, timeout=SECONDS)
    assert await control.break_now(timeout=SECONDS) is None
    assert isinstance(await control.write(b"1", etag=etag, lease_id=A, timeout=SECONDS), Refused)
    assert await control.acquire(B, seconds=60, timeout=SECONDS) is None
    assert isinstance(await control.renew(A, timeout=SECONDS), Refused)
    assert isinstance(await control.read(lease_id=A, timeout=SECONDS), Refused)
    assert isinstance(await control.write(b"2", etag=etag, lease_id=B, timeout=SECONDS), str)


async def test_one_of_many_concurrent_lease_requests_wins(account: AnyAccount) -> None:
    control = account.control_blob()
    await created(control)
    answers = await asyncio.gather(
        *(control.acquire(str(uuid.uuid4()), seconds=60, timeout=SECONDS) for _ in range(10))
    )
    assert answers.count(None) == 1


async def test_the_holder_renews_for_the_time_it_leased_and_may_lease_again_for_another(
    account: AnyAccount,
) -> None:
    control = account.control_blob()
    await created(control)
    assert await control.acquire(A, seconds=15, timeout=SECONDS) is None
    assert await control.acquire(A, seconds=60, timeout=SECONDS) is None
    assert await control.renew(A, timeout=SECONDS) is None
    assert isinstance(await control.acquire(B, seconds=15, timeout=SECONDS), Refused)
