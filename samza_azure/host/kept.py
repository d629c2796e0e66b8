"""A command that runs under a keeper, from the guard's side: start it, prolong its permit, end it, hear of its end.

Promised: when `wait` returns, or `on_end` is called, no process of the command exists. If the keeper does not do its
work in time (it is frozen) or was killed, this side ends the whole tree. One command at a time runs in a directory,
also if the guard is killed and started again: the keeper inherits the lock of it, and `only_one` waits for that.
"""

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samza_azure.host.tree import Cgroup, end_all
from samza_azure.machine.clock import boot_time
from samza_azure.machine.folders import try_lock

__all__ = ["End", "KeptCommand", "only_one"]

log = logging.getLogger(__name__)

#: How often this side looks whether the keeper does its work.
LOOK_S = 0.1
#: A directory whose former command does not end is named after this time.
TELL_S = 2.0


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended: by itself with a code (negative: by that signal), because it could not start, because it was
    killed in time (neither), or because its keeper was lost.
    """

    code: int | None = None
    error: str = ""
    is_lost: bool = False


def only_one(directory: Path, cgroup: Cgroup | None = None) -> int:
    """Wait until no command runs in this directory. Return the lock, which the keeper of the next one inherits.

    What a keeper and its guard left in the cgroup, because both were killed at once, is ended.
    """
    tell_at: float | None = boot_time() + TELL_S
    while (lock := try_lock(directory / "command.lock")) is None:
        if tell_at is not None and boot_time() > tell_at:
            tell_at = None
            log.warning("processes of the former command still run; nothing starts before they have ended")
        time.sleep(LOOK_S)
    if cgroup is not None:
        cgroup.end()
    return lock


class KeptCommand:
    """One run of a command. Make it with `adopt_orphans` in force."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        until: float,
        slack_s: float,
        lock: int,
        cgroup: Cgroup | None,
        on_end: Callable[["KeptCommand", End], None],
    ) -> None:
        """`until` is the end of the permit; the keeper has `slack_s` more to end the tree, then this side does."""
        ours, theirs = socket.socketpair()
        self._channel, self._sending, self._unread = ours, threading.Lock(), b""
        self._slack_s, self._cgroup, self._on_end = slack_s, cgroup, on_end
        self._until, self._kill_at = until, float("inf")  # when the keeper has to begin to end the tree
        self._earliest = threading.Lock()  # signals, notices and releases say when on threads of their own
        #: Whether it was asked to end.
        self.is_asked = False
        #: The id of the command's process, once it has one.
        self.process: int | None = None
        with theirs:
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", "samza_azure.host.keeper", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno(), lock],
                start_new_session=True,
            )
        self._send(command=list(command), until=until, cgroup=str(cgroup.folder) if cgroup is not None else "")
        ours.settimeout(LOOK_S)
        self._watching = threading.Thread(target=self._watch, name="command", daemon=True)
        self._watching.start()

    def permit(self, until: float) -> None:
        """Set the end of the permit; 0: end it now. What a frozen keeper does not read is lost after `LOOK_S`, and the
        permit ends earlier.
        """
        now = boot_time()
        self._until = until if until > now else min(self._until, now)
        self._send(until=until)

    def pass_on(self, number: int) -> None:
        """Send a signal to the command's own process."""
        self._send(signal=number)

    def end(self, number: int, patience_s: float) -> None:
        """Send a signal to the command's own process, and SIGKILL to all after a time. Returns at once. Idempotent."""
        self.is_asked = True
        self._send(signal=number)
        self.kill_at(boot_time() + patience_s)

    def kill_at(self, at: float) -> None:
        """Send SIGKILL to all at this time, or when it was said before if that is earlier."""
        with self._earliest:
            self._kill_at = min(self._kill_at, at)
            self._send(kill_at=self._kill_at)

    def wait(self) -> None:
        """Wait until all its processes have ended."""
        if self._watching is not threading.current_thread():
            self._watching.join()

    def _send(self, **order: object) -> None:
        with self._sending, suppress(OSError):
            self._channel.sendall(json.dumps(order).encode() + b"\n")

    def _watch(self) -> None:
        end = self._end()
        if end is None:
            end_all(self._cgroup)
            end = End(is_lost=True)
        self._channel.close()
        self._keeper.wait()
        self._on_end(self, end)

    def _end(self) -> End | None:
        """What the keeper says of the end; None if it has ended without a word, or does not do its work."""
        while boot_time() < min(self._until, self._kill_at) + self._slack_s:
            try:
                data = self._channel.recv(1 << 12)
            except TimeoutError:
                continue
            except OSError:
                return None
            if not data:
                return None
            *lines, self._unread = (self._unread + data).split(b"\n")
            for said in map(json.loads, lines):
                if (end := self._heard(said)) is not None:
                    return end
        return None

    def _heard(self, said: dict[str, Any]) -> End | None:
        if "process" in said:
            self.process = said["process"]
            return None
        return End(said["code"], said.get("error", ""))
