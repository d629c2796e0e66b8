"""Positions in logs."""

from typing import TypeAlias

#: A position in a log: the number of the blob, and the offset in it in bytes.
Position: TypeAlias = tuple[int, int]
#: Positions by stream partition, written "flights/0".
Ends: TypeAlias = dict[str, Position]


def bytes_between(begin: Position, end: Position, roll_bytes: int) -> int:
    """About how many bytes of a log are between two positions; 0 if `end` is before `begin`.

    Within one blob this is exact. A blob before the last counts as `roll_bytes` long, since its true length would take
    a call; it is shorter if the log rolled for the number of its records.
    """
    (old, begins), (new, ends) = begin, end
    if new < old:
        return 0
    if new == old:
        return max(ends - begins, 0)
    return max(roll_bytes - begins, 0) + (new - old - 1) * roll_bytes + ends
