"""An outlet follows logs and sends their rows to a system outside, in numbered ranges, through a `SystemProducer`.

Promised: before a range is sent, the task's log records which rows it has and into how many partitions they go. So a
row that is sent again, by whichever owner, has the same number and goes to the same partition.

Not promised: that an owner which has lost the log sends nothing more. It may send again what it was sending, and no
later row.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from samza_azure.config import Outside
from samza_azure.errors import AccessDenied, ConfigError, SignInFailed, StorageUnavailable
from samza_azure.stream_io.intake import Intake
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.ranges import Ranged, RangePosition
from samza_azure.systems.api import RefusedRow, SystemProducer, SystemWriter
from samza_azure.systems.dead_letters import SCHEMA as DEAD_LETTERS
from samza_azure.systems.patience import Barred, Patience

log = logging.getLogger(__name__)

#: What is shown of a row that is refused.
SHOWN_BYTES = 100
#: Between two tries to be let in again.
DENIED_S = 5.0


@dataclass(frozen=True, slots=True)
class OutletPosition(RangePosition):
    """Where an outlet is: `number` is that of its next row."""

    partitions: int | None = None  # of the stream outside, for the range
    dead_to: int = 0  # below this number, all rows that were refused are in the log; 0: none was

    @classmethod
    def rest(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        partitions, dead_to = value["partitions"], value["dead_to"]
        if not (partitions is None or (type(partitions) is int and partitions > 0)) or type(dead_to) is not int:
            raise ValueError("a number of partitions is expected")
        return {"partitions": partitions, "dead_to": dead_to}


class Outlet(Ranged[OutletPosition]):
    """One task's rows on their way outside.

    `partitions` asks the outside how many it has; `made` makes a producer.
    """

    def __init__(
        self,
        to: Outside,
        schema: pa.Schema,
        *,
        task: str,
        writer: SystemWriter,
        readers: Sequence[LogReader],
        record: Callable[[], object],
        may_write: Callable[[], bool],
        partitions: Callable[[], int | None],
        made: Callable[[], SystemProducer],
    ) -> None:
        super().__init__(record, may_write, OutletPosition())
        self._to, self._schema, self._task, self._writer = to, schema, task, writer
        self._partitions, self._made = partitions, made
        self._intake = Intake(readers, rows=to.rows, size=to.bytes, widened=self._widened)
        self._producer: SystemProducer | None = None
        self._lacks: int | None = None  # the number of the first row that is not outside, if that is known
        self._is_taken = False  # whether the producer has the rows of the range
        self._patience = Patience()  # with an outside that refuses us
        self.warning = ""  # why nothing is sent, for people
        self._is_lost = False  # the producer that kept numbers, in the middle of a range
        self.aside: list[RefusedRow] = []  # rows of the range that are refused, until a record has them

    def _widened(self, rows: pa.Table) -> pa.Table:
        return rows if rows.schema.equals(self._schema) else rows.cast(self._schema)

    def _numbers(self, rows: int) -> int:
        return rows

    def flush(self) -> bool:
        """Send what was read as the next range. Return False if it may not be sent now; call it again."""
        if self._producer is None and self.has_rows:
            if self._is_lost:
                # Perhaps by our successor. Only the owner of the log may open another one, which ends that of the last.
                self._record()
            with self._outside():
                number = self._partitions()
            had, is_made_anew = self.position.partitions, False
            if number is not None and had is not None:
                is_made_anew = number < had  # with all that it held: nothing there comes again
            if self.position.until is None or is_made_anew:
                self.position = replace(self.position, partitions=number)
            with self._outside():
                self._open(replace(self._writer, partitions=self.position.partitions))
            self._is_lost = False
            if not super().flush():
                return False
            if number != self.position.partitions:  # a predecessor has begun the range when there were others
                self.close()
            return True
        return super().flush()

    def _put(self, rows: pa.Table) -> None:
        try:
            self._send(rows)
        except StorageUnavailable:
            if self._lacks is not None:  # only another producer learns how much of it is outside
                self._is_lost = True
                self.close()
            raise

    def _send(self, rows: pa.Table) -> None:
        producer, number = self._producer, self.position.number
        assert producer is not None
        if not self._is_taken:
            skip = min(max(0, (self._lacks or 0) - number), len(rows))
            with self._outside():
                refused = producer.send(number + skip, rows.slice(skip)) if skip < len(rows) else ()
            if self.position.dead_to <= number:  # otherwise a record has them, or is about to
                self._see_to(refused, number + skip)
                self.aside = [replace(each, index=number + skip + each.index) for each in refused]
            self._is_taken = True
        if self.aside:
            # Before the others are outside: an owner that finds them there does not send the range again, and would
            # never hear of these.
            self.position = replace(self.position, dead_to=number + len(rows))
            self._record()
        with self._outside():
            producer.flush()
        self._is_taken = False
        self._patience.let_in(surely=True)
        self.warning = ""

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """Who was let in and is not any more waits: a key that was renewed is read again, a right may come back. Others
        wait for a right that was given a moment ago.
        """
        try:
            yield
        except (Barred, SignInFailed) as error:
            self.warning = str(error)
            raise
        except AccessDenied as error:
            self.warning = str(error)
            if not self.published_rows:
                self._patience.refused(error)
                self.warning = self._patience.warning
            raise StorageUnavailable(str(error), after_s=DENIED_S) from error

    def _see_to(self, refused: Sequence[RefusedRow], begin: int) -> None:
        """Raise ConfigError for rows that are refused, unless they may be put aside."""
        if len(refused) <= self._to.dead_letters:
            return
        first, name, most = refused[0], self._to.stream, self._to.dead_letters
        shown = json.dumps(first.raw[:SHOWN_BYTES].decode(errors="replace"), ensure_ascii=False)
        what = f"Row {begin + first.index} of {self._task}, which begins with {shown}, cannot be sent. {first.reason}"
        if most:
            raise ConfigError(
                f"{len(refused)} rows at once cannot be sent, and streams.{name}.dead_letters is {most}. Allow more. "
                f"{what}"
            )
        raise ConfigError(
            f"{what} It is in the log, so it can only be put aside: write streams.{name}.dead_letters = 100, which "
            f"keeps such rows in the stream {name}-dead. Let the stage that writes it leave them out or shorten them."
        )

    def dead(self) -> Iterator[pa.Table]:
        """The rows that are refused and in no record yet, as dead letters."""
        if self.aside:
            now = datetime.now(UTC)
            yield pa.Table.from_pylist(
                [
                    {"raw": each.raw, "reason": each.reason, "place": f"row {each.index} of {self._task}", "time": now}
                    for each in self.aside
                ],
                DEAD_LETTERS,
            )

    def close(self) -> None:
        """Let the producer go."""
        producer, self._producer, self._is_taken = self._producer, None, False
        if producer is not None:
            try:
                producer.close()
            except Exception as error:  # noqa: BLE001  # nothing depends on it
                log.info("%s: its producer could not be closed: %s", self._task, error)

    def _open(self, writer: SystemWriter) -> None:
        self._producer = producer = self._made()
        try:
            self._lacks = producer.open(writer)
        except BaseException:
            self.close()
            raise
