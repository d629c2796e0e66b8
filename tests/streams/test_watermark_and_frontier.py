"""How event time moves with a batch. Times in microseconds, delays in milliseconds."""

import pytest

from samza_azure.streams.offset import INFINITY_US, Offset, ProducerPosition, ProducerState
from samza_azure.streams.watermark import frontier_us, next_watermark_us

SECOND = 1_000_000


def offset(stream: str, *frontiers: int | None) -> Offset:
    return Offset(stream, 0, None, tuple(ProducerPosition((0, number), each) for number, each in enumerate(frontiers)))


ORDERS, PAYMENTS = offset("orders", 9 * SECOND, 7 * SECOND + 1_234), offset("payments", 8 * SECOND)


def test_an_offset_knows_its_positions() -> None:
    assert offset("orders", None, 5).positions == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("offsets", "step", "delays", "watermark"),
    [
        ([ORDERS], 0, [("orders", 2_000)], 5 * SECOND + 1_000),  # the least progress, in whole milliseconds
        ([ORDERS, PAYMENTS], 0, [("orders", 1_000), ("payments", 3_000)], 5 * SECOND),  # the least of all inputs
        ([ORDERS, PAYMENTS], 0, [("payments", 0)], 8 * SECOND),  # an input without event time does not count
        ([ORDERS, offset("payments", None)], 0, [("orders", 0), ("payments", 0)], None),  # a silent producer holds back
        ([ORDERS], 0, [], None),
        ([ORDERS], 1, [("orders", 2_000)], INFINITY_US),  # a drain flushes
        ([offset("orders", None)], 1, [], INFINITY_US),
    ],
)
def test_the_watermark_after_a_batch(
    offsets: list[Offset], step: int, delays: list[tuple[str, int]], watermark: int | None
) -> None:
    assert next_watermark_us(offsets, step, delays) == watermark


@pytest.mark.parametrize(
    ("terms", "watermark_ms", "lag_us", "frontier"),
    [
        ([("orders", 0)], 0, 0, 7 * SECOND + 1_234),  # a stage without state passes its input's on
        ([("orders", -SECOND)], 0, 0, 6 * SECOND + 1_234),
        ([(None, 0)], 5_000, 0, 5 * SECOND),  # one with state has emitted what its watermark has passed
        ([("orders", 0), (None, 0)], 5_000, 0, 5 * SECOND),
        ([("orders", 0), (None, 0)], 0, 0, None),  # Spark's 0 means that there is none yet
        ([("orders", 0)], 0, 2 * SECOND, 5 * SECOND + 1_234),
        ([], 5_000, 0, None),
        ([(None, -SECOND)], INFINITY_US // 1000, SECOND, INFINITY_US),  # nothing comes after the end of time
    ],
)
def test_the_frontier_of_a_batch(
    terms: list[tuple[str | None, int]], watermark_ms: int, lag_us: int, frontier: int | None
) -> None:
    assert frontier_us([ORDERS, PAYMENTS], watermark_ms, terms, lag_us) == frontier


def test_a_drained_producer_does_not_hold_the_watermark_back() -> None:
    drained = Offset(
        "orders", 0, None, (ProducerPosition((0, 0), 3, ProducerState.DRAINED), ProducerPosition((0, 0), 9 * SECOND))
    )
    assert next_watermark_us([drained], 0, [("orders", 0)]) == 9 * SECOND
