"""A delivery follows logs and writes their rows to a folder, as Parquet files that are written once.

Promised: each row is in one file, and a file's name determines its rows. Before a file is written, the task's log
records which positions it holds; only the owner of that log can do so. That record determines the file: its name comes
from run, task and number, its rows and their order from the positions. So after any crash or pause, an owner writes the
same file again or finds it there.

Not promised: that a file which a reader has moved away or deleted does not come back. It may, under the same name with
the same rows, if its owner dies or is delayed before its log records that the file is written.
"""

import io
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.config import Files
from samza_azure.errors import CorruptState
from samza_azure.logs.names import FILES, file_in
from samza_azure.outcomes import Missing
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.intake import Intake
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.ranges import Ranged, RangePosition
from samza_azure.tables.files import are_equal, encode, plain

#: More than a file takes besides its values.
_OVERHEAD = 1 << 20


def file_name(folder: str, run: str, task: str, number: int) -> str:
    """The blob of one file. Task names have no dot, so no two tasks of any runs share a file name."""
    return file_in(f"{FILES}{folder}/{run}.{task}", number)


class Delivery(Ranged[RangePosition]):
    """One task's part of a folder: each range is a file."""

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
        super().__init__(record, may_write, RangePosition())
        self._blobs, self._files, self._schema = blobs, files, plain(schema)
        self._run, self._task = run, task
        self._intake = Intake(readers, rows=files.rows, size=files.bytes, widened=self._widened)

    def _widened(self, rows: pa.Table) -> pa.Table:
        return rows.cast(self._schema)

    def _numbers(self, rows: int) -> int:
        return 1

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
