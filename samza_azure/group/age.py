"""How long a peer has been silent, measured by reads and not by the clock alone.

A failed read proves nothing about a peer, and an observer that was itself frozen has seen nothing. So age is the sum
of the gaps between successful reads that showed the same ETag, each counted as two read intervals at most.
"""

from dataclasses import dataclass

#: The minimum number of reads without a change before a peer is suspected or marked dead.
LEAST_READS = 3


@dataclass(frozen=True, slots=True)
class Age:
    """What is known of one row's silence. `etag` is empty for a row that is absent."""

    etag: str
    seconds: float
    reads: int
    read_at: float

    def silent(self, timeout_s: float) -> bool:
        """Whether it was unchanged for long enough, in enough reads."""
        return self.seconds >= timeout_s and self.reads >= LEAST_READS


def observed(age: Age | None, etag: str, now: float, interval_s: float) -> Age:
    """The age after one more successful read, which showed `etag`."""
    if age is None or age.etag != etag:
        return Age(etag, 0.0, 0, now)
    return Age(etag, age.seconds + min(now - age.read_at, 2 * interval_s), age.reads + 1, now)


def young(age: Age, now: float) -> Age:
    """The same row, with all suspicion forgotten: the observer was paused, or asked and was refused."""
    return Age(age.etag, 0.0, 0, now)
