"""The folders that streams of a job are delivered to: `[streams.<id>] files = …`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samza_azure.config.sections import Stream


@dataclass(frozen=True, slots=True)
class Files:
    """A folder below `files/` of the job's container that a stream's rows go to, as Parquet files.

    A task puts a file after `flush_s` seconds, or as soon as `rows` or `bytes` (as they are in memory) have come.
    """

    folder: str
    flush_s: float
    rows: int
    bytes: int


def files_of(stream: Stream) -> Files | None:
    """The folder of a stream; None if it has none."""
    if stream.files is None:
        return None
    return Files(stream.files, stream.files_flush_s, stream.files_rows, stream.files_bytes)


def mistakes_of_files(values: Mapping[str, Any], streams: Mapping[str, Stream | None]) -> Iterator[str]:
    """What is wrong with the folders of a job file, seen together."""
    of_folder: dict[str, str] = {}
    for name, stream in streams.items():
        if stream is None:
            continue
        if stream.files is None:
            if keys := [key for key in values if key.startswith(f"streams.{name}.files.")]:
                yield f"{keys[0]} has no effect without streams.{name}.files, the folder that the files go to."
        elif (other := of_folder.setdefault(stream.files, name)) != name:
            yield (
                f"streams.{other} and streams.{name} both go to the folder {stream.files!r}. Its readers could not "
                "tell their rows apart: give one of them another folder."
            )
