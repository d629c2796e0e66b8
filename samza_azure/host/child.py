"""The container as a child process, which ends with its parent in all cases.

The kernel kills the child when the thread that started it dies (PR_SET_PDEATHSIG), so a `Child` is made on the main
thread. The child does the same for its JVM; its other processes are in its process group, or end at end of file.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from samza_azure.machine.processes import die_with_parent
from samza_azure.messages import Command, Report, Sign, decode, encode

#: The size at which a container's log is rotated. One old log is kept beside it.
LOG_BYTES = 16 << 20
#: A container that reads nothing for this long, while the socket's buffer is full, hangs.
SEND_S = 1.0
#: pyspark needs equal hashes in all its processes, and so does a key that a function computes with `hash`.
PINNED = {"PYTHONHASHSEED": "0"}
#: What its processes need. What the user has set counts more.
DEFAULTS = {
    # Arrow's own allocator keeps what threads have used in turn: after 3,500 batches 80 MiB, with nothing in use.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "4",  # in glibc's, likewise: it would have eight arenas per core
}

#: What a failed process prints last: the last line of a stack trace of Python or Java, or an error of the system.
_LAST_WORDS = re.compile(
    rb"^(?:Caused by: |fatal: )?((?:[\w$]+\.)*[\w$]*(?:Error|Exception|Exit)\b.*|.*No space left on device.*)$",
    re.MULTILINE,
)
_TAIL_BYTES = 256 << 10


def last_error(log_file: Path, since: int = 0) -> str:
    """The last error in the log of a dead container; empty if there is none.

    `since` is the length of the log when the container started: the part before is older. A rotated log is shorter.
    """
    try:
        size = log_file.stat().st_size
        with log_file.open("rb") as log:
            log.seek(max(since if since <= size else 0, size - _TAIL_BYTES))
            found: list[bytes] = _LAST_WORDS.findall(log.read())
    except OSError:
        return ""
    full = [each for each in found if b"No space left on device" in each]  # the other errors follow from it
    return (full or found or [b""])[-1].decode(errors="replace").strip()[:300]


class Child:
    """One container process and the socket to it."""

    def __init__(self, job: Path, directory: Path, log_file: Path) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._lock = ours, threading.Lock()
        self._buffer = b""
        #: Why it was killed before it had ended by itself; empty if it was not.
        self.killed_because = ""
        ours.settimeout(SEND_S)
        command = [sys.executable, "-P", "-m", "samza_azure.container", str(job)]
        command += ["--channel", str(theirs.fileno()), "--directory", str(directory)]
        self._log_file = log_file
        self.cut_log()
        with log_file.open("ab") as log, theirs:
            self._log_from = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**DEFAULTS, **os.environ, **PINNED},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        """The id of the container's Python process, which leads its process group."""
        return self._process.pid

    def fileno(self) -> int:
        """The file descriptor of the socket, for a selector."""
        return self._socket.fileno()

    def send(self, command: Command) -> None:
        """Send a command, from any thread. If the child has ended this does nothing: its end is noticed elsewhere."""
        with self._lock:
            try:
                self._socket.sendall(encode(command))
            except TimeoutError:
                self.end_hanging("it read no command")  # waiting would delay our own heartbeat
            except OSError:
                return

    def receive(self) -> Iterator[Report | Sign] | None:
        """The reports of one read; None at end of file, when the child is gone or going."""
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return (decode(line) for line in lines if line)  # type: ignore[misc]

    def last_error(self) -> str:
        """The last error in its log."""
        return last_error(self._log_file, self._log_from)

    def cut_log(self) -> None:
        """Rotate the log if it is long, by a copy, because the JVM and the workers keep it open and append to it. What
        they write between the copy and the truncation is lost.
        """
        with suppress(OSError):
            if self._log_file.stat().st_size < LOG_BYTES:
                return
            with suppress(OSError):  # the disk may be full, all the more reason to truncate it
                shutil.copyfile(self._log_file, self._log_file.with_name(f"{self._log_file.name}.1"))
            os.truncate(self._log_file, 0)

    def end(self, patience_s: float) -> int:
        """Wait up to `patience_s` seconds for its end, then kill its process group. Return the exit code."""
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Kill the child and its process group now, and return the exit code."""
        self.end_group()
        code = self._process.wait()
        self._socket.close()
        return code

    def end_hanging(self, because: str) -> None:
        """Send SIGKILL, since it hangs. Its channel is at end of file when it is gone."""
        self.killed_because = self.killed_because or because
        self.end_group()

    def end_group(self) -> None:
        """Send SIGKILL to the child and its process group, without waiting."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
