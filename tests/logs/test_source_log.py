"""The rules of a source log: producers that append at the same place, and what an append asks for."""

from contextlib import suppress
from typing import Any

from samza_azure.logs.operations import Append, Operation, Sent
from samza_azure.logs.record import Kind, Slice
from samza_azure.logs.source_log import SharedLog, append_shared
from samza_azure.storage.driver import drive, perform
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount
from tests.logs.race import GROUP, stored

PREFIX = "streams/flights/0"


def producer(name: str) -> SharedLog:
    return SharedLog(PREFIX, name, GROUP)


def rows(text: str) -> dict[str, Any]:
    return {"kind": Kind.BATCH, "slices": (Slice(0, text.encode(), 1),)}


def written(blobs: Blobs) -> list[str]:
    """All rows, in their order."""
    return [bytes(part.data).decode() for _, record in stored(blobs, PREFIX) for part in record.slices]


def test_an_append_is_one_operation_once_the_end_is_known() -> None:
    blobs, log = MemoryAccount().blobs(), producer("a")
    drive(append_shared(log, **rows("one")), blobs)
    drive(append_shared(log, **rows("two")), blobs)
    asked: list[Operation] = []
    rule = append_shared(log, **rows("three"))
    answer: Any = None
    with suppress(StopIteration):
        while True:
            asked.append(rule.send(answer))
            answer = perform(asked[-1], blobs)
    assert [type(each) for each in asked] == [Append]
    assert written(blobs) == ["one", "two", "three"]


def test_of_two_that_append_at_the_same_place_neither_takes_the_others_rows_for_its_own() -> None:
    blobs, slow, fast = MemoryAccount().blobs(), producer("slow"), producer("fast")
    drive(append_shared(slow, **rows("first")), blobs)
    rule = append_shared(slow, **rows("slow"))
    operation = next(rule)
    while not isinstance(operation, Append):
        operation = rule.send(perform(operation, blobs))
    drive(append_shared(fast, **rows("fast rows, at least as long")), blobs)
    answer: Any = Sent.UNKNOWN  # it did not land, and nobody says so
    with suppress(StopIteration):
        while True:
            answer = perform(rule.send(answer), blobs)
    assert written(blobs) == ["first", "fast rows, at least as long", "slow"]
