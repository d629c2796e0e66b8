"""A guarded command's token, and the check of it in front of a folder.

Promised: the token of a start is higher than those of all earlier starts of the guard's group. A folder remembers the
highest token that was checked for it, and a lower one is refused from then on, also after a power failure.

Not promised: that the file system refuses the writes of a command that has passed the check and is superseded right
after it. So check before each write that matters, for example at the beginning of `foreachBatch`. And the folder must
be one that all machines share, on a file system with locks (`flock`): NFS 4, SMB, a local disk.
"""

import fcntl
import os
import re
from pathlib import Path

from samza_azure.errors import ConfigError, CorruptState, Superseded

__all__ = ["TOKEN", "TOKEN_FILE", "check_token"]

#: The environment variables of a guarded command: its token, and the path of a file with it, which is there only while
#: the command runs.
TOKEN, TOKEN_FILE = "SAMZA_AZURE_TOKEN", "SAMZA_AZURE_TOKEN_FILE"
#: The file in a folder with the highest token, and the one that is locked meanwhile.
RECORD, LOCK_FILE = ".samza-azure-token", ".samza-azure-token.lock"


def check_token(directory: str | os.PathLike[str], token: int | None = None) -> int:
    """Record the token in a folder, by default the one that `samza-azure guard` gave to this process, and return it.

    The folder is made if there is none. Its path may begin with `file:`.

    Example:
        def store(rows, batch):  # for foreachBatch
            check_token("/mnt/checkpoints/nightly")
            rows.write.mode("append").parquet("/mnt/nightly")

    Raises:
        Superseded: a higher one was recorded: a later start of the command has the folder.
        ConfigError: this process has no token, or the path has another scheme.
        CorruptState: the file with the token does not hold one.
    """
    token = _own_token() if token is None else token
    folder = _folder(os.fspath(directory))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        recorded = _recorded(folder / RECORD)
        if recorded > token:
            raise Superseded(
                f"A later start of the guarded command, with token {recorded}, has {folder}; this one has token "
                f"{token}, so it must not write there. If the guard's group in the account was deleted or renamed "
                f"since, delete {folder / RECORD}."
            )
        if recorded < token:
            _record(folder, token)
    return token


def _own_token() -> int:
    text = os.environ.get(TOKEN, "")
    if not re.fullmatch(r"\d{1,18}", text):
        raise ConfigError(
            f"{TOKEN} is {text!r}, which is no token. Run this command under samza-azure guard, which sets it."
            if text
            else f"{TOKEN} is not set: run this command under samza-azure guard, which sets it."
        )
    return int(text)


def _folder(path: str) -> Path:
    scheme = re.match(r"([A-Za-z][\w+.-]+):", path)
    if scheme is None:
        return Path(path)
    if scheme[1].lower() != "file":
        raise ConfigError(
            f"{path!r} is no folder that can be locked. Give a folder that all machines have mounted, for example one "
            "beside what the token protects."
        )
    return Path("/" + path[len("file:") :].lstrip("/"))


def _recorded(file: Path) -> int:
    try:
        text = file.read_text().strip()
    except FileNotFoundError:
        return -1
    if not re.fullmatch(r"\d{1,18}", text):
        raise CorruptState(f"No token is in this file, which samza-azure guard writes: {text!r:.40}", blob=str(file))
    return int(text)


def _record(folder: Path, token: int) -> None:
    """Replace the record whole, and make it durable before anybody acts on it."""
    fresh = folder / f"{RECORD}.new"
    with fresh.open("w") as file:
        file.write(f"{token}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / RECORD)
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
