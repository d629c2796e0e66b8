"""S12: what the answer to a request says is true, and a request has one answer."""

from collections.abc import Mapping
from typing import Any

from samza_azure.group.control import Control, RunPhase
from samza_azure.group.requests import ACCEPTED, ALREADY_DRAINED, CANCELLED, TOO_LATE
from samza_azure.group.rows import RequestKind
from samza_azure.messages import DrainStep


class Requested:
    """What has been in the control blob at any time, and which drains were said to be cancelled."""

    def __init__(self) -> None:
        self._obeyed: set[tuple[RequestKind, str]] = set()
        self._cancelled: set[str] = set()
        self._has_drained = self._has_flushed = False

    def publish(self, control: Control) -> str | None:
        """A value of the control blob is accepted. Return what is wrong with it, if anything."""
        drain = control.drain
        self._obeyed |= {(RequestKind.CANCEL, key) for key in control.withdrawn}
        if control.stop is not None:
            self._obeyed.add((RequestKind.STOP, control.stop.uuid))
        if drain is not None:
            self._obeyed.add((RequestKind.DRAIN, drain.uuid))
            self._has_flushed |= drain.step is DrainStep.FLUSH
        self._has_drained |= control.phase is RunPhase.DRAINED
        if drain is not None and drain.uuid in self._cancelled:
            return f"S12: the drain {drain.uuid} is in progress, and its answer is {CANCELLED!r}"
        return None

    def answer(self, key: str, before: Mapping[str, Any], text: str) -> str | None:
        """A request gets this answer. Return what is wrong with it, if anything."""
        kind, earlier = RequestKind(str(before["kind"])), str(before.get("answer", ""))
        if earlier not in ("", text):
            return f"S12: the answer to the {kind} {key} was {earlier!r} and becomes {text!r}"
        if kind is RequestKind.DRAIN and text == CANCELLED:
            self._cancelled.add(key)
            return None
        is_true = {
            ACCEPTED: (kind, key) in self._obeyed,
            CANCELLED: (kind, key) in self._obeyed,
            ALREADY_DRAINED: self._has_drained,
            TOO_LATE: self._has_flushed,
        }.get(text, True)
        return None if is_true else f"S12: the answer to the {kind} {key} is {text!r}, and that is not true"
