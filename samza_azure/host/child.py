"""The container as a child process: started, spoken to, and certain to end with its parent.

The kernel kills the child when the thread that started it dies (PR_SET_PDEATHSIG), so `start` is called on the main
thread. The child does the same for its JVM; what else it starts is in its process group, or ends at end of file.
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

from samza_azure.machine import die_with_parent
from samza_azure.messages import Alive, Command, Report, decode, encode

#: The log of a container is cut when it is so long. What was in it is kept once more, beside it.
LOG_BYTES = 16 << 20
#: A container that reads nothing for so long, with its whole buffer full, hangs.
SEND_S = 1.0


#: What a process that ends badly says of it: the last line of a stack trace, of Python's or Java's, or of the system.
_LAST_WORDS = re.compile(
    rb"^(?:Caused by: |fatal: )?((?:[\w$]+\.)*[\w$]*(?:Error|Exception|Exit)\b.*|.*No space left on device.*)$",
    re.MULTILINE,
)
_TAIL_BYTES = 256 << 10


def last_error(log_file: Path, since: int = 0) -> str:
    """What a container that is dead said last of an error; empty if it said nothing of the kind.

    `since` is where the log ended when it started: before that others have written. A log that was cut is shorter.
    """
    try:
        size = log_file.stat().st_size
        with log_file.open("rb") as log:
            log.seek(max(since if since <= size else 0, size - _TAIL_BYTES))
            found: list[bytes] = _LAST_WORDS.findall(log.read())
    except OSError:
        return ""
    full = [each for each in found if b"No space left on device" in each]  # all else follows from it
    return (full or found or [b""])[-1].decode(errors="replace").strip()[:300]


class Child:
    """One container process and the socket to it."""

    def __init__(self, job: Path, directory: Path, log_file: Path) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._lock = ours, threading.Lock()
        self._buffer = b""
        ours.settimeout(SEND_S)
        command = [sys.executable, "-m", "samza_azure.spark.container", str(job)]
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
                env={"PYTHONHASHSEED": "0", **os.environ},  # pyspark wants all its processes to hash alike
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        """Of the container's Python process, which leads its group."""
        return self._process.pid

    def fileno(self) -> int:
        """The socket, for a selector."""
        return self._socket.fileno()

    def send(self, command: Command) -> None:
        """Any thread. A child that is gone hears nothing; its end is noticed elsewhere."""
        with self._lock:
            try:
                self._socket.sendall(encode(command))
            except TimeoutError:
                self.end_group()  # it hangs: whoever waits for it would miss its own heartbeat
            except OSError:
                return

    def receive(self) -> Iterator[Report | Alive] | None:
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
        """What it said last of an error, in its log."""
        return last_error(self._log_file, self._log_from)

    def cut_log(self) -> None:
        """Begin the log anew if it is long. The JVM and the workers go on writing to it: each write goes to its end,
        wherever that is. What they write between the copy and the cut is lost.
        """
        with suppress(OSError):
            if self._log_file.stat().st_size < LOG_BYTES:
                return
            with suppress(OSError):  # the disk may be full, which is a reason more to cut it
                shutil.copyfile(self._log_file, self._log_file.with_name(f"{self._log_file.name}.1"))
            os.truncate(self._log_file, 0)

    def end(self, patience_s: float) -> int:
        """Wait so long for it to end by itself, then kill its whole group. The exit code."""
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Kill the child and what is in its process group, now."""
        self.end_group()
        code = self._process.wait()
        self._socket.close()
        return code

    def end_group(self) -> None:
        """Send the signal that kills the child and what is in its process group, and wait for nothing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
