"""The arithmetic of a network: subnets that fit and do not overlap, who they are for, and names that are resolved."""

import ipaddress
import re
from collections.abc import Iterator

from infra.check.bicep import Expression, File, Finding, Literal, Loop, Object, Resource, Value, text_of, values_in

__all__ = ["check"]

NETWORK = "Microsoft.Network/virtualNetworks"
ZONE = "Microsoft.Network/privateDnsZones"
RECORDS = "Microsoft.Network/privateEndpoints/privateDnsZoneGroups"
LINK = "Microsoft.Network/privateDnsZones/virtualNetworkLinks"
ENVIRONMENTS = "Microsoft.App/environments"
#: The names of zones: of the account's services, and of a namespace of hubs, whose suffix environment() does not know.
ZONES = r"privatelink\.((\$\{\w+\}|blob|table)\.\$\{environment\(\)\.suffixes\.storage\}|\$\{hubSuffix\})"
#: The smallest subnet that Container Apps with workload profiles take.
SMALLEST = 27


def check(file: File) -> Iterator[Finding]:
    """Every network of a template, and the zones that make its private endpoints found."""
    for network in _made(file, NETWORK):
        yield from _subnets(file, network)
        for inner in values_in(network.body):
            named = inner.entries.get("serviceName") if isinstance(inner, Object) else None
            if isinstance(named, Literal) and named.value != ENVIRONMENTS:
                yield Finding(file.name, named.line, f"Container Apps want their subnet delegated to {ENVIRONMENTS}")
    for zone in _made(file, ZONE):
        name = text_of(zone.body.entries.get("name")).strip("'")
        if not re.fullmatch(ZONES, name):
            yield Finding(
                file.name, zone.line, f"a private endpoint is found by privatelink.SERVICE.SUFFIX, not {name}"
            )
    for kind, what in ((RECORDS, "an endpoint's records"), (LINK, "a link")):
        for made in _made(file, kind):
            for value in values_in(made.body):
                index = re.match(r"\w+\[(\w+)\]", text_of(value))
                if isinstance(value, Expression) and index is not None and index[1].isdecimal():
                    said = f"{what} are made for each service, and {value.text} is of one"
                    yield Finding(file.name, value.line, said)
    for records in _made(file, RECORDS):
        endpoint = file.resources.get(_base(records.body.entries.get("parent")))
        for value in values_in(records.body):
            place = file.resources.get(_base(value)) if text_of(value).endswith(".id") else None
            if place is not None and endpoint is not None and text_of(place.condition) != text_of(endpoint.condition):
                yield Finding(file.name, value.line, f"the records of {endpoint.name} are in the zone {place.name}")
    parents = {_base(each.body.entries.get("parent")) for each in _made(file, LINK)}
    for zone in _made(file, ZONE):
        if zone.name not in parents:
            yield Finding(file.name, zone.line, f"{zone.name} is not linked to the network, so nobody asks it")
    linked = {text_of(_at(each.body, "properties", "virtualNetwork", "id")) for each in _made(file, LINK)}
    networks = {f"{each.name}.id" for each in _made(file, NETWORK)}
    if list(_made(file, ZONE)) and not networks <= linked:
        yield Finding(file.name, 1, "the zones are not linked to the network, so it resolves public addresses")


def _subnets(file: File, network: Resource) -> Iterator[Finding]:
    spaces = [
        found
        for value in _items(_at(network.body, "properties", "addressSpace", "addressPrefixes"))
        if (found := _range(file, value)) is not None
    ]
    placed: list[tuple[str, ipaddress.IPv4Network]] = []
    for each in (item for item in _items(_at(network.body, "properties", "subnets")) if isinstance(item, Object)):
        name, written = text_of(each.entries.get("name")), _at(each, "properties", "addressPrefix")
        if written is None:
            yield Finding(file.name, each.line, f"the subnet {name} has no addressPrefix")
            continue
        found = _range(file, written)
        if found is None:
            yield Finding(
                file.name, written.line, f"the subnet {name} has a range that does not exist: {text_of(written)}"
            )
            continue
        if not any(found.subnet_of(space) for space in spaces):
            yield Finding(file.name, written.line, f"the subnet {name} ({found}) is not in the network")
        for other, its in placed:
            if found.overlaps(its):
                yield Finding(file.name, written.line, f"the subnets {other} ({its}) and {name} ({found}) overlap")
        if _at(each, "properties", "delegations") is not None and found.prefixlen > SMALLEST:
            yield Finding(
                file.name, written.line, f"the subnet {name} is a /{found.prefixlen}; a /{SMALLEST} is the least"
            )
        placed.append((name, found))


def _range(file: File, value: Value) -> ipaddress.IPv4Network | None:
    """A range that is written, a parameter's default, or a part of one: `cidrSubnet(range, bits, index)`."""
    match value:
        case Expression("identifier", text):
            parameter = file.parameters.get(text)
            inner = file.variables.get(text, parameter.default if parameter is not None else None)
            return _range(file, inner) if inner is not None else None
        case Expression("call_expression", text, (whole, Literal(int(bits)), Literal(int(index)))) if text.startswith(
            "cidrSubnet("
        ):
            of = _range(file, whole)
            if of is None or not of.prefixlen <= bits <= 32 or index >= 2 ** (bits - of.prefixlen):
                return None
            start = int(of.network_address) + index * 2 ** (32 - bits)
            return ipaddress.IPv4Network((start, bits))
        case Literal(str(text)):
            try:
                return ipaddress.IPv4Network(text)
            except ValueError:
                return None
    return None


def _base(value: Value | None) -> str:
    """The name with which it begins."""
    found = re.match(r"\w*", text_of(value))
    return found[0] if found is not None else ""


def _items(value: Value | None) -> list[Value]:
    return [] if value is None else list(getattr(value, "items", ()))


def _at(value: Value | None, *path: str) -> Value | None:
    for name in path:
        value = value.body if isinstance(value, Loop) else value
        value = value.entries.get(name) if isinstance(value, Object) else None
    return value


def _made(file: File, kind: str) -> Iterator[Resource]:
    return (each for each in file.resources.values() if each.type == kind and not each.existing)
