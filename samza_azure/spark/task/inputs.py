"""What a task reads: the logs of its inputs, and how much of them is for it."""

from collections.abc import Iterable

from samza_azure.logs.position import Position
from samza_azure.streams.offset import Offset


def places_of(offsets: Iterable[Offset]) -> set[tuple[str, tuple[Position, ...]]]:
    """The positions of the sources, as a set: Spark records a source twice that is used twice in a query."""
    return {(offset.of, tuple(offset.positions)) for offset in offsets}
