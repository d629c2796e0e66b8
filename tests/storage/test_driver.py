"""One loop runs the rules of the logs, on storages that are called and on those that are awaited."""

import asyncio
from typing import Any

import pytest

from samza_azure.errors import StorageUnavailable
from samza_azure.logs.operations import Enumerate, Operation, Pause, Rule
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.driver import answered, drive, driven


def asking(prefix: str, tries: int) -> Rule[tuple[int, Any]]:
    """A rule that asks again after each failure."""
    for failures in range(tries):
        try:
            found = yield Enumerate(prefix)
            return failures, found
        except StorageUnavailable:
            pass
    raise StorageUnavailable("It was asked too often.")


class Failing:
    """A list of blobs that is not told at first."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def list(self, prefix: str) -> list[tuple[str, int]]:
        self.failures -= 1
        if self.failures >= 0:
            raise StorageUnavailable("away")
        return [(f"{prefix}0", 1)]


@pytest.mark.parametrize("failures", [0, 2, 5])
def test_a_rule_learns_the_same_whether_its_calls_are_awaited_or_not(failures: int) -> None:
    awaited = Failing(failures)

    async def later(operation: Operation) -> Any:
        assert isinstance(operation, Enumerate)
        await asyncio.sleep(0)
        return awaited.list(operation.prefix)

    outcomes = []
    for play in (
        lambda: drive(asking("a/", 4), Failing(failures)),  # type: ignore[arg-type]
        lambda: asyncio.run(driven(asking("a/", 4), later)),
    ):
        try:
            outcomes.append(play())
        except StorageUnavailable as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1] == ((failures, [("a/0", 1)]) if failures < 4 else "It was asked too often.")


def test_a_rule_is_driven_at_once_while_a_loop_runs() -> None:
    async def within() -> Any:
        return drive(asking("a/", 1), MemoryAccount().blobs())

    assert asyncio.run(within()) == (0, [])


@pytest.mark.parametrize("tries", [None, 3, 2])
def test_a_call_is_repeated_until_it_is_answered_or_was_tried_so_often(tries: int | None) -> None:
    failing, waits = Failing(2), list[Pause]()
    if tries == 2:
        with pytest.raises(StorageUnavailable, match="away"):
            answered(lambda: failing.list("p"), waits.append, tries=tries)
        assert waits == [Pause(1)]
    else:
        assert answered(lambda: failing.list("p"), waits.append, tries=tries) == [("p0", 1)]
        assert waits == [Pause(1), Pause(2)]
