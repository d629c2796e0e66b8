"""A task's checkpoint directory: which files go into a record, and how it is restored from the log.

Promised: after `lay_out` Spark continues with the batch after the last one in the log and replays nothing. The
directory is a cache; its only durable form is the log.
"""

import json
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from samza_azure.errors import CorruptState, SamzaAzureError
from samza_azure.logs.record import Buffer
from samza_azure.logs.restart_files import VERSIONED, lacking, size_of, snapshot_parts
from samza_azure.stream_io.log import Places
from samza_azure.stream_io.stored import StoredMapping
from samza_azure.streams.offset import INFINITY_MS, Offset
from samza_azure.tasks.checkpoint_files import READ_MAX, is_data, laid_out, plan_of, stores_of
from samza_azure.tasks.recorded_files import RecordedFiles

#: Files from this size on are sent from the disk as they are, and not read into memory first.
MAPPED_BYTES = 1 << 20
#: The metadata of an operator with state, which says how many stores it has.
_OPERATOR = re.compile(r"state/[0-9]+/_metadata/(metadata|v2/[0-9]+)")


@dataclass(frozen=True, slots=True)
class Planned:
    """What Spark wrote down before it ran a batch."""

    watermark_ms: int  # of the batch
    offsets: tuple[Offset, ...]  # up to where it reads, one per source
    clock_ms: int = 0  # the time that functions with state see

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
    settings, offsets = plan_of(data)
    known = tuple(each for each in offsets if each is not None)
    return Planned(settings["batchWatermarkMs"], known, settings.get("batchTimestampMs", 0))


def lay_out(
    checkpoint: Path,
    files: Mapping[str, bytes],
    batch: int,
    watermark_us: int | None,
    *,
    is_stateful: bool = False,
    places: Mapping[str, tuple[str, int]] | None = None,
    location: str | None = None,
    check_partitions: Callable[[int], None] = lambda _: None,
) -> Planned | None:
    """Fill an empty directory from the log. Return the last batch's plan, or None if there was no batch yet.

    `commits/N` is our own: Spark has it only after the record is appended, so no record can hold it. `places` say which
    record, by blob and position, holds a file. Raise CorruptState for a file that no record can hold, and if
    the state after the batch is not there, as that of a query that `is_stateful` must be. `location` is the URL of the
    directory for Spark, if not that of the local file. `check_partitions` gets the number of partitions of each store,
    as the log has it, before the file is written that tells Spark.
    """
    checkpoint.mkdir(parents=True)
    stored = files if isinstance(files, StoredMapping) else StoredMapping(files)
    places = Places({}, (str(checkpoint), 0)) if places is None else places
    stores, last = list[str](), None
    sizes: dict[str, int] = {}
    for name in sorted(files, key=lambda name: name.endswith(".zip") or "/_metadata/" in name):
        path = checkpoint / name
        with _at(name, places):
            if is_data(name):
                path.parent.mkdir(parents=True, exist_ok=True)
                sizes[name] = stored.write(name, path)
                continue
            if (size := stored.size(name)) > READ_MAX:
                raise ValueError(f"it has {size} bytes, at most {READ_MAX} are possible")
            content = laid_out(name, files[name], sizes, location or f"file:{checkpoint}")
            sizes[name] = len(content)
            if _OPERATOR.fullmatch(name):
                held = stores_of(content)
                stores += _stores(name.partition("/_metadata/")[0], held, len(files))
                for _, partitions in held:
                    check_partitions(partitions)
            if name == f"offsets/{batch}":
                last = _parse(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if batch < 0:
        return None
    with _at(f"offsets/{batch}", places):
        if last is None:
            raise KeyError("it is not there")
    if is_stateful and (store := lacking(files, stores or ["state"], batch)) is not None:
        blob, position = places[f"offsets/{batch}"]
        raise CorruptState(
            f"The log lacks what {store} held after batch {batch}, so the task would begin with another state",
            blob=blob,
            position=position,
        )
    next_ms = last.watermark_ms if watermark_us is None else max(last.watermark_ms, watermark_us // 1000)
    if last.step >= 1:
        next_ms = INFINITY_MS
    commit = checkpoint / "commits" / str(batch)
    commit.parent.mkdir(exist_ok=True)
    commit.write_text(f'v1\n{{"nextBatchWatermarkMs":{next_ms}}}')
    return last


@contextmanager
def _at(name: str, places: Mapping[str, tuple[str, int]]) -> Iterator[None]:
    """Turn the errors of a file that makes no sense into CorruptState."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        blob, position = places[name]
        raise CorruptState(
            f"The record holds {name!r:.200}, which was not written by samza-azure: {error}",
            blob=blob,
            position=position,
        ) from error


def _stores(operator: str, stores: Iterable[tuple[str, int]], most: int) -> Iterator[str]:
    """The directories of an operator's stores. Each holds files, so there are at most as many as these."""
    for name, partitions in stores:
        if not 0 < partitions <= most:
            raise ValueError(f"it has {partitions} partitions")
        for partition in range(partitions):
            yield f"{operator}/{partition}" if name == "default" else f"{operator}/{partition}/{name}"


class NewFiles:
    """The files of a checkpoint that no record holds yet."""

    def __init__(self, checkpoint: Path, recorded: Iterable[str]) -> None:
        self._checkpoint = checkpoint
        self.recorded_files = RecordedFiles(checkpoint, recorded)

    @property
    def tracked(self) -> int:
        """How many names of recorded files are kept: those of files that were on disk at the last look."""
        return len(self.recorded_files)

    def of_batch(self, batch: int, *, is_stateful: bool = False) -> dict[str, Buffer]:
        """What the record of this batch must hold. All state files of it are on disk by now.

        Raise SamzaAzureError if they are not: a record without the state of its batch must never be appended, since a
        restart would go on with an older state.

        Spark writes the parts of a RocksDB snapshot in place, and the snapshot that names them last. So a part is taken
        only together with a snapshot, and only if it has the size that the snapshot says.
        """
        recorded = self.recorded_files
        with recorded.lock:
            names = [f"offsets/{batch}", "metadata", *self._below("state"), *self._below("sources")]
            recorded.look(names)
        found: dict[str, Buffer] = {}
        for name in names:
            if name in recorded or _is_part(name):
                continue
            try:
                content = self._read(name)
                parts = snapshot_parts(name, content)
                new = {part: self._read(part) for part in parts if part not in recorded and part not in found}
            except FileNotFoundError:
                continue  # Spark has cleaned it up, so it is no longer needed
            if all(size_of(part) == parts[path] for path, part in new.items()):
                found |= new
                found[name] = content
        if is_stateful:
            versions = [each for each in map(VERSIONED.fullmatch, names) if each]
            stores = {each["store"] for each in versions}
            written = {
                each["store"] for each in map(VERSIONED.fullmatch, found) if each and int(each["version"]) == batch + 1
            }
            if not stores or stores != written:
                missing = min(stores - written, default="any store")
                raise SamzaAzureError(
                    f"Spark has written no state of batch {batch} for {missing} below {self._checkpoint}. The batch is "
                    "not appended, since a restart would lose its state. Keep processor.dir on this machine's own "
                    "disk, and let nothing else delete files there."
                )
        return found

    def recorded(self, names: Iterable[str]) -> None:
        """These are in the log now."""
        self.recorded_files.add(names)

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
