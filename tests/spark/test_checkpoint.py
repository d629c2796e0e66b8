"""A checkpoint directory, into the log and out of it again."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from samza_azure.errors import CorruptState, SamzaAzureError
from samza_azure.stream_io.log import Places
from samza_azure.streams.offset import INFINITY_MS, Offset, ProducerPosition
from samza_azure.tasks.checkpoint import NewFiles, Planned, lay_out, planned
from tests.hostile.contents import samples


def offsets_file(watermark_ms: int, *steps: int) -> bytes:
    lines = ["v1", json.dumps({"batchWatermarkMs": watermark_ms, "conf": {}})]
    lines += [json.dumps(Offset("s", step, None, (ProducerPosition((0, 5)),)).to_json()) for step in steps]
    return "\n".join(lines).encode()


def commit_of(directory: Path, batch: int) -> list[str]:
    return (directory / "commits" / str(batch)).read_text().splitlines()


def test_a_restore_writes_the_commit_that_no_record_can_hold(tmp_path: Path) -> None:
    """With the watermark of the record, so that nothing is replayed and nothing lags."""
    files = {
        "metadata": b"{}",
        "offsets/6": offsets_file(10, 0),
        "offsets/7": offsets_file(20, 0),
        "state/0/0/8.delta": b"x",
    }

    last = lay_out(tmp_path / "c", files, 7, 90_500)

    assert last == Planned(20, (Offset("s", 0, None, (ProducerPosition((0, 5)),)),))
    assert commit_of(tmp_path / "c", 7) == ["v1", '{"nextBatchWatermarkMs":90}']
    assert {str(path.relative_to(tmp_path / "c")) for path in (tmp_path / "c").rglob("*") if path.is_file()} == {
        *files,
        "commits/7",
    }


def test_a_watermark_never_falls(tmp_path: Path) -> None:
    lay_out(tmp_path / "c", {"offsets/7": offsets_file(20, 0)}, 7, None)
    assert commit_of(tmp_path / "c", 7)[1] == '{"nextBatchWatermarkMs":20}'


@pytest.mark.parametrize(("steps", "watermark_ms"), [((1, 1), INFINITY_MS), ((1, 0), 20)])
def test_a_flush_that_has_begun_goes_on_at_the_end_of_time(
    tmp_path: Path, steps: tuple[int, ...], watermark_ms: int
) -> None:
    """But only if it has begun in all sources."""
    lay_out(tmp_path / "c", {"offsets/7": offsets_file(20, *steps)}, 7, 15_000)
    assert json.loads(commit_of(tmp_path / "c", 7)[1]) == {"nextBatchWatermarkMs": watermark_ms}


def test_a_log_without_a_batch_is_an_empty_directory(tmp_path: Path) -> None:
    assert lay_out(tmp_path / "c", {}, -1, None) is None
    assert list((tmp_path / "c").iterdir()) == []


def test_a_file_outside_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptState, match=r"holds '\.\./evil', which was not written by samza-azure"):
        lay_out(tmp_path / "c", {"../evil": b""}, 3, None)


def test_a_record_holds_what_none_before_holds(tmp_path: Path) -> None:
    """Not what is still being written, not checksums, not twice; but the batch's offsets always."""
    for name in ("metadata", "offsets/0", "state/0/0/1.delta", "state/0/0/.1.delta.crc", "state/0/0/2.delta.tmp"):
        _put(tmp_path / name)
    files = NewFiles(tmp_path, {})

    first = files.of_batch(0)
    files.recorded(first)
    _put(tmp_path / "offsets/1")
    _put(tmp_path / "state/0/0/2.delta")
    second = files.of_batch(1)

    assert sorted(first) == ["metadata", "offsets/0", "state/0/0/1.delta"]
    assert sorted(second) == ["offsets/1", "state/0/0/2.delta"]
    assert sorted(NewFiles(tmp_path, {"metadata": b"", "state/0/0/1.delta": b""}).of_batch(1)) == sorted(second)


def test_a_file_of_a_rocksdb_snapshot_is_recorded_once_it_is_whole(tmp_path: Path) -> None:
    """Spark writes SST files in place. Only the snapshot, which comes last, says how long they are."""
    store = "state/0/0"
    _put(tmp_path / f"{store}/SSTs/000008-a.sst", b"ha")
    _put(tmp_path / f"{store}/SSTs/000009-b.sst", b"whole")
    files = NewFiles(tmp_path, {})
    assert list(files.of_batch(0)) == []

    _put(tmp_path / f"{store}/1.zip", snapshot({"000008-a.sst": 4, "000009-b.sst": 5}))
    assert list(files.of_batch(0)) == []
    _put(tmp_path / f"{store}/SSTs/000008-a.sst", b"half")
    found = files.of_batch(1)
    files.recorded(found)

    assert list(found) == [f"{store}/SSTs/000008-a.sst", f"{store}/SSTs/000009-b.sst", f"{store}/1.zip"]
    assert found[f"{store}/SSTs/000008-a.sst"] == b"half"
    _put(tmp_path / f"{store}/SSTs/000010-c.sst", b"new")
    _put(tmp_path / f"{store}/3.zip", snapshot({"000009-b.sst": 5, "000010-c.sst": 3}))
    assert list(files.of_batch(2)) == [f"{store}/SSTs/000010-c.sst", f"{store}/3.zip"]


def test_a_snapshot_whose_files_spark_has_deleted_is_left_out(tmp_path: Path) -> None:
    _put(tmp_path / "state/0/0/1.zip", snapshot({"000008-a.sst": 4}))
    assert list(NewFiles(tmp_path, {}).of_batch(0)) == []


def test_names_of_files_that_spark_has_deleted_are_forgotten(tmp_path: Path) -> None:
    """A join writes four files per batch, for months."""
    files = NewFiles(tmp_path, {})
    for batch in range(50):
        _put(tmp_path / f"state/0/0/{batch + 1}.delta")
        (tmp_path / f"state/0/0/{batch - 3}.delta").unlink(missing_ok=True)
        files.recorded(files.of_batch(batch))
    assert files.tracked <= 5


def test_a_plan_is_read_as_spark_wrote_it(tmp_path: Path) -> None:
    """A source that has no offset yet is a dash."""
    path = tmp_path / "offsets" / "3"
    path.parent.mkdir()
    path.write_bytes(offsets_file(20, 1, 2) + b"\n-")

    assert planned(tmp_path, 3).watermark_ms == 20
    assert planned(tmp_path, 3).step == 1


def _put(path: Path, content: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def snapshot(sizes: dict[str, int]) -> bytes:
    """A snapshot of RocksDB that names these files."""
    files = [{"localFileName": name, "dfsSstFileName": name, "sizeBytes": size} for name, size in sizes.items()]
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "numKeys": 1}))
    return sink.getvalue()


ROCKSDB = samples()["rocksdb-9"]


def test_a_checkpoint_of_spark_is_laid_out_again(tmp_path: Path) -> None:
    """Without the options of RocksDB: they may name directories for its data and logs, and nothing reads them."""
    lay_out(tmp_path / "c", ROCKSDB, 9, None, is_stateful=True)
    with zipfile.ZipFile(tmp_path / "c/state/0/0/8.zip") as archive:
        assert sorted(archive.namelist()) == ["000018.log", "CURRENT", "MANIFEST-000019", "metadata"]
    assert json.loads(commit_of(tmp_path / "c", 9)[1])["nextBatchWatermarkMs"] > 0


@pytest.mark.parametrize("name", [name for name in ROCKSDB if "_metadata" not in name and name != "metadata"])
def test_a_checkpoint_without_the_state_of_its_batch_is_refused(tmp_path: Path, name: str) -> None:
    files = {path: content for path, content in ROCKSDB.items() if path != name}
    if name == "offsets/8":
        lay_out(tmp_path / "c", files, 9, None, is_stateful=True)
        return
    where = dict.fromkeys(files, ("runs/r/count-0/00000000", 77))
    with pytest.raises(CorruptState, match="blob runs/r/count-0/00000000, position 77"):
        lay_out(tmp_path / "c", files, 9, None, is_stateful=True, places=Places(where, ("runs/r/count-0/00000000", 77)))


def test_state_of_an_older_batch_is_refused(tmp_path: Path) -> None:
    files = {**ROCKSDB, "offsets/10": ROCKSDB["offsets/9"]}
    with pytest.raises(CorruptState, match="lacks what state/0/0 held after batch 10"):
        lay_out(tmp_path / "c", files, 10, None, is_stateful=True)
    with pytest.raises(CorruptState, match="lacks what state held after batch 7"):
        lay_out(tmp_path / "d", {"offsets/7": offsets_file(20, 0)}, 7, None, is_stateful=True)


def test_a_batch_whose_state_is_elsewhere_is_not_appended(tmp_path: Path) -> None:
    """As with executors on other machines, or with a directory that somebody has emptied."""
    for name in ("metadata", "offsets/3", "state/0/0/3.delta", "state/0/1/4.delta"):
        _put(tmp_path / name)
    with pytest.raises(SamzaAzureError, match="Spark has written no state of batch 3 for state/0/0 below"):
        NewFiles(tmp_path, {}).of_batch(3, is_stateful=True)
    _put(tmp_path / "state/0/0/4.delta")
    assert "state/0/0/4.delta" in NewFiles(tmp_path, {}).of_batch(3, is_stateful=True)
