"""What may be published: under which locks, and which outputs for which inputs.

A publish is one step. It checks that each lock is held and was not revoked, that the locks cover the outputs, that the
inputs are still visible, that outputs carry exactly the rows of their inputs, and that the stream's position is the
expected one. Then all outputs and the new position are stored, or nothing. Repeating a publish changes nothing.
A REPLACE never hides an append that it has not read: it carries the append forward.

The rules on locks and outputs are here. The step itself is a transaction, in `tables/store/publishing.py`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from samza_azure.segments.interval import Interval
from samza_azure.segments.locks import TableLock
from samza_azure.segments.partitions import Partitions
from samza_azure.segments.segment import Publish, Segment

StreamPosition = Hashable


@dataclass(frozen=True, slots=True)
class LostRace:
    """The publish lost a race; nothing was changed. `reason` says which."""

    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """These segments are in the table, copies included. `again`: they were there before."""

    segments: tuple[Segment, ...]
    again: bool = False


class Advance(NamedTuple):
    """The stream's positions at which the rows of this publish begin, and at which the next ones will begin."""

    stream: str
    start: StreamPosition
    end: StreamPosition


def copy_of(
    segment: Segment, interval: Interval, version: int, partition: int, published: tuple[Publish, ...]
) -> Segment:
    """A segment of the same file with another id. Only the rows of its interval count."""
    return Segment.root(segment.datasource, interval, version, partition, file=segment.file, published=published)


def locks_for(held: Sequence[TableLock], segments: Sequence[Segment], *, name: str) -> list[TableLock] | LostRace:
    """The locks under which segments are written or replaced, each once. Raise ValueError if one never had a lock."""
    used: dict[int, TableLock] = {}
    for segment in segments:
        lock = next((one for one in held if one.covers(segment)), None)
        if lock is None:
            if not any(one.was_for(segment) for one in held):
                raise ValueError(f"{segment} is not covered by a lock of {name}.")
            return LostRace(f"The lock of {name} on {segment} was revoked.")
        used[lock.id] = lock
    return list(used.values())


def check_outputs(outputs: Sequence[Segment], inputs: Sequence[Segment]) -> None:
    """Raise ValueError if outputs are incomplete groups, or do not carry exactly the rows of their inputs."""
    by_chunk: dict[tuple[Interval, int], dict[int, Segment]] = {}
    for segment in outputs:
        if (
            by_chunk.setdefault((segment.interval, segment.version), {}).setdefault(segment.partition, segment)
            is not segment
        ):
            raise ValueError(f"{segment} is published twice at once.")
    for segment in outputs:
        chunk = by_chunk[segment.interval, segment.version]
        if missing := [partition for partition in segment.group if partition not in chunk]:
            raise ValueError(f"{segment} is published without {missing[:5]} of its group {segment.group}.")
    for chunk_of, chunk in by_chunk.items():
        groups: dict[Partitions, list[Segment]] = {}
        for segment in chunk.values():
            if not segment.is_root:
                groups.setdefault(segment.group, []).append(segment)
        before = [segment for segment in inputs if (segment.interval, segment.version) == chunk_of]
        for segment in before:
            if groups and not any(segment.covers <= each[0].covers for each in groups.values()):
                raise ValueError(f"{segment} is an input, and no output covers its roots {segment.covers}.")
        for group, segments in groups.items():
            _check_group(group, segments, before)


def _check_group(group: Partitions, segments: Sequence[Segment], inputs: Sequence[Segment]) -> None:
    one = segments[0]
    if any((each.covers, each.generation) != (one.covers, one.generation) for each in segments):
        raise ValueError(f"The segments of the group {group} differ in what they cover or in their generation.")
    mine = [segment for segment in inputs if segment.covers <= one.covers]
    if Partitions.union_of(segment.covers for segment in mine) != one.covers:
        raise ValueError(
            f"{one} covers {one.covers}, and its inputs {Partitions.union_of(each.covers for each in mine)}. "
            "What was not read must not be covered."
        )
    if sum(len(cover) for cover, _ in {(segment.covers, segment.generation) for segment in mine}) != len(one.covers):
        raise ValueError(f"Two inputs of {one} carry the same rows.")
    if one.generation <= (highest := max(segment.generation for segment in mine)):
        raise ValueError(f"{one} has generation {one.generation}, and an input {highest}.")
    there = Partitions(segment.partition for segment in mine)
    if one.overshadows and one.overshadows != there:
        raise ValueError(f"{one} says that it overshadows {one.overshadows}; its inputs are {there}.")
    for segment in mine:
        if not segment.is_root and not segment.group <= there:
            raise ValueError(f"{segment} is an input without the rest of its group {segment.group}.")
