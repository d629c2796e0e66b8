"""Which files of a task's checkpoint its log has. Those never change.

Promised, after `guard`: a name that the log has, or that a record is being made of, is never written again, also not
when Spark has deleted the file; and what a restart after the last record needs is not deleted. Memory does not grow
with the batches: of files with numbers the largest is remembered, of the parts of RocksDB's snapshots, whose names
Spark draws at random, the last `PARTS`.
"""

import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from samza_azure.logs.restart_files import PART, VERSIONED, snapshot_parts

#: How many names of parts of snapshots are remembered that Spark has deleted.
PARTS = 1000
#: A file of a series, in which Spark makes each with a larger number than those before, and deletes the oldest first.
_NUMBERED = re.compile(r"(?P<series>.*/)(?P<number>0|[1-9][0-9]{0,17})(?P<kind>\.\w+)?", re.ASCII)


class RecordedFiles:
    """The names of these files. Hold `lock` from the question whether a file may change to the change."""

    def __init__(self, checkpoint: Path, names: Iterable[str]) -> None:
        self.lock = threading.RLock()
        self._checkpoint = checkpoint
        self._there = set(names)
        self._held: frozenset[str] = frozenset()
        self._is_guarded = False
        self._newest_gone: dict[tuple[str, str], int] = {}
        self._gone = set[str]()
        self._gone_parts: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        """Whether the log has a file of this name, which was there at the last look."""
        return name in self._there

    def __len__(self) -> int:
        """How many these are."""
        return len(self._there)

    def guard(self) -> None:
        """Others than Spark's own session can change files from now on: remember also what Spark deletes."""
        self._is_guarded = True

    def look(self, names: Iterable[str]) -> None:
        """These files are there, and a record is being made of those that the log has not: until `add` none changes."""
        with self.lock:
            there = frozenset(names)
            gone = self._there - there
            self._there -= gone  # a file that Spark has deleted never comes back
            if self._is_guarded:
                self._remember(gone)
                self._held = there

    def add(self, names: Iterable[str]) -> None:
        """The log has these now."""
        with self.lock:
            recorded = set(names)
            plans = {name for name in recorded if name.startswith("offsets/")}  # each is in the record of its batch
            self._there |= recorded - plans
            self._held = frozenset()
            if self._is_guarded:
                self._remember(plans)

    def may_be_written(self, name: str) -> bool:
        """Whether a file may get this name, or lose it."""
        if self._is_kept(name) or name in self._gone or name in self._gone_parts:
            return False
        found = _NUMBERED.fullmatch(name)
        return found is None or int(found["number"]) > self._newest_gone.get(_series(found), -1)

    def may_be_deleted(self, name: str) -> bool:
        """Whether no restart after the last record needs this file, or any in this folder."""
        if not self._is_kept(name):
            return not any(each.startswith(f"{name}/") for each in self._there | self._held)
        if found := VERSIONED.fullmatch(name):
            version = int(found["version"])
            since = version + (found["kind"] in ("snapshot", "zip"))
            return any(newest >= since for newest, _ in self._snapshots(found["store"]))
        if found := PART.fullmatch(name):
            _, newest_path = max(self._snapshots(found["store"]), default=(0, ""))
            return not newest_path or name not in self._parts_of(newest_path)
        return _NUMBERED.fullmatch(name) is not None

    def _is_kept(self, name: str) -> bool:
        return name in self._there or name in self._held

    def _snapshots(self, store: str) -> Iterator[tuple[int, str]]:
        """The snapshots of a store that the log has, by version."""
        for name in self._there:
            found = VERSIONED.fullmatch(name) if name.startswith(f"{store}/") else None
            if found and found["store"] == store and found["kind"] in ("snapshot", "zip"):
                yield int(found["version"]), name

    def _parts_of(self, name: str) -> Iterable[str]:
        try:
            return snapshot_parts(name, (self._checkpoint / name).read_bytes())
        except FileNotFoundError:
            return ()

    def _remember(self, gone: Iterable[str]) -> None:
        for name in gone:
            if found := _NUMBERED.fullmatch(name):
                self._newest_gone[_series(found)] = max(int(found["number"]), self._newest_gone.get(_series(found), -1))
            elif PART.fullmatch(name):
                self._gone_parts[name] = None
            else:
                self._gone.add(name)
        while len(self._gone_parts) > PARTS:
            del self._gone_parts[next(iter(self._gone_parts))]


def _series(found: "re.Match[str]") -> tuple[str, str]:
    return found["series"], found["kind"] or ""
