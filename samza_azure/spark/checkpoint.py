"""A task's checkpoint directory: what of it goes into a record, and how it is laid out again from the log.

Promised: after `lay_out` Spark goes on with the batch after the last one in the log and replays nothing. The directory
is a cache; its only durable form is the log.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from samza_azure.errors import CorruptState
from samza_azure.spark.offset import Offset
from samza_azure.spark.watermark import INFINITY_MS


@dataclass(frozen=True, slots=True)
class Planned:
    """What Spark wrote down before it ran a batch."""

    watermark_ms: int  # what it runs with
    offsets: tuple[Offset, ...]  # up to where it reads, one per source

    @property
    def step(self) -> int:
        """The step that all sources have reached."""
        return min((offset.step for offset in self.offsets), default=0)


def planned(checkpoint: Path, batch: int) -> Planned:
    """The content of offsets/N."""
    return _parse(checkpoint.joinpath("offsets", str(batch)).read_bytes())


def _parse(data: bytes) -> Planned:
    _, metadata, *offsets = data.decode().splitlines()
    read = [Offset.from_json(json.loads(line)) for line in offsets if line != "-"]
    return Planned(int(json.loads(metadata)["batchWatermarkMs"]), tuple(read))


def lay_out(checkpoint: Path, files: Mapping[str, bytes], batch: int, watermark_us: int | None) -> Planned | None:
    """Fill an empty directory with what the log holds; the last batch's plan, None if there was no batch yet.

    `commits/N` is our own: Spark has it only after the record is appended, so no record can hold it.
    """
    checkpoint.mkdir(parents=True)
    for name, content in files.items():
        path = checkpoint / name
        if not path.resolve().is_relative_to(checkpoint.resolve()):
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

    def __init__(self, checkpoint: Path, recorded: Mapping[str, bytes]) -> None:
        self._checkpoint = checkpoint
        self._recorded = set(recorded)

    def of_batch(self, batch: int) -> dict[str, bytes]:
        """What the record of this batch must hold. All state files of it are on disk by now."""
        found = {}
        for name in (f"offsets/{batch}", "metadata", *self._below("state"), *self._below("sources")):
            if name in self._recorded:
                continue
            try:
                found[name] = (self._checkpoint / name).read_bytes()
            except FileNotFoundError:
                continue  # Spark has cleaned it up; nobody needs it any more
        return found

    def recorded(self, names: Mapping[str, bytes]) -> None:
        """These are in the log now."""
        self._recorded.update(name for name in names if not name.startswith("offsets/"))

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
