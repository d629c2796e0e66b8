"""A drain notification: which run is to be drained, who asked for it, and how far the drain has come.

There is one truth. A request row asks for a drain; the leader takes it up by writing the notification, with a step,
into the control blob. Both forms carry Samza's field names: `uuid`, `runId`, `drainMode`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from samza_azure.foreign import parsed
from samza_azure.group.shape import Grows
from samza_azure.logs.position import Ends
from samza_azure.messages import DrainStep

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: None of our run ids is as long as this.
_TEXT_LIMIT = 256
#: How many drains of earlier runs are remembered.
REMEMBERED = 5


class DrainMode(StrEnum):
    """What a drain does with what was read.

    DEFAULT: everything that was read goes through every stage, all windows and timers fire, and the run is over.

    Example:
        assert notification.mode is DrainMode.DEFAULT
    """

    DEFAULT = "DEFAULT"


@dataclass(frozen=True, slots=True)
class DrainNotification(Grows):
    """A drain. As somebody asks for it, it has no step; in the control blob it has one.

    `history` holds the steps taken so far, ending in DRAINED, and `at_ms` when each was taken, in milliseconds since
    1970 by the clock of whoever led then: for people, never for decisions. `by` and `asked_ms` are what the request
    said of itself.

    Example:
        def on_drain(self, notification: DrainNotification) -> None:
            print(notification.run_id, notification.reached, notification.by)
            assert DrainNotification.from_json(notification.to_json()).run_id == notification.run_id
    """

    uuid: str
    run_id: str  # in a request: empty for the run in progress, or else the next
    mode: DrainMode = DrainMode.DEFAULT
    step: DrainStep | None = None
    ends: Ends = field(default_factory=dict)
    history: tuple[str, ...] = ()
    by: str = ""
    asked_ms: int = 0
    at_ms: tuple[int, ...] = ()

    @property
    def reached(self) -> str:
        """The last step taken: FREEZE, FLUSH or DRAINED. Empty while the drain is only asked for."""
        return self.history[-1] if self.history else str(self.step or "")

    def to_json(self) -> str:
        """The request as JSON, with Samza's field names."""
        return json.dumps({"uuid": self.uuid, "runId": self.run_id, "drainMode": str(self.mode)})

    @classmethod
    def from_json(cls, text: str | bytes) -> "DrainNotification":
        """Parse what `to_json` made.

        Raises:
            ValueError: the text is something else.
        """
        try:
            fields = parsed(text)
        except ValueError as error:
            raise ValueError(f"A drain notification is a JSON object, and this is none: {error}") from error
        if not isinstance(fields, dict):
            raise ValueError(f"A drain notification is a JSON object, not a {type(fields).__name__}")
        return from_fields(fields)

    def __str__(self) -> str:
        return f"drain {self.uuid} of run {self.run_id or '(the next)'}, mode {self.mode}"


def timed(drain: DrainNotification | None, before: DrainNotification | None, wall_ms: int) -> DrainNotification | None:
    """The same with a time for each step that it has taken since `before`. 0: an earlier version took the step."""
    if drain is None:
        return None
    recorded = len(before.history) if before is not None and before.uuid == drain.uuid else 0
    if recorded >= len(drain.history):
        return drain
    unknown = max(recorded - len(drain.at_ms), 0)
    taken = len(drain.history) - len(drain.at_ms) - unknown
    return replace(drain, at_ms=(*drain.at_ms, *[0] * unknown, *[wall_ms] * taken))


def remembered(drains: tuple[DrainNotification, ...], drain: DrainNotification | None) -> tuple[DrainNotification, ...]:
    """The last drains with one more, without what only its own run needs."""
    if drain is None:
        return drains
    return (*drains, replace(drain, ends={}))[-REMEMBERED:]


def from_fields(fields: Mapping[str, Any]) -> DrainNotification:
    """The notification of these fields, which may be a request row's columns; others than ours are ignored.

    A field that is missing, is no text, or holds what it cannot hold is a `ValueError` that names it. As in Samza, the
    mode is read in any case.
    """
    texts = {}
    for name in ("uuid", "runId", "drainMode"):
        value = fields.get(name)
        if not isinstance(value, str) or len(value) > _TEXT_LIMIT:
            wrong = "is missing" if value is None else "must be a short text"
            raise ValueError(f"The field {name} of a drain notification {wrong}")
        texts[name] = value
    if not _UUID.fullmatch(texts["uuid"].lower()):
        raise ValueError(f"The field uuid of a drain notification must be a UUID, not {texts['uuid']!r}")
    mode = mode_of(texts["drainMode"])
    if mode is None:
        known = ", ".join(DrainMode)
        raise ValueError(f"The field drainMode of a drain notification is {texts['drainMode']!r}; known: {known}")
    asked_ms = fields.get("askedMs")
    return DrainNotification(
        texts["uuid"],
        texts["runId"],
        mode,
        by=str(fields.get("by", ""))[:_TEXT_LIMIT],
        asked_ms=asked_ms if type(asked_ms) is int else 0,
    )


def mode_of(text: str) -> DrainMode | None:
    """The mode of this name, in any case; None if this version knows no such mode."""
    try:
        return DrainMode(text.upper())
    except ValueError:
        return None
