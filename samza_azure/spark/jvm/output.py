"""Read the rows of a batch from Spark through blocks on the local disk, so that no heap has to hold them all.

`toArrow` collects: all rows of a task are in the JVM's heap as its result, and the query fails if they exceed
`spark.driver.maxResultSize`. Here the task writes record batches to a block on disk while it computes them, as Spark
does for `persist(DISK_ONLY)`, and we read that block. Memory holds a few MiB of the rows at a time.
Promised: the plan runs once, and its state files are on disk when `run` yields its rows. For few rows it takes as long
as `toArrow`, for many it is faster.
The name and the layout of a block are private to Spark. `tests/spark/test_output.py` pins them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyspark.sql import DataFrame

from samza_azure.errors import SamzaAzureError, StorageUnavailable
from samza_azure.spark.jvm.session import java_class
from samza_azure.spark.jvm.sink import sink

#: The target size of a record batch. The number of rows for it is known once rows have been seen.
BATCH_BYTES = 4 << 20
#: Before any rows were seen, and the bounds afterwards.
ROWS_AT_FIRST = 1_000
ROWS_MIN, ROWS_MAX = 16, 64 << 10
#: Each message of an Arrow stream begins with these bytes.
ARROW = b"\xff\xff\xff\xff"
#: How often a block is asked for, on a cluster, that its executor has taken with it.
COPY_ATTEMPTS = 4


class BatchOutput:
    """Run the batches of one query and yield their rows."""

    def __init__(self) -> None:
        self._rows = ROWS_AT_FIRST
        self._java: _Java | None = None
        self._schema: pa.Schema | None = None

    @contextmanager
    def run(self, frame: DataFrame) -> Iterator[Iterator[pa.RecordBatch]]:
        """Run the plan. Its rows can be read, partition by partition, until the end of the `with` block."""
        java = self._java = self._java or _Java(frame)
        self._schema = self._schema or java.arrow_schema(frame)
        rows = java.sink.onDisk(frame._jdf, self._rows)
        try:
            yield self._read([java.block(rows, number) for number in range(rows.getNumPartitions())])
        finally:
            rows.unpersist(False)
            java.delete_copies()

    def _read(self, paths: list[str]) -> Iterator[pa.RecordBatch]:
        widest = 0.0
        for path in paths:
            with open(path, "rb") as block:  # noqa: PTH123  # a path from Java
                while data := _next(block):
                    batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
                    widest = max(widest, len(data) / max(batch.num_rows, 1))
                    yield batch
        if widest:
            self._rows = int(min(max(BATCH_BYTES / widest, ROWS_MIN), ROWS_MAX))


def _next(block: IO[bytes]) -> bytes:
    """The next byte array as Kryo writes it: class, whether it is a repeated reference, length, bytes."""
    if not _number(block):
        return b""
    _number(block)
    length = _number(block) - 1
    data = block.read(max(length, 0))
    if len(data) != length or not data.startswith(ARROW):
        raise SamzaAzureError(
            "Spark wrote the rows of a batch in a format that samza-azure does not know. "
            "Remove settings named spark.kryo, spark.serializer, spark.rdd and spark.io from [spark]."
        )
    return data


def _number(block: IO[bytes]) -> int:
    """A number with seven bits per byte, lowest first. 0 at the end of the block, since no class has that number."""
    value = shift = 0
    while byte := block.read(1):
        value |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
    return value


class _Java:
    """The JVM's classes and objects that are needed here, looked up once."""

    def __init__(self, frame: DataFrame) -> None:
        spark = frame.sparkSession
        self.sink = sink(spark)
        classes = java_class(spark, "java.lang.Class")
        # By reflection on its field: SparkEnv's methods refer to classes that the wheel does not have.
        manager = classes.forName("org.apache.spark.SparkEnv").getDeclaredField("blockManager")
        manager.setAccessible(True)
        environment = spark.sparkContext._jsc.sc().env()
        self._manager: Any = manager.get(environment)
        self._disk: Any = self._manager.diskBlockManager()
        self._spark, self._is_elsewhere = spark, not spark.sparkContext._jsc.isLocal()
        self._copies: list[Path] = []

    def block(self, rows: Any, partition: int) -> str:
        """The file of one partition. If an executor on a cluster has it, a copy."""
        path = str(self._disk.getFile(f"rdd_{rows.id()}_{partition}").getPath())
        if self._is_elsewhere:
            self._copies.append(Path(path))
            self._copy(rows, partition, path)
        return path

    def _copy(self, rows: Any, partition: int, path: str) -> None:
        """Ask the executors for a block. If the only one that had it has ended meanwhile, it is computed again."""
        name = java_class(self._spark, "org.apache.spark.storage.RDDBlockId")(rows.id(), partition)
        for _ in range(COPY_ATTEMPTS):
            found = self._manager.getRemoteBytes(name)
            if found.isDefined():
                file = java_class(self._spark, "java.io.FileOutputStream")(path)
                try:
                    found.get().writeFully(file.getChannel())
                finally:
                    file.close()
                    found.get().dispose()
                return
            self.sink.compute(rows)
        raise StorageUnavailable(f"Executors of the cluster have ended {COPY_ATTEMPTS} times with the rows of a batch.")

    def delete_copies(self) -> None:
        """Delete the copies of the last batch."""
        for path in self._copies:
            path.unlink(missing_ok=True)
        self._copies.clear()

    def arrow_schema(self, frame: DataFrame) -> pa.Schema:
        """The Arrow schema of these columns, from the JVM, since a block has batches only."""
        layout = java_class(frame.sparkSession, "org.apache.spark.sql.util.ArrowUtils")
        schema = layout.toArrowSchema(frame._jdf.schema(), "UTC", True, False, False)
        return pa.ipc.read_schema(pa.py_buffer(schema.serializeAsMessage()))
