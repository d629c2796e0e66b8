"""What contradicts a stream that comes from outside, or goes there. It imports no more than `pipeline.names` does."""

from collections.abc import Collection, Iterator, Mapping

from samza_azure.config import LOG, Stream


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
