"""Folders of this machine: whose they are, and where they are."""

import fcntl
import hashlib
import os
from pathlib import Path


def boot_place(directory: Path) -> str:
    """A name for this boot of the machine and a directory on it, where holding a lock proves that nobody else runs.

    The same path in another container is another directory, so the mount namespace is part of the name.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mounts = Path("/proc/self/ns/mnt").readlink()
    return hashlib.sha256(f"{boot} {mounts} {directory.resolve()}".encode()).hexdigest()[:32]


def try_lock(path: Path) -> int | None:
    """Lock a file, which is made if it is not there, for this process and those that inherit the descriptor.

    Return the descriptor, which holds the lock until it is closed, or None if another process holds it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def private_folder(path: Path) -> None:
    """Create a folder that only this user may enter, whatever the umask, or make it one; its parents, too, if new.

    Raise PermissionError for a folder of another user, who could exchange what is in it.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if os.geteuid() not in (0, owner := path.stat().st_uid):
        raise PermissionError(f"{path} belongs to another user, {owner}")
    for each in {path, *missing}:
        each.chmod(0o700)
