"""A delivery: it follows logs and puts their rows into a folder, as Parquet files that are written once.

Promised: each row is in one file, and the name of a file stands for its rows. Before a file is put, the task's log says
which positions it holds; only who may append to that log comes so far. The rest follows from that record alone: the
name from run, task and number, the rows and their order from the positions. So whatever is killed, and whoever wakes up
late, puts the same file again or finds it there.

Not promised: that a file which a reader has moved away or deleted does not come back. It may, under the same name with
the same rows, if its owner dies or is held up before its log says that the file is there.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.config import Files
from samza_azure.errors import CorruptState
from samza_azure.logs.position import Position
from samza_azure.messages import ends_from
from samza_azure.storage.intake import Follower, Intake
from samza_azure.storage.interface import Blobs, Missing
from samza_azure.storage.log import LogReader
from samza_azure.tables.files import encode, plain


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where a delivery is, as its task's log says it: file `number` begins `at` these positions of the logs.

    `until` is where it ends, once that is decided: it is there then, or is put next. None: it is not decided.
    """

    number: int = 0
    at: Mapping[str, Position] = field(default_factory=dict)
    until: Mapping[str, Position] | None = None

    def __bytes__(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def parse(cls, data: bytes) -> "FilePlace":
        """What `bytes` made."""
        value = json.loads(data)
        until = value["until"]
        return cls(value["number"], ends_from(value["at"]), None if until is None else ends_from(until))


def file_name(folder: str, run: str, task: str, number: int) -> str:
    """The blob of one file. No name of a task has a dot, so no two tasks of any runs share one."""
    return f"files/{folder}/{run}.{task}.{number:08d}.parquet"


class Delivery(Follower):
    """One task's part of a folder. For one thread.

    `record` appends the place to the task's log, and returns when that is durable. `may_write` is asked before a file
    is put.
    """

    expired_rows = 0  # it keeps all

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
        self._rows: pa.Table | None = None  # of the file that is being put
        self.place = FilePlace()
        self.published_rows = 0  # under this writer

    def _widened(self, rows: pa.Table) -> pa.Table:
        return rows.cast(self._schema)

    def claim(self, place: bytes | None) -> None:
        """Go on from the place of the log's last record; None: there is none yet."""
        self.place = FilePlace() if place is None else FilePlace.parse(place)
        self._intake.begin(self.place.at)
        if self.place.until is not None:
            self._intake.read_again(self.place.until)
            self._rows = self._intake.take()

    @property
    def _flushes(self) -> bool:
        return self._rows is not None

    def flush(self) -> bool:
        """Put what was read as the next file. False: it may not be put now; call it again.

        The place is that of the file after it then, which is yet to be recorded. What the storage does not answer is
        raised; call it again, too.
        """
        if self._rows is None and (rows := self._intake.take()) is not None:
            self._rows = rows
            self.place = replace(self.place, until={**self.place.at, **self._intake.at})
            self._record()
        if self._rows is not None:
            if not self._may_write():
                return False
            self._put(self._rows)
            self.published_rows += len(self._rows)
            self._rows = None
        if self.place.until is not None:
            self.place = FilePlace(self.place.number + 1, self.place.until)
        return True

    def pass_over(self) -> bool:
        """Move the place to where the logs are read, if nothing is held and that is in a later blob of one of them.

        So what a task without rows has read can be deleted. False: it is not so.
        """
        if self.has_rows or not self._intake.is_in_later_blob(self.place.at):
            return False
        self.place = replace(self.place, at={**self.place.at, **self._intake.at})
        return True

    def _put(self, rows: pa.Table) -> None:
        name, data = file_name(self._files.folder, self._run, self._task, self.place.number), encode(rows)
        if self._blobs.put(name, data):
            return
        found = self._blobs.read(name, 0)
        if isinstance(found, Missing) or found.data == data:  # put by an owner before us, or the answer was lost
            return
        if pq.read_table(io.BytesIO(found.data)) != rows:  # another release may write the same rows in other bytes
            raise CorruptState("This file was to be put, and has other rows: somebody else has written it", blob=name)
