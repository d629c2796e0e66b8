"""Which lines of the log are due, and which are held back."""

import logging
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from samza_azure.log_rate_limit import EVERY_S, KIND_MOST, LogRateLimit, RepeatFilter

LOG = logging.getLogger("samza_azure.test")


def test_a_line_is_due_once_a_minute_by_its_name() -> None:
    now = 5.0
    rate_limit = LogRateLimit(lambda: now)
    assert [rate_limit.is_due("a"), rate_limit.is_due("a"), rate_limit.is_due("b")] == [True, False, True]
    now += EVERY_S - 1
    assert not rate_limit.is_due("a")
    now += 1
    assert [rate_limit.is_due("a"), rate_limit.is_due("a")] == [True, False]


def test_names_of_the_past_are_forgotten() -> None:
    now = 5.0
    rate_limit = LogRateLimit(lambda: now)
    for number in range(100):
        rate_limit.is_due(str(number))
    now += EVERY_S
    rate_limit.is_due("a")
    assert len(rate_limit._until) == 1


def passed(
    repeats: RepeatFilter, at: float, text: str, *values: object, level: int = logging.WARNING, **more: object
) -> str:
    """What is logged of such a line at this time."""
    record = LOG.makeRecord(LOG.name, level, "", 0, text, values, None, extra=more)
    record.created = 1_000_000.0 + at
    return record.getMessage() if repeats.filter(record) else ""


def test_of_one_kind_three_lines_a_minute_are_passed_and_the_rest_is_counted() -> None:
    """A position or an operation in a message made each one another, and none was held back."""
    repeats = RepeatFilter()
    said = [passed(repeats, at, "Reading from %d", at) for at in range(60)]
    assert [text for text in said if text] == ["Reading from 0", "Reading from 1", "Reading from 2"]
    assert passed(repeats, 60.0, "Reading from %d", 60) == "Reading from 60 (57 more like this before)"
    assert passed(repeats, 30.0, "another kind %d", 1) == "another kind 1"


def test_lines_that_name_a_task_and_news_are_passed() -> None:
    repeats = RepeatFilter()
    assert all(passed(repeats, 0.0, "task %s has failed", number, task=f"a-{number}") for number in range(10))
    assert all(passed(repeats, 0.0, "version %d", number, level=logging.INFO) for number in range(10))


def test_lines_of_a_low_level_are_held_back_if_they_tell_an_error() -> None:
    repeats = RepeatFilter()
    said = [passed(repeats, 0.0, "%s: %s", at, OSError(at), level=logging.INFO) for at in range(10)]
    assert [bool(text) for text in said] == [True] * KIND_MOST + [False] * (10 - KIND_MOST)


@given(
    st.lists(st.tuples(st.floats(0, 200), st.sampled_from(["a %s", "b %s", "c %s"]), st.integers(0, 3)), max_size=80)
)
def test_no_minute_has_more_lines_than_kinds_allow_and_every_line_is_passed_or_counted(
    lines: list[tuple[float, str, int]],
) -> None:
    repeats, times, counted = RepeatFilter(), dict[str, list[float]](), 0
    for at, text, value in sorted(lines):
        said = passed(repeats, at, text, value)
        if said:
            times.setdefault(text, []).append(at)
            counted += 1 + sum(_held(said))
    for each in times.values():
        assert all(late - early >= EVERY_S for early, late in zip(each, each[KIND_MOST:], strict=False))
    assert counted + sum(repeats._held.values()) == len(lines)


def _held(said: str) -> Iterator[int]:
    _, _, more = said.partition("(")
    if more:
        yield int(more.split()[0])
