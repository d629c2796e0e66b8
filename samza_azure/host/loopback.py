"""Whether a request over HTTP comes from this machine, and from no page of another site that a browser has open."""

from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["LOOPBACK", "host_of", "is_loopback", "not_of_this_machine"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


def is_loopback(address: str) -> bool:
    """Whether an address is one of this machine: also as a socket for both versions shows it, ::ffff:127.0.0.1."""
    found = ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def host_of(request: "web.Request") -> str:
    """The name by which the client has called us, without the port."""
    return request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdecimal() else request.host


def not_of_this_machine(request: "web.Request") -> str | None:
    """Why a request is refused; None: it is of this machine, and names it so, against DNS rebinding."""
    if request.remote is None or not is_loopback(request.remote):
        return "This is for the processor's own machine only."
    if host_of(request) not in LOOPBACK:
        return "This is only served as 127.0.0.1 or localhost."
    return None
