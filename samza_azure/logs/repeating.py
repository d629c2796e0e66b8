"""What is sent again if it is not answered, and what is sent at all while nothing may be appended.

- `Create`, `Put`, `Read`, `Enumerate`, `EnumerateAges`, `Delete` change nothing when repeated. They are repeated until
  they are answered, or until the permit is over; the rule may then be started again from its log. A busy service is
  left alone for as long as it asks (`Retry-After`).
- `Append` is sent once, and what became of it is the answer. Only the rule decides whether to send it again.
- Writing operations are sent only while appends are permitted. Without that, a processor that was frozen could create
  the log of a run that was drained and cleaned up meanwhile.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from samza_azure.errors import PermitExpired, StorageUnavailable, Unsettled
from samza_azure.logs.operations import Append, Create, Delete, Operation, Pause, Put, Rule, Sent

T = TypeVar("T")

#: What is sent only while appends are permitted.
Writing: TypeAlias = Append | Create | Put | Delete


def repeating(rule: Rule[T], may_append: Callable[[], bool]) -> Rule[T]:
    """The same rule, in which operations that are not answered are repeated while `may_append` is true.

    The driver performs each operation that this yields once, and throws `StorageUnavailable` in if it is not answered.
    Raises `PermitExpired` when nothing may be appended.
    """
    answer: Any = None
    while True:
        try:
            operation = rule.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if isinstance(operation, Writing) and not may_append():
            raise PermitExpired(f"Nothing may be written to {operation.name} now.")
        answer = yield from _answer_to(operation, may_append)


def _answer_to(operation: Operation, may_append: Callable[[], bool]) -> Rule[Any]:
    tries = 0
    while True:
        try:
            return (yield operation)
        except StorageUnavailable as error:
            failure = error
        if isinstance(operation, Append):
            if failure.after_s:
                yield Pause(1, failure.after_s)  # before the rule looks what is there
            return Sent.UNKNOWN if isinstance(failure, Unsettled) else Sent.NOT
        tries += 1
        _demand_permit(may_append, failure)
        yield Pause(tries, failure.after_s)
        _demand_permit(may_append, failure)  # it may have expired in the pause


def _demand_permit(may_append: Callable[[], bool], failure: StorageUnavailable) -> None:
    if not may_append():
        raise PermitExpired(f"The storage does not answer, and the permit is over: {failure}") from failure
