"""A container as a process of its own, and the other end of its channel."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from samza_azure.machine.processes import die_with_parent
from samza_azure.messages import Command, Report, decode, encode

PATIENCE_S = 90
#: A JVM that lives for seconds does not pay for its second compiler. Java's launcher reads this by itself.
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}


class Child:
    """A container process, and its parent's end of the channel."""

    def __init__(self, job: Path) -> None:
        self.channel, theirs = socket.socketpair()
        self.log = job.parent / "container.log"
        self.channel.settimeout(PATIENCE_S)
        command = [sys.executable, "-m", "samza_azure.container", str(job), "--channel", str(theirs.fileno())]
        with theirs, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--directory", str(job.parent / "scratch")],
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
                env={**os.environ, **QUICK_JAVA},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def report(self) -> Report:
        """The next one."""
        line = b""
        while not line.endswith(b"\n"):
            more = self.channel.recv(1)
            assert more, self.log.read_text()
            line += more
        return decode(line)  # type: ignore[return-value]

    def tell(self, command: Command) -> None:
        """Order something."""
        self.channel.sendall(encode(command))

    def tree(self) -> list[int]:
        """The process and all below it."""
        parents = {int(path.name): state_of(int(path.name))[1] for path in Path("/proc").glob("[0-9]*")}
        tree = [self.process.pid]
        for process in tree:
            tree += [child for child, parent in parents.items() if parent == process]
        return tree

    def jvm(self) -> int:
        """Its Java."""
        return next(process for process in self.tree() if name_of(process) == "java")

    def kill(self) -> None:
        """For certain."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


def state_of(process: int) -> tuple[str, int]:
    """How it is, and its parent. What is gone counts as a zombie."""
    try:
        state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return state, int(parent)


def name_of(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()
