"""What `Hints` promises, on memory and on Azurite."""

from typing import TypeAlias

import pytest

from samza_azure.sim.memory import MemoryAccount
from samza_azure.storage.connection import Account

AnyAccount: TypeAlias = Account | MemoryAccount


def test_a_hint_is_replaced_as_a_whole(account: AnyAccount) -> None:
    hints = account.hints()
    hints.publish("runs/1-a/clean-0", {"blob": 0, "length": 10, "frontier_us": 5_000_000_000, "drained": False})
    hints.publish("runs/1-a/clean-0", {"blob": 1, "length": 20, "drained": True})
    assert hints.poll() == {"runs/1-a/clean-0": {"blob": 1, "length": 20, "drained": True}}


def test_a_poll_has_the_hints_of_all_logs(account: AnyAccount) -> None:
    hints = account.hints()
    assert hints.poll() == {}
    for number in range(3):
        hints.publish(f"streams/flights/{number}", {"length": number})
    assert hints.poll() == {f"streams/flights/{number}": {"length": number} for number in range(3)}


def test_a_log_whose_name_could_not_be_told_from_another_is_an_error(account: AnyAccount) -> None:
    with pytest.raises(ValueError, match="stands for /"):
        account.hints().publish("runs|1", {"length": 1})
