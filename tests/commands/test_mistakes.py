"""`run` and `dev` show a mistake as `check` does. tests/prove/mistakes.py plays all of them, with their remedies."""

from pathlib import Path

from samza_azure.commands.azurite.emulator import Azurite
from tests.commands.mistakes import MISTAKES
from tests.commands.plays import Play


def test_run_shows_a_mistake_and_ends_with_2(tmp_path: Path, emulator: Azurite) -> None:
    play = Play(tmp_path / "early", emulator.connection_string, MISTAKES["a stream's name"])
    play.mistaken()
    play.is_refused_by_run()


def test_dev_shows_a_mistake_on_a_terminal_and_ends_with_2(tmp_path: Path) -> None:
    play = Play(tmp_path / "late", "", MISTAKES["an event time that is text"])
    play.mistaken()
    play.is_refused_by_dev()
