"""Where a reader stands in logs."""

from typing import TypeAlias

#: Where a reader stands in a log: number of the blob, position in it.
Position: TypeAlias = tuple[int, int]
#: Positions by stream partition, written "flights/0".
Ends: TypeAlias = dict[str, Position]


def bytes_between(begin: Position, end: Position, roll_bytes: int) -> int:
    """About how many bytes of a log lie between two places in it; 0 if `end` is before `begin`.

    In one blob that is exact. A blob that another one follows counts as `roll_bytes` long, since its true length would
    take a call: less if the log rolled for the number of its records.
    """
    (old, begins), (new, ends) = begin, end
    if new == old:
        return max(ends - begins, 0)
    return max(roll_bytes - begins, 0) + (new - old - 1) * roll_bytes + ends if new > old else 0
