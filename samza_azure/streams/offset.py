"""Where a source stands, and what its next offset is. Pure: no clock, no I/O, nothing of Spark.

An offset goes through Spark's own log, so a replay and a restore see the same frontiers and compute the same watermark.
As JSON: {"of": stream, "step": 0, "fired": 5, "at": [[blob, position, frontier], [blob, position, frontier, "idle"]]},
the producers in the order that the plan fixes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from samza_azure.logs.position import Position

#: The end of time in microseconds, in the year 33658. The window of a row of 9999-12-31 ends later than any datetime of
#: Python's can say, and must fire too. Spark adds delays and windows to it, in the 64 bits that it fills to a ninth.
INFINITY_US = 10**18


class State(StrEnum):
    """What a producer said last of itself."""

    ACTIVE = "active"
    IDLE = "idle"  # left out of the least frontier until its next record
    DOUBTED = "doubted"  # said that it is idle, but what it reads has grown since: it holds back
    DRAINED = "drained"  # nothing comes any more


@dataclass(frozen=True, slots=True)
class Place:
    """Where a source stands in one producer's log. A frontier of None: nothing is known yet, so it holds back."""

    position: Position
    frontier_us: int | None = None
    state: State = State.ACTIVE


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a source stands in all its producers' logs."""

    of: str
    step: int  # 0 run, 1 flush, 2 final
    fired_us: int | None  # the least frontier that the batch up to here ran with
    at: tuple[Place, ...]

    @property
    def positions(self) -> list[Position]:
        """Without what is known beside them."""
        return [place.position for place in self.at]

    def to_json(self) -> dict[str, Any]:
        """As Spark gets it: compact, since it is written with each batch."""
        return {"of": self.of, "step": self.step, "fired": self.fired_us, "at": [_place_json(each) for each in self.at]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Offset":
        """As `to_json` made it."""
        return cls(value["of"], value["step"], value["fired"], tuple(_place(each) for each in value["at"]))


def _place_json(place: Place) -> list[Any]:
    short = [*place.position, place.frontier_us]
    return short if place.state is State.ACTIVE else [*short, str(place.state)]


def _place(value: Sequence[Any]) -> Place:
    blob, position, frontier, *state = value
    return Place((blob, position), frontier, State(state[0]) if state else State.ACTIVE)


def least_us(places: Sequence[Place]) -> int | None:
    """The event time up to which all producers are done. None: somebody has not said anything yet.

    Idle producers do not hold the others back. When nobody else is left, what they promised before still holds.
    """
    active = [place.frontier_us for place in places if place.state in (State.ACTIVE, State.DOUBTED)]
    if active:
        return None if None in active else min(frontier for frontier in active if frontier is not None)
    idle = [place.frontier_us for place in places if place.state is State.IDLE and place.frontier_us is not None]
    if any(place.state is State.IDLE for place in places):
        return min(idle, default=None)
    return INFINITY_US


def by_stream(offsets: Iterable[Offset]) -> dict[str, list[Place]]:
    """The producers of each stream. If several sources read it, as the one has them that is furthest behind.

    Such a one has more to read, so that producer is not idle, whatever was heard of it so far.
    """
    read: dict[str, list[tuple[Place, ...]]] = {}
    for offset in offsets:
        read.setdefault(offset.of, []).append(offset.at)
    return {stream: [_behind(seen) for seen in zip(*sources, strict=True)] for stream, sources in read.items()}


def _behind(seen: Sequence[Place]) -> Place:
    """One producer, as several sources have seen it."""
    last = min(seen, key=lambda place: place.position)
    agreed = all((place.position, place.state) == (last.position, last.state) for place in seen)
    return last if agreed else replace(last, state=State.ACTIVE)
