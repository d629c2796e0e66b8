"""Under which address others reach this machine."""

import socket


def own_address(host: str, port: int) -> str:
    """Our address from which packets leave for a host. Nothing is sent. Raise OSError if there is none."""
    [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
