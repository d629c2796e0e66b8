"""The Python data source for logs, as Spark sees it. Spark runs it in separate processes.

Spark loads this module in every Python process that plans a query, so it imports little. The code that finds and reads
records is in `samza_azure.tasks.poller`, which is imported when needed.
`_SimpleStreamReaderWrapper` is private to pyspark: only a subclass may return rows with the offset (`getCache`). One
test pins it; `read` alone would work, but is 10 ms slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from samza_azure.tasks.poller import Poller

FORMAT = "samza-azure-log"
#: The option that names what to read: a file of the container's, without secrets. Or, how many batches of nothing.
SPEC, NOTHING = "spec", "nothing"


class LogSource(DataSource):
    """Registered with Spark as `samza-azure-log`. It has one option."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return (
            NothingReader(int(self.options[NOTHING]), schema)
            if NOTHING in self.options
            else LogStreamReader(self.options[SPEC], schema)
        )


class Range(InputPartition):
    """All that one batch reads, as one partition of Spark's, so that the order of rows is kept."""

    def __init__(self, start: dict[str, Any], end: dict[str, Any], found: str | None) -> None:
        self.start = start
        self.end = end
        self.found = found  # a file on this machine


class LogStreamReader(_SimpleStreamReaderWrapper):
    """The reader that Spark calls. It is pickled for the workers, so the poller is created at its first use."""

    def __init__(self, spec: str, schema: StructType) -> None:
        self.spec = spec
        self.schema = schema
        self.simple_reader: Any = None  # pyspark asks for it

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "poller"}

    @cached_property
    def poller(self) -> Poller:
        """The object that looks for new records, in this process only."""
        from samza_azure.spark.pipeline.schema import arrow_schema
        from samza_azure.tasks.poller import Poller

        return Poller(self.spec, arrow_schema(self.schema))

    def initialOffset(self) -> dict[str, Any]:
        return self.poller.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.poller.latest(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Range(start, end, self.poller.handed_on(start, end))]

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any] | None:
        return self.poller.prefetched(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from samza_azure.spark.pipeline.schema import arrow_schema
        from samza_azure.tasks.poller import read_range

        assert isinstance(partition, Range)
        return read_range(self.spec, arrow_schema(self.schema), partition.start, partition.end, partition.found)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the reading task's own log records its progress."""


class NothingReader(LogStreamReader):
    """So many batches without rows. A worker reads every other one, as it does large ones of a log."""

    def __init__(self, batches: int, schema: StructType) -> None:
        super().__init__("", schema)
        self.batches = batches

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": min(start["batch"] + 1, self.batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Range(start, end, None)]

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any] | None:
        return iter(()) if end["batch"] % 2 else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from samza_azure.spark.pipeline.schema import arrow_schema

        yield pa.RecordBatch.from_pylist([], schema=arrow_schema(self.schema))
