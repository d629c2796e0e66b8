"""The storage in memory is true: whatever is done to it and to a service, both answer the same.

The histories are drawn anew each time; a failure prints its own as a program. tests/prove/storage.py goes on for as
long as it is given.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.storage.conftest import SERVICES
from tests.storage.same import Leases, LogsAndRows, Pair
from tests.storage.stock import Stock

HISTORIES = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.fixture(params=SERVICES)
def pair(request: pytest.FixtureRequest, stocks: Callable[[str], Stock], runner: asyncio.Runner) -> Iterator[Pair]:
    stock = stocks(request.param)
    yield Pair(stock, runner, SERVICES[request.param])
    runner.run(stock.service.aclose())


def test_leases_and_conditional_writes_are_the_same(pair: Pair) -> None:
    run_state_machine_as_test(lambda: Leases(pair), settings=HISTORIES)
    # The histories went where it matters.
    assert {one.state for one in pair.met} == {"missing", "available", "leased", "broken", "expired"}
    assert {one.call for one in pair.met if one.documented == "done"} >= {"write with A", "renew A", "break"}


def test_logs_rows_and_hints_are_the_same(pair: Pair) -> None:
    run_state_machine_as_test(lambda: LogsAndRows(pair), settings=HISTORIES)
    assert {(one.call, one.documented) for one in pair.met} >= {
        ("append", "done"),
        ("append", "AppendPositionConditionNotMet"),
        ("merge", "done"),
        ("merge", "UpdateConditionNotSatisfied"),
    }
