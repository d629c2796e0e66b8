"""About how much of its inputs a task has not read. For people: no decision depends on it."""

from collections.abc import Iterable

from samza_azure.logs.position import Position, bytes_between
from samza_azure.logs.source_log import SOURCE_LIMITS
from samza_azure.logs.task_log import LogLimits
from samza_azure.spark.pipeline.pipeline import Producer, TaskInput


def unread(each: TaskInput, stands: Iterable[Position], ends: Iterable[Position | None]) -> int:
    """About how many bytes of an input are between these positions in its logs and their ends.

    A log of this run also holds rows of other tasks: a share of it counts, as if all shares were equal. Full blobs
    count with the usual length of a blob in such a log. An end that is not known counts as no bytes.
    """
    size = 0.0
    for producer, begin, end in zip(each.producers, stands, ends, strict=True):
        size += bytes_between(begin, end or (0, 0), roll_bytes(producer)) * share(each, producer)
    return int(size)


def roll_bytes(producer: Producer) -> int:
    """The length at which its log begins a new blob."""
    return (SOURCE_LIMITS if producer.source is not None else LogLimits()).roll_bytes


def share(of: TaskInput, producer: Producer) -> float:
    """How much of a producer's log is for one task of `of`, as if all shares were equal."""
    return 1.0 if producer.source is not None else min(len(producer.destinations) / max(of.partitions, 1), 1.0)
