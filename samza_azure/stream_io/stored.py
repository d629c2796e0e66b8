"""The files of a checkpoint, as a task's log holds them: read for a restore, or copied ahead of one into a replica.

A replica follows the log of a task that another processor runs, so a restore has to read the end of the log only. It
believes no copy: each is compared with the size and the checksum that the log says.
"""

import errno
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samza_azure.logs.operations import Rule
from samza_azure.logs.record import Reference, Writer
from samza_azure.logs.restart_files import size_of
from samza_azure.logs.task_log import StoredFiles, TaskLog, follow
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.driver import drive

#: A larger file of a checkpoint is written to the disk in pieces of this size.
PIECE_BYTES = 16 << 20
#: Copies leave so much of the disk free, since the tasks that run here need it.
LEFT_BYTES = 1 << 30


class StoredMapping(Mapping[str, bytes]):
    """Files by their paths, which can be read in pieces: one may be larger than memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def __getitem__(self, path: str) -> bytes:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def size(self, path: str) -> int:
        """The size of a file."""
        return len(self._files[path])

    def pieces(self, path: str) -> Iterator[bytes]:
        """The content of a file, in pieces that fit into memory. An error may come after some of them."""
        yield self[path]

    def write(self, path: str, target: Path) -> int:
        """Write the content of a file to this path, piece by piece. Return its size."""
        with target.open("wb") as file:
            return sum(map(file.write, self.pieces(path)))


@dataclass(frozen=True, slots=True)
class Copy:
    """A file in the folder, with the size and the CRC that it must have."""

    path: Path
    size: int
    crc: int


class Copies:
    """Copies of a checkpoint's large files in a folder, under names of our own: those in a log may be anything.

    They count only for as long as this object lives.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, Copy] = {}
        self._made = 0

    @property
    def size(self) -> int:
        """The bytes of all copies."""
        return sum(each.size for each in list(self._held.values()))

    def lacking(self, files: Mapping[str, bytes | Reference]) -> dict[str, Reference]:
        """The large files of these of which there is no copy. Copies of others are deleted."""
        wanted = {path: each for path, each in files.items() if isinstance(each, Reference)}
        for path, held in list(self._held.items()):
            if path not in wanted or (held.size, held.crc) != (wanted[path].length, wanted[path].crc):
                del self._held[path]
                held.path.unlink(missing_ok=True)
        return {path: each for path, each in wanted.items() if path not in self._held}

    def check_room(self, needed: int) -> None:
        """Raise OSError if the disk has no room for so many bytes more."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(self._folder).free) < needed + LEFT_BYTES:
            raise OSError(
                errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {free} bytes are free, {needed} are missing here"
            )

    def add(self, path: str, reference: Reference, pieces: Iterable[bytes]) -> None:
        """Copy a file. It counts once all its pieces are there."""
        self._made += 1
        target = self._folder / str(self._made)
        try:
            with target.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        self._held[path] = Copy(target, reference.length, reference.crc)

    def moved(self, path: str, reference: Reference, target: Path) -> bool:
        """Move the copy of a file there. False: there is none, or the disk holds other bytes than were written."""
        held = self._of(path, reference)
        try:
            if held is None or _checksum(held.path) != (held.size, held.crc):
                return False
            del self._held[path]
            held.path.replace(target)
        except OSError:
            return False
        return True

    def content(self, path: str, reference: Reference) -> bytes | None:
        """The content of the copy of a file. None: as above."""
        held = self._of(path, reference)
        try:
            content = held.path.read_bytes() if held is not None else b""
        except OSError:
            return None
        is_right = held is not None and (len(content), zlib.crc32(content)) == (held.size, held.crc)
        return content if is_right else None

    def _of(self, path: str, reference: Reference) -> Copy | None:
        held = self._held.get(path)
        return held if held is not None and (held.size, held.crc) == (reference.length, reference.crc) else None

    def close(self) -> None:
        """Delete the folder."""
        self._held.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def _checksum(path: Path) -> tuple[int, int]:
    """Size and CRC of a file."""
    crc = size = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            crc, size = zlib.crc32(piece, crc), size + len(piece)
    return size, crc


class LogFiles(StoredMapping):
    """The files of a checkpoint. A large one is read from the storage each time that it is asked for."""

    def __init__(self, stored: StoredFiles, run: Callable[[Rule[Any]], Any], copies: Copies | None = None) -> None:
        super().__init__({})
        self._stored = stored
        self._run = run
        self._copies = copies
        self.downloaded = self.were_here = 0  # bytes of large files so far

    def __getitem__(self, path: str) -> bytes:
        reference = self._stored.files[path]
        if isinstance(reference, bytes):
            return reference
        here = self._copies.content(path, reference) if self._copies is not None else None
        if here is not None:
            self.were_here += len(here)
            return here
        content: bytes = self._run(self._stored.read(path))
        self.downloaded += len(content)
        return content

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored.files)

    def __len__(self) -> int:
        return len(self._stored.files)

    def size(self, path: str) -> int:
        return size_of(self._stored.files[path])

    def pieces(self, path: str) -> Iterator[bytes]:
        size, crc = self.size(path), 0
        if size <= PIECE_BYTES:
            yield self[path]
            return
        for start in range(0, size, PIECE_BYTES):
            piece: bytes = self._run(self._stored.piece(path, start, min(PIECE_BYTES, size - start)))
            crc = zlib.crc32(piece, crc)
            self.downloaded += len(piece)
            yield piece
        self._stored.check(path, crc)

    def write(self, path: str, target: Path) -> int:
        content = self._stored.files[path]
        if self._copies is not None and isinstance(content, Reference) and self._copies.moved(path, content, target):
            self.were_here += content.length
            return content.length
        return super().write(path, target)


class Replica:
    """What a restore of a task needs, kept ready while another processor runs it.

    The large files are copied into a folder, everything else is in memory. Not for several threads at a time.
    """

    def __init__(self, blobs: Blobs, prefix: str, *, group_id: bytes, task: str, folder: Path) -> None:
        self.log = TaskLog(prefix, group_id, task, Writer(0, 0))
        self.copies = Copies(folder)
        self.is_complete = False  # whether it was once read to the end, and has all files of that moment
        self._blobs = blobs

    def read_on(self, goes_on: Callable[[], bool]) -> None:
        """Read to the end of the log, and copy the files that are new. It ends early once `goes_on` says no.

        Raise StateLost or CorruptState if the log does not go on here: then it has to be followed anew.
        """
        drive(follow(self.log), self._blobs)
        stored = StoredFiles(self.log)
        files = LogFiles(stored, lambda rule: drive(rule, self._blobs))
        lacking = self.copies.lacking(stored.files)
        if lacking:
            self.copies.check_room(sum(each.length for each in lacking.values()))
        for path, reference in lacking.items():
            if not goes_on():
                return
            self.copies.add(path, reference, files.pieces(path))
        self.is_complete = self.log.writer is not None

    def begin_anew(self) -> None:
        """Follow the log anew. The copies stay: what the log says then decides which of them count."""
        self.log = TaskLog(self.log.prefix, self.log.group_id, self.log.task, self.log.owner)
        self.is_complete = False

    @property
    def size(self) -> int:
        """The bytes that it holds, in memory and in the folder."""
        small = sum(len(each) for each in list(self.log.files.values()) if isinstance(each, bytes))
        return small + self.copies.size
