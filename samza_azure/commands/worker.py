"""`samza-azure worker`: a worker of a Spark cluster, which leaves as a processor does: told beforehand."""

import errno
import hashlib
import math
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from samza_azure.commands.terminal import say
from samza_azure.config.sections import METADATA
from samza_azure.config.spark import CLUSTER, address_towards
from samza_azure.errors import ConfigError
from samza_azure.group.notice import Availability, Going
from samza_azure.host.decommission import listen
from samza_azure.host.scheduled_events import Watch
from samza_azure.host.tree import below, end_all
from samza_azure.machine.clock import boot_time
from samza_azure.machine.folders import private_folder
from samza_azure.machine.memory import LEAST_HEAP_MIB, OUTSIDE_HEAP_MIB, memory
from samza_azure.machine.processes import adopt_orphans, die_with_parent, how_it_ended

#: What tells it to leave.
NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGPWR)
LOOK_S = 0.1
#: How long its JVM may take to end when nothing of it runs.
END_S = 10.0


def command(
    master: Annotated[str, typer.Option(help="The cluster, as spark://host:port.")],
    host: Annotated[
        str | None,
        typer.Option(help="This machine's address, instead of the one from which it reaches the master. No two alike."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(help="The port at which the master and executors reach it; 0: any free one.", min=0, max=65535),
    ] = 0,
    cores: Annotated[int | None, typer.Option(help="How many cores executors may use, instead of all.", min=1)] = None,
    memory_mib: Annotated[
        int | None, typer.Option("--memory-mib", help="How much memory executors may use.", min=450)
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", help="For the files of executors, on a local disk.", file_okay=False)
    ] = Path(".samza-azure/worker"),
    notices_port: Annotated[
        int | None,
        typer.Option(help="Leave, too, on POST /decommission at this port, from this machine only.", min=1, max=65535),
    ] = None,
    azure_notices: Annotated[
        bool,
        typer.Option("--azure-notices", help="Leave, too, when Azure's Scheduled Events say that this machine will."),
    ] = False,
    metadata: Annotated[
        str, typer.Option(help="The address of Azure's metadata service, or for a trial that of another one.")
    ] = METADATA,
    patience_s: Annotated[
        float, typer.Option("--patience", metavar="SECONDS", help="How long it waits for its executors when it leaves.")
    ] = 30.0,
) -> None:
    """Run a worker of a Spark cluster, in the foreground. It is decommissioned before it goes.

    SIGTERM, SIGPWR and Ctrl-C tell it to go: its executors get no more tasks, end those that run, hand on what they
    hold, and end; then it ends. A second Ctrl-C ends it at once.

    Example: samza-azure worker --master spark://10.0.0.4:7077
    """
    from samza_azure.spark.jvm.daemons import check_java, worker

    if not re.fullmatch(CLUSTER, master):
        raise ConfigError(f"--master {master!r} is no cluster. Write it as spark://host:port.")
    check_java(os.environ)
    there = memory()
    room = memory_mib or max(LEAST_HEAP_MIB, (there.limit >> 20) - OUTSIDE_HEAP_MIB)
    folder = directory.absolute()
    private_folder(folder)
    address = host or address_towards(master, "--host")
    taken = only_one(master, address)
    made = worker(
        master,
        address,
        port,
        cores or len(os.sched_getaffinity(0)),
        room,
        folder,
        os.environ,
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, [*NOTICES, signal.SIGCHLD])
    adopt_orphans()  # executors whose JVM has ended
    leaving = Leaving(metadata if azure_notices else None)
    if notices_port is not None:
        listen(leaving, {"worker": master}, notices_port)
    process = subprocess.Popen(
        made.command, env=made.environment, start_new_session=True, cwd=folder, preexec_fn=_before_exec
    )
    with taken:
        raise typer.Exit(live(process, patience_s, leaving))


def only_one(master: str, address: str) -> socket.socket:
    """Take this address of this machine for a worker of the cluster, until it is closed or the process ends.

    Raise ConfigError if another worker has it: when one of them leaves, Spark forgets what the other one holds, too.
    """
    taken = socket.socket(socket.AF_UNIX)
    of_both = hashlib.sha256(f"{address} {master}".encode()).hexdigest()[:32]  # a name has room for 107 bytes
    try:
        taken.bind(f"\0samza-azure worker {of_both}")  # no file
    except OSError as error:
        taken.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise ConfigError(
            f"Another worker of {master} has the address {address} here. If one of two leaves, Spark forgets what the "
            "executors of both hold, and computes it again. Give the other one more --cores and --memory-mib, "
            "or this one an address of its own by --host."
        ) from error
    return taken


class Leaving:
    """What Scheduled Events and requests lead to: the same as a signal. A worker that leaves cannot come back."""

    def __init__(self, metadata: str | None) -> None:
        """`metadata` is where to watch for events."""
        self.going: Going | None = None
        self._by = math.inf
        # A freeze ends, so it is no notice.
        self._watch = None if metadata is None else Watch(self, metadata, math.inf)

    def watch(self) -> None:
        """Watch for events, in a thread."""
        if self._watch is not None:
            self._watch.start()

    def patience_s(self, most: float) -> float:
        """How long executors may take: no longer than until the deadline, unless that has passed."""
        left = self._by - boot_time()
        return min(most, left) if left > 0 else most

    def decommission(self, why: str, *, by: float | None = None, source: str = "") -> None:
        """Leave."""
        if self.going is None:
            self._by = math.inf if by is None else by
            self.going = Going(Availability.DECOMMISSIONING, why)
            os.kill(os.getpid(), signal.SIGTERM)

    def recommission(self, source: str) -> None:
        """Leave nevertheless: who has started this worker starts another one."""

    def has_left(self) -> None:
        """Approve the event: nothing runs here any more."""
        if self._watch is not None:
            self._watch.close()
        if self.going is not None:
            self.going = replace(self.going, state=Availability.DECOMMISSIONED)
            if self._watch is not None:
                self._watch.turn()


def _before_exec() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent()


def live(process: "subprocess.Popen[bytes]", patience_s: float, leaving: Leaving) -> int:
    """Wait for a notice, then leave. Return the exit code. The signals of notices and SIGCHLD are blocked, and orphans
    are adopted: no executor lives longer than this.
    """
    leaving.watch()
    while signal.sigwait([*NOTICES, signal.SIGCHLD]) == signal.SIGCHLD:
        if _has_ended(process):
            end_all()
            say(f"The worker {how_it_ended(process.returncode)}, without a notice.")
            return 1
    patience_s = leaving.patience_s(patience_s)
    say(f"The worker leaves: executors have {patience_s:.3g} s to end their tasks and to hand on what they hold.")
    begun = time.monotonic()
    process.send_signal(signal.SIGPWR)
    left = _awaited(lambda: not below(process.pid) or _has_ended(process), begun + patience_s)
    late = [] if left else below(process.pid)
    for each in late:  # before their JVM, which would wait for them, too, and then leave them behind
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    process.terminate()
    _awaited(lambda: _has_ended(process), time.monotonic() + END_S)
    end_all()
    leaving.has_left()
    took = f"after {time.monotonic() - begun:.1f} s"
    if late:
        say(f"The worker has left {took}; executors did not end in time; {len(late)} of their processes were killed.")
        return 1
    say(f"The worker has left {took}; its executors had ended.")
    return 0


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether the JVM has. Adopted orphans that have ended, as Python workers of an executor that was killed, go."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == process.pid:
                break
            os.waitpid(ended.si_pid, 0)
    return process.poll() is not None


def _awaited(is_so: Callable[[], bool], until: float) -> bool:
    """Wait until something is so, in vain after a while, or at a second notice by Ctrl-C. Return whether it is."""
    while not is_so():
        now = time.monotonic()
        found = signal.sigtimedwait([*NOTICES, signal.SIGCHLD], min(LOOK_S, max(until - now, 0)))
        if now >= until or (found is not None and found.si_signo == signal.SIGINT):
            return is_so()
    return True
