"""Which operations are sent again, and which are not sent at all."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_azure.errors import PermitExpired, StorageUnavailable, Unsettled
from samza_azure.logs.operations import (
    BUSY_MOST_S,
    Append,
    Create,
    Enumerate,
    Operation,
    Pause,
    Put,
    Read,
    Rule,
    Sent,
    rest_s,
)
from samza_azure.logs.repeating import repeating

WRITING = [Append("b", b"data", 0), Create("b"), Put("b", b"data")]
READING = [Read("b", 0, 10), Enumerate("b/")]


def asked(*operations: Operation) -> Rule[list[Any]]:
    """A rule that asks for these, and returns what was answered."""
    answers = []
    for each in operations:
        answer = yield each
        answers.append(answer)
    return answers


def played(rule: Rule[Any], answers: Iterator[Any]) -> tuple[list[Operation], Any]:
    """What a rule asks for, and what it returns, if it gets these answers; a pause is answered by itself."""
    sent, operation = [], next(rule)
    try:
        while True:
            sent.append(operation)
            answer = None if isinstance(operation, Pause) else next(answers)
            operation = rule.throw(answer) if isinstance(answer, Exception) else rule.send(answer)
    except StopIteration as stop:
        return sent, stop.value


@pytest.mark.parametrize("operation", [*WRITING[1:], *READING], ids=repr)
def test_a_repeatable_operation_is_repeated_until_it_is_answered(operation: Operation) -> None:
    answers = iter([StorageUnavailable("away"), Unsettled("lost"), "answered"])
    sent, result = played(repeating(asked(operation), lambda: True), answers)
    assert sent == [operation, Pause(1), operation, Pause(2), operation]
    assert result == ["answered"]


@pytest.mark.parametrize(
    ("failure", "answer"), [(Unsettled("lost"), Sent.UNKNOWN), (StorageUnavailable("away"), Sent.NOT)]
)
def test_an_append_is_sent_once_and_what_became_of_it_is_the_answer(failure: Exception, answer: Sent) -> None:
    sent, result = played(repeating(asked(WRITING[0]), lambda: True), iter([failure]))
    assert (sent, result) == ([WRITING[0]], [answer])


@pytest.mark.parametrize("operation", WRITING, ids=repr)
def test_nothing_is_written_without_a_permit(operation: Operation) -> None:
    with pytest.raises(PermitExpired, match="b now"):
        played(repeating(asked(operation), lambda: False), iter(["answered"]))


@pytest.mark.parametrize("operation", [*WRITING[1:], *READING], ids=repr)
def test_nothing_is_repeated_after_a_pause_in_which_the_permit_has_expired(operation: Operation) -> None:
    """A busy service may ask for a pause that is longer than a permit."""
    rule = repeating(asked(operation), iter([*([True] if operation in WRITING else []), True, False]).__next__)
    assert next(rule) == operation
    assert rule.throw(StorageUnavailable("busy", after_s=5.0)) == Pause(1, 5.0)
    with pytest.raises(PermitExpired, match="busy"):
        rule.send(None)


@pytest.mark.parametrize("operation", READING, ids=repr)
def test_a_read_needs_no_permit_and_is_not_repeated_without_one(operation: Operation) -> None:
    assert played(repeating(asked(operation), lambda: False), iter(["answered"]))[1] == ["answered"]
    with pytest.raises(PermitExpired, match="away"):
        played(repeating(asked(operation), lambda: False), iter([StorageUnavailable("away")]))


def test_an_operation_that_is_answered_starts_the_next_one_with_a_short_pause() -> None:
    read = READING[0]
    answers = iter([StorageUnavailable("away"), 1, StorageUnavailable("away"), 2])
    sent, result = played(repeating(asked(read, read), lambda: True), answers)
    assert sent == [read, Pause(1), read] * 2
    assert result == [1, 2]


def test_pauses_double_up_to_a_second() -> None:
    assert [Pause(tries).seconds for tries in (1, 2, 3, 7, 1000, 100_000)] == [0.02, 0.04, 0.08, 1.0, 1.0, 1.0]


def test_a_busy_service_is_left_alone_for_as_long_as_it_asks() -> None:
    busy = [StorageUnavailable("busy", after_s=seconds) for seconds in (0.01, 3.0)]
    sent, _ = played(repeating(asked(READING[0]), lambda: True), iter([*busy, "answered"]))
    assert [each.seconds for each in sent if isinstance(each, Pause)] == [0.02, 3.0]
    assert Pause(1, 3600.0).seconds == BUSY_MOST_S


def test_an_append_that_a_busy_service_refused_is_followed_by_no_call_before_it_asks_for_one() -> None:
    sent, result = played(repeating(asked(WRITING[0]), lambda: True), iter([StorageUnavailable("busy", after_s=3.0)]))
    assert (sent, result) == ([WRITING[0], Pause(1, 3.0)], [Sent.NOT])


@given(st.floats(0, 10), st.floats(0, 1e6))
def test_a_busy_service_is_left_alone_as_long_as_it_asks_but_not_for_ever(least_s: float, after_s: float) -> None:
    rest = rest_s(least_s, StorageUnavailable("busy", after_s=after_s))
    assert rest == max(least_s, min(after_s, BUSY_MOST_S))
    assert rest_s(least_s, PermitExpired("over")) == least_s
