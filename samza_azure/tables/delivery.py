"""A delivery follows logs and writes their rows to a folder, as Parquet files that are written once.

Promised: each row is in one file, and a file's name determines its rows. Before a file is written, the task's log
records which positions it holds; only the owner of that log can do so. That record determines the file: its name comes
from run, task and number, its rows and their order from the positions. So after any crash or pause, an owner writes the
same file again or finds it there.

Not promised: that a file which a reader has moved away or deleted does not come back. It may, under the same name with
the same rows, if its owner dies or is delayed before its log records that the file is written.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.config import Files
from samza_azure.errors import CorruptState
from samza_azure.foreign import parsed
from samza_azure.logs.names import FILES, file_in
from samza_azure.logs.position import Position
from samza_azure.messages import ends_from
from samza_azure.outcomes import Missing
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.intake import Follower, Intake
from samza_azure.stream_io.log import LogReader
from samza_azure.tables.files import are_equal, encode, plain

#: More than a file takes besides its values.
_OVERHEAD = 1 << 20


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Where a delivery is, as recorded in its task's log: file `number` begins `at` these positions of the logs.

    `until` is where the file ends: it is written already, or will be next. None if the end is not decided yet.
    """

    number: int = 0
    at: Mapping[str, Position] = field(default_factory=dict)
    until: Mapping[str, Position] | None = None

    def __bytes__(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def parse(cls, data: bytes) -> "FilePosition":
        """The inverse of `bytes`. Raise ValueError for anything else."""
        try:
            value = parsed(data)
            number, until = value["number"], value["until"]
            if type(number) is not int or number < 0:
                raise ValueError("a number of a file is expected")
            return cls(number, ends_from(value["at"]), None if until is None else ends_from(until))
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"it makes no sense ({error!r})") from error


def file_name(folder: str, run: str, task: str, number: int) -> str:
    """The blob of one file. Task names have no dot, so no two tasks of any runs share a file name."""
    return file_in(f"{FILES}{folder}/{run}.{task}", number)


class Delivery(Follower):
    """One task's part of a folder. For one thread.

    `record` appends the position to the task's log, and returns when that is durable. `may_write` is called before a
    file is written.
    """

    left_out_rows = 0  # each row is in a file

    def __init__(
        self,
        blobs: Blobs,
        files: Files,
        schema: pa.Schema,
        *,
        run: str,
        task: str,
        readers: Sequence[LogReader],
        record: Callable[[], object],
        may_write: Callable[[], bool],
    ) -> None:
        self._blobs, self._files, self._schema = blobs, files, plain(schema)
        self._run, self._task = run, task
        self._record, self._may_write = record, may_write
        self._intake = Intake(readers, rows=files.rows, size=files.bytes, widened=self._widened)
        self._rows: pa.Table | None = None  # of the file that is being written
        self.position = FilePosition()
        self.published_rows = 0  # under this writer

    def _widened(self, rows: pa.Table) -> pa.Table:
        return rows.cast(self._schema)

    def claim(self, position: bytes | None) -> None:
        """Continue from the position of the log's last record; None if there is none yet."""
        self.position = FilePosition() if position is None else FilePosition.parse(position)
        self._intake.begin(self.position.at)
        if self.position.until is not None:
            self._intake.read_again(self.position.until)
            self._rows = self._intake.take()

    @property
    def _flushes(self) -> bool:
        return self._rows is not None

    def flush(self) -> bool:
        """Write what was read as the next file. Return False if it may not be written now; call it again.

        Afterwards the position is that of the next file, and still has to be recorded. If the storage does not answer,
        this raises; call it again, too.
        """
        if self._rows is None and (rows := self._intake.take()) is not None:
            self._rows = rows
            self.position = replace(self.position, until={**self.position.at, **self._intake.at})
            self._record()
        if self._rows is not None:
            if not self._may_write():
                return False
            self._put(self._rows)
            self.published_rows += len(self._rows)
            self._rows = None
        if self.position.until is not None:
            self.position = FilePosition(self.position.number + 1, self.position.until)
        return True

    def pass_over(self) -> bool:
        """Move the position up to what has been read, if no rows are held and one of the logs has reached a later blob.

        This lets the blobs that a task without rows has read be deleted. Return False if the position did not move.
        """
        if self.has_rows or not self._intake.is_in_later_blob(self.position.at):
            return False
        self.position = replace(self.position, at={**self.position.at, **self._intake.at})
        return True

    def _put(self, rows: pa.Table) -> None:
        name, data = file_name(self._files.folder, self._run, self._task, self.position.number), encode(rows)
        if self._blobs.put(name, data):
            return
        most = 2 * max(len(data), rows.nbytes) + _OVERHEAD
        found = self._blobs.read(name, 0, most)
        if isinstance(found, Missing) or found.data == data:  # written by an earlier owner, or the answer was lost
            return
        # Another release may encode the same rows differently.
        if found.size > most or not _has_rows(found.data, rows):
            raise CorruptState("This file already exists with other rows: another program has written it", blob=name)


def _has_rows(data: bytes, rows: pa.Table) -> bool:
    """Whether this is a file of these rows."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        return file.metadata.num_rows == len(rows) and are_equal(file.read(), rows)
    except (pa.ArrowException, OSError):
        return False
