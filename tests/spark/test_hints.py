"""What a container learns from the hint rows, and tells by them."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from samza_azure.errors import StorageUnavailable
from samza_azure.storage.limits import drain_hint
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from samza_azure.tasks.hint_board import HintBoard


def test_a_requested_drain_is_reported_once(tmp_path: Path) -> None:
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


T = TypeVar("T")


class Refusing(Link):
    """Hints cannot be published for some time."""

    def __init__(self, failures: int, after_s: float = 0.0) -> None:
        self.left, self.after_s = failures, after_s
        self.tried_at: list[float] = []

    def call(self, operation: str, effect: Callable[[], T]) -> T:
        if operation == "hints.publish":
            self.tried_at.append(time.monotonic())
        if operation == "hints.publish" and self.left:
            self.left -= 1
            raise StorageUnavailable("The account is away.", after_s=self.after_s)
        return effect()


def test_a_hint_that_could_not_be_published_is_published_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last record of a drain has no later hint: the stages behind it waited for their next read of the log. The
    log has one line a minute, not one for each try."""
    caplog.set_level(logging.INFO)
    storage = MemoryStorage()
    board = HintBoard(MemoryAccount(storage, link=Refusing(2)).hints(), tmp_path / "hints")
    board.start()
    board.appended("runs/r1/clean-0", (0, 9), None, True)
    hints, deadline = MemoryAccount(storage).hints(), time.monotonic() + 20
    while "runs/r1/clean-0" not in hints.poll():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # the pace of asking
    assert [record.getMessage() for record in caplog.records if "published" in record.getMessage()] == [
        "The hint of runs/r1/clean-0 could not be published: The account is away."
    ]


def test_a_hint_is_not_published_sooner_than_a_busy_account_asks_for(tmp_path: Path) -> None:
    storage, busy = MemoryStorage(), Refusing(1, after_s=2.0)
    board = HintBoard(MemoryAccount(storage, link=busy).hints(), tmp_path / "hints")
    board.start()
    board.appended("runs/r1/clean-0", (0, 9), None, True)
    deadline = time.monotonic() + 30
    while len(busy.tried_at) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # the pace of asking
    assert busy.tried_at[1] - busy.tried_at[0] >= busy.after_s
