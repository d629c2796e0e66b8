"""Which producers become idle, and when. Pure."""

from collections.abc import Sequence

import pytest

from samza_azure.streams.idleness import after_silence, is_long, quiet_since
from samza_azure.streams.offset import ProducerPosition, ProducerState

ACTIVE, IDLE, DOUBTED, DRAINED = ProducerState


QUIET, BUSY = True, False


@pytest.mark.parametrize(
    ("since", "now", "expected"),
    [(None, 100.0, False), (70.0, 99.9, False), (70.0, 100.0, True), (70.0, 101.0, True)],
)
def test_a_silence_is_long_after_the_timeout(since: float | None, now: float, expected: bool) -> None:
    assert is_long(since, now, 30.0) == expected


@pytest.mark.parametrize(
    ("state", "since", "expected"),
    [
        (ACTIVE, None, ACTIVE),
        (ACTIVE, 71.0, ACTIVE),
        (ACTIVE, 70.0, IDLE),
        (IDLE, 70.0, IDLE),
        (DOUBTED, 70.0, DOUBTED),
        (DRAINED, 70.0, DRAINED),
    ],
)
def test_an_active_source_partition_becomes_idle_by_silence(
    state: ProducerState, since: float | None, expected: ProducerState
) -> None:
    place = ProducerPosition((0, 10), 7, state)
    assert after_silence(place, since, 100.0, 30.0) == ProducerPosition((0, 10), 7, expected)


@pytest.mark.parametrize(
    ("before", "are_quiet", "is_open", "expected"),
    [
        (None, [QUIET, QUIET], True, 100.0),
        (70.0, [QUIET, QUIET], True, 70.0),
        (0.0, [QUIET, QUIET], True, 0.0),
        (70.0, [QUIET, BUSY], True, None),
        (70.0, [QUIET], True, None),
        (70.0, [], True, None),
        (70.0, [QUIET, QUIET], False, None),
    ],
)
def test_a_task_is_quiet_while_all_its_sources_are_and_its_log_is_open(
    before: float | None, are_quiet: Sequence[bool], is_open: bool, expected: float | None
) -> None:
    assert quiet_since(before, 100.0, are_quiet, 2, is_open=is_open) == expected
