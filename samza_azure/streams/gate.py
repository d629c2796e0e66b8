"""What a task's sources may do, and what a drain changes about that. Pure: no clock, no I/O.

`tasks/gate_files.py` carries the gate from the container to the sources, and their answers back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from samza_azure.logs.position import Ends, Position
from samza_azure.messages import Drain, DrainPhase, DrainStep
from samza_azure.streams.offset import ProducerPosition, ProducerState


@dataclass(frozen=True, slots=True)
class Gate:
    """What a task's sources may do. `version` increases with each change."""

    version: int = 0
    shut: bool = False  # no further batch
    frozen: bool = False  # source streams are read no further, or only up to `ends`
    ends: Ends | None = None  # where each source partition ends
    step: int = 0
    draining: bool = False  # batches need not wait for task.commit.ms
    batch_bytes: int | None = None  # of input, if a batch must be smaller than usual

    def changed(self, **fields: Any) -> "Gate":
        """The next version of the gate, with these fields changed."""
        return replace(self, version=self.version + 1, **fields)

    def end_of(self, partition: str | None) -> Position | None:
        """Where a drain ends a source partition; (0, 0) if nothing of it was read. None: no end is set."""
        return None if partition is None or self.ends is None else self.ends.get(partition, (0, 0))


class SourceAnswer(Protocol):
    """What one source answered last."""

    @property
    def version(self) -> int:
        """The gate's version under which it answered."""

    @property
    def is_at_end(self) -> bool:
        """Whether a drain has set the ends, and no row is left before them."""


def next_gate(gate: Gate, drain: Drain) -> Gate:
    """The gate that a drain asks for; `gate` itself if that is in force. A drain that has set ends cannot be undone."""
    if drain.step is None:
        return gate.changed(frozen=False, draining=False) if gate.draining and gate.ends is None else gate
    flushes = drain.step is DrainStep.FLUSH
    if gate.draining and (gate.ends is not None or not flushes):
        return gate
    return gate.changed(frozen=True, draining=True, ends=dict(drain.ends) if flushes else None)


def next_steps(
    gate: Gate, drain: Drain, answers: Sequence[SourceAnswer], sources: int, frozen_for: str | None
) -> list[DrainPhase]:
    """The phases of a drain that a task may enter now, in their order.

    None before all its `sources` have answered under this gate: a call that began under an earlier one may still return
    rows. `frozen_for` is the drain for which the task has reported where it stopped, and None if it reads no source
    stream.
    """
    has_answered = len(answers) >= sources and all(each.version == gate.version for each in answers)
    if drain.step is None or not has_answered:
        return []
    stopped = [DrainPhase.SOURCES_STOPPED] if frozen_for not in (None, drain.uuid) else []
    may_flush = drain.step is DrainStep.FLUSH and gate.ends is not None and not gate.step
    return [*stopped, DrainPhase.FLUSHING] if may_flush and all(each.is_at_end for each in answers) else stopped


def is_all_read(places: Sequence[ProducerPosition], ends: Sequence[Position | None]) -> bool:
    """Whether a source has read all that a drain leaves it: partitions up to their ends, tasks (None) to DRAINED."""
    return all(
        place.state is ProducerState.DRAINED if end is None else place.position == end
        for place, end in zip(places, ends, strict=True)
    )


def read_too_far(places: Sequence[ProducerPosition], ends: Sequence[Position | None]) -> int | None:
    """The first partition that was read further than its end: the next run would read those rows again."""
    for number, (place, end) in enumerate(zip(places, ends, strict=True)):
        if end is not None and place.position > end:
            return number
    return None
