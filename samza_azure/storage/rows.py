"""The application's table: `Rows` on Azure, asynchronous.

Each method is one call (a query one per 1,000 rows), sent once, with a timeout for each call. The ETag is the fence of
every row.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from azure.core import MatchConditions
from azure.core.pipeline import PipelineResponse
from azure.data.tables import TableEntity, UpdateMode
from azure.data.tables.aio import TableClient

from samza_azure.errors import StorageUnavailable
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.account_calls import AccountCalls
from samza_azure.storage.entities import entity, row
from samza_azure.storage.interface import Row, Value
from samza_azure.storage.limits import checked_key


class AzureRows:
    """`Rows` of one table."""

    def __init__(self, table: TableClient, calls: AccountCalls) -> None:
        self._table = table
        self._calls = calls

    async def insert(self, partition: str, key: str, values: Mapping[str, Value], *, timeout: float) -> str | Refused:
        one = entity(partition, key, values)
        return await self._write(
            lambda: self._table.create_entity(one), f"Inserting the row {partition}/{key}", timeout
        )

    async def merge(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        return await self._update(partition, key, values, etag, timeout, UpdateMode.MERGE)

    async def replace(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        return await self._update(partition, key, values, etag, timeout, UpdateMode.REPLACE)

    async def get(self, partition: str, key: str, *, timeout: float) -> Row | None:
        dated = _Dated()
        call = partial(self._table.get_entity, checked_key(partition), checked_key(key), raw_response_hook=dated)
        doing = f"Reading the row {partition}/{key}"
        match await self._calls.wait(call, doing, write=False, timeout=timeout):
            case TableEntity() as found:
                return row(found, dated.at)
            case Missing():
                return None
            case answer:
                raise StorageUnavailable(f"{doing}: unexpected answer {answer}.")

    async def query(self, partition: str, *, timeout: float) -> Sequence[Row]:
        doing = f"Reading the rows of {partition}"
        dated = _Dated()
        found = self._table.query_entities(
            "PartitionKey eq @partition", parameters={"partition": checked_key(partition)}, raw_response_hook=dated
        )
        pages, rows = found.by_page(), list[Row]()
        while True:  # the timeout is for a page: a scan of thousands of rows is no less alive for taking longer
            answer = await self._calls.wait(lambda: _page(pages, dated), doing, write=False, timeout=timeout)
            if answer is None:
                return rows
            if not isinstance(answer, list):
                raise StorageUnavailable(f"{doing}: unexpected answer {answer}.")
            rows += answer

    async def delete(self, partition: str, key: str, *, etag: str, timeout: float) -> None | Refused:
        call = partial(
            self._table.delete_entity,
            checked_key(partition),
            checked_key(key),
            etag=etag,
            match_condition=MatchConditions.IfNotModified,
        )
        answer = await self._calls.wait(call, f"Deleting the row {partition}/{key}", write=True, timeout=timeout)
        return answer if isinstance(answer, Refused) else None

    async def _update(
        self, partition: str, key: str, values: Mapping[str, Value], etag: str, timeout: float, mode: UpdateMode
    ) -> str | Refused:
        call = partial(
            self._table.update_entity,
            entity(partition, key, values),
            mode,
            etag=etag,
            match_condition=MatchConditions.IfNotModified,
        )
        return await self._write(call, f"Writing the row {partition}/{key}", timeout)

    async def _write(
        self, call: Callable[[], Awaitable[Mapping[str, Any]]], doing: str, timeout: float
    ) -> str | Refused:
        answer = await self._calls.wait(call, doing, write=True, timeout=timeout)
        match answer:
            case Refused():
                return answer
            case Missing():
                return Refused("ResourceNotFound")
            case Mapping():
                return str(answer["etag"])
            case _:
                raise StorageUnavailable(f"{doing}: unexpected answer {answer}.")


class _Dated:
    """When the service has answered, by its own clock: what `raw_response_hook` gets."""

    def __init__(self) -> None:
        self.at: datetime | None = None

    def __call__(self, response: PipelineResponse[Any, Any]) -> None:
        if date := response.http_response.headers.get("Date"):
            self.at = parsedate_to_datetime(date)


async def _page(pages: AsyncIterator[AsyncIterator[TableEntity]], dated: _Dated) -> list[Row] | None:
    """The rows of the next page; None behind the last one."""
    async for page in pages:
        return [row(one, dated.at) async for one in page]
    return None
