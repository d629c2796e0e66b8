"""A source's offset: its position in each producer's log, with what the producer reported. Pure: no clock, no I/O.

Spark's own log stores the offsets, so a replay and a restore see the same frontiers and compute the same watermark.
As JSON: {"of": stream, "step": 0, "fired": 5, "at": [[blob, position, frontier], [blob, position, frontier, "idle"]]},
with the producers in the order of the plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from samza_azure.logs.position import Position

#: The end of time in microseconds, in the year 33658. The window of a row of 9999-12-31 ends after the last datetime of
#: Python, and must fire, too. It is a ninth of what 64 bits hold, so that Spark can add delays and windows to it.
INFINITY_US = 10**18
INFINITY_MS = INFINITY_US // 1000
#: The last of the steps of an offset.
LAST_STEP = 2


class ProducerState(StrEnum):
    """The state that a producer reported last."""

    ACTIVE = "active"
    IDLE = "idle"  # left out of the least frontier until its next record
    DOUBTED = "doubted"  # it reported to be idle, but its input has grown since: it holds the frontier back
    DRAINED = "drained"  # no more rows will come


@dataclass(frozen=True, slots=True)
class ProducerPosition:
    """A source's position in one producer's log. With a frontier of None, not known yet, it holds event time back."""

    position: Position
    frontier_us: int | None = None
    state: ProducerState = ProducerState.ACTIVE


@dataclass(frozen=True, slots=True)
class Offset:
    """A source's positions in the logs of all its producers."""

    of: str
    step: int  # 0 run, 1 flush, 2 final
    fired_us: int | None  # the least frontier that the batch up to here ran with
    at: tuple[ProducerPosition, ...]

    @property
    def positions(self) -> list[Position]:
        """The positions alone, in the producers' order."""
        return [producer.position for producer in self.at]

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark stores it: compact, since it is written with each batch."""
        return {
            "of": self.of,
            "step": self.step,
            "fired": self.fired_us,
            "at": [_producer_json(each) for each in self.at],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Offset":
        """Make an offset from what `to_json` returned. Raise ValueError, KeyError or TypeError for anything else."""
        of, step, fired = value["of"], value["step"], value["fired"]
        if type(of) is not str or type(step) is not int or not 0 <= step <= LAST_STEP or not _is_time(fired):
            raise ValueError(f"the offset {value!r:.200} makes no sense")
        return cls(of, step, fired, tuple(_producer(each) for each in value["at"]))


def _producer_json(producer: ProducerPosition) -> list[Any]:
    short = [*producer.position, producer.frontier_us]
    return short if producer.state is ProducerState.ACTIVE else [*short, str(producer.state)]


def _producer(value: Sequence[Any]) -> ProducerPosition:
    blob, position, frontier, *state = value
    if type(blob) is not int or type(position) is not int or min(blob, position) < 0 or not _is_time(frontier):
        raise ValueError(f"the position {value!r:.200} makes no sense")
    if len(state) > 1:
        raise ValueError(f"the position {value!r:.200} has too many parts")
    return ProducerPosition((blob, position), frontier, ProducerState(state[0]) if state else ProducerState.ACTIVE)


def _is_time(value: Any) -> bool:
    """Whether this is a time in microseconds of 64 bits, or None."""
    return value is None or (type(value) is int and -(1 << 63) <= value < 1 << 63)


def least_us(producers: Sequence[ProducerPosition]) -> int | None:
    """The event time up to which all producers are done. None: a producer has not reported any yet.

    Idle producers do not hold the others back. If only idle ones are left, their last frontiers still hold.
    """
    active = [
        producer.frontier_us
        for producer in producers
        if producer.state in (ProducerState.ACTIVE, ProducerState.DOUBTED)
    ]
    if active:
        return None if None in active else min(frontier for frontier in active if frontier is not None)
    idle = [
        producer.frontier_us
        for producer in producers
        if producer.state is ProducerState.IDLE and producer.frontier_us is not None
    ]
    if any(producer.state is ProducerState.IDLE for producer in producers):
        return min(idle, default=None)
    return INFINITY_US


def by_stream(offsets: Iterable[Offset]) -> dict[str, list[ProducerPosition]]:
    """The producers of each stream. If several sources read a producer, the position furthest behind counts.

    That source has more to read, so the producer counts as active there, whatever it has reported.
    """
    read: dict[str, list[tuple[ProducerPosition, ...]]] = {}
    for offset in offsets:
        read.setdefault(offset.of, []).append(offset.at)
    return {stream: [_behind(seen) for seen in zip(*sources, strict=True)] for stream, sources in read.items()}


def _behind(seen: Sequence[ProducerPosition]) -> ProducerPosition:
    """One producer, as several sources have seen it."""
    last = min(seen, key=lambda producer: producer.position)
    agreed = all((producer.position, producer.state) == (last.position, last.state) for producer in seen)
    return last if agreed else replace(last, state=ProducerState.ACTIVE)
