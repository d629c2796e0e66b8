"""Whose fault it is, and what to do next.

SamzaAzureError
├── ConfigError            you wrote it: mend the job file, the pipeline or the command (exit 2)
│   ├── AccessDenied       the account refuses the key or the identity
│   │   └── AccessLost     it let this processor in before: start it again with what is valid now (exit 5)
│   └── PipelineRefused    a stage, or a pipeline that the run in progress does not fit
├── StorageUnavailable     wait and try again; what was sent did not happen (exit 3 before joining)
│   └── Unsettled          wait, then read: what was sent may have happened
├── RowsGone               what a reader has not read yet was deleted; begin elsewhere
├── Superseded             a newer owner has the log; stop the task. No error for the user
├── PermitExpired          no heartbeat was accepted for too long; nothing may be appended now
├── CorruptState           stop; the message names the blob and the position (exit 1)
│   └── StateLost          a log that must exist is gone; never started afresh
├── TooOld                 what is stored needs a later samza-azure: start that one here
├── JobFailed              a task failed wherever it was tried (exit 1)
└── TimedOut               what was waited for did not come in time (exit 4)

A lost race is none of these: it is a reading, and is returned, not raised. Why a processor or a command ended is a
`Verdict`, one type from the decision to the exit code.
"""

from dataclasses import dataclass, field
from enum import IntEnum


class Verdict(IntEnum):
    """Why a process ended: its exit code."""

    DONE = 0  # drained, stopped, left, or there was nothing to do
    FAILED = 1  # a task failed wherever it was tried, or state is lost or corrupt
    REFUSED = 2  # the job file, the pipeline or the command has to change before another start helps
    UNREACHABLE = 3  # the account never answered; another start may find it
    TIMED_OUT = 4  # what a command waited for did not come in time
    ACCESS_LOST = 5  # the account let us in and refuses us since; another start may bring a new secret


@dataclass(frozen=True, slots=True)
class Ending:
    """How a processor ends: the verdict, which is the exit code, and a sentence for the user."""

    code: Verdict
    message: str
    drained: bool = field(default=False, compare=False)  # whoever starts it again finds the run drained

    def error(self) -> "SamzaAzureError":
        """The same as an error, for a listener."""
        return _ERRORS.get(self.code, JobFailed)(self.message)


class SamzaAzureError(Exception):
    """The root. `exit_code` is what a command exits with when nothing catches it."""

    exit_code = Verdict.FAILED


class ConfigError(SamzaAzureError):
    """Something that the user wrote cannot work. The message says what to write instead."""

    exit_code = Verdict.REFUSED


class ModelTooLarge(ConfigError):
    """The job model does not fit into the control blob."""


class AccessDenied(ConfigError):
    """The storage account refuses the key, the token or the identity.

    `may_pass` says that it knows us and misses a right: a role that was assigned just now counts some minutes later.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class AccessLost(AccessDenied):
    """The storage account let us in and refuses us since: a key was rotated, a signature ran out, a role was taken."""

    exit_code = Verdict.ACCESS_LOST


class PipelineRefused(ConfigError):
    """A stage does what a stage may not do, or the run in progress has another pipeline."""


class StorageUnavailable(SamzaAzureError):
    """The account does not answer. Nothing was changed; try again."""

    exit_code = Verdict.UNREACHABLE


class Unsettled(StorageUnavailable):
    """The answer to a write was lost. Only a read can tell whether it happened."""


class Superseded(SamzaAzureError):
    """A higher writer owns this log now. The task stops here at once; it runs elsewhere."""


class PermitExpired(SamzaAzureError):
    """The supervisor's permit ran out: nothing may be appended until it is renewed."""


class CorruptState(SamzaAzureError):
    """Stored bytes are not what was written. `blob` and `position` say where."""

    def __init__(self, message: str, *, blob: str, position: int = 0) -> None:
        super().__init__(f"{message} (blob {blob}, position {position})")
        self.blob = blob
        self.position = position


class StateLost(CorruptState):
    """A log that the control blob says must exist is not there."""


class RowsGone(SamzaAzureError):
    """A reader's next rows were deleted before it read them: by retention, or because the run was deleted."""


class TooOld(SamzaAzureError):
    """What is stored has a format that this release does not know. A processor that meets it stands by.

    `needs` is the format that a reader must know, `knows` the latest one that this release does.
    """

    def __init__(self, what: str, needs: int, knows: int) -> None:
        super().__init__(
            f"{what} has format {needs} of a later samza-azure; this one knows {knows}. Start the later one here, too."
        )
        self.what, self.needs, self.knows = what, needs, knows

    def __reduce__(self) -> tuple[type["TooOld"], tuple[str, int, int]]:
        return TooOld, (self.what, self.needs, self.knows)


class JobFailed(SamzaAzureError):
    """Two processors, or all that there are, gave one task up, and the run failed with it."""


class TimedOut(SamzaAzureError):
    """What was waited for did not happen in the time given."""

    exit_code = Verdict.TIMED_OUT


_ERRORS: dict[Verdict, type[SamzaAzureError]] = {
    Verdict.REFUSED: ConfigError,
    Verdict.UNREACHABLE: StorageUnavailable,
    Verdict.TIMED_OUT: TimedOut,
    Verdict.ACCESS_LOST: AccessLost,
}


def in_full(error: BaseException) -> str:
    """The message and its notes, such as the file and line of the stage that is meant."""
    return "\n  ".join([str(error), *getattr(error, "__notes__", ())])
