"""What a call to the storage answers when it did not do, or did not find, what was asked.

The same values all the way from the call to the decision. They are information: another processor was faster, or the
blob is gone. Trouble is not: there is no answer, and the call may have happened (`errors.Unsettled`).
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Refused:
    """The service refused: a condition did not hold. `code` is Azure's error code, for messages."""

    code: str


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such blob or row; with `container`, not even a container for it. The two are equal."""

    container: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class NotModified:
    """The blob still has the ETag that was given."""


__all__ = ["Missing", "NotModified", "Refused"]
