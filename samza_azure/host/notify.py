"""Notifications to systemd, for a service of `Type=notify`: one datagram each. Without systemd nothing is sent."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["VARIABLE", "notify"]

VARIABLE = "NOTIFY_SOCKET"


def notify(message: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send `READY=1`, `WATCHDOG=1` or `STOPPING=1`. Errors are ignored."""
    address = environment.get(VARIABLE)
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # a name without a file
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.connect(address)
        manager.send(message.encode())
