"""What a task does with a log that a foreign program has written: records are well formed, their contents are not."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.logs.names import blob_name
from samza_azure.logs.record import Buffer, Kind, Record, Reference, encode
from samza_azure.messages import Phase
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.log import LogReader

from .task_driver import Fleet

MakeFleet = Callable[[Application, str], Fleet]
SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
JOB = """
[streams.victim]
schema = "key string, ts timestamp"
event_time = "ts"
[task]
commit.ms = 0
state = "rocksdb"
"""


def counting() -> Application:
    application = Application()

    @application.stage("victim", output="counts")
    def count(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 day"), "key").count()

    return application


def forge(blobs: Blobs, prefix: str, kind: Kind, files: Mapping[str, Buffer | Reference], batches: int = 0) -> None:
    """Append a record in the name of the log's last writer, as any program with the account's key can."""
    last = LogReader(blobs, prefix).tail()
    assert last is not None
    header, end = last.header, last.end
    batch = header.batch + batches
    record = Record(
        kind, header.group_id, header.task, header.writer, batch, header.number + 1, meta=header.meta, files=files
    )
    assert blobs.append(blob_name(prefix, end[0]), encode(record), end[1])


def zip_of(entries: Mapping[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return sink.getvalue()


@pytest.mark.parametrize("kind", [pytest.param(Kind.FRONTIER, marks=pytest.mark.long), Kind.BATCH])
def test_a_snapshot_writes_no_file_outside_of_its_store(fleet: MakeFleet, tmp_path: Path, kind: Kind) -> None:
    """Finding F1: the next start wrote a module beside the job, and the one after it ran that module."""
    run = fleet(counting(), JOB)
    blobs, log = run.account.blobs(), f"runs/{run.run_id}/count-0"
    run.start("count-0")
    writer = run.writer("victim", 1, flush_rows=10)
    for number in range(3):
        writer.write(pa.table({"key": [str(number)], "ts": [0]}, schema=SCHEMA))
        writer.flush()
        run.until_all_is_read("victim")
    writer.close()
    last = run.tasks["count-0"].report.batch
    offsets = (run.tasks["count-0"]._directory / "checkpoint" / "offsets" / str(last)).read_bytes()
    run.release("count-0")
    batch = last + (kind is Kind.BATCH)
    code, target = b"import os; os._exit(66)\n", tmp_path / "beside_the_job.py"
    named = {
        "localFileName": "../" * 40 + str(target)[1:],
        "dfsSstFileName": "000008-x.sst",
        "sizeBytes": len(code),
    }
    metadata = "v1\n" + json.dumps({"sstFiles": [named], "numKeys": 0})
    files: dict[str, Buffer | Reference] = {
        "state/0/0/SSTs/000008-x.sst": code,
        f"state/0/0/{batch + 1}.zip": zip_of({"metadata": metadata.encode()}),
        f"offsets/{batch}": offsets,
    }
    forge(blobs, log, kind, files, batches=kind is Kind.BATCH)

    run.start("count-0", first=False)

    report = run.tasks["count-0"].report
    if report.phase is Phase.RUNNING:  # its state is loaded with the first batch
        writer = run.writer("victim", 1, flush_rows=10)
        writer.write(pa.table({"key": ["x"], "ts": [0]}, schema=SCHEMA))
        writer.close()
        run.until_all_is_read("victim")
    assert not target.exists(), "a file outside of the task's directory"
    assert report.phase is Phase.FAILED
    assert report.error is not None
    assert f"blob {blob_name(log, 0)}" in report.error.message
