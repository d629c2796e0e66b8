"""The files through which the container and its sources communicate. Spark runs the sources in separate processes.

The container writes the permit and the hints, once for all tasks, and a gate per task. A source writes an
acknowledgement: which gate it has seen, and which offset it returned last. Each file is replaced atomically by a
rename. Nothing here is durable, and nothing is secret.

Why acknowledgements: shutting a gate does not recall a `latestOffset` call that has begun. Only when a source has
answered under the new gate can no batch under the old one follow.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from samza_azure.machine.clock import boot_time
from samza_azure.messages import ends_from
from samza_azure.streams.gate import Gate


def write_json(path: Path, value: object) -> None:
    """Replace the file atomically. Two threads may write different files, but not the same one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(value, separators=(",", ":")))
    fresh.rename(path)


def content(path: Path | str) -> bytes:
    """All of such a file. A task reads several of them ten times a second, and Python's own files, with buffers and
    encodings, cost several times as much.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, os.fstat(file).st_size)
    finally:
        os.close(file)


class PermitFile:
    """The time until which batches may start and appends be sent. Every process of the container can read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set(0.0)

    def set(self, until: float) -> None:
        """Write the time until which the supervisor has renewed the permit."""
        self._until = until
        write_json(self._path, until)

    def holds(self) -> bool:
        """Whether the permit is valid now."""
        return boot_time() < self._until


@dataclass(frozen=True, slots=True)
class Written:
    """What one side writes for the other."""

    def write(self, path: Path) -> None:
        """Replace the file by this value."""
        write_json(path, asdict(self))


def write_gate(path: Path, gate: Gate) -> None:
    """Put the gate in force."""
    write_json(path, asdict(gate))


def read_gate(path: Path) -> Gate:
    """The gate in force."""
    fields = json.loads(content(path))
    ends = fields.pop("ends")
    return Gate(**fields, ends=None if ends is None else ends_from(ends))


@dataclass(frozen=True, slots=True)
class Acknowledgement(Written):
    """What one source has seen and answered."""

    version: int  # of the gate under which the last call was answered; -1 before the first answer
    offset: dict[str, Any] | None = None  # returned last
    is_at_end: bool = False  # a drain has set the ends, and no row is between `offset` and them
    end: dict[str, Any] | None = None  # the offset of the ends, if `is_at_end`; not returned yet
    is_quiet: bool = False
    trouble: str | None = None  # the storage does not answer; the source tries again
    corrupt: str | None = None  # a log cannot be read or has other columns; the task fails
    too_old_for: int | None = None  # with `corrupt`: the log is intact, but has a record of this later format

    @classmethod
    def read_all(cls, directory: Path) -> list["Acknowledgement"]:
        """The acknowledgements of all sources that this query has started so far."""
        found = [path for path in sorted(directory.iterdir()) if not path.name.startswith(".")]
        return [cls(**json.loads(content(path))) for path in found]


@dataclass(frozen=True, slots=True)
class Spec(Written):
    """What a source process must know. The container writes it once, when the query starts."""

    stream: str
    producers: Sequence[tuple[str, Sequence[int], str | None]]  # prefix, destinations, source partition
    starts: Sequence[tuple[int, int]]
    is_source_stream: bool
    group_id: str | None  # of the logs; a source stream has its own, which is unknown before it is read
    has_watermark: bool
    idle_timeout_s: float
    commit_s: float
    batch_bytes: int
    keeps_last_rows: bool = False  # in a drain, until the batch that fires: see `Pace`
    key: Sequence[str] = ()  # of a source stream in the job file; its logs must have the same
    partitions: int = 0  # of a source stream in the job file; its logs must have the same
    not_null: Sequence[str] = ()  # the columns that the stage relies on to have no nulls
    event_time: str | None = None
    is_read_here: bool = False  # all of it by this process: Spark's tasks run where the logs cannot be read
    files: Mapping[str, str] = field(default_factory=dict)  # permit, hints, gate, acknowledgements

    @classmethod
    def read(cls, path: Path) -> "Spec":
        """Read what the container wrote."""
        return cls(**json.loads(path.read_text()))
