"""Which files of a checkpoint a restart needs."""

import io
import json
import zipfile

import pytest

from samza_azure.logs.record import Reference
from samza_azure.logs.restart_files import needed


def kept(batch: int, *paths: str) -> list[str]:
    return list(needed(dict.fromkeys(paths, b""), batch))


def test_the_restart_files_are_the_last_two_offsets_and_no_commits() -> None:
    paths = ("metadata", "offsets/3", "offsets/4", "offsets/5", "offsets/6", "commits/4", "commits/5")
    assert kept(5, *paths) == ["metadata", "offsets/4", "offsets/5"]


def test_files_that_a_later_release_adds_are_kept() -> None:
    assert kept(5, "offsets/5", "samza/since-then.json") == ["offsets/5", "samza/since-then.json"]


def test_the_restart_files_of_a_store_are_its_newest_snapshot_and_later_ones() -> None:
    paths = [f"state/0/0/{version}.delta" for version in range(1, 8)]
    assert kept(6, *paths, "state/0/0/3.snapshot", "state/0/0/5.snapshot") == [
        "state/0/0/6.delta",
        "state/0/0/7.delta",
        "state/0/0/5.snapshot",
    ]


def test_a_snapshot_of_the_last_version_leaves_no_delta() -> None:
    assert kept(6, "state/0/0/7.delta", "state/0/0/7.snapshot") == ["state/0/0/7.snapshot"]


def test_state_stores_are_distinguished_by_operator_partition_and_name() -> None:
    paths = (
        "state/0/0/left-keyToNumValues/4.delta",
        "state/0/0/left-keyToNumValues/5.delta",
        "state/0/0/left-keyToNumValues/4.snapshot",
        "state/0/0/right-keyToNumValues/4.delta",
        "state/0/1/left-keyToNumValues/4.delta",
        "state/1/0/4.delta",
    )
    assert kept(4, *paths) == list(paths[1:])


def test_a_snapshot_newer_than_the_last_batch_is_no_start() -> None:
    assert kept(3, "state/0/0/4.delta", "state/0/0/9.snapshot") == ["state/0/0/4.delta"]


def test_a_store_of_rocksdb_is_a_zip_and_changelogs() -> None:
    paths = ("state/0/0/4.zip", "state/0/0/4.changelog", "state/0/0/5.changelog", "state/0/0/3.changelog")
    assert kept(4, *paths) == ["state/0/0/4.zip", "state/0/0/5.changelog"]


def snapshot(*names: str, size: int = 0) -> bytes:
    """A snapshot of RocksDB as Spark 4.3 writes it, as far as it matters."""
    files = [{"localFileName": name[:6] + ".sst", "dfsSstFileName": name, "sizeBytes": size} for name in names]
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "numKeys": 5000}))
    return sink.getvalue()


def test_files_of_rocksdb_named_only_by_older_snapshots_are_left_out() -> None:
    files = {
        "state/0/0/SSTs/000008-a.sst": b"",
        "state/0/0/SSTs/000009-a.sst": b"",
        "state/0/0/4.zip": snapshot("000008-a.sst", "000009-a.sst"),
        "state/0/0/SSTs/000010-b.sst": b"",
        "state/0/0/6.zip": snapshot("000009-a.sst", "000010-b.sst"),
        "state/0/0/SSTs/000011-c.sst": b"",  # of a snapshot that is still to come
    }
    assert list(needed(files, 7)) == [
        "state/0/0/SSTs/000009-a.sst",
        "state/0/0/SSTs/000010-b.sst",
        "state/0/0/6.zip",
        "state/0/0/SSTs/000011-c.sst",
    ]


def test_a_snapshot_of_rocksdb_without_all_its_files_is_none() -> None:
    files = {
        "state/0/0/SSTs/000008-a.sst": b"",
        "state/0/0/4.zip": snapshot("000008-a.sst"),
        "state/0/0/5.changelog": b"",
        "state/0/0/6.changelog": b"",
        "state/0/0/6.zip": snapshot("000008-a.sst", "000010-b.sst"),
    }
    assert list(needed(files, 5)) == list(files)[:-1]


@pytest.mark.parametrize("part", [b"ha", Reference("large", 0, 2, 0)], ids=["in the record", "in a blob of its own"])
def test_a_snapshot_of_rocksdb_with_a_file_of_another_size_is_none(part: bytes | Reference) -> None:
    """The file was recorded while Spark was still writing it. What the older snapshot needs must stay."""
    files: dict[str, bytes | Reference] = {
        "state/0/0/SSTs/000008-a.sst": b"full",
        "state/0/0/4.zip": snapshot("000008-a.sst", size=4),
        "state/0/0/5.changelog": b"",
        "state/0/0/6.changelog": b"",
        "state/0/0/SSTs/000010-b.sst": part,
        "state/0/0/6.zip": snapshot("000010-b.sst", size=4),
        "state/0/0/7.changelog": b"",
    }
    assert list(needed(files, 6)) == [name for name in files if name != "state/0/0/6.zip"]


def test_a_snapshot_of_rocksdb_needs_its_logs_too() -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        log = {"localFileName": "000003.log", "dfsLogFileName": "000003-a.log", "sizeBytes": 4}
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [], "logFiles": [log], "numKeys": 1}))
    files = {"state/0/0/1.changelog": b"", "state/0/0/1.zip": sink.getvalue()}
    assert list(needed(files, 0)) == ["state/0/0/1.changelog"]
    whole = {"state/0/0/logs/000003-a.log": b"full", **files}
    assert list(needed(whole, 0)) == ["state/0/0/logs/000003-a.log", "state/0/0/1.zip"]


def test_files_without_a_version_are_kept() -> None:
    paths = ("metadata", "state/0/_metadata/metadata", "state/0/0/_metadata/schema", "state/0/0/SSTs/000008-x.sst")
    assert kept(9, *paths) == list(paths)


def test_the_restart_files_of_a_source_are_its_newest_compaction_and_later_ones() -> None:
    paths = ("sources/0/8", "sources/0/9.compact", "sources/0/10", "sources/1/8")
    assert kept(10, *paths) == ["sources/0/9.compact", "sources/0/10", "sources/1/8"]
