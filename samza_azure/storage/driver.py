"""Runs the rules of `samza_azure.logs` on a storage, one call after the other.

Idempotent operations are repeated here. An append is sent once; the rule decides whether to send it again.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar, assert_never

from samza_azure.errors import PermitExpired, StorageUnavailable, Unsettled
from samza_azure.logs.operations import (
    Append,
    AppendRefused,
    Create,
    Enumerate,
    Operation,
    Pause,
    Put,
    Read,
    Rule,
    Sent,
)
from samza_azure.storage.interface import Blobs, Missing, Refused

T = TypeVar("T")

BetweenTries = Callable[[int], None]


def back_off(tries: int) -> None:
    """Wait 20 ms after the first try, twice as long after each further one, at most a second."""
    time.sleep(min(0.02 * 2 ** min(tries - 1, 10), 1.0))


def always() -> bool:
    """A permit that never expires."""
    return True


def drive(
    rule: Rule[T], blobs: Blobs, *, may_append: Callable[[], bool] = always, wait: BetweenTries | None = None
) -> T:
    """Run a rule to its end.

    With `wait`, operations that are not answered are tried again while `may_append` is true; then raise PermitExpired.
    Without `wait` the first failure is raised; that is for reading.
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
    """Perform one operation, once. A lost append is an answer (`Sent`); a failure of the others is raised."""
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
            found = blobs.read(name, start, length)
            return None if isinstance(found, Missing) else found
        case Enumerate(prefix):
            return blobs.list(prefix)
        case Pause():
            pass
        case _:
            assert_never(operation)
    return None


def _insist(operation: Operation, blobs: Blobs, may_append: Callable[[], bool], wait: BetweenTries) -> Any:
    """Perform one operation, and repeat it until it is answered; an append always has an answer."""
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


def _answer(answer: int | Refused | Missing) -> Sent | AppendRefused:
    match answer:
        case int():
            return Sent.DONE
        case Refused(code):
            return AppendRefused(code)
        case Missing():
            return AppendRefused("BlobNotFound")
    assert_never(answer)
