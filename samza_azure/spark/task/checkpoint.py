"""A task's checkpoint directory: which files go into a record, and how it is restored from the log.

Promised: after `lay_out` Spark continues with the batch after the last one in the log and replays nothing. The
directory is a cache; its only durable form is the log.
"""

import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from samza_azure.errors import CorruptState
from samza_azure.logs.record import Buffer
from samza_azure.logs.restart_files import size_of, snapshot_parts
from samza_azure.spark.jvm.watermark import INFINITY_MS
from samza_azure.streams.offset import Offset

#: Files from this size on are sent from the disk as they are, and not read into memory first.
MAPPED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Planned:
    """What Spark wrote down before it ran a batch."""

    watermark_ms: int  # of the batch
    offsets: tuple[Offset, ...]  # up to where it reads, one per source

    @property
    def step(self) -> int:
        """The step that all sources have reached."""
        return min((offset.step for offset in self.offsets), default=0)


def planned(checkpoint: Path, batch: int) -> Planned:
    """The content of offsets/N."""
    return _parse(checkpoint.joinpath("offsets", str(batch)).read_bytes())


def as_file(plan: Planned) -> bytes:
    """The content of offsets/N with this plan, for a batch without Spark."""
    lines = [
        json.dumps({"batchWatermarkMs": plan.watermark_ms}),
        *(json.dumps(each.to_json()) for each in plan.offsets),
    ]
    return "\n".join(["v1", *lines]).encode()


def _parse(data: bytes) -> Planned:
    _, metadata, *offsets = data.decode().splitlines()
    read = [Offset.from_json(json.loads(line)) for line in offsets if line != "-"]
    return Planned(int(json.loads(metadata)["batchWatermarkMs"]), tuple(read))


def lay_out(checkpoint: Path, files: Mapping[str, bytes], batch: int, watermark_us: int | None) -> Planned | None:
    """Fill an empty directory from the log. Return the last batch's plan, or None if there was no batch yet.

    `commits/N` is our own: Spark has it only after the record is appended, so no record can hold it.
    """
    checkpoint.mkdir(parents=True)
    root = checkpoint.resolve()
    for name, content in files.items():
        path = checkpoint / name
        if not path.resolve().is_relative_to(root):
            raise CorruptState(f"A record holds a file outside of the checkpoint: {name}", blob=str(checkpoint))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_at_home(content, name, checkpoint))
    if batch < 0:
        return None
    last = _parse(files[f"offsets/{batch}"])
    next_ms = last.watermark_ms if watermark_us is None else max(last.watermark_ms, watermark_us // 1000)
    if last.step >= 1:
        next_ms = INFINITY_MS
    commit = checkpoint / "commits" / str(batch)
    commit.parent.mkdir(exist_ok=True)
    commit.write_text(f'v1\n{{"nextBatchWatermarkMs":{next_ms}}}')
    return last


def _at_home(content: bytes, name: str, checkpoint: Path) -> bytes:
    """A file as this directory needs it. The metadata of transformWithState names its schemas by absolute paths."""
    operator, found, _ = name.partition("/_metadata/v2/")
    if not found:
        return content
    version, _, text = content.decode().partition("\n")
    metadata = json.loads(text)
    for store in metadata["stateStoreInfo"]:
        schemas = [path.rpartition(f"/{operator}/")[2] for path in store["stateSchemaFilePaths"]]
        store["stateSchemaFilePaths"] = [f"file:{checkpoint / operator / schema}" for schema in schemas]
    return f"{version}\n{json.dumps(metadata)}".encode()


class NewFiles:
    """The files of a checkpoint that no record holds yet."""

    def __init__(self, checkpoint: Path, recorded: Iterable[str]) -> None:
        self._checkpoint = checkpoint
        self._recorded = set(recorded)

    @property
    def tracked(self) -> int:
        """How many names of recorded files are kept: those of files that were on disk at the last look."""
        return len(self._recorded)

    def of_batch(self, batch: int) -> dict[str, Buffer]:
        """What the record of this batch must hold. All state files of it are on disk by now.

        Spark writes the parts of a RocksDB snapshot in place, and the snapshot that names them last. So a part is taken
        only together with a snapshot, and only if it has the size that the snapshot says.
        """
        names = [f"offsets/{batch}", "metadata", *self._below("state"), *self._below("sources")]
        self._recorded.intersection_update(names)  # a file that Spark has deleted never comes back
        found: dict[str, Buffer] = {}
        for name in names:
            if name in self._recorded or _is_part(name):
                continue
            try:
                content = self._read(name)
                parts = snapshot_parts(name, content)
                new = {part: self._read(part) for part in parts if part not in self._recorded and part not in found}
            except FileNotFoundError:
                continue  # Spark has cleaned it up, so it is no longer needed
            if all(size_of(part) == parts[path] for path, part in new.items()):
                found |= new
                found[name] = content
        return found

    def recorded(self, names: Iterable[str]) -> None:
        """These are in the log now."""
        self._recorded.update(name for name in names if not name.startswith("offsets/"))

    def _read(self, name: str) -> Buffer:
        """The file's content; of a large one a view, which stays even if Spark deletes the file."""
        with (self._checkpoint / name).open("rb") as file:
            if os.fstat(file.fileno()).st_size < MAPPED_BYTES or name.endswith(".zip"):
                return file.read()
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _below(self, name: str) -> Iterator[str]:
        """Checksums begin with a dot, and so do files that are still being written."""
        pending = [name]
        while pending:
            directory = pending.pop()
            try:
                entries = list(os.scandir(self._checkpoint / directory))
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.name.endswith(".tmp"):
                    continue
                path = f"{directory}/{entry.name}"
                if entry.is_dir():
                    pending.append(path)
                else:
                    yield path


def _is_part(name: str) -> bool:
    """Whether a file belongs to the snapshots of RocksDB that name it."""
    return name.split("/")[-2:-1] in (["SSTs"], ["logs"])
