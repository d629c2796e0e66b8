"""The leased control blob, or a lock's: `ControlBlob` on Azure, asynchronous.

Each method is one call, sent once; a write that is not answered within its timeout is `Unsettled`. A write carries the
lease id, which keeps everybody else out, *and* If-Match, which is the fence.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from azure.core import MatchConditions
from azure.storage.blob.aio import BlobLeaseClient, ContainerClient

from samza_azure.errors import CorruptState, StorageUnavailable
from samza_azure.group.control import NAME
from samza_azure.outcomes import Missing, NotModified, Refused
from samza_azure.storage.account_calls import AccountCalls
from samza_azure.storage.interface import Content
from samza_azure.storage.limits import LEASED_BYTES_MAX


class AzureControlBlob:
    """`ControlBlob` in one container; the control blob itself unless another one is named."""

    def __init__(self, container: ContainerClient, calls: AccountCalls, name: str = NAME) -> None:
        self._name, self._blob = name, container.get_blob_client(name)
        self._calls = calls

    async def create(self, data: bytes, *, timeout: float) -> str | Refused:
        call = partial(self._blob.upload_blob, data, length=len(data), overwrite=False)
        return await self._put(call, f"Creating {self._name}", timeout)

    async def read(
        self, *, timeout: float, unless_etag: str | None = None, lease_id: str | None = None
    ) -> Content | NotModified | Missing | Refused:
        call = partial(self._download, unless_etag, lease_id)
        return await self._calls.wait(call, f"Reading {self._name}", write=False, timeout=timeout)

    async def write(self, data: bytes, *, etag: str, lease_id: str, timeout: float) -> str | Refused:
        call = partial(
            self._blob.upload_blob,
            data,
            length=len(data),
            overwrite=True,
            lease=self._lease(lease_id),
            etag=etag,
            match_condition=MatchConditions.IfNotModified,
        )
        return await self._put(call, f"Writing {self._name}", timeout)

    async def acquire(
        self, lease_id: str, *, seconds: int, timeout: float, etag: str | None = None
    ) -> None | Refused | Missing:
        call = partial(self._lease(lease_id).acquire, lease_duration=seconds, **_if_match(etag))
        return await self._lease_call(call, f"Leasing {self._name}", timeout)

    async def renew(self, lease_id: str, *, timeout: float, etag: str | None = None) -> None | Refused | Missing:
        call = partial(self._lease(lease_id).renew, **_if_match(etag))
        return await self._lease_call(call, f"Renewing the lease of {self._name}", timeout)

    async def break_now(self, *, timeout: float, etag: str | None = None) -> None | Refused | Missing:
        # Breaking needs no lease id, but the client requires one.
        call = partial(self._lease(None).break_lease, lease_break_period=0, **_if_match(etag))
        return await self._lease_call(call, f"Breaking the lease of {self._name}", timeout)

    async def release(self, lease_id: str, *, timeout: float) -> None | Refused | Missing:
        return await self._lease_call(self._lease(lease_id).release, f"Releasing the lease of {self._name}", timeout)

    def _lease(self, lease_id: str | None) -> BlobLeaseClient:
        return BlobLeaseClient(self._blob, lease_id)

    async def _download(self, unless_etag: str | None, lease_id: str | None) -> Content:
        conditions: dict[str, Any] = {} if lease_id is None else {"lease": lease_id}
        if unless_etag is not None:
            conditions |= {"etag": unless_etag, "match_condition": MatchConditions.IfModified}
        download = await self._blob.download_blob(**conditions)
        if download.size > LEASED_BYTES_MAX:  # and so much is here already
            raise CorruptState(f"A blob of samza-azure has at most {LEASED_BYTES_MAX} bytes here", blob=self._name)
        data = await download.readall()
        if len(data) != download.size:
            raise StorageUnavailable(f"Reading {self._name}: the answer broke off.")
        return Content(data, download.properties.etag)

    async def _put(self, call: Callable[[], Awaitable[dict[str, Any]]], doing: str, timeout: float) -> str | Refused:
        answer = await self._calls.wait(call, doing, write=True, timeout=timeout)
        match answer:
            case Refused():
                return answer
            case Missing() | NotModified():
                raise StorageUnavailable(f"{doing}: the container is gone.")
            case _:
                return str(answer["etag"])

    async def _lease_call(
        self, call: Callable[[], Awaitable[Any]], doing: str, timeout: float
    ) -> None | Refused | Missing:
        answer = await self._calls.wait(call, doing, write=True, timeout=timeout)
        return answer if isinstance(answer, Refused | Missing) else None


def _if_match(etag: str | None) -> dict[str, Any]:
    return {} if etag is None else {"etag": etag, "match_condition": MatchConditions.IfNotModified}
