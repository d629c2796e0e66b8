"""Which files of a checkpoint others may still change."""

from pathlib import Path

import pytest

from samza_azure.tasks.checkpoint import NewFiles
from samza_azure.tasks.recorded_files import PARTS, RecordedFiles

from .test_checkpoint import _put, snapshot

STORE = "state/0/0"


def test_a_name_that_the_log_has_is_never_free_again(tmp_path: Path) -> None:
    """Also not when Spark has deleted the file, and without a name for each batch of months."""
    files = NewFiles(tmp_path, {f"{STORE}/0.delta": b""})
    recorded = files.recorded_files
    recorded.guard()
    _put(tmp_path / f"{STORE}/SSTs/000008-a.sst", b"half")
    _put(tmp_path / f"{STORE}/1.zip", snapshot({"000008-a.sst": 4}))
    for batch in range(50):
        _put(tmp_path / f"offsets/{batch}")
        _put(tmp_path / f"{STORE}/{batch + 1}.delta")
        (tmp_path / f"{STORE}/{batch - 3}.delta").unlink(missing_ok=True)
        assert recorded.may_be_written(f"offsets/{batch}") and recorded.may_be_written(f"{STORE}/{batch + 1}.delta")
        files.recorded(files.of_batch(batch))
        for name in (f"offsets/{batch}", f"{STORE}/{batch + 1}.delta", f"{STORE}/{max(batch - 3, 0)}.delta"):
            assert not recorded.may_be_written(name)
    for name in (f"{STORE}/SSTs/000008-a.sst", f"{STORE}/1.zip"):
        (tmp_path / name).unlink()
        assert not recorded.may_be_written(name)
    files.of_batch(50)
    assert not recorded.may_be_written(f"{STORE}/SSTs/000008-a.sst") and not recorded.may_be_written(f"{STORE}/1.zip")
    for name in (f"{STORE}/SSTs/000009-b.sst", f"{STORE}/40.zip", f"{STORE}/52.delta", "commits/50"):
        assert recorded.may_be_written(name)
    assert files.tracked <= 7 and len(recorded._newest_gone) <= 4


def test_what_a_record_is_being_made_of_does_not_change_under_it(tmp_path: Path) -> None:
    """Between its content was read and the record is there, another attempt may come with another content."""
    files = NewFiles(tmp_path, {})
    recorded = files.recorded_files
    recorded.guard()
    _put(tmp_path / f"{STORE}/1.delta")
    assert recorded.may_be_written(f"{STORE}/1.delta")
    found = files.of_batch(0)
    assert not recorded.may_be_written(f"{STORE}/1.delta") and not recorded.may_be_deleted(f"{STORE}/1.delta")
    assert recorded.may_be_written(f"{STORE}/2.delta")
    files.recorded(found)
    assert not recorded.may_be_written(f"{STORE}/1.delta")


@pytest.mark.parametrize(("kind", "of_batch"), [("snapshot", "delta"), ("zip", "changelog")])
def test_what_a_restart_needs_is_not_deleted_and_what_it_does_not_need_is(
    tmp_path: Path, kind: str, of_batch: str
) -> None:
    names = [f"{STORE}/{version}.{of_batch}" for version in range(1, 10)]
    snapshots = [f"{STORE}/3.{kind}", f"{STORE}/6.{kind}"]
    parts = [f"{STORE}/SSTs/00000{number}-a.sst" for number in range(3)]
    for name in (*names, *parts):
        _put(tmp_path / name, b"half")
    _put(tmp_path / snapshots[0], snapshot({"000000-a.sst": 4, "000001-a.sst": 4}))
    _put(tmp_path / snapshots[1], snapshot({"000001-a.sst": 4, "000002-a.sst": 4}))
    recorded = RecordedFiles(
        tmp_path, [*names, *snapshots, *parts, "metadata", "offsets/8", "state/0/_metadata/metadata"]
    )
    recorded.guard()
    for name in (*names[6:], snapshots[1], "metadata", "state/0/_metadata/metadata", "state", STORE, f"{STORE}/SSTs"):
        assert not recorded.may_be_deleted(name), name
    for name in (*names[:6], snapshots[0], "offsets/8", f"{STORE}/.10.tmp", f"{STORE}/7.{kind}", "offsets", "state/1"):
        assert recorded.may_be_deleted(name) == (name != "offsets"), name
    assert [recorded.may_be_deleted(name) for name in parts] == ([True, False, False] if kind == "zip" else [True] * 3)


def test_names_of_parts_are_remembered_up_to_a_number(tmp_path: Path) -> None:
    names = [f"{STORE}/SSTs/{number:06}-a.sst" for number in range(PARTS + 5)]
    recorded = RecordedFiles(tmp_path, names)
    recorded.guard()
    for name in names:
        recorded.look(each for each in [*recorded._there] if each != name)
    assert len(recorded) == 0
    assert [number for number, name in enumerate(names) if recorded.may_be_written(name)] == [0, 1, 2, 3, 4]
