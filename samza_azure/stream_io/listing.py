"""Which logs there are: of which stream and run, with which blobs."""

from collections.abc import Mapping
from typing import Any

from samza_azure.logs.names import FILE_BLOB, FILES, RUNS, SOURCE_BLOB, STREAMS, TASK_BLOB, run_of
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.log import LogReader


def streams(blobs: Blobs) -> list[str]:
    """The streams that have logs, by name."""
    sources = {found["stream"] for name, _ in blobs.list(STREAMS) if (found := SOURCE_BLOB.fullmatch(name))}
    written = {stream_of(blobs, *log) for log in first_blobs(blobs, RUNS)}
    return sorted(sources | (written - {""}))


def first_blobs(blobs: Blobs, below: str) -> list[tuple[str, int]]:
    """The task logs below a prefix, by run, stage and number, and the first remaining blob of each."""
    first: dict[tuple[str, str, int, str], int] = {}
    for name, size in blobs.list(below):
        if size and (found := TASK_BLOB.fullmatch(name)):
            key = found["run"], found["stage"], int(found["number"]), found["prefix"]
            first.setdefault(key, int(found["index"]))
    return [(key[-1], first[key]) for key in sorted(first)]


def runs_in(blobs: Blobs) -> list[str]:
    """The runs that have logs, by id. An id that a leader has made begins with the time."""
    return list(dict.fromkeys(run_of(prefix) for prefix, _ in first_blobs(blobs, RUNS)))


def log_indexes(blobs: Blobs, below: str) -> dict[str, list[int]]:
    """The logs below a prefix and the numbers of their blobs, in order, without task logs that have no record."""
    found: dict[str, list[int]] = {}
    for name, size in blobs.list(below):
        log = SOURCE_BLOB.fullmatch(name) or (TASK_BLOB.fullmatch(name) if size else None)
        if log is not None:
            found.setdefault(log["prefix"], []).append(int(log["index"]))
    return found


def file_indexes(blobs: Blobs, folder: str) -> dict[str, list[int]]:
    """The tasks whose files are in a folder, and the numbers of these, in order."""
    found: dict[str, list[int]] = {}
    for name, _ in blobs.list(f"{FILES}{folder}/"):
        if file := FILE_BLOB.fullmatch(name):
            found.setdefault(file["prefix"], []).append(int(file["index"]))
    return {prefix: sorted(numbers) for prefix, numbers in found.items()}


def log_sizes(blobs: Blobs, prefix: str) -> dict[int, int]:
    """The sizes of the blobs of one log, by number."""
    found = (
        (SOURCE_BLOB.fullmatch(name) or TASK_BLOB.fullmatch(name), size) for name, size in blobs.list(f"{prefix}/")
    )
    return {int(log["index"]): size for log, size in found if log is not None}


def stream_of(blobs: Blobs, prefix: str, index: int) -> str:
    """The stream that a task's log holds, by its first record; empty for a log without a record."""
    return str(meta_of(blobs, prefix, index).get("stream", ""))


def meta_of(blobs: Blobs, prefix: str, index: int) -> Mapping[str, Any]:
    """What the first record of a task's log says of it; nothing for a log without a record."""
    reader = LogReader(blobs, prefix)
    while (opening := reader.opening(index)) is None:
        later = [number for number, size in log_sizes(blobs, prefix).items() if size and number > index]
        if not later:
            return {}
        index = min(later)  # retention has deleted the blob since it was listed
    return opening.meta
