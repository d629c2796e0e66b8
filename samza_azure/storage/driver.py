"""Runs the rules of `samza_azure.logs` on a storage, one call after the other.

What changes nothing when repeated is repeated here. An append is sent once; whether it is sent again, the rule says.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar, assert_never

from samza_azure.errors import PermitExpired, StorageUnavailable, Unsettled
from samza_azure.logs.operations import (
    Append,
    Create,
    Denied,
    Enumerate,
    Operation,
    Pause,
    Put,
    Read,
    Rule,
    Sent,
    Span,
)
from samza_azure.storage.interface import Blobs, Chunk, Missing, Refused

T = TypeVar("T")

Wait = Callable[[int], None]


def back_off(tries: int) -> None:
    """Wait 20 ms after the first try, twice as long after each further one, at most a second."""
    time.sleep(min(0.02 * 2 ** min(tries - 1, 10), 1.0))


def always() -> bool:
    """The permit of those who need none."""
    return True


def drive(rule: Rule[T], blobs: Blobs, *, may_append: Callable[[], bool] = always, wait: Wait | None = None) -> T:
    """Run a rule to its end.

    With `wait`, what the storage does not answer is tried again until `may_append` says no: PermitExpired. Without it
    the first failure is raised; that is for reading.
    """
    answer: Any = None
    try:
        while True:
            operation = rule.send(answer)
            answer = perform(operation, blobs) if wait is None else _insist(operation, blobs, may_append, wait)
    except StopIteration as stop:
        result: T = stop.value
        return result


def perform(operation: Operation, blobs: Blobs) -> Any:
    """One operation, sent once. What is lost of an append is its answer; what is lost of the others is raised."""
    match operation:
        case Append(name, data, position):
            try:
                return _answer(blobs.append(name, data, position))
            except Unsettled:
                return Sent.UNKNOWN
            except StorageUnavailable:
                return Sent.NOT
        case Create(name):
            blobs.create(name)
        case Put(name, data):
            blobs.put(name, data)
        case Read(name, start, length):
            match blobs.read(name, start, length):
                case Chunk(data, size):
                    return Span(data, size)
                case Missing():
                    return None
        case Enumerate(prefix):
            return blobs.list(prefix)
        case Pause():
            pass
        case _:
            assert_never(operation)
    return None


def _insist(operation: Operation, blobs: Blobs, may_append: Callable[[], bool], wait: Wait) -> Any:
    """One operation, repeated until it is answered. An append is not; its answer always comes."""
    if isinstance(operation, Append | Create | Put) and not may_append():
        raise PermitExpired(f"Nothing may be written to {operation.name} now.")
    if isinstance(operation, Pause):
        return wait(operation.tries)
    tries = 0
    while True:
        try:
            return perform(operation, blobs)
        except StorageUnavailable as error:
            if not may_append():
                raise PermitExpired(f"The storage does not answer, and the permit is over: {error}") from error
            tries += 1
            wait(tries)


def _answer(answer: int | Refused | Missing) -> Sent | Denied:
    match answer:
        case int():
            return Sent.DONE
        case Refused(code):
            return Denied(code)
        case Missing():
            return Denied("BlobNotFound")
    assert_never(answer)
