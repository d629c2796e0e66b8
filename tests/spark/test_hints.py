"""What a container learns from the hint rows."""

from pathlib import Path

from samza_azure.spark.source.hint_board import HintBoard
from samza_azure.storage.limits import drain_hint
from samza_azure.storage.memory import MemoryAccount


def test_a_requested_drain_is_told_once(tmp_path: Path) -> None:
    """Whatever else the hints say, and again for the next request of the run. It is news, so hints are read often."""
    hints, told = MemoryAccount().hints(), []
    board = HintBoard(hints, tmp_path / "hints", lambda: told.append("changed"))
    hints.publish("runs/r1/clean-0", {"blob": 0, "length": 7})
    assert (board.poll(), board.drain_asked.is_set(), told) == (True, False, [])
    hints.publish(drain_hint("r1", "first"), {})
    assert (board.poll(), board.drain_asked.is_set(), told) == (True, True, ["changed"])
    board.drain_asked.clear()
    assert (board.poll(), board.drain_asked.is_set(), told) == (False, False, ["changed"])
    hints.publish(drain_hint("r1", "second"), {})
    assert (board.poll(), board.drain_asked.is_set(), told) == (True, True, ["changed"] * 2)
    assert board.end_of(drain_hint("r1", "first")) is None
