"""What `NamedRows` promises, on memory and on Azurite."""

import pytest

from samza_azure.group.actions import CleanRun
from samza_azure.host.perform import perform
from samza_azure.host.runs import RunLogs
from samza_azure.stream_io.log import hint_position, hint_values
from tests.storage.conftest import AnyAccount


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


def test_a_log_whose_name_is_ambiguous_is_an_error(account: AnyAccount) -> None:
    with pytest.raises(ValueError, match="stands for /"):
        account.hints().publish("runs|1", {"length": 1})


def test_an_invalid_hint_is_ignored_and_hides_no_other(account: AnyAccount) -> None:
    hints = account.hints()
    hints.publish("runs/1-a/clean-0", hint_values((2, 70), None, drained=False))
    hints.publish("a", {"blob": "two", "length": 7})
    hints.publish("b", {"blob": True, "length": 7})
    hints.publish("c", {"blob": -1, "length": 7})
    hints.publish("d", {"temperature": 21})
    ends = {name: hint_position(values) for name, values in hints.poll().items()}
    assert ends == {"runs/1-a/clean-0": (2, 70), "a": None, "b": None, "c": None, "d": None}


async def test_the_clean_up_of_a_run_forgets_its_hints_and_no_others(account: AnyAccount) -> None:
    """All containers poll all hints, so those of runs long past would cost more with each run."""
    hints = account.hints()
    others = ("runs/1-ab/clean-0", "streams/flights/0")
    for name in ("runs/1-a/clean-0", "runs/1-a/clean-1", *others):
        hints.publish(name, {"length": 1})
    blob, rows, runs = account.control_blob(), account.rows(), RunLogs(account.blobs())
    for _ in range(2):
        assert await perform(CleanRun("1-a"), "p1", blob, rows, runs, limit=1, timeout=5.0) is None
        assert sorted(hints.poll()) == sorted(others)
