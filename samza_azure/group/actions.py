"""Everything that a processor can do to the world, as values. `host/perform.py` does them, one `match`.

Calls to storage name the resource that they occupy: of each resource at most one call is under way. What each may be
answered stands in `answers.ANSWERS`; `learn.py` says what follows from it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from samza_azure.errors import Ending
from samza_azure.group.control import Control
from samza_azure.group.rows import LeaderRow, ProcessorRow
from samza_azure.messages import Command

OWN_ROW, LEADER_ROW, CONTROL, LEASE, SCAN, REQUESTS, HOUSEKEEPING = (
    "own row",
    "leader row",
    "control",
    "lease",
    "scan",
    "requests",
    "housekeeping",
)
#: Of these there are many: each is a resource of its own, with its key behind it.
MEMBER, REQUEST = "member ", "request "


@dataclass(frozen=True, slots=True)
class ReadOwnRow:
    """See what stands in our row: after a refusal, a lost answer, or before joining."""


@dataclass(frozen=True, slots=True)
class InsertOwnRow:
    """Join: there is no row of this id."""

    row: ProcessorRow


@dataclass(frozen=True, slots=True)
class ReplaceOwnRow:
    """Join in the place of a dead predecessor of the same id."""

    row: ProcessorRow
    etag: str


@dataclass(frozen=True, slots=True)
class MergeOwnRow:
    """The heartbeat. Refused if the leader marked us dead, which is how we learn it."""

    row: ProcessorRow
    etag: str


@dataclass(frozen=True, slots=True)
class ReadLeaderRow:
    """The leader's sign of life."""


@dataclass(frozen=True, slots=True)
class WriteLeaderRow:
    """The leader's heartbeat, or the take-over of the row. Without an ETag it is inserted."""

    row: LeaderRow
    etag: str | None


@dataclass(frozen=True, slots=True)
class ReadControl:
    """Read the control blob. With a lease id the read also proves the lease."""

    lease_id: str | None = None
    unless_etag: str | None = None


@dataclass(frozen=True, slots=True)
class CreateControl:
    """The very first start. The host refuses it if any task log exists: then state was lost."""

    control: Control


@dataclass(frozen=True, slots=True)
class BreakLease:
    """Depose whoever holds the lease, if the blob still is what the suspicion was formed for."""

    etag: str


@dataclass(frozen=True, slots=True)
class AcquireLease:
    """Take the lease under a new id."""

    lease_id: str
    etag: str


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Start the lease's time again."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """Give it back, after work and row."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class WriteControl:
    """The one way in which anything is decided for the group. ETag and lease id both fence it."""

    control: Control
    etag: str
    lease_id: str
    has_newcomers: bool = False  # then the blob's limit holds; who is in already is never refused for a few bytes


@dataclass(frozen=True, slots=True)
class ScanMembers:
    """Read all processors' rows."""


@dataclass(frozen=True, slots=True)
class ReadMember:
    """Read one other processor's row: who waits for it to let go need not read them all."""

    processor: str


@dataclass(frozen=True, slots=True)
class ReadRequests:
    """Read what was asked of the leader."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Say what became of a request."""

    key: str
    etag: str
    answer: str


@dataclass(frozen=True, slots=True)
class MarkDead:
    """Fence a silent member, by the very ETag whose age was measured: 412 means it lives."""

    processor: str
    etag: str
    epoch: int


@dataclass(frozen=True, slots=True)
class DeleteMember:
    """Forget a member that is dead or left."""

    processor: str
    etag: str


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """Forget a request of a drained run."""

    key: str
    etag: str


@dataclass(frozen=True, slots=True)
class CleanRun:
    """Delete the logs of a drained run that hold no output stream. Idempotent."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Tell:
    """A command for the container."""

    command: Command


@dataclass(frozen=True, slots=True)
class StepDown:
    """Leave the leadership: the lease is not ours any more, or will not be for long."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rejoin:
    """We were marked dead: stop all work, come back as a new incarnation."""

    reason: str


#: End this processor.
Finish = Ending


@dataclass(frozen=True, slots=True)
class BeginEnd:
    """This processor is to end: work first, then the row, then the lease."""

    verdict: Finish


StorageAction: TypeAlias = (
    ReadOwnRow
    | InsertOwnRow
    | ReplaceOwnRow
    | MergeOwnRow
    | ReadLeaderRow
    | WriteLeaderRow
    | ReadControl
    | CreateControl
    | BreakLease
    | AcquireLease
    | RenewLease
    | ReleaseLease
    | WriteControl
    | ScanMembers
    | ReadMember
    | ReadRequests
    | AnswerRequest
    | MarkDead
    | DeleteMember
    | DeleteRequest
    | CleanRun
)
LocalAction: TypeAlias = Tell | StepDown | Rejoin | BeginEnd | Finish
Action: TypeAlias = StorageAction | LocalAction


def resource(action: StorageAction) -> str:
    """What the call occupies."""
    match action:
        case ReadOwnRow() | InsertOwnRow() | ReplaceOwnRow() | MergeOwnRow():
            return OWN_ROW
        case ReadLeaderRow() | WriteLeaderRow():
            return LEADER_ROW
        case ReadControl() | CreateControl() | BreakLease() | AcquireLease() | WriteControl():
            return CONTROL
        case RenewLease() | ReleaseLease():
            return LEASE
        case ScanMembers():
            return SCAN
        case ReadRequests():
            return REQUESTS
        case AnswerRequest(key=key) | DeleteRequest(key=key):
            return f"{REQUEST}{key}"
        case ReadMember(processor=processor) | MarkDead(processor=processor) | DeleteMember(processor=processor):
            return f"{MEMBER}{processor}"
        case CleanRun():
            return HOUSEKEEPING
