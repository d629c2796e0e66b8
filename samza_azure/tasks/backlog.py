"""About how much of its inputs a task has not read. For people: no decision depends on it."""

from collections.abc import Iterable, Mapping

from samza_azure.logs.position import Position, bytes_between
from samza_azure.logs.source_log import SOURCE_LIMITS
from samza_azure.logs.task_log import LogLimits
from samza_azure.pipeline.analysed import Producer, TaskInput

#: How many source partitions a task reports the backlog of, at most: a row has to hold those of all its tasks.
PARTITIONS = 50


def unread(each: TaskInput, stands: Iterable[Position], ends: Iterable[Position | None]) -> int:
    """About how many bytes of an input are between these positions in its logs and their ends.

    A log of this run also holds rows of other tasks: a share of it counts, as if all shares were equal. Full blobs
    count with the usual length of a blob in such a log. An end that is not known counts as no bytes.
    """
    size = 0.0
    for producer, begin, end in zip(each.producers, stands, ends, strict=True):
        size += bytes_between(begin, end or (0, 0), roll_bytes(producer)) * share(each, producer)
    return int(size)


def of_sources(each: TaskInput, stands: Iterable[Position], ends: Iterable[Position | None]) -> dict[str, int]:
    """The same of each source partition, without those whose end is not known."""
    return {
        producer.source: bytes_between(begin, end, roll_bytes(producer))
        for producer, begin, end in zip(each.producers, stands, ends, strict=True)
        if producer.source is not None and end is not None
    }


def furthest(behind: Mapping[str, int]) -> dict[str, int]:
    """Those of the source partitions that a report has room for, with the largest backlogs."""
    return dict(sorted(behind.items(), key=lambda each: -each[1])[:PARTITIONS])


def roll_bytes(producer: Producer) -> int:
    """The length at which its log begins a new blob."""
    return (SOURCE_LIMITS if producer.source is not None else LogLimits()).roll_bytes


def share(of: TaskInput, producer: Producer) -> float:
    """How much of a producer's log is for one task of `of`, as if all shares were equal."""
    return 1.0 if producer.source is not None else min(len(producer.destinations) / max(of.partitions, 1), 1.0)
