"""`samza-azure worker`: a worker of a Spark cluster, which leaves as a processor does: told beforehand."""

import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from samza_azure.commands.terminal import counted, say
from samza_azure.config.sections import METADATA
from samza_azure.config.spark import CLUSTER
from samza_azure.errors import ConfigError
from samza_azure.group.notice import Availability, Going
from samza_azure.host.scheduled_events import Watch
from samza_azure.host.tree import below
from samza_azure.machine.addresses import own_address
from samza_azure.machine.folders import private_folder
from samza_azure.machine.memory import LEAST_HEAP_MIB, OUTSIDE_HEAP_MIB, memory
from samza_azure.machine.processes import die_with_parent, how_it_ended

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
    cores: Annotated[int | None, typer.Option(help="How many cores executors may use, instead of all.", min=1)] = None,
    memory_mib: Annotated[
        int | None, typer.Option("--memory-mib", help="How much memory executors may use.", min=450)
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", help="For the files of executors, on a local disk.", file_okay=False)
    ] = Path(".samza-azure/worker"),
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
    from samza_azure.spark.jvm.daemons import worker

    if not re.fullmatch(CLUSTER, master):
        raise ConfigError(f"--master {master!r} is no cluster. Write it as spark://host:port.")
    first, _, port = master.removeprefix("spark://").partition(",")[0].rpartition(":")
    there = memory()
    room = memory_mib or max(LEAST_HEAP_MIB, (there.limit >> 20) - OUTSIDE_HEAP_MIB)
    folder = directory.absolute()
    private_folder(folder)
    made = worker(
        master,
        host or own_address(first, int(port)),
        cores or len(os.sched_getaffinity(0)),
        room,
        folder,
        os.environ,
    )
    signal.pthread_sigmask(signal.SIG_BLOCK, [*NOTICES, signal.SIGCHLD])
    process = subprocess.Popen(
        made.command, env=made.environment, start_new_session=True, cwd=folder, preexec_fn=_before_exec
    )
    raise typer.Exit(live(process, patience_s, Leaving(metadata) if azure_notices else None))


class Leaving:
    """What Scheduled Events lead to: the same as a signal. A worker that leaves cannot come back."""

    def __init__(self, metadata: str) -> None:
        self.going: Going | None = None
        self._watch = Watch(self, metadata, math.inf)  # a freeze ends, so it is no notice

    def watch(self) -> None:
        """Watch for events, in a thread."""
        self._watch.start()

    def decommission(self, why: str, *, by: float | None = None, source: str = "") -> None:
        """Leave."""
        if self.going is None:
            self.going = Going(Availability.DECOMMISSIONING, why)
            os.kill(os.getpid(), signal.SIGTERM)

    def recommission(self, source: str) -> None:
        """Leave nevertheless: who has started this worker starts another one."""

    def has_left(self) -> None:
        """Approve the event: nothing runs here any more."""
        self._watch.close()
        if self.going is not None:
            self.going = replace(self.going, state=Availability.DECOMMISSIONED)
            self._watch.turn()


def _before_exec() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent()


def live(process: "subprocess.Popen[bytes]", patience_s: float, leaving: Leaving | None = None) -> int:
    """Wait for a notice, then leave. Return the exit code. The signals of notices and SIGCHLD are blocked."""
    if leaving is not None:
        leaving.watch()
    while signal.sigwait([*NOTICES, signal.SIGCHLD]) == signal.SIGCHLD:
        if process.poll() is not None:
            say(f"The worker {how_it_ended(process.returncode)}, without a notice.")
            return 1
    say(f"The worker leaves: executors have {patience_s:g} s to end their tasks and to hand on what they hold.")
    begun = time.monotonic()
    process.send_signal(signal.SIGPWR)
    left = _awaited(lambda: not below(process.pid) or process.poll() is not None, begun + patience_s)
    killed = 0 if left else len(below(process.pid))
    process.terminate()
    if not _awaited(lambda: process.poll() is not None, time.monotonic() + END_S):
        process.kill()
        process.wait()
    if leaving is not None:
        leaving.has_left()
    took = f"after {time.monotonic() - begun:.1f} s"
    if killed:
        say(f"The worker has left {took}; {counted(killed, 'process')} of executors did not end in time.")
        return 1
    say(f"The worker has left {took}; its executors had ended.")
    return 0


def _awaited(is_so: Callable[[], bool], until: float) -> bool:
    """Wait until something is so, in vain after a while, or at a second notice by Ctrl-C. Return whether it is."""
    while not is_so():
        now = time.monotonic()
        found = signal.sigtimedwait([*NOTICES, signal.SIGCHLD], min(LOOK_S, max(until - now, 0)))
        if now >= until or (found is not None and found.si_signo == signal.SIGINT):
            return is_so()
    return True
