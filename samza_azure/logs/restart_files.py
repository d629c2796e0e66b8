"""The files of a Structured Streaming checkpoint that a restart needs, recognised by their names.

After batch N: `metadata`, `offsets/N-1`, `offsets/N`, `sources/` from its last compaction on, and of each state store
the newest snapshot up to version N+1 with the deltas or changelogs after it. Files without a version in their name,
such as the operators' metadata and schemas, are always needed. `commits/N` is not: the restore writes it itself.

A snapshot of RocksDB is a zip that names its SST files and their sizes. They are written before it, and may be in an
earlier record. So a snapshot counts only if all its files are there with the right size, and a file is dropped only
when an older snapshot names it and the newest one does not.
"""

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from samza_azure.foreign import parsed
from samza_azure.logs.record import Reference

T = TypeVar("T")

#: A file of at least this size that several snapshots of the log may need goes to a separate blob.
LARGE_BYTES = 64 << 10

#: The list of the files of a snapshot. That of a state of 1 TB has about 3 MiB.
METADATA_MAX = 8 << 20

_STORE, _NUMBER = r"(?P<store>state/[0-9]+/[0-9]+(/[A-Za-z][\w-]*)?)", "(0|[1-9][0-9]{0,17})"
#: A file of one version of a store, and one of several versions, as RocksDB has.
VERSIONED = re.compile(rf"{_STORE}/(?P<version>{_NUMBER})\.(?P<kind>snapshot|zip|delta|changelog)", re.ASCII)
PART = re.compile(rf"{_STORE}/(SSTs/[\w-]+\.sst|logs/[\w-]+\.log)", re.ASCII)
_SNAPSHOTS = ("snapshot", "zip")
_KINDS = {"delta": "memory", "snapshot": "memory", "changelog": "rocksdb", "zip": "rocksdb"}
SOURCE = re.compile(rf"(?P<source>sources/[0-9]+)/(?P<number>{_NUMBER})(?P<compact>\.compact)?")


def needed(files: Mapping[str, T], batch: int) -> dict[str, T]:
    """The files that a restart after `batch` needs, in the order of `files`.

    Only the contents of zip files are read.
    """
    snapshots = _newest_snapshots(files, batch + 1)
    compactions = _newest_compactions(files)
    outdated = _outdated_parts(files, snapshots)
    return {
        path: content
        for path, content in files.items()
        if path not in outdated and _is_needed(path, batch, snapshots, compactions)
    }


def is_lasting(path: str) -> bool:
    """Whether a file may be needed for long: a snapshot, or a part of one. A delta is replaced by the next snapshot."""
    return path.endswith((".snapshot", ".sst", ".log"))


def state_kind(paths: Iterable[str]) -> str | None:
    """The state store that wrote these files, as a value of `task.state`; None: there are no state files."""
    found = (VERSIONED.fullmatch(path) for path in paths)
    return next((_KINDS[each["kind"]] for each in found if each), None)


def _is_needed(path: str, batch: int, snapshots: Mapping[str, int], compactions: Mapping[str, int]) -> bool:
    if path.startswith("commits/"):
        return False
    if path.startswith("offsets/"):
        return path in (f"offsets/{batch - 1}", f"offsets/{batch}")
    if found := VERSIONED.fullmatch(path):
        version, since = int(found["version"]), snapshots.get(found["store"], 0)
        return version == since if found["kind"] in _SNAPSHOTS else since < version <= batch + 1
    if found := SOURCE.fullmatch(path):
        return int(found["number"]) >= compactions.get(found["source"], 0)
    return True


def _newest_snapshots(files: Mapping[str, object], version_max: int) -> dict[str, int]:
    """The version of each store's newest complete snapshot."""
    newest: dict[str, int] = {}
    for path, content in files.items():
        found = VERSIONED.fullmatch(path)
        if found is None or found["kind"] not in _SNAPSHOTS:
            continue
        store, version = found["store"], int(found["version"])
        if newest.get(store, 0) < version <= version_max and _is_complete(path, content, files):
            newest[store] = version
    return newest


def _is_complete(path: str, content: object, files: Mapping[str, object]) -> bool:
    """Whether all files of a snapshot are there, with their full size."""
    return all(part in files and size_of(files[part]) == size for part, size in snapshot_parts(path, content).items())


def size_of(content: object) -> int:
    """The size of a file in bytes."""
    return content.length if isinstance(content, Reference) else len(content)  # type: ignore[arg-type]


def _outdated_parts(files: Mapping[str, object], snapshots: Mapping[str, int]) -> set[str]:
    """The files of snapshots older than the newest one of their store, unless that one needs them, too."""
    older: set[str] = set()
    newest: set[str] = set()
    for path, content in files.items():
        found = VERSIONED.fullmatch(path)
        if found and found["kind"] == "zip":
            since = snapshots.get(found["store"], 0)
            if int(found["version"]) < since:
                older |= snapshot_parts(path, content).keys()
            elif not isinstance(content, bytes):
                return set()  # too large to be in memory, so what it needs is unknown
            else:
                newest |= snapshot_parts(path, content).keys()
    return older - newest


def snapshot_parts(path: str, content: object) -> dict[str, int]:
    """The files of a snapshot, with their sizes; empty if `content` is not that of a zip."""
    if not path.endswith(".zip") or not isinstance(content, bytes):
        return {}
    try:
        with opened(content) as archive:
            if archive.getinfo("metadata").file_size > METADATA_MAX:
                return {}
            _, _, text = archive.read("metadata").partition(b"\n")  # after a line with the format's version
        named = parsed(text)
        store = path.rpartition("/")[0]
        parts = {f"{store}/SSTs/{file['dfsSstFileName']}": file["sizeBytes"] for file in named["sstFiles"]}
        logs = named.get("logFiles") or ()
        return parts | {f"{store}/logs/{file['dfsLogFileName']}": file["sizeBytes"] for file in logs}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


@contextmanager
def opened(content: bytes) -> Iterator[zipfile.ZipFile]:
    """A zip to read; an entry never becomes larger than it says. Raise ValueError if it cannot be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        OverflowError,
        OSError,
        EOFError,
        struct.error,
    ) as error:
        raise ValueError(f"it is no archive ({error})") from error


def lacking(paths: Iterable[str], stores: Iterable[str], batch: int) -> str | None:
    """A store without its state after a batch; None if all have it. `paths` are those of `needed`.

    Spark would begin it anew, or go on with an older one.
    """
    held: dict[str, list[tuple[int, bool]]] = {store: [] for store in stores}
    for found in filter(None, map(VERSIONED.fullmatch, paths)):
        held.setdefault(found["store"], []).append((int(found["version"]), found["kind"] in _SNAPSHOTS))
    for store, versions in held.items():
        since = max((version for version, is_snapshot in versions if is_snapshot), default=0)
        later = {version for version, is_snapshot in versions if not is_snapshot and since < version <= batch + 1}
        if since > batch + 1 or len(later) != batch + 1 - since:
            return store
    return None


def _newest_compactions(files: Mapping[str, object]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for path in files:
        found = SOURCE.fullmatch(path)
        if found and found["compact"]:
            newest[found["source"]] = max(int(found["number"]), newest.get(found["source"], 0))
    return newest
