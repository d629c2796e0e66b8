"""Logs and immutable blobs: `Blobs` on Azure, synchronous, for many threads at once.

Each method is one call, sent once; a large `put` is several, of which only the last one takes effect. The fences are
the position of an append, and If-None-Match.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobBlock, BlobProperties, ContainerClient

from samza_azure.errors import ConfigError, SamzaAzureError, StorageUnavailable, Unsettled
from samza_azure.logs.operations import Span
from samza_azure.logs.record import Buffer
from samza_azure.logs.retention import Listed
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.account_calls import AccountCalls, error_code
from samza_azure.storage.interface import DELETE_MAX
from samza_azure.storage.limits import checked_append, checked_length

#: The SDK counts sending a block as connecting, so that timeout grows with the block, by this least speed.
_BYTES_PER_SECOND_MIN = 4 << 20
_NAMES_MAX = 256
#: What the codes of immutability policies and legal holds begin with.
_OF_A_POLICY = "BlobImmutable"
#: Larger data is written in blocks of this size.
BLOCK_BYTES = 8 << 20


class AzureBlobs:
    """`Blobs` of one container. `timeout_s` bounds the silence of the service, not the length of a download."""

    def __init__(self, container: ContainerClient, calls: AccountCalls, *, timeout_s: float) -> None:
        self._container = container
        self._client = lru_cache(_NAMES_MAX)(container.get_blob_client)  # making one takes a tenth of a call
        self._calls = calls
        self._timeout_s = timeout_s

    def create(self, name: str) -> bool:
        blob = self._client(name)
        # A header, because this method of the SDK ignores match_condition. Without it, an existing blob is truncated.
        answer = self._calls.make(
            lambda: blob.create_append_blob(headers={"If-None-Match": "*"}, **self._timeouts()),
            f"Creating {name}",
            write=True,
        )
        return self._created(answer, name)

    def append(self, name: str, data: bytes, position: int) -> int | Refused | Missing:
        blob = self._client(name)
        checked_append(data)
        answer = self._calls.make(
            lambda: blob.append_block(
                data, length=len(data), appendpos_condition=position, **self._timeouts(len(data))
            ),
            f"Appending {len(data)} bytes to {name}",
            write=True,
        )
        return answer if isinstance(answer, Refused | Missing) else position + len(data)

    def read(self, name: str, start: int, length: int | None = None) -> Span | Missing:
        blob = self._client(name)
        checked_length(length)

        def fetch() -> Span | HttpResponseError:
            try:
                download = blob.download_blob(offset=start, length=length, **self._timeouts())
                data = download.readall()
            except HttpResponseError as error:
                if error.status_code != 416:
                    raise
                return error
            if len(data) != max(download.size, 0):
                # If a body breaks off, the SDK reads it once more, finds it empty, and takes that for its end.
                raise StorageUnavailable(f"Reading {name} from {start}: the answer broke off.")
            return Span(data, _total(download.properties.content_range or ""))

        answer = self._calls.make(fetch, f"Reading {name} from {start}", write=False)
        if isinstance(answer, HttpResponseError):
            return Span(b"", self._size(name, answer))
        if not isinstance(answer, Span | Missing):
            raise StorageUnavailable(f"Reading {name} from {start}: unexpected answer {answer}.")
        return answer

    def put(self, name: str, data: Buffer) -> bool:
        blob = self._client(name)
        if len(data) > BLOCK_BYTES:
            return self._put_in_blocks(name, memoryview(data))
        answer = self._calls.make(
            lambda: blob.upload_blob(bytes(data), length=len(data), overwrite=False, **self._timeouts(len(data))),
            f"Writing {name}",
            write=True,
        )
        return self._created(answer, name)

    def _put_in_blocks(self, name: str, data: memoryview) -> bool:
        """Write with one block in memory at a time. The service deletes blocks that are never committed."""
        blob = self._client(name)
        blocks = []
        for start in range(0, len(data), BLOCK_BYTES):
            block = bytes(data[start : start + BLOCK_BYTES])
            stage = partial(blob.stage_block, f"{start:016d}", block, len(block), **self._timeouts(len(block)))
            answer = self._calls.make(stage, f"Writing {name} from {start}", write=True)
            if isinstance(answer, Refused | Missing):
                return self._created(answer, name)
            blocks.append(BlobBlock(f"{start:016d}"))
        commit = partial(blob.commit_block_list, blocks, match_condition=MatchConditions.IfMissing, **self._timeouts())
        return self._created(self._calls.make(commit, f"Writing {name}", write=True), name)

    def put_file(self, name: str, path: Path) -> None:
        """Write a block blob from a file, block by block; replace one that is there. It is atomic, as `put` is.

        Raise ConfigError if the service refuses to replace it, for example a log.
        """
        blob, blocks = self._client(name), list[BlobBlock]()
        with path.open("rb") as data:
            while block := data.read(BLOCK_BYTES):
                number = f"{len(blocks):016d}"
                self._replaced(partial(blob.stage_block, number, block, len(block), **self._timeouts(len(block))), name)
                blocks.append(BlobBlock(number))
        self._replaced(partial(blob.commit_block_list, blocks, **self._timeouts()), name)

    def _replaced(self, call: Callable[[], object], name: str) -> None:
        answer = self._calls.make(call, f"Writing {name}", write=True)
        if isinstance(answer, Missing):
            raise StorageUnavailable(f"Writing {name}: the container {self._container.container_name} is gone.")
        if isinstance(answer, Refused):
            raise ConfigError(
                f"{self._container.container_name}/{name} cannot be replaced: {answer.code}. Choose another name."
            )

    def list(self, prefix: str) -> Sequence[tuple[str, int]]:
        return [(found.name, found.size) for found in self._listed(prefix)]

    def list_with_ages(self, prefix: str) -> Sequence[Listed]:
        answered: list[datetime] = []

        def note(response: Any) -> None:
            if date := response.http_response.headers.get("Date"):
                answered.append(parsedate_to_datetime(date))

        found = self._listed(prefix, raw_response_hook=note)
        now = answered[0] if answered else datetime.now(UTC)  # of the first page: rather too early
        return [
            Listed(
                each.name,
                each.size,
                (now - each.last_modified).total_seconds(),
                (now - each.creation_time).total_seconds(),
            )
            for each in found
        ]

    def _listed(self, prefix: str, **options: Any) -> Sequence[BlobProperties]:
        answer = self._calls.make(
            lambda: [
                found
                for found in self._container.list_blobs(
                    name_starts_with=prefix, include=["metadata"], **options, **self._timeouts()
                )
                if not is_directory(found)
            ],
            f"Listing {prefix}",
            write=False,
        )
        if not isinstance(answer, list):
            raise StorageUnavailable(f"Listing {prefix}: the container {self._container.container_name} is gone.")
        return answer

    def delete(self, name: str) -> None:
        blob = self._client(name)
        answer = self._calls.make(
            lambda: blob.delete_blob(delete_snapshots="include", **self._timeouts()), f"Deleting {name}", write=True
        )
        if isinstance(answer, Refused):
            raise SamzaAzureError(f"Deleting {name} was refused: {answer.code}.")

    def delete_many(self, names: Sequence[str]) -> Mapping[str, str]:
        doing = f"Deleting {len(names)} blobs"
        if not 0 < len(names) <= DELETE_MAX:
            raise ValueError(f"{doing}: 1 to {DELETE_MAX} are possible.")
        try:
            answer = self._calls.make(
                lambda: list(
                    self._container.delete_blobs(
                        *names, delete_snapshots="include", raise_on_any_failure=False, **self._timeouts()
                    )
                ),
                doing,
                write=True,
            )
        except (Unsettled, StorageUnavailable):
            raise
        except SamzaAzureError:
            answer = []  # a batch is not possible, for whatever reason; so delete one by one
        found = {}
        if isinstance(answer, list) and len(answer) == len(names):
            found = {
                name: (part.status_code, part.headers.get("x-ms-error-code", ""))
                for name, part in zip(names, answer, strict=True)
            }
        if any(status >= 500 or status in (408, 429) for status, _ in found.values()):
            raise Unsettled(f"{doing}: not all were answered. The next try may safely repeat those that are deleted.")
        # A part that was refused for want of a right says so when it is asked for alone, perhaps with a new secret.
        alone = [name for name in names if name not in found or _is_access(*found[name])]
        found |= {name: self._delete_one(name) for name in alone}
        return {name: code or str(status) for name, (status, code) in found.items() if status >= 400 and status != 404}

    def _delete_one(self, name: str) -> tuple[int, str]:
        """Delete one blob; return status and code."""

        def delete() -> tuple[int, str]:
            try:
                self._client(name).delete_blob(delete_snapshots="include", **self._timeouts())
            except HttpResponseError as error:
                status, code = error.status_code or 500, error_code(error)
                if status >= 500 or status in (408, 429) or _is_access(status, code):
                    raise
                return status, code
            return 202, ""

        answer = self._calls.make(delete, f"Deleting {name}", write=True)
        assert isinstance(answer, tuple)  # whatever else the service answers is in it
        return answer

    def _created(self, answer: object, name: str) -> bool:
        if isinstance(answer, Missing):
            raise StorageUnavailable(f"Creating {name}: the container {self._container.container_name} is gone.")
        return not isinstance(answer, Refused)

    def _size(self, name: str, error: HttpResponseError) -> int:
        """The size of a blob after a read from beyond its end: it is in the answer, or takes one more call."""
        headers: Mapping[str, str] = getattr(error.response, "headers", {})
        if content_range := headers.get("Content-Range"):
            return _total(content_range)
        blob = self._client(name)
        answer = self._calls.make(
            lambda: blob.get_blob_properties(**self._timeouts()), f"Measuring {name}", write=False
        )
        return int(getattr(answer, "size", 0))

    def _timeouts(self, size: int = 0) -> dict[str, Any]:
        return {
            "connection_timeout": min(self._timeout_s, 3.0) + size / _BYTES_PER_SECOND_MIN,
            "read_timeout": self._timeout_s,
        }


def is_directory(found: BlobProperties) -> bool:
    """Accounts with a hierarchical namespace list directories as empty blobs with this mark."""
    marks = {name.lower(): value for name, value in (found.metadata or {}).items()}
    return marks.get("hdi_isfolder", "").lower() == "true"


def _is_access(status: int, code: str) -> bool:
    """Whether a deletion was refused for want of a right, or by a proxy, and not because something keeps the blob."""
    return status in (401, 403, 407) and not code.startswith(_OF_A_POLICY)


def _total(content_range: str) -> int:
    """The size in `bytes 5-9/10` or `bytes */10`."""
    return int(content_range.rpartition("/")[2])
