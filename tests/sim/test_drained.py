"""Drains at any batch: 200 small fleets, each drained once a batch that is drawn with it is in its log.

What had been read is what the drained run's positions say. That what came out is what a serial reader would have
written of it, row for row and window for window, is S7 (`simulator/outcome.py`); it is looked at whenever a run is
drained. Half of the fleets meet faults as well. In some the source is also read by low-level tasks: each of their
messages came out once, and so did what their `on_drain` emitted, also where it was called again after a kill. Some
of these have asked for their shutdown before.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from samza_azure.group.control import Control
from samza_azure.group.rows import RequestKind
from samza_azure.logs.record import Header, Kind
from simulator.scenario import Scenario
from simulator.world import World

#: Drains, how many of them a test has, and how many are drawn in each `make test`.
CASES, AT_ONCE, ALWAYS = 200, 10, 10
#: The drain is requested when all logs together have at most this many batches.
BATCHES = 60
FAULTS = ("crash", "container dies", "leaves", "joins", "outage", "supervisor freezes", "cut off")


def drawn(seed: int) -> Scenario:
    """A small fleet, and what happens to it."""
    dice = Random(f"drained {seed}")
    has_faults = dice.random() < 0.5
    return Scenario(
        seed=seed,
        style="storm",
        processors=dice.choice([1, 2, 3]),
        sources=dice.choice([1, 2, 3, 4]),
        counts=dice.choice([1, 2, 3]),
        profile=dice.choice(["fast", "default"]),
        fault_s=240.0,
        every_s=dice.choice([10.0, 30.0]),
        faults=FAULTS if has_faults else (),
        lost=dice.choice([0.0, 0.02]) if has_faults else 0.0,
        slow_batch=dice.choice([0.0, 0.05]),
        audited=dice.random() < 0.3,
        handled=Random(f"drained, low-level {seed}").random() < 0.7,
        shuts_down=Random(f"drained, shut down {seed}").random() < 0.5,
        forgets=dice.random() < 0.5,
    )


class Cut(World):
    """A drain is asked for when a certain batch is in its log."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.left = Random(f"cut {scenario.seed}").randint(1, BATCHES)
        self.read: list[tuple[int, int]] = []  # of each drained run: rows read in all runs, rows that there were
        self._check = self.ledger._check_record
        self.ledger._check_record = self._checked  # type: ignore[method-assign]

    async def _faults(self) -> None:
        """Until a run is drained, or for so long."""
        while not self.read and self.loop.time() < self.scenario.fault_s:
            if self.scenario.faults and self.dice.random() < 1 / self.scenario.every_s:
                self._fault(self.dice.choice(self.scenario.faults))
            await self._wait(1.0)

    async def _stay(self) -> None:
        """Whether it stays well, other tests ask."""

    async def _lose_container(self) -> None:
        """And how the loss of a container is borne."""

    async def _lose_one(self) -> None:
        """Or of a processor."""

    def _upgrade(self) -> None:
        """No other run begins."""

    def _checked(self, prefix: str, header: Header) -> None:
        self._check(prefix, header)
        if header.kind is Kind.BATCH:
            self.left -= 1
            if self.left == 0:
                self.faults += 1  # as if it came by chance
                self.loop.call_soon(self.ask, RequestKind.DRAIN)

    def _drained(self, control: Control) -> None:
        super()._drained(control)
        read = sum(end for _, end in control.positions.values())
        now = self.loop.time()
        there = sum(self.habits.available(now, partition) for partition in range(self.scenario.sources))
        self.read.append((read, there))


@contextmanager
def silence() -> Iterator[None]:
    """Faults are logged, hundreds of them."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[pytest.mark.long] * (first >= ALWAYS)) for first in range(0, CASES, AT_ONCE)],
)
def test_a_drain_at_any_batch_puts_out_what_was_read(first: int) -> None:
    rows = calls = 0
    for seed in range(first, first + AT_ONCE):
        world = Cut(drawn(seed))
        with silence():
            result = world.play()
        assert result.violation is None, "\n".join([*result.history, f"seed {seed}: {result.violation}"])
        assert world.left <= 0, f"seed {seed}: no drain came"
        read, there = world.read[0]
        assert read < there, f"seed {seed}: all {read} rows were read, so nothing was cut"
        rows += result.seen["rows checked"]
        calls += result.seen["on_drain called"]
    print(f"{AT_ONCE} drains, {rows} rows, {calls} calls of on_drain")
    assert rows > 20 * AT_ONCE
    assert calls > 0
