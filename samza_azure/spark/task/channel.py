"""The socket between a container and its supervisor. Its end is the container's."""

import os
import queue
import socket
import threading

from samza_azure.messages import Alive, Command, Report, decode, encode


class Channel:
    """The socket to the supervisor. Its end is ours."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self.commands: queue.Queue[Command | None] = queue.Queue()  # None: look at the tasks now

    def listen(self) -> None:
        """From now on commands come in, and the supervisor's end is noticed."""
        threading.Thread(target=self._listen, name="channel", daemon=True).start()

    def tell(self, report: Report | Alive) -> None:
        """One report, whole. From the main thread."""
        try:
            self._socket.sendall(encode(report))
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        """A thread of its own, so that the end of the channel is noticed whatever the others do."""
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self.commands.put(decode(line))  # type: ignore[arg-type]
        except OSError:
            pass
        os._exit(1)  # the JVM and the workers follow: see `machine.die_with_parent`
