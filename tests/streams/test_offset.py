"""Where a source stands and what comes next. Pure."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_azure.streams.idleness import in_question, is_quiet
from samza_azure.streams.offset import INFINITY_US, Offset, ProducerPosition, ProducerState, by_stream, least_us
from samza_azure.streams.pace import STEP_S, Pace, SourceProgress, next_offset, worth_bytes

IDLE, DRAINED = ProducerState.IDLE, ProducerState.DRAINED
PACE = Pace(between_rows=1.0, between_ticks=1.0, has_watermark=True)


def producer(frontier: int | None, state: ProducerState = ProducerState.ACTIVE, end: int = 0) -> ProducerPosition:
    return ProducerPosition((0, end), frontier, state)


@pytest.mark.parametrize(
    ("producers", "least"),
    [
        ([producer(5), producer(3)], 3),
        ([producer(5), producer(None)], None),
        ([producer(5), producer(3, IDLE)], 5),
        ([producer(5), producer(None, IDLE)], 5),
        ([producer(None), producer(3, IDLE)], None),
        ([producer(5, IDLE), producer(3, IDLE)], 3),
        ([producer(None, IDLE), producer(3, IDLE)], 3),
        ([producer(None, IDLE)], None),
        ([producer(5), producer(3, DRAINED)], 5),
        ([producer(5, IDLE), producer(3, DRAINED)], 5),
        ([producer(3, DRAINED), producer(None, DRAINED)], INFINITY_US),
    ],
)
def test_the_least_frontier(producers: list[ProducerPosition], least: int | None) -> None:
    """A producer that has reported nothing holds the watermark back; one that is idle or drained does not."""
    assert least_us(producers) == least


def test_the_slower_of_two_sources_of_a_stream_counts_and_unread_rows_are_not_idle() -> None:
    ahead = Offset("s", 0, None, (producer(90, end=9), producer(80, IDLE, end=3)))
    behind = Offset("s", 0, None, (producer(50, IDLE, end=5), producer(80, IDLE, end=3)))
    other = Offset("t", 0, None, (producer(7),))
    assert by_stream([ahead, other, behind]) == {
        "s": [producer(50, end=5), producer(80, IDLE, end=3)],
        "t": [producer(7)],
    }


def test_a_reader_is_quiet_when_no_producer_is_active() -> None:
    assert is_quiet([producer(5, IDLE), producer(3, DRAINED)])
    assert not is_quiet([producer(5, IDLE), producer(3)])


#: An event time in microseconds, of 64 bits like Spark's; what has more was not written by us.
TIMES = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
PLACES = st.builds(
    ProducerPosition,
    st.tuples(st.integers(0, 9), st.integers(0, 1 << 40)),
    TIMES,
    st.sampled_from(ProducerState),
)
OFFSETS = st.builds(Offset, st.text(), st.integers(0, 2), TIMES, st.lists(PLACES, max_size=5).map(tuple))


@given(OFFSETS)
def test_an_offset_survives_json(offset: Offset) -> None:
    assert Offset.from_json(offset.to_json()) == offset


START = Offset("s", 0, 7, (producer(7, end=10), producer(9, end=10)))
FOUND = SourceProgress(
    (producer(7, end=10), producer(9, end=10)), rows=0, is_at_end=False, since_rows=60.0, since_tick=60.0
)


def onward(
    found: SourceProgress, *, start: Offset = START, pace: Pace = PACE, step: int = 0, draining: bool = False
) -> Offset:
    return next_offset(start, found, pace, step=step, draining=draining)


def test_no_batch_without_new_rows() -> None:
    assert onward(FOUND) is START


def test_rows_make_a_batch_when_the_time_between_two_is_over() -> None:
    heads = (producer(8, end=20), producer(9, end=10))
    found = replace(FOUND, heads=heads, rows=1)

    assert onward(found) == Offset("s", 0, 7, heads)
    assert onward(replace(found, since_rows=0.9)) is START


def test_much_input_does_not_wait_for_the_end_of_the_period() -> None:
    heads = (producer(8, end=20), producer(9, end=10))
    found = replace(FOUND, heads=heads, rows=1, since_rows=0.1, size=99)
    pace = replace(PACE, worth_bytes=100)

    assert onward(found, pace=pace) is START
    assert onward(replace(found, size=100), pace=pace) == Offset("s", 0, 7, heads)
    assert onward(replace(found, rows=0, size=0, since_tick=0.1), pace=pace) is START


def test_a_longer_period_waits_for_more_input_up_to_half_a_batch() -> None:
    assert [worth_bytes(seconds, 32 << 20) >> 20 for seconds in (0, 0.5, 1, 3, 4, 60)] == [0, 2, 4, 12, 16, 16]


def test_a_drain_waits_only_for_producers_that_have_yet_to_end() -> None:
    """Each of four that end within a second would be given a batch of its own."""
    heads = (producer(8, end=20), producer(9, end=20))
    soon = replace(FOUND, heads=heads, since_rows=0.9, since_tick=0.9)
    reached = Offset("s", 0, 7, heads)

    assert onward(replace(soon, rows=1), draining=True) is START
    assert onward(replace(soon, rows=1, is_at_end=True), draining=True) == reached
    assert onward(replace(soon, rows=1, has_more=True), draining=True) == reached
    assert onward(replace(soon, rows=1, since_rows=1.0), draining=True) == reached
    assert onward(soon, draining=True) is START
    assert onward(replace(soon, is_at_end=True), draining=True) == reached
    assert onward(replace(soon, rows=1, is_at_end=True)) is START


def test_a_frontier_that_moved_makes_a_tick_once_a_second() -> None:
    heads = (producer(8, end=20), producer(9, end=10))
    found = replace(FOUND, heads=heads)

    assert onward(found) == Offset("s", 0, 7, heads)
    assert onward(replace(found, since_tick=0.5)) is START


def test_a_frontier_that_others_hold_back_makes_none() -> None:
    assert onward(replace(FOUND, heads=(producer(7, end=10), producer(50, end=30)))) is START


def test_windows_that_the_last_batch_made_due_get_a_tick() -> None:
    """The watermark set in a batch counts from the next one on."""
    start = replace(START, fired_us=5)

    assert onward(FOUND, start=start) == replace(START, fired_us=7)
    assert onward(FOUND, start=start, pace=replace(PACE, has_watermark=False)) is start


def test_an_offset_follows_when_all_producers_become_idle() -> None:
    heads = (producer(7, IDLE, 20), producer(9, IDLE, 20))
    assert onward(replace(FOUND, heads=heads)).at == heads


def test_a_flush_begins_when_all_is_read() -> None:
    """Not before, and rows that are still there go first."""
    at_end = replace(FOUND, is_at_end=True)
    heads = (producer(8, end=20), producer(9, end=10))

    assert onward(FOUND, step=1) is START
    assert onward(at_end, step=1) == Offset("s", 1, 7, START.at)
    assert onward(replace(at_end, rows=3, heads=heads), step=1, draining=True) == Offset("s", 0, 7, heads)


def test_a_task_that_may_fire_with_its_last_rows_keeps_them_for_that_batch() -> None:
    pace, heads = replace(PACE, keeps_last_rows=True), (producer(8, DRAINED, 20), producer(9, DRAINED, 10))
    at_end = replace(FOUND, is_at_end=True, rows=3, heads=heads)

    assert onward(at_end, pace=pace, draining=True) is START
    assert onward(at_end, pace=pace, draining=True, step=2) == Offset("s", 2, 7, heads)
    assert onward(replace(at_end, is_at_end=False), pace=pace, draining=True) == Offset("s", 0, 7, heads)


def test_rows_of_a_flush_wait_for_those_of_the_other_producers_from_when_they_came() -> None:
    """A source that had nothing to read for long would otherwise have a batch for the first producer that ends."""
    found = replace(FOUND, heads=(producer(8, DRAINED, 20), producer(9, end=10)), rows=1, since_new=0.9)

    assert onward(found, draining=True) is START
    assert onward(replace(found, since_new=1.0), draining=True) == Offset("s", 0, 7, found.heads)


def test_a_source_at_its_end_waits_briefly_for_the_flush_before_event_time_moves() -> None:
    """It comes at once, unless another source of the task has much to read still."""
    at_end = replace(FOUND, heads=(producer(8, end=20), producer(9, end=10)), is_at_end=True)

    assert onward(replace(at_end, since_end=0.1), draining=True) is START
    assert onward(replace(at_end, since_end=STEP_S), draining=True) == Offset("s", 0, 7, at_end.heads)
    assert onward(replace(at_end, since_end=0.1), step=1, draining=True) == Offset("s", 1, 7, at_end.heads)
    assert onward(replace(at_end, since_end=0.1, rows=1), draining=True) == Offset("s", 0, 7, at_end.heads)


def test_the_steps_of_a_flush_follow_each_other_and_end() -> None:
    first = replace(START, step=1)
    at_end = replace(FOUND, is_at_end=True)

    assert onward(at_end, start=first, step=1) is first
    assert onward(at_end, start=first, step=2).step == 2
    last = replace(START, step=2)
    assert onward(at_end, start=last, step=2) is last


def test_idleness_is_verified_only_if_event_time_would_rise() -> None:
    ahead, behind = ProducerPosition((0, 9), 90), ProducerPosition((0, 5), 50, ProducerState.IDLE)
    assert in_question([ahead, behind]) == [1]
    assert in_question([ProducerPosition((0, 9), 40), behind]) == []
    assert in_question([ProducerPosition((0, 9), None), behind]) == []
    assert in_question([ProducerPosition((0, 9), 90, ProducerState.IDLE), behind]) == []
    assert in_question([ahead, ProducerPosition((0, 5), None, ProducerState.IDLE)]) == [1]


def test_a_doubted_producer_holds_the_others_back() -> None:
    ahead = ProducerPosition((0, 9), 90)
    assert least_us([ahead, ProducerPosition((0, 5), 50, ProducerState.IDLE)]) == 90
    assert least_us([ahead, ProducerPosition((0, 5), 50, ProducerState.DOUBTED)]) == 50
    assert not is_quiet([ProducerPosition((0, 5), 50, ProducerState.DOUBTED)])
    assert in_question([ProducerPosition((0, 5), 50, ProducerState.DOUBTED)]) == [0]
