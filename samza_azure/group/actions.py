"""Everything that a processor can do, as values. `host/perform.py` performs them in one `match`.

Each call to the storage occupies a resource: at most one call per resource is under way. `answers.ANSWERS` lists the
possible answers to each; `learn.py` says what follows from them.
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
#: Prefixes of resources that exist per row; the row's key follows.
MEMBER, REQUEST = "member ", "request "


@dataclass(frozen=True, slots=True)
class ReadOwnRow:
    """Read our row: after a refusal, a lost answer, or before joining."""


@dataclass(frozen=True, slots=True)
class InsertOwnRow:
    """Join when there is no row of this id."""

    row: ProcessorRow


@dataclass(frozen=True, slots=True)
class ReplaceOwnRow:
    """Join in the place of a dead predecessor of the same id."""

    row: ProcessorRow
    etag: str


@dataclass(frozen=True, slots=True)
class MergeOwnRow:
    """The heartbeat. It is refused if the leader has marked us dead, which is how we learn of it."""

    row: ProcessorRow
    etag: str


@dataclass(frozen=True, slots=True)
class ReadLeaderRow:
    """Read the leader's heartbeat."""


@dataclass(frozen=True, slots=True)
class WriteLeaderRow:
    """The leader's heartbeat, or the take-over of the row. Without an ETag the row is inserted."""

    row: LeaderRow
    etag: str | None


@dataclass(frozen=True, slots=True)
class ReadControl:
    """Read the control blob. With a lease id the read also proves the lease."""

    lease_id: str | None = None
    unless_etag: str | None = None


@dataclass(frozen=True, slots=True)
class CreateControl:
    """Create the control blob at the very first start. The host refuses if any task log exists: then state was lost."""

    control: Control


@dataclass(frozen=True, slots=True)
class BreakLease:
    """Depose the holder of the lease, if the blob still has the ETag for which the suspicion was formed."""

    etag: str


@dataclass(frozen=True, slots=True)
class AcquireLease:
    """Take the lease under a new id."""

    lease_id: str
    etag: str


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Renew the lease for its full time."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """Release the lease, after the work and the row."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class WriteControl:
    """The only way to decide anything for the group. Both ETag and lease id fence it."""

    control: Control
    etag: str
    lease_id: str
    has_newcomers: bool = False  # only then the limit applies: no member, and no take-over, is refused for the size


@dataclass(frozen=True, slots=True)
class ScanMembers:
    """Read all processors' rows."""


@dataclass(frozen=True, slots=True)
class ReadMember:
    """Read one other processor's row. A processor that waits for a release need not scan all rows."""

    processor: str


@dataclass(frozen=True, slots=True)
class ReadRequests:
    """Read the requests to the leader."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Write the answer to a request."""

    key: str
    etag: str
    answer: str


@dataclass(frozen=True, slots=True)
class MarkDead:
    """Fence a silent member by the ETag whose age was measured. A 412 means that it is alive."""

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
    """Give up the leadership: the lease was not renewed in time, or the others' rows cannot be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rejoin:
    """We were marked dead: stop all work, come back as a new incarnation."""

    reason: str


#: End this processor.
Finish = Ending


@dataclass(frozen=True, slots=True)
class BeginEnd:
    """Begin to end this processor: work first, then the row, then the lease."""

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
    """The resource that the call occupies."""
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
