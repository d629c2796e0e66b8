"""A stream read from outside: its committed rows in order, with a token to go on from.

Promised: whoever stores what it made of a table together with the token that stands beside it, and goes on from that
token, has each row exactly once, over any number of restarts of either side, and over drains: the next run's rows
follow, by the order of run ids. Rows that were deleted before they were read are an error, `RowsGone`, and never a gap.
Not promised: an order between partitions, or between tasks of one run.
"""

import asyncio
import base64
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa

from samza_azure.config import Config
from samza_azure.errors import ConfigError, RowsGone, StorageUnavailable
from samza_azure.logs.position import Position
from samza_azure.storage.arrow import decode
from samza_azure.storage.connection import Account
from samza_azure.storage.export import log_indexes, stream_of, streams
from samza_azure.storage.interface import Blobs
from samza_azure.storage.log import LogReader

#: A table has about so many bytes of a log at most, or one record.
TABLE_BYTES = 8 << 20
#: The logs are asked for new rows so often, and for new logs, which is dearer, so often.
POLL_S, LIST_S = 0.5, 5.0

Start = Literal["earliest", "latest"]


class Reader:
    """Reads a stream from a token, or from one of its ends: `for table in reader: store(table, reader.token)`."""

    def __init__(
        self,
        blobs: Blobs,
        stream: str,
        *,
        start: Start = "earliest",
        token: str = "",
        until_now: bool = False,
        table_bytes: int = TABLE_BYTES,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`until_now` ends at what was committed when the end was reached; without it the reader waits for more.

        A token goes before `start`. `wait` is how it waits between two looks, given the seconds.
        """
        self.stream = stream
        self._blobs, self._until_now, self._table_bytes, self._wait = blobs, until_now, table_bytes, wait
        self._at: dict[str, Position] = {}  # where the rows that were handed out end, by log
        self._streams: dict[str, str] = {}  # what a task's log holds
        self._listed_at = -LIST_S
        if token:
            self._at = _positions(token, stream)
        else:
            self._begin(start)

    @classmethod
    def from_job(
        cls, job: str | Path, stream: str, *, start: Start = "earliest", token: str = "", until_now: bool = False
    ) -> "Reader":
        """A reader of a stream of this job file."""
        account = Account.from_config(Config.load(job).storage)
        return cls(account.blobs(), stream, start=start, token=token, until_now=until_now)

    @property
    def token(self) -> str:
        """Where the tables end that were handed out so far; text of letters, digits, hyphens and underscores."""
        text = json.dumps({"stream": self.stream, "at": self._at}, separators=(",", ":"))
        return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")

    def __iter__(self) -> Iterator[pa.Table]:
        """Tables with at least one row; the storage is waited for."""
        while True:
            any_rows = False
            for table in self._round():
                any_rows = True
                yield table
            if self._until_now and not any_rows:
                return
            if not any_rows:
                self._wait(POLL_S)

    async def __aiter__(self) -> AsyncIterator[pa.Table]:
        """The same; the event loop goes on while the storage is asked."""
        tables = iter(self)
        while (table := await asyncio.to_thread(next, tables, None)) is not None:
            yield table

    def _round(self) -> Iterator[pa.Table]:
        """All that is new now, log by log. A run's logs come before those of the next run."""
        try:
            if time.monotonic() >= self._listed_at + LIST_S or self._until_now:
                self._look()
        except StorageUnavailable:
            if self._until_now:
                raise
            return
        for prefix in sorted(self._at, key=_in_order):
            reader = LogReader(self._blobs, prefix)
            while True:
                try:
                    found = reader.scan(self._at[prefix], self._table_bytes)
                    batches = [batch for data in reader.fetch(found.parts) for batch in decode(data)]
                except StorageUnavailable:
                    if self._until_now:
                        raise
                    return
                self._at[prefix] = found.end
                if batches:
                    yield _table(batches)
                if found.at_end:
                    break

    def _look(self) -> None:
        """Which logs there are by now, and whether what we have not read is still there."""
        self._listed_at = time.monotonic()
        for prefix, indexes in self._logs().items():
            index, position = self._at.setdefault(prefix, (0, 0))
            if index < indexes[0]:
                raise RowsGone(
                    f"The rows of {self.stream!r} from blob {index}, position {position} of {prefix} on are deleted: "
                    f"the log begins with blob {indexes[0]} now. They were past what streams.{self.stream} keeps. "
                    "Begin at what there is (earliest), or at the end (latest)."
                )

    def _begin(self, start: Start) -> None:
        for prefix, indexes in self._logs().items():
            if start == "earliest":
                self._at[prefix] = (indexes[0], 0)
            else:
                last = LogReader(self._blobs, prefix).tail(indexes[-1])
                self._at[prefix] = last.end if last is not None else (indexes[-1], 0)

    def _logs(self) -> dict[str, list[int]]:
        """The stream's logs, and the blobs that each has."""
        if found := log_indexes(self._blobs, f"streams/{self.stream}/"):
            return found
        return {
            prefix: indexes
            for prefix, indexes in log_indexes(self._blobs, "runs/").items()
            if self._stream(prefix, indexes[0]) == self.stream
        }

    def _stream(self, prefix: str, index: int) -> str:
        if not self._streams.get(prefix):
            self._streams[prefix] = stream_of(self._blobs, prefix, index)
        return self._streams[prefix]

    @property
    def has_logs(self) -> bool:
        """Whether anything holds the stream yet."""
        return bool(self._at)

    def known_streams(self) -> list[str]:
        """The streams that there are, for a message."""
        return streams(self._blobs)


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.concat_tables([pa.Table.from_batches([each]) for each in batches], promote_options="permissive")


def _in_order(prefix: str) -> tuple[str, str, int]:
    """Runs by their id, which begins with the time; stages by name, tasks and partitions by number."""
    log, _, number = prefix.replace("/", "-").rpartition("-")
    run = prefix.split("/")[1] if prefix.startswith("runs/") else ""
    return run, log, int(number)


def _positions(token: str, stream: str) -> dict[str, Position]:
    try:
        said = json.loads(
            zlib.decompress(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
        )
        of, at = said["stream"], {prefix: (int(blob), int(place)) for prefix, (blob, place) in said["at"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise ConfigError(
            "This is no token of a reader, or not all of it. Give the one that was printed last, earliest, or latest."
        ) from error
    if of != stream:
        raise ConfigError(f"This token is of the stream {of!r}, not of {stream!r}.")
    return at
