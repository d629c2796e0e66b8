"""What `Rows` promises, on memory and on Azurite."""

import asyncio
import time
from typing import TypeAlias

import pytest

from samza_azure.outcomes import Refused
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Row, Rows, Value
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from simulator.sdk import SdkAccount

AnyAccount: TypeAlias = Account | MemoryAccount

SECONDS = 5.0


async def inserted(rows: Rows, key: str, **values: Value) -> str:
    """Insert a row of members; its ETag."""
    etag = await rows.insert("members", key, values, timeout=SECONDS)
    assert isinstance(etag, str)
    return etag


async def test_a_row_that_is_not_there_is_none(account: AnyAccount) -> None:
    assert await account.rows().get("members", "one", timeout=SECONDS) is None


async def test_a_merge_sets_its_columns_and_leaves_the_others(account: AnyAccount) -> None:
    rows = account.rows()
    first = await inserted(rows, "one", beat=1, state="RUNNING")
    second = await rows.merge("members", "one", {"beat": 2, "adopted": 7}, etag=first, timeout=SECONDS)
    assert isinstance(second, str) and second != first
    expected: dict[str, Value] = {"beat": 2, "state": "RUNNING", "adopted": 7}
    assert await rows.get("members", "one", timeout=SECONDS) == Row("one", second, expected)


async def test_a_replacement_leaves_nothing(account: AnyAccount) -> None:
    rows = account.rows()
    first = await inserted(rows, "one", beat=1, state="RUNNING")
    second = await rows.replace("members", "one", {"incarnation": "b"}, etag=first, timeout=SECONDS)
    assert isinstance(second, str) and second != first
    assert await rows.get("members", "one", timeout=SECONDS) == Row("one", second, {"incarnation": "b"})


async def test_an_etag_does_not_survive_deletion_and_insertion(account: AnyAccount) -> None:
    rows = account.rows()
    first = await inserted(rows, "one", beat=1)
    await rows.delete("members", "one", etag=first, timeout=SECONDS)
    await inserted(rows, "one", beat=1)
    assert isinstance(await rows.merge("members", "one", {"beat": 2}, etag=first, timeout=SECONDS), Refused)


async def test_a_row_says_for_how_long_it_is_unchanged_by_the_clock_of_the_service(account: AnyAccount) -> None:
    now = 0.0
    if isinstance(account, MemoryAccount | SdkAccount):
        storage = MemoryStorage(lambda: now)
        account = MemoryAccount(storage) if isinstance(account, MemoryAccount) else SdkAccount(storage)
    rows = account.rows()
    begun = time.monotonic()
    first = await inserted(rows, "one", beat=1)
    while True:
        now = time.monotonic() - begun
        (old,) = await rows.query("members", timeout=SECONDS)
        passed = time.monotonic() - begun
        assert passed - 2.0 <= old.age_s <= passed + 1.0, "the service tells the time in whole seconds"
        if old.age_s >= 1.0:
            break
        await asyncio.sleep(0.1)
    await rows.merge("members", "one", {"beat": 2}, etag=first, timeout=SECONDS)
    written = time.monotonic()
    new = await rows.get("members", "one", timeout=SECONDS)
    assert new is not None
    assert 0.0 <= new.age_s <= time.monotonic() - written + 1.0, "a merge is a change"


async def test_a_deletion_may_be_repeated(account: AnyAccount) -> None:
    rows = account.rows()
    etag = await inserted(rows, "one", beat=1)
    assert await rows.delete("members", "one", etag=etag, timeout=SECONDS) is None
    assert await rows.delete("members", "one", etag=etag, timeout=SECONDS) is None


async def test_a_query_has_the_rows_of_one_partition_in_the_order_of_their_keys(
    account: AnyAccount,
) -> None:
    rows = account.rows()
    for key in ("b", "a-2", "a", "10", "9"):
        await inserted(rows, key, name=key)
    await rows.insert("leader", "leader", {"epoch": 1}, timeout=SECONDS)
    found = await rows.query("members", timeout=SECONDS)
    assert [(row.key, row.values) for row in found] == [(key, {"name": key}) for key in ("10", "9", "a", "a-2", "b")]
    assert found[0] == await rows.get("members", "10", timeout=SECONDS)
    assert await rows.query("requests", timeout=SECONDS) == []


async def test_a_query_goes_beyond_one_page_of_a_thousand_rows(account: AnyAccount) -> None:
    rows = account.rows()
    keys = [f"p{number:04}" for number in range(1003)]
    for start in range(0, len(keys), 50):
        await asyncio.gather(*(inserted(rows, key, beat=1) for key in keys[start : start + 50]))
    assert [row.key for row in await rows.query("members", timeout=30)] == keys


async def test_one_of_many_merges_with_the_same_etag_wins(account: AnyAccount) -> None:
    rows = account.rows()
    etag = await inserted(rows, "one", beat=0)
    answers = await asyncio.gather(
        *(rows.merge("members", "one", {"beat": number}, etag=etag, timeout=SECONDS) for number in range(10))
    )
    assert sum(isinstance(answer, str) for answer in answers) == 1


@pytest.mark.parametrize("key", ["a/b", "a\\b", "a#b", "a?b", "a\nb", ""])
async def test_a_key_that_azure_would_not_take_is_not_sent(account: AnyAccount, key: str) -> None:
    rows = account.rows()
    with pytest.raises(ValueError, match="is not a valid key"):
        await rows.insert("members", key, {}, timeout=SECONDS)
    with pytest.raises(ValueError, match="is not a valid key"):
        await rows.get(key, "one", timeout=SECONDS)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "x" * (32 * 1024 + 1)])
async def test_a_value_that_azure_would_not_take_is_not_sent(account: AnyAccount, value: Value) -> None:
    with pytest.raises(ValueError, match="Column progress holds"):
        await account.rows().insert("members", "one", {"progress": value}, timeout=SECONDS)


@pytest.mark.parametrize("column", ["PartitionKey", "RowKey", "Timestamp"])
async def test_a_column_of_the_service_is_not_written(account: AnyAccount, column: str) -> None:
    with pytest.raises(ValueError, match="a column of the service's own"):
        await account.rows().insert("members", "one", {column: "mine"}, timeout=SECONDS)


async def test_a_column_may_hold_32_ki_characters(account: AnyAccount) -> None:
    etag = await inserted(account.rows(), "one", progress="x" * 32 * 1024)
    read = await account.rows().get("members", "one", timeout=SECONDS)
    assert read == Row("one", etag, {"progress": "x" * 32 * 1024})
