"""A segment: rows of one table and one interval, in one immutable file, and what they replace."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from samza_azure.segments.interval import Interval
from samza_azure.segments.partitions import EMPTY, Partitions, single


class SegmentId(NamedTuple):
    """Identifies a segment within its table. A partition number is used only once per interval and version."""

    interval: Interval
    version: int
    partition: int

    def __str__(self) -> str:
        return f"{self.interval} version {self.version} partition {self.partition}"


class Publish(NamedTuple):
    """One publish: its lock, and its number among the publishes of that lock, from 1."""

    lock: int
    number: int


@dataclass(frozen=True, slots=True)
class File:
    """The blob that holds a segment's rows. Copies of a segment refer to the same one.

    `statistics` has the minimum, the maximum and the number of nulls of each column, as JSON values. `crc` is the
    CRC-32 of its bytes; None if unknown, as for files of earlier releases.
    """

    name: str
    rows: int = 0
    bytes: int = 0
    statistics: Mapping[str, Any] = field(default_factory=dict, hash=False)
    crc: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A root, which was appended, or one of a group of segments that replace their inputs.

    `covers` is the set of roots whose rows it carries; a root covers itself. `generation` is 0 for a root, otherwise
    one more than the highest of its inputs. The segments of `group` become visible together; the group of a root is
    the core set of its batch. `overshadows` names the direct inputs. Two segments are equal if they have the same table
    and id. Raise ValueError for values that no publish could produce.
    """

    datasource: str
    interval: Interval
    version: int
    partition: int
    covers: Partitions
    generation: int
    group: Partitions
    overshadows: Partitions = EMPTY
    file: File | None = None
    published: tuple[Publish, ...] = ()

    def __post_init__(self) -> None:
        alone, interval = ((self.partition, self.partition + 1),), self.interval
        if (
            self.covers is self.group
            and self.covers.runs == alone
            and not self.generation
            and interval.start < interval.end
        ):
            return  # an append, as most segments are
        if self.interval.is_empty:
            raise ValueError(f"{self.id}: the interval of a segment cannot be empty.")
        if self.partition not in self.group:
            raise ValueError(f"{self.id} is not in its own group {self.group}.")
        if (self.generation == 0) != (len(self.covers) == 1 and self.partition in self.covers):
            raise ValueError(
                f"{self.id} of generation {self.generation} covers {self.covers}: a root, and only a root, has "
                "generation 0 and covers itself alone."
            )
        if not self.covers:
            raise ValueError(f"{self.id} covers nothing.")

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Segment) and (self.datasource, self.id) == (other.datasource, other.id)
        )

    def __hash__(self) -> int:
        return hash((self.interval, self.version, self.partition))

    def __str__(self) -> str:
        return f"{self.datasource} {self.id}"

    @classmethod
    def root(
        cls,
        datasource: str,
        interval: Interval,
        version: int,
        partition: int,
        *,
        group: Partitions | None = None,
        file: File | None = None,
        published: tuple[Publish, ...] = (),
    ) -> "Segment":
        """A segment that was appended, or one of a batch's core set `group`."""
        alone = single(partition)
        return cls(
            datasource,
            interval,
            version,
            partition,
            alone,
            0,
            alone if group is None else group,
            file=file,
            published=published,
        )

    @property
    def id(self) -> SegmentId:
        """Its id within its table."""
        return SegmentId(self.interval, self.version, self.partition)

    @property
    def is_root(self) -> bool:
        """Whether it was appended, not made from others."""
        return self.generation == 0
