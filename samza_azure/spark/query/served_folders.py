"""Which files executors on other machines see, and which of these they may change: those of a start of a task.

Promised: after the end of the start nobody sees or changes them, so an executor that is cut off, or slow, changes
nothing of what a later start has. A file that is in the log, or of which a record is being made, is never replaced,
renamed or made again, and not deleted while a restart needs it (`tasks/recorded_files.py`). A file is there when all of
it is.
"""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from samza_azure.tasks.recorded_files import RecordedFiles

#: How the name of a file ends that is not there yet.
UPLOAD = ".upload"


@dataclass(eq=False, slots=True)
class _Start:
    folder: Path
    recorded: RecordedFiles
    is_over: bool = False
    cuts: set[Callable[[], None]] = field(default_factory=set)  # what ends the uploads that are under way

    def end(self) -> None:
        """Let nobody change its files any more."""
        with self.recorded.lock:  # so that nothing changes afterwards
            self.is_over = True
            cuts = [*self.cuts]
        for cut in cuts:
            cut()


@dataclass(frozen=True, slots=True)
class Place:
    """A file or a folder of a start. It need not be there."""

    file: Path
    _name: str
    _start: _Start

    def check_new(self) -> None:
        """Raise PermissionError if no file may be written here any more."""
        if self._start.is_over:
            raise PermissionError("This start of the task has ended.")
        if not self._start.recorded.may_be_written(self._name):
            raise PermissionError(f"{self._name} is in the task's log already, or about to be.")

    def make(self) -> None:
        """Make this folder and those above it. Raise PermissionError if a file of the log has its name."""
        with self._start.recorded.lock:
            if not self.file.is_dir():
                self.check_new()
            self.file.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def written(self, cut: Callable[[], None]) -> Iterator[Path]:
        """Inside, write the file that this yields: it comes here at the end, unless something is raised.

        Raise PermissionError if it may not. `cut` is called if the start ends meanwhile: whoever has hung in the
        middle of an upload would keep its connection forever.
        """
        with self._start.recorded.lock:
            self.check_new()
            self._start.cuts.add(cut)
        fresh = self.file.with_name(f".{self.file.name}.{secrets.token_hex(4)}{UPLOAD}")
        fresh.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield fresh
            with self._start.recorded.lock:
                self.check_new()
                fresh.replace(self.file)
        finally:
            with self._start.recorded.lock:
                self._start.cuts.discard(cut)
            fresh.unlink(missing_ok=True)

    def rename(self, to: "Place") -> bool:
        """Rename this file, or move it into a folder. Spark renames files only, each within its start. Return whether
        it was there. Raise PermissionError if that may not be.
        """
        if to.file.is_dir():
            to = Place(to.file / self.file.name, f"{to._name}/{self.file.name}".lstrip("/"), to._start)
        with self._start.recorded.lock:
            self.check_new()
            to.check_new()
            if self._start is not to._start or self.file.is_dir() or to.file.is_dir():
                raise PermissionError("Files of a task are renamed, and no folders.")
            if not self.file.exists():
                return False
            self.file.replace(to.file)
            return True

    def delete(self, *, recursive: bool) -> bool:
        """Delete it. Return whether it was there. Raise PermissionError if the task needs it."""
        with self._start.recorded.lock:
            if self._start.is_over:
                raise PermissionError("This start of the task has ended.")
            if not self._name or not self._start.recorded.may_be_deleted(self._name):
                raise PermissionError(f"{self._name} is in the task's log, and needed.")
            if not self.file.exists():
                return False
            if not self.file.is_dir():
                self.file.unlink(missing_ok=True)
            elif recursive:
                shutil.rmtree(self.file, ignore_errors=True)
            else:
                self.file.rmdir()
            return True


class ServedFolders:
    """The folders of the starts that run, each under a random name that no other start has."""

    def __init__(self) -> None:
        self._starts: dict[str, _Start] = {}

    def add(self, folder: Path, recorded: RecordedFiles) -> tuple[str, Callable[[], None]]:
        """Serve a folder. Return its name, and what ends it."""
        recorded.guard()
        name, start = secrets.token_hex(16), _Start(folder, recorded)
        self._starts[name] = start

        def end() -> None:
            start.end()
            self._starts.pop(name, None)

        return name, end

    def place(self, path: str) -> Place:
        """What a path means. Raise PermissionError if its start has ended, and ValueError for a strange path."""
        start, _, name = path.strip("/").partition("/")
        served = self._starts.get(start)
        if served is None:
            raise PermissionError("This start of the task has ended.")
        parts = [part for part in name.split("/") if part]
        if any(part in (".", "..") or "\0" in part for part in parts):
            raise ValueError("A path without . and .. is expected.")
        return Place(served.folder.joinpath(*parts), "/".join(parts), served)

    def end(self) -> None:
        """Serve none of them any more."""
        for start in [*self._starts.values()]:
            start.end()
        self._starts.clear()
