"""What a processor leaves on its machine for its next life."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from samza_azure.errors import ConfigError
from samza_azure.host.slot import RESTARTED_S, Slot, take_slot


def test_an_id_is_taken_once_on_a_machine(tmp_path: Path) -> None:
    slot = take_slot(tmp_path, "p1")
    with pytest.raises(ConfigError, match="has the id 'p1'"):
        take_slot(tmp_path, "p1")
    assert take_slot(tmp_path, "p2").directory != slot.directory


def drained_at(directory: Path, when: float) -> None:
    (directory / "drained").touch()
    os.utime(directory / "drained", (when, when))


def slot_of_the_next_life(base: Path) -> Slot:
    (base / "p1").mkdir(exist_ok=True)
    return Slot(base, "p1", os.open(base / "p1", os.O_RDONLY))


def test_a_processor_knows_for_a_minute_that_its_run_was_drained(tmp_path: Path) -> None:
    assert not slot_of_the_next_life(tmp_path).is_restarted_after_a_drain(1000.0)
    drained_at(tmp_path / "p1", 1000.0)
    slot = slot_of_the_next_life(tmp_path)
    assert slot.is_restarted_after_a_drain(1000.0 + RESTARTED_S - 1)
    assert not slot.is_restarted_after_a_drain(1000.0 + RESTARTED_S)
    assert not take_slot(tmp_path, "p2").is_restarted_after_a_drain(1000.0)
    slot.note_drained()
    assert (slot_of_the_next_life(tmp_path).drained_at or 0.0) > 1000.0 + RESTARTED_S


def test_only_the_previous_incarnation_in_the_slot_counts(tmp_path: Path) -> None:
    """A processor that began the next run and was killed within the minute is started again to continue that run."""
    (tmp_path / "p1").mkdir()
    drained_at(tmp_path / "p1", 1000.0)
    assert slot_of_the_next_life(tmp_path).is_restarted_after_a_drain(1001.0)
    assert not slot_of_the_next_life(tmp_path).is_restarted_after_a_drain(1002.0)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(*paths: Path) -> set[str]:
    return {f"{path.stat().st_mode & 0o777:o}" for path in paths}


def test_what_a_processor_stores_is_for_its_user_only(tmp_path: Path, no_umask: None) -> None:
    """State, rows and the sockets of Spark are below its folder, which nobody else can enter."""
    base = tmp_path / "new" / "processors"
    slot = take_slot(base, "p1")
    assert modes(base, base.parent, slot.directory, slot.directory / "container") == {"700"}
    assert modes(base / "p1.lock") == {"600"}


def test_a_folder_of_an_earlier_release_is_closed_and_one_that_others_use_stays(tmp_path: Path, no_umask: None) -> None:
    (tmp_path / "p1" / "container").mkdir(parents=True)
    tmp_path.chmod(0o755)
    slot = take_slot(tmp_path, "p1")
    assert modes(slot.directory, slot.directory / "container") == {"700"}
    assert modes(tmp_path) == {"755"}


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p1").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path.stat().st_uid or 1) + 1)
    with pytest.raises(ConfigError, match=r"p1 belongs to another user, .*Set processor.dir to a writable folder"):
        take_slot(tmp_path, "p1")
