"""Whether a service can be reached at all. Its client would say of all failures that it has none."""

import socket

from samza_azure.errors import ConfigError, StorageUnavailable


def connected(host: str, port: int, within_s: float, *, to: str, behind: str) -> socket.socket:
    """A connection. `to` is what the host's name is the name of, and `behind` whose firewall may be in the way.

    Raises:
        ConfigError: the name has no address, or the port is none.
        StorageUnavailable: nobody takes connections there.
    """
    if not 0 < port < 1 << 16:
        raise ConfigError(f"{port} is no port of {host!r}: ports are 1 to 65535. Correct the address of the {to}.")
    try:
        return socket.create_connection((host, port), timeout=within_s)
    except (socket.gaierror, UnicodeError) as error:  # a part of the name may be too long
        raise ConfigError(
            f"This machine finds no address of {host!r}: {getattr(error, 'strerror', error)}. Correct the name of the "
            f"{to}, or the DNS of the network (a private endpoint needs its zone)."
        ) from error
    except OSError as error:
        raise StorageUnavailable(
            f"Port {port} of {host} cannot be reached: {error}. Open it for outgoing connections, and admit this "
            f"machine in the firewall of the {behind}."
        ) from error
