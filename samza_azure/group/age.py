"""How long a peer has been silent, measured by reads and not by the clock alone.

A failed read proves nothing about a peer, and an observer that was itself frozen has seen nothing. So age is the sum
of the gaps between successful reads that showed the same ETag, each counted as two read intervals at most.
"""

from dataclasses import dataclass, replace

#: The minimum number of reads without a change before a peer is suspected or marked dead.
LEAST_READS = 3


@dataclass(frozen=True, slots=True)
class Age:
    """What is known of one row's silence. `etag` is empty for a row that is absent.

    `before_s` is for how long it was unchanged when it was first read, by the clock of the service. Nobody is suspected
    because of that, since the service may have been away; it tells how old the row is.
    """

    etag: str
    seconds: float
    reads: int
    read_at: float
    before_s: float = 0.0

    @property
    def unchanged_s(self) -> float:
        """At least so long nobody has changed the row."""
        return self.before_s + self.seconds

    def silent(self, timeout_s: float) -> bool:
        """Whether it was unchanged for long enough, in enough reads."""
        return self.seconds >= timeout_s and self.reads >= LEAST_READS


def observed(age: Age | None, etag: str, now: float, interval_s: float, before_s: float = 0.0) -> Age:
    """The age after one more successful read, which showed `etag`."""
    if age is None or age.etag != etag:
        return Age(etag, 0.0, 0, now, before_s)
    return replace(age, seconds=age.seconds + min(now - age.read_at, 2 * interval_s), reads=age.reads + 1, read_at=now)


def young(age: Age, now: float) -> Age:
    """The same row, with all suspicion forgotten: the observer was paused, or asked and was refused."""
    return replace(age, seconds=0.0, reads=0, read_at=now)
