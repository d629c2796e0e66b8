"""The possible answers to a call to the storage, as values: those of `outcomes`, what was read, why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeVar, overload

from samza_azure.group.actions import (
    AcquireLease,
    AnswerRequest,
    BreakLease,
    CleanRun,
    CreateControl,
    DeleteMember,
    DeleteRequest,
    InsertOwnRow,
    MarkDead,
    MergeOwnRow,
    ReadControl,
    ReadLeaderRow,
    ReadMember,
    ReadOwnRow,
    ReadRequests,
    ReleaseLease,
    RenewLease,
    ReplaceOwnRow,
    ScanMembers,
    StorageAction,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.control import Control
from samza_azure.group.rows import LeaderRow, ProcessorRow, Request
from samza_azure.outcomes import Missing, NotModified, Refused


class Trouble(Enum):
    """Why a call has no answer. Not a StrEnum, since an ETag is a str and must not be confused with trouble."""

    UNSETTLED = 1  # it may have happened
    UNAVAILABLE = 2  # it did not happen


@dataclass(frozen=True, slots=True)
class Busy:
    """The service did nothing and asks not to be called for `after_s`. Otherwise like `Trouble.UNAVAILABLE`."""

    after_s: float


@dataclass(frozen=True, slots=True)
class ControlRead:
    """The control blob as read."""

    control: Control
    etag: str


@dataclass(frozen=True, slots=True)
class Later:
    """The control blob needs a later release than ours: `needs` is its format."""

    needs: int
    reason: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The job model does not fit; nothing was sent."""

    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The account denies access; nothing happened. `may_pass`: a role assignment may not have taken effect yet."""

    reason: str
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """How many blobs of a drained run cannot be deleted. `code` is the service's error code for one of them."""

    count: int
    code: str


Answer: TypeAlias = (
    None
    | str
    | Refused
    | Busy
    | Later
    | TooLarge
    | Denied
    | Kept
    | NotModified
    | Missing
    | ControlRead
    | ProcessorRow
    | LeaderRow
    | tuple[ProcessorRow, ...]
    | tuple[Request, ...]
    | Trouble
)

#: Possible answers to any call that say nothing about the blob or row.
Nothing: TypeAlias = Trouble | Denied | Later

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


@overload
def expected(answer: Answer, a: type[A], /) -> A | Nothing: ...
@overload
def expected(answer: Answer, a: type[A], b: type[B], /) -> A | B | Nothing: ...
@overload
def expected(answer: Answer, a: type[A], b: type[B], c: type[C], /) -> A | B | C | Nothing: ...
@overload
def expected(answer: Answer, a: type[A], b: type[B], c: type[C], d: type[D], /) -> A | B | C | D | Nothing: ...
def expected(answer: Answer, *kinds: type) -> object:
    """The answer, as one of these or nothing. Whoever matches it cannot forget one without mypy noticing."""
    assert isinstance(answer, (*kinds, Trouble, Denied, Later)), f"{answer!r} answers another call"
    return answer


#: The answers to a write, which has a new ETag, and to a call that has none. Each may be refused.
_WRITTEN, _DONE = (str, Refused), (type(None), Refused, Missing)
#: The possible answers to each call. Any call may also be answered by `Nothing`.
ANSWERS: Mapping[type[StorageAction], tuple[type, ...]] = {
    ReadOwnRow: (ProcessorRow, Missing),
    InsertOwnRow: _WRITTEN,
    ReplaceOwnRow: _WRITTEN,
    MergeOwnRow: _WRITTEN,
    ReadLeaderRow: (LeaderRow, Missing),
    WriteLeaderRow: _WRITTEN,
    ReadControl: (
        ControlRead,
        NotModified,
        Missing,
        Refused,
        Later,
    ),  # Refused: the lease id is not ours
    CreateControl: _WRITTEN,
    BreakLease: _DONE,
    AcquireLease: _DONE,
    RenewLease: _DONE,
    ReleaseLease: _DONE,
    WriteControl: (*_WRITTEN, TooLarge),
    ScanMembers: (tuple,),
    ReadMember: (ProcessorRow, Missing),
    ReadRequests: (tuple,),
    AnswerRequest: _WRITTEN,
    MarkDead: _WRITTEN,
    DeleteMember: _DONE,
    DeleteRequest: _DONE,
    CleanRun: (type(None), Kept),
}
