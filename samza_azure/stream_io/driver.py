"""Runs the rules of `samza_azure.logs` on a storage, one call after the other.

There is one loop, `driven`. It awaits each operation, as the simulator needs it; `drive` gives it operations that are
done at once, so that it never waits.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, assert_never

from samza_azure.errors import StorageUnavailable
from samza_azure.logs.operations import (
    Append,
    Create,
    Delete,
    Enumerate,
    EnumerateAges,
    Operation,
    Pause,
    Put,
    Read,
    Rule,
    Sent,
)
from samza_azure.logs.repeating import repeating
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Blobs

T = TypeVar("T")

BetweenTries = Callable[[Pause], None]


def back_off(pause: Pause) -> None:
    """Wait for this pause."""
    time.sleep(pause.seconds)


def answered(call: Callable[[], T], wait: BetweenTries, *, tries: int | None = None) -> T:
    """Repeat a call, which must be safe to repeat, until it is answered, so many times at most; raise the last error.

    Between two tries, call `wait`, which may give up by raising.
    """
    tried = 0
    while True:
        try:
            return call()
        except StorageUnavailable as error:
            tried += 1
            if tried == tries:
                raise
            wait(Pause(tried, error.after_s))


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

    async def done_at_once(operation: Operation) -> Any:
        if isinstance(operation, Pause) and wait is not None:
            wait(operation)
        return perform(operation, blobs)

    return _result(driven(rule if wait is None else repeating(rule, may_append), done_at_once))


async def driven(rule: Rule[T], carry: Callable[[Operation], Awaitable[Any]]) -> T:
    """Run a rule to its end. `carry` performs one operation, or raises `StorageUnavailable`, which the rule learns."""
    advance = partial(rule.send, None)
    try:
        while True:
            operation = advance()
            try:
                advance = partial(rule.send, await carry(operation))
            except StorageUnavailable as error:
                advance = partial(rule.throw, error)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing that takes time."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("an operation that is done at once has waited")


def perform(operation: Operation, blobs: Blobs) -> Any:
    """Perform one operation, once. What is not answered is raised."""
    match operation:
        case Append(name, data, position):
            return _answer(blobs.append(name, data, position))
        case Create(name):
            blobs.create(name)
        case Put(name, data):
            blobs.put(name, data)
        case Read(name, start, length):
            found = blobs.read(name, start, length)
            return None if isinstance(found, Missing) else found
        case Enumerate(prefix):
            return blobs.list(prefix)
        case EnumerateAges(prefix):
            return blobs.list_with_ages(prefix)
        case Delete(name):
            blobs.delete_many([name])  # says what is kept, where `delete` raises
        case Pause():
            pass
        case _:
            assert_never(operation)
    return None


def _answer(answer: int | Refused | Missing) -> Sent | Refused:
    match answer:
        case int():
            return Sent.DONE
        case Refused():
            return answer
        case Missing():
            return Refused("BlobNotFound")
    assert_never(answer)
