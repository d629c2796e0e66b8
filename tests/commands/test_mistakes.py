"""`run` and `dev` show a mistake as `check` does. tests/prove/mistakes.py plays all of them, with their remedies."""

from pathlib import Path

import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.spark.jvm.java import find_java
from tests.commands.mistakes import MISTAKES
from tests.commands.plays import Play, Screen, flat


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once Java has been started."""
    home, started = tmp_path / "java", tmp_path / "java" / "started"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="21"')
    (home / "bin" / "java").write_text(f"#!/bin/sh\ntouch '{started}'\nexit 1\n")
    (home / "bin" / "java").chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java({"JAVA_HOME": str(home)}).home == home
    return started


def test_run_shows_a_mistake_and_ends_with_2_before_java_starts(
    tmp_path: Path, emulator: Azurite, started: Path
) -> None:
    play = Play(tmp_path / "early", emulator.connection_string, MISTAKES["a stream's name"])
    play.mistaken()
    play.is_refused_by_run()
    assert not started.exists()


def test_run_and_dev_refuse_a_file_that_hides_a_package(tmp_path: Path, emulator: Azurite, started: Path) -> None:
    play = Play(tmp_path / "hidden", emulator.connection_string, MISTAKES["a stream's name"])
    play.remedied()
    (play.folder / "pyspark.py").write_text("print('hello')\n")
    said = f"{play.folder / 'pyspark.py'} hides the package pyspark: "
    ended = play.ended("run", str(play.job), "--id", "one")
    assert (ended.returncode, ended.stderr.startswith(f"samza-azure: {said}")) == (2, True)
    screen = Screen(play.folder, play.nowhere, "dev", str(play.job), "--processors", "1")
    try:
        assert (screen.ended(), flat(said) in flat(screen.text)) == (2, True)
    finally:
        screen.process.kill()
    assert not started.exists()


def test_dev_shows_a_mistake_on_a_terminal_and_ends_with_2_before_java_starts(tmp_path: Path, started: Path) -> None:
    play = Play(tmp_path / "late", "", MISTAKES["an event time that is text"])
    play.mistaken()
    play.is_refused_by_dev()
    assert not started.exists()
