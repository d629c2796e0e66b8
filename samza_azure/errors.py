"""Whose fault it is, and what to do next.

SamzaAzureError
├── ConfigError            you wrote it: correct the job file, the pipeline or the command (exit 2)
│   ├── AccessDenied       the account refuses the key or the identity (exit 3 if that may pass)
│   │   └── AccessLost     it accepted them before: start the processor again with valid ones (exit 5)
│   └── PipelineRefused    a stage. That the run has another pipeline is no exception: `group/ending.py:_misfit`
├── StorageUnavailable     wait and try again; what was sent did not happen (exit 3 before joining)
│   ├── SignInFailed       there is no token: see to the identity of this machine or user (exit 3)
│   └── Unsettled          wait, then read: what was sent may have happened
├── RowsGone               rows were deleted before they were read; begin elsewhere
├── Superseded             a newer owner has the log; stop the task. Not an error for the user
├── PermitExpired          no heartbeat was accepted for too long; nothing may be appended now
├── CorruptState           stop; the message names the blob and the position (exit 1)
│   └── StateLost          a log that must exist is gone; it is never created anew
├── TooOld                 the stored data needs a later samza-azure: start that release here
├── JobFailed              a task failed wherever it was tried (exit 1)
└── TimedOut               what was waited for did not happen in time (exit 4)

A lost race is not an error: it is an answer, returned and not raised. Why a processor or a command ended is a
`Verdict`, one type from the decision to the exit code.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Verdict(IntEnum):
    """Why a process ended: its exit code."""

    DONE = 0  # drained, stopped, left, or there was nothing to do
    FAILED = 1  # a task failed wherever it was tried, or state was lost or is corrupt
    REFUSED = 2  # the job file, the pipeline or the command has to change before another start helps
    UNREACHABLE = 3  # the account never answered or let us in; another start may find it as it should be
    TIMED_OUT = 4  # what a command waited for did not happen in time
    ACCESS_LOST = 5  # the account accepted us and now refuses us; another start may bring a new secret
    LEFT_OPEN = 8  # it was asked to leave, and has; but a task had not ended, or the storage does not know it has left


@dataclass(frozen=True, slots=True)
class Ending:
    """How a processor ends: the verdict, which is the exit code, and a sentence for the user."""

    code: Verdict
    message: str
    drained: bool = field(default=False, compare=False)  # the next start finds the run drained

    def error(self) -> "SamzaAzureError":
        """Return the ending as an error, for a listener."""
        return _ERRORS.get(self.code, JobFailed)(self.message)


class SamzaAzureError(Exception):
    """The base of all errors of samza_azure. `exit_code` is the exit code of a command that ends with it.

    Example:
        try:
            reader = Reader.from_job("job.toml", "orders")
        except StorageUnavailable:  # an outage: try again
            raise
        except SamzaAzureError as error:  # the message says what to do
            sys.exit(f"{error}")
    """

    exit_code = Verdict.FAILED


class ConfigError(SamzaAzureError):
    """Something that the user wrote cannot work. The message says what to write instead."""

    exit_code = Verdict.REFUSED


class ModelTooLarge(ConfigError):
    """The job model does not fit into the control blob."""


class AccessDenied(ConfigError):
    """The storage account refuses the key, the token or the identity.

    `may_pass` is true if a later try may succeed with the same configuration: a new role assignment takes effect only
    after some minutes, a firewall is opened, a clock is corrected. Then the exit code is 3 and not 2.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass
        if may_pass and self.exit_code is Verdict.REFUSED:
            self.exit_code = Verdict.UNREACHABLE


class AccessLost(AccessDenied):
    """The account has accepted this process and now refuses it: a key was renewed, a signature expired, a role was
    removed."""

    exit_code = Verdict.ACCESS_LOST


class PipelineRefused(ConfigError):
    """A stage or its plan is not allowed. The message says which operator of which stage, and what to write instead."""


class Mistakes(PipelineRefused):
    """All that was found wrong with a pipeline, each mistake with its place, which may be unknown."""

    def __init__(self, found: Sequence[tuple[str, str]]) -> None:
        lines = [f"  {message}" + (f"\n    {place}" if place else "") for message, place in found]
        ((message, place), *others) = found
        super().__init__("\n".join([f"The pipeline has {len(found)} mistakes:", *lines]) if others else message)
        if place and not others:
            self.add_note(place)
        self.found = tuple(found)


class StorageUnavailable(SamzaAzureError):
    """The account does not answer. Nothing was changed; try again, after `after_s` if the account asks for that."""

    exit_code = Verdict.UNREACHABLE

    def __init__(self, message: str, *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class SignInFailed(StorageUnavailable):
    """The identity of this machine or user gave no token, so nothing was sent to the account. azure-identity has tried
    again where that makes sense."""


class Unsettled(StorageUnavailable):
    """The answer to a write was lost. Only a read shows whether the write happened."""


class Superseded(SamzaAzureError):
    """A newer owner writes this log. The task stops here at once and runs elsewhere."""


class PermitExpired(SamzaAzureError):
    """The supervisor's permit ran out: nothing may be appended until it is renewed."""


class CorruptState(SamzaAzureError):
    """Stored bytes are not what was written. `blob` and `position` say where."""

    def __init__(self, message: str, *, blob: str, position: int = 0) -> None:
        super().__init__(f"{message} (blob {blob}, position {position})")
        self.blob = blob
        self.position = position


class StateLost(CorruptState):
    """A log that must exist is missing, or a blob to which a producer was appending."""


class RowsGone(SamzaAzureError):
    """A reader's next rows were deleted before it read them: by retention, or because the run was deleted."""


class TooOld(SamzaAzureError):
    """The stored data has a format that this release does not know. A processor that meets it stands by.

    `needs` is the format that a reader must know, `knows` the latest that this release knows.
    """

    def __init__(self, what: str, needs: int, knows: int) -> None:
        super().__init__(
            f"{what} has format {needs} of a later samza-azure; this one knows {knows}. Start the later one here, too."
        )
        self.what, self.needs, self.knows = what, needs, knows

    def __reduce__(self) -> tuple[type["TooOld"], tuple[str, int, int]]:
        return TooOld, (self.what, self.needs, self.knows)


class JobFailed(SamzaAzureError):
    """Two processors, or all if there are fewer, gave up the same task, so the run failed."""


class TimedOut(SamzaAzureError):
    """A wait reached its time limit."""

    exit_code = Verdict.TIMED_OUT


class LeftOpen(SamzaAzureError):
    """The processor has left as it was asked to, but a task had not ended, or the storage does not know that it left.

    The others take its tasks once it is silent for long enough.
    """

    exit_code = Verdict.LEFT_OPEN


_ERRORS: dict[Verdict, type[SamzaAzureError]] = {
    Verdict.REFUSED: ConfigError,
    Verdict.UNREACHABLE: StorageUnavailable,
    Verdict.TIMED_OUT: TimedOut,
    Verdict.ACCESS_LOST: AccessLost,
    Verdict.LEFT_OPEN: LeftOpen,
}


def in_full(error: BaseException) -> str:
    """The message and its notes, such as the file and line of the stage."""
    return "\n  ".join([str(error), *getattr(error, "__notes__", ())])
