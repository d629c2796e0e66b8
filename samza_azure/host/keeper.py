"""The process between a guard and its command: it ends the command in time, whatever happens to the guard.

Promised: the command and all that it started are dead, and waited for, before this process ends; that begins at the
moment when the permit ends, when the guard has died, or when the time after a signal is over. So a guard that is
frozen (SIGSTOP) or killed does not let its command run on. The command dies with this process, too (PR_SET_PDEATHSIG),
and the guard then ends what the command had started.

Not promised: anything while this process itself is frozen. Then the guard does the same; see `host/kept.py`. If both
are, the command runs on until one of them wakes up.

It imports little, takes no signals, and gets all its orders as lines of JSON over a socket.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from samza_azure.host.tree import Cgroup, end_all, reap
from samza_azure.machine.clock import boot_time
from samza_azure.machine.processes import adopt_orphans, die_with_parent

#: The longest wait: the kernel's timers stand still while the machine sleeps, and the permit's clock does not.
LOOK_S = 0.1
#: What people and terminals send to whole groups. Only the guard passes signals on.
DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP)


class Keeper:
    """Runs one command to its end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._unread = channel, b""
        self._wake, self._woken = socket.socketpair()  # readable when a child has ended
        self._until, self._kill_at = 0.0, float("inf")
        self._guard_lives = True
        self._command: int | None = None
        self._code: int | None = None
        self._cgroup: Cgroup | None = None

    def run(self) -> None:
        """Read the first order, start the command, and end it when it is time."""
        adopt_orphans()
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        first: dict[str, Any] = {}
        while "command" not in first and self._guard_lives:
            for order in self._orders(None):
                first |= order
                self._obey(order)
        if not self._may_run():
            self._say(code=None)
            return
        if first["cgroup"]:
            self._cgroup = Cgroup(Path(first["cgroup"]))
        try:
            self._command = self._start(first["command"])
        except OSError as error:
            self._say(code=None, error=str(error))
            return
        self._say(process=self._command)
        while self._may_run() and reap(self._ended) and self._code is None:
            now = boot_time()
            for order in self._orders(max(0.0, min(self._until - now, self._kill_at - now, LOOK_S))):
                self._obey(order)
        by_itself = self._code is not None
        end_all(self._cgroup, self._ended)
        if self._cgroup is not None:
            self._cgroup.end()
        self._say(code=self._code if by_itself else None)

    def _may_run(self) -> bool:
        return self._guard_lives and boot_time() < min(self._until, self._kill_at)

    def _obey(self, order: dict[str, Any]) -> None:
        if "until" in order:
            self._until = order["until"]
        if "kill_at" in order:
            self._kill_at = min(self._kill_at, order["kill_at"])
        if "signal" in order and self._command is not None:
            with suppress(ProcessLookupError):
                os.kill(self._command, order["signal"])

    def _start(self, command: list[str]) -> int:
        cgroup = self._cgroup

        def prepare() -> None:
            die_with_parent()
            for number in DEAF_TO:
                signal.signal(number, signal.SIG_DFL)
            if cgroup is not None:
                cgroup.enter()

        # A session of its own: a terminal's Ctrl-C reaches it through the guard alone.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=prepare)
        process.returncode = 0  # `reap` waits for it
        return process.pid

    def _ended(self, process: int, status: int) -> None:
        if process == self._command:
            self._code = os.waitstatus_to_exitcode(status)

    def _orders(self, patience_s: float | None) -> list[dict[str, Any]]:
        """The orders that come within a time, or as soon as a child has ended. None: at the guard's end."""
        ready, _, _ = select.select([self._channel, self._woken], [], [], patience_s)
        if self._woken in ready:
            self._woken.recv(4096)
        if self._channel not in ready:
            return []
        try:
            data = self._channel.recv(1 << 16)
        except OSError:
            data = b""
        self._guard_lives = bool(data)
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _say(self, **what: object) -> None:
        with suppress(OSError):  # the guard has died
            self._channel.sendall(json.dumps(what).encode() + b"\n")


def main() -> None:
    """Keep the command that comes over the socket whose file descriptor is the argument."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    Keeper(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
