"""What contradicts a stream that comes from outside, or goes there. It imports no more than `pipeline.names` does."""

from collections.abc import Collection, Iterator, Mapping

from samza_azure.config import LOG, Stream
from samza_azure.config.systems import CLOCKS
from samza_azure.systems.options import ENVELOPE, FORMAT, RAW


def mistakes_of_systems(streams: Mapping[str, Stream], written: Collection[str]) -> Iterator[str]:
    """What contradicts a stream that comes from outside, or goes there."""
    for name, stream in streams.items():
        if stream.system == LOG:
            if stream.options:
                yield f"streams.{name}.options has no effect: a log has no options. Remove it."
            if stream.dead_letters:
                yield f"streams.{name}.dead_letters has no effect: a log has rows alone. Remove the line."
        if stream.backlog_bytes is not None and (stream.system == LOG or name in written):
            yield (
                f"streams.{name}.backlog.bytes has no effect: only a connector that reads waits for readers. Remove "
                "the line."
            )
        if stream.system == LOG or name in written:
            continue  # written by a stage, it goes outside, which is a sink
        if stream.key:
            yield (
                f"streams.{name}.key cannot be relied on: how rows get to their partitions outside is not known. "
                "Remove the line, so that the rows are routed."
            )
        if stream.retention_s is not None or stream.retention_bytes is not None:
            yield f"streams.{name}.retention has no effect: its rows are deleted as they are read. Remove the line."
        if stream.frontier_lag_s is None and stream.event_time is not None and not _is_clock(stream, stream.event_time):
            yield (
                f"streams.{name}.frontier_lag is missing: {stream.event_time!r} is a time of those who write, and they "
                "share its partitions. Without a lag each row that is older than another one before it is late, and "
                f"windows drop it. Write under [streams.{name}] by how much a row may be older: frontier_lag = "
                '"10 s". If the rows of each partition are in order, write frontier_lag = "0 s".'
            )


def _is_clock(stream: Stream, column: str) -> bool:
    """Whether a column is the time of the system itself, or the system is none that many write."""
    if stream.system not in CLOCKS:
        return True
    of_envelope = (each.strip() for each in stream.options.get(ENVELOPE, "").split(","))
    return column == CLOCKS[stream.system] and (stream.options.get(FORMAT) == RAW or column in of_envelope)
