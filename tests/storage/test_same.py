"""The storage in memory behaves like a service: both give the same answers to any calls.

The histories are drawn anew each time; a failure prints its own as a program. tests/prove/storage.py goes on for as
long as it is given.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.storage.conftest import SERVICES
from tests.storage.same import Leases, LogsAndRows, Pair
from tests.storage.stock import Stock

HISTORIES = settings(max_examples=15, stateful_step_count=40, deadline=None)


@pytest.fixture(params=SERVICES)
def pair(request: pytest.FixtureRequest, stocks: Callable[[str], Stock], runner: asyncio.Runner) -> Iterator[Pair]:
    stock = stocks(request.param)
    yield Pair(stock, runner, SERVICES[request.param])
    runner.run(stock.service.aclose())


def played(machine: Callable[[], RuleBasedStateMachine], aims: Callable[[], set[object]]) -> None:
    """Histories until they went where it matters. By chance one round in some dozens misses an aim."""
    for _ in range(5):
        run_state_machine_as_test(machine, settings=HISTORIES)
        if not aims():
            return
    raise AssertionError(f"No history went there: {aims()}")


def test_leases_and_conditional_writes_are_the_same(pair: Pair) -> None:
    def aims() -> set[object]:
        states = {"missing", "available", "leased", "broken", "expired"} ^ {one.state for one in pair.met}
        done = {one.call for one in pair.met if one.documented == "done"}
        return {*states, *({"write with A", "renew A", "break"} - done)}

    played(lambda: Leases(pair), aims)


def test_logs_rows_and_hints_are_the_same(pair: Pair) -> None:
    wanted = {
        ("append", "done"),
        ("append", "AppendPositionConditionNotMet"),
        ("merge", "done"),
        ("merge", "UpdateConditionNotSatisfied"),
    }
    played(lambda: LogsAndRows(pair), lambda: {*(wanted - {(one.call, one.documented) for one in pair.met})})
