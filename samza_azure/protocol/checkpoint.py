"""Which files of a Structured Streaming checkpoint a restart needs, told by their names.

After batch N: `metadata`, `offsets/N-1`, `offsets/N`, `sources/` from its last compaction on, and of each state store
the newest snapshot up to version N+1 with the deltas or changelogs after it. What has no version in its name, such as
the operators' metadata and schemas, is always needed. `commits/N` is not here: the restore writes it itself.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

_VERSIONED = re.compile(r"(?P<store>state/.+)/(?P<version>\d+)\.(?P<kind>snapshot|zip|delta|changelog)")
_SNAPSHOTS = ("snapshot", "zip")
_SOURCE = re.compile(r"(?P<source>sources/\d+)/(?P<number>\d+)(?P<compact>\.compact)?")


def needed(files: Mapping[str, T], batch: int) -> dict[str, T]:
    """The files that a restart after `batch` needs, in the order in which they came."""
    snapshots = _newest_snapshots(files, batch + 1)
    compactions = _newest_compactions(files)
    return {path: content for path, content in files.items() if _is_needed(path, batch, snapshots, compactions)}


def _is_needed(path: str, batch: int, snapshots: Mapping[str, int], compactions: Mapping[str, int]) -> bool:
    if path.startswith("commits/"):
        return False
    if path.startswith("offsets/"):
        return path in (f"offsets/{batch - 1}", f"offsets/{batch}")
    if found := _VERSIONED.fullmatch(path):
        version, since = int(found["version"]), snapshots.get(found["store"], 0)
        return version == since if found["kind"] in _SNAPSHOTS else since < version <= batch + 1
    if found := _SOURCE.fullmatch(path):
        return int(found["number"]) >= compactions.get(found["source"], 0)
    return True


def _newest_snapshots(files: Mapping[str, object], version_max: int) -> dict[str, int]:
    newest: dict[str, int] = {}
    for path in files:
        found = _VERSIONED.fullmatch(path)
        if found and found["kind"] in _SNAPSHOTS and int(found["version"]) <= version_max:
            newest[found["store"]] = max(int(found["version"]), newest.get(found["store"], 0))
    return newest


def _newest_compactions(files: Mapping[str, object]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for path in files:
        found = _SOURCE.fullmatch(path)
        if found and found["compact"]:
            newest[found["source"]] = max(int(found["number"]), newest.get(found["source"], 0))
    return newest
