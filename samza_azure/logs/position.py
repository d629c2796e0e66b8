"""Where a reader stands in logs."""

from typing import TypeAlias

#: Where a reader stands in a log: number of the blob, position in it.
Position: TypeAlias = tuple[int, int]
#: Positions by stream partition, written "flights/0".
Ends: TypeAlias = dict[str, Position]
