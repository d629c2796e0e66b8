"""The systems outside that streams of a job go to: `[streams.<id>] system = …` where a stage writes the stream."""

from dataclasses import dataclass

from samza_azure.config.sections import LOG, Stream


@dataclass(frozen=True, slots=True)
class Outside:
    """A stream outside that a stream's rows are sent to. A range of them has at most so many `rows` and `bytes` in
    memory.
    """

    stream: str
    system: str
    dead_letters: int
    rows: int = 20_000
    bytes: int = 8 << 20


def outside_of(name: str, stream: Stream) -> Outside | None:
    """Where a stream's rows are sent; None if they stay in the account."""
    return None if stream.system == LOG else Outside(name, stream.system, stream.dead_letters)
