"""The socket between a container and its supervisor. The container exits when it is closed."""

import os
import queue
import socket
import threading

from samza_azure.messages import Command, Report, Sign, decode, encode


class Channel:
    """The socket to the supervisor. This process exits when it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self.commands: queue.Queue[Command | None] = queue.Queue()  # None: look at the tasks now
        self._sending = threading.Lock()

    def listen(self) -> None:
        """Start to receive commands, and to notice the supervisor's end."""
        threading.Thread(target=self._listen, name="channel", daemon=True).start()

    def tell(self, report: Report | Sign) -> None:
        """Send one report as a whole, from any thread."""
        try:
            with self._sending:
                self._socket.sendall(encode(report))
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        """Receive commands in a separate thread, so that the channel's end is noticed whatever the other threads do."""
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self.commands.put(decode(line))  # type: ignore[arg-type]
        except OSError:
            pass
        os._exit(1)  # the JVM and the workers follow: see `machine.die_with_parent`
