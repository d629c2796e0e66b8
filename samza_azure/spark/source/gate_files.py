"""The files through which the container and its sources agree. Spark runs the sources in processes of their own.

The container writes: the permit and the hints, once for all tasks; a gate per task. A source writes an
acknowledgement: which gate it has seen, and which offset it gave out last. Each file is replaced as a whole by a
rename, so that no reader sees half of one. Nothing here is durable, and nothing is secret.

Why acknowledgements: a gate that is shut does not recall a `latestOffset` that has begun. Only when a source has
answered under the new gate is it certain that no batch under the old one is still to come.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from samza_azure.logs.position import Ends
from samza_azure.machine import boot_time
from samza_azure.messages import ends_from


def write_json(path: Path, value: object) -> None:
    """Replace the file as a whole. Two threads may write different files, not the same one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(value, separators=(",", ":")))
    fresh.rename(path)


class PermitFile:
    """Until when batches may be started and appends sent. Readable by every process of the container."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set(0.0)

    def set(self, until: float) -> None:
        """The supervisor has renewed it."""
        self._until = until
        write_json(self._path, until)

    def holds(self) -> bool:
        """Whether it holds now."""
        return boot_time() < self._until


@dataclass(frozen=True, slots=True)
class Gate:
    """What a task's sources may do. `version` rises with each change."""

    version: int = 0
    shut: bool = False  # no further batch
    frozen: bool = False  # source streams are read no further, or only up to `ends`
    ends: Ends | None = None  # where each source partition ends
    step: int = 0
    draining: bool = False  # batches need not wait for task.commit.ms
    batch_bytes: int | None = None  # of input, where a batch must be smaller than usual

    def changed(self, **fields: Any) -> "Gate":
        """The next version of it."""
        return replace(self, version=self.version + 1, **fields)

    def write(self, path: Path) -> None:
        """Put it in force."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Gate":
        """The gate in force."""
        fields = json.loads(path.read_text())
        ends = fields.pop("ends")
        return cls(**fields, ends=None if ends is None else ends_from(ends))


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What one source has seen and said."""

    version: int  # of the gate under which the last call was answered; -1 before the first answer
    offset: dict[str, Any] | None = None  # given out last
    is_at_end: bool = False  # a drain has told the ends, and no row lies between `offset` and them
    end: dict[str, Any] | None = None  # the offset there, if it is at the end; not given out yet
    is_quiet: bool = False
    trouble: str | None = None  # storage that does not answer: it is tried again
    corrupt: str | None = None  # a log that cannot be read, or holds other columns: the task fails
    too_old_for: int | None = None  # with `corrupt`: the log is well, and has a record of this format, which is later

    def write(self, path: Path) -> None:
        """Tell the container."""
        write_json(path, asdict(self))

    @classmethod
    def read_all(cls, directory: Path) -> list["Acknowledgement"]:
        """Of all sources that this query has started so far."""
        found = [path for path in sorted(directory.iterdir()) if not path.name.startswith(".")]
        return [cls(**json.loads(path.read_text())) for path in found]


@dataclass(frozen=True, slots=True)
class Spec:
    """What a source process must know. Written once, when its query starts."""

    stream: str
    producers: Sequence[tuple[str, Sequence[int], str | None]]  # prefix, destinations, source partition
    starts: Sequence[tuple[int, int]]
    is_source_stream: bool
    group_id: str | None  # of the logs; a source stream has one of its own, unknown before it is read
    has_watermark: bool
    idle_timeout_s: float
    commit_s: float
    batch_bytes: int
    keeps_last_rows: bool = False  # those of a drain, until the batch that fires: see `Pace`
    key: Sequence[str] = ()  # what the job file says of a source stream: its logs must say the same
    partitions: int = 0  # the same
    files: Mapping[str, str] = field(default_factory=dict)  # permit, hints, gate, acknowledgements

    def write(self, path: Path) -> None:
        """Leave it for the source."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Spec":
        """As the container left it."""
        return cls(**json.loads(path.read_text()))
