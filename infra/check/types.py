"""What Azure's resources look like, from the data that the Bicep compiler itself checks with.

The data is a file of types.json that is not part of the repository: https://github.com/Azure/bicep-types-az, cut to
the resources that are used here. Where it is absent, types are not checked, and the checker says so.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.check.bicep import Expression, File, Items, Literal, Loop, Object, Resource, Value, nearest, values_in

__all__ = ["BEYOND", "Types", "branches", "kinds_of"]

REQUIRED, READ_ONLY = 1, 2
#: What the compiler itself allows in every resource.
META = {"parent", "scope", "dependsOn"}
#: What every resource has, whatever the data says.
OWN = {"id", "name", "type", "apiVersion"}
#: Properties of this name are missing in `shared/azure`: they looked like remarks when it was cut.
LOST = {"description"}
#: Resources that the data of `shared/azure` does not hold. They were compared once with the whole of it, by hand.
BEYOND = frozenset(
    {
        "Microsoft.Authorization/locks@2020-05-01",
        "Microsoft.EventHub/namespaces@2024-01-01",
        "Microsoft.EventHub/namespaces/eventhubs@2024-01-01",
        "Microsoft.EventHub/namespaces/eventhubs/consumergroups@2024-01-01",
        "Microsoft.EventHub/namespaces/networkRuleSets@2024-01-01",
        "Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01",
        "Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-10-01",
        "Microsoft.Network/publicIPAddresses@2024-10-01",
    }
)
_FUNCTIONS = {
    "base64": "string",
    "cidrSubnet": "string",
    "concat": "array",
    "contains": "bool",
    "empty": "bool",
    "guid": "string",
    "length": "int",
    "loadFileAsBase64": "string",
    "loadTextContent": "string",
    "replace": "string",
    "subscriptionResourceId": "string",
    "take": "string",
    "toLower": "string",
    "uniqueString": "string",
}
_OPERATORS = {"==": "bool", "!=": "bool", "&&": "bool", "||": "bool", "*": "int", "/": "int", "-": "int"}
_OF_TYPE = {
    "StringType": "string",
    "StringLiteralType": "string",
    "IntegerType": "int",
    "BooleanType": "bool",
    "ArrayType": "array",
    "ObjectType": "object",
    "DiscriminatedObjectType": "object",
}


class Types:
    """The data, and the comparison with it."""

    def __init__(self, path: Path) -> None:
        data = json.loads(path.read_text())
        self._types: list[dict[str, Any]] = data["types"]
        self._resources: dict[str, int] = data["resources"]
        self._versions: dict[str, list[str]] = data["versions"]
        self.source: str = data["source"]

    def check(self, file: File, others: Mapping[str, File]) -> Iterator[str]:
        """Compare all resources of a template; what was not compared, by name."""
        for resource in file.resources.values():
            name = f"{resource.type}@{resource.version}"
            if name not in self._resources and name in BEYOND:
                yield name
            elif name not in self._resources:
                file.find(resource.line, self._no_such(resource))
            elif not resource.existing:
                body = self._types[self._resources[name]]["body"]["$ref"]
                _Comparison(self._types, file, others).compare(resource.body, body, resource.type, top=True)
        read = (each for body in file.bodies() for each in values_in(body) if isinstance(each, Expression))
        for each in read:
            if found := re.fullmatch(r"(\w+)(?:\[\w+\])?((?:\.\w+)+)", each.text):
                self._member(file, each.line, found[1], found[2].split(".")[1:])

    def _member(self, file: File, line: int, first: str, path: list[str]) -> None:
        """The last property of `path` must be one that the resource has; each before it is looked at by itself."""
        resource = file.resources.get(first)
        name = f"{resource.type}@{resource.version}" if resource is not None else ""
        if name not in self._resources or path[0] in OWN:
            return
        kind = self._types[self._types[self._resources[name]]["body"]["$ref"]]
        for step in path[:-1]:
            if kind["$type"] != "ObjectType" or step not in kind["properties"]:
                return
            kind = self._types[kind["properties"][step]["type"]["$ref"]]
        known = kind.get("properties", {})
        if kind["$type"] == "ObjectType" and "additionalProperties" not in kind and path[-1] not in known:
            file.find(line, f"{first} has no property {'.'.join(path)!r}{nearest(path[-1], known)}")

    def _no_such(self, resource: Resource) -> str:
        if resource.type in self._versions:
            known = self._versions[resource.type]
            if resource.version in known:
                return f"{resource.type} is in the type data, but not its version {resource.version}; use one that is"
            return f"{resource.type} has no version {resource.version!r}; the newest is {known[-1]}"
        return f"there is no resource {resource.type!r}{nearest(resource.type, self._versions)}"


class _Comparison:
    """Of one value with one type, all the way down."""

    def __init__(self, types: list[dict[str, Any]], file: File, others: Mapping[str, File]) -> None:
        self._types, self._file, self._others = types, file, others

    def compare(self, value: Value, reference: int, where: str, *, top: bool = False) -> None:
        kind = self._types[reference]
        for each in branches(value, self._file):
            match each:
                case Literal(None):
                    pass  # the property is left out
                case Object() if kind["$type"] == "ObjectType":
                    self._object(each, kind["properties"], where, kind.get("additionalProperties"), top=top)
                case Object() if kind["$type"] == "DiscriminatedObjectType":
                    self._one_of(each, kind, where)
                case Items(items) if kind["$type"] == "ArrayType":
                    for item in items:
                        self.compare(item, kind["itemType"]["$ref"], where)
                case Loop(body) if kind["$type"] == "ArrayType":
                    self.compare(body, kind["itemType"]["$ref"], where)
                case Literal():
                    self._literal(each, kind, where)
                case _:
                    self._kind(each, kind, where)

    def _object(
        self, value: Object, properties: Mapping[str, Any], where: str, others: Any = None, *, top: bool = False
    ) -> None:
        for name, inner in value.entries.items():
            line = value.lines[name]
            found = properties.get(name)
            if found is None and others is not None and name not in LOST:
                self.compare(inner, others["$ref"], f"{where}.{name}")
            elif found is None and not (top and name in META) and name not in LOST:
                self._file.find(line, f"{where} has no property {name!r}{nearest(name, properties)}")
            elif found is not None and found["flags"] & READ_ONLY:
                self._file.find(line, f"{where}.{name} is read-only: Azure sets it")
            elif found is not None:
                self.compare(inner, found["type"]["$ref"], f"{where}.{name}")
        for name, found in properties.items():
            if found["flags"] & REQUIRED and not found["flags"] & READ_ONLY and name not in value.entries:
                self._file.find(value.line, f"{where} needs the property {name!r}")

    def _one_of(self, value: Object, kind: Mapping[str, Any], where: str) -> None:
        key = kind["discriminator"]
        chosen = value.entries.get(key)
        if not isinstance(chosen, Literal):
            self._file.find(value.line, f"{where} needs the property {key!r}, which says what it is")
        elif chosen.value not in kind["elements"]:
            self._file.find(chosen.line, _not_allowed(f"{where}.{key}", chosen.value, list(kind["elements"])))
        else:
            element = self._types[kind["elements"][chosen.value]["$ref"]]
            properties = {**kind["baseProperties"], **element["properties"]}
            self._object(value, properties, where, element.get("additionalProperties"))

    def _literal(self, value: Literal, kind: Mapping[str, Any], where: str) -> None:
        if kind["$type"] == "UnionType":
            elements = [self._types[each["$ref"]] for each in kind["elements"]]
            # A list that is open for what Azure adds later is closed here: no template needs what nobody has listed.
            texts = [each["value"] for each in elements if each["$type"] == "StringLiteralType"]
            if not isinstance(value.value, str):
                self._file.find(value.line, f"{where} should be a string, and is {_shown(value.value)}")
            elif value.value not in texts:
                self._file.find(value.line, _not_allowed(where, value.value, texts))
            return
        if kind["$type"] == "AnyType":
            return
        wanted, found = _OF_TYPE.get(kind["$type"], "any"), _kind_of_literal(value)
        if found != wanted:
            self._file.find(value.line, f"{where} should be {_a(wanted)}, and is {_shown(value.value)}")
        elif kind["$type"] == "StringLiteralType" and value.value != kind["value"]:
            self._file.find(value.line, _not_allowed(where, value.value, [kind["value"]]))
        elif isinstance(value.value, int) and not isinstance(value.value, bool):
            low, high = kind.get("minValue"), kind.get("maxValue")
            if (low is not None and value.value < low) or (high is not None and value.value > high):
                self._file.find(value.line, f"{where} is {value.value}; it goes from {low} to {high}")
        elif isinstance(value.value, str):
            short, long = kind.get("minLength", 0), kind.get("maxLength")
            if len(value.value) < short or (long is not None and len(value.value) > long):
                self._file.find(value.line, f"{where} has {len(value.value)} letters; it takes {short} to {long}")

    def _kind(self, value: Value, kind: Mapping[str, Any], where: str) -> None:
        """What is computed: only its kind is known, if that, and of a parameter what it may be."""
        parameter = self._file.parameters.get(value.text) if isinstance(value, Expression) else None
        if parameter is not None and (beyond := _beyond(parameter.bounds, kind)):
            self._file.find(parameter.line, f"{parameter.name!r} has {beyond} of {where}")
        wanted = self._kinds_wanted(kind)
        found = kinds_of(value, self._file, self._others)
        if wanted and found and not wanted & found:
            self._file.find(value.line, f"{where} should be {_a(min(wanted))}, and is {_a(min(found))}")

    def _kinds_wanted(self, kind: Mapping[str, Any]) -> set[str]:
        if kind["$type"] == "UnionType":
            return {"string"}
        return {_OF_TYPE[kind["$type"]]} if kind["$type"] in _OF_TYPE else set()


def _beyond(bounds: Mapping[str, int], kind: Mapping[str, Any]) -> str | None:
    """Where a parameter may be what the property that it is given to may not."""
    for name, sign in (("minLength", 1), ("maxLength", -1), ("minValue", 1), ("maxValue", -1)):
        ours, theirs = bounds.get(name), kind.get(name)
        if ours is not None and theirs is not None and (theirs - ours) * sign > 0:
            return f"@{name}({ours}), which is beyond the {theirs}"
    return None


def kinds_of(value: Value, file: File, others: Mapping[str, File]) -> set[str]:
    """string, int, bool, array or object; nothing if that cannot be known without computing."""
    match value:
        case Literal(None):
            return set()
        case Literal():
            return {_kind_of_literal(value)}
        case Items() | Loop():
            return {"array"}
        case Object():
            return {"object"}
        case Expression("string"):
            return {"string"}
        case Expression("identifier", text):
            if text in file.parameters:
                return {file.parameters[text].type}
            if text in file.resources or text in file.modules:
                return {"object"}
            return kinds_of(file.variables[text], file, others) if text in file.variables else set()
        case Expression("unary_expression"):
            return {"bool"}
        case Expression("binary_expression", text):
            return {found for sign, found in _OPERATORS.items() if f" {sign} " in text} or set()
        case Expression("ternary_expression", _, (_, first, second)):
            return kinds_of(first, file, others) | kinds_of(second, file, others)
        case Expression("call_expression", text):
            found = _FUNCTIONS.get(text.partition("(")[0])
            return {found} if found else set()
        case Expression("member_expression", text):
            return _kinds_of_member(text, file, others)
    return set()


def _kinds_of_member(text: str, file: File, others: Mapping[str, File]) -> set[str]:
    first, _, rest = text.partition(".")
    if first in file.modules and rest.startswith("outputs."):
        other = others.get(file.modules[first].path)
        output = other.outputs.get(rest.removeprefix("outputs.")) if other is not None else None
        return {output.type} if output is not None else set()
    return {"string"} if first in file.resources and rest in ("id", "name", "location") else set()


def branches(value: Value, file: File) -> Iterator[Value]:
    """Both sides of `… ? … : …`, what stands behind a variable, and what a loop draws from a written list."""
    match value:
        case Expression("identifier" | "member_expression", text) if text.partition(".")[0] in file.loops:
            drawn, _, name = text.partition(".")
            lists = [each for over in file.loops[drawn] for each in branches(over, file) if isinstance(each, Items)]
            items = [item for each in lists for item in each.items]
            if name:
                items = [item.entries[name] for item in items if isinstance(item, Object) and name in item.entries]
            for item in items:
                yield from branches(item, file)
            if not items:
                yield value
        case Expression("ternary_expression", _, (_, first, second)):
            yield from branches(first, file)
            yield from branches(second, file)
        case Expression("identifier", text) if text in file.variables:
            yield from branches(file.variables[text], file)
        case Expression("call_expression", text, parts) if text.startswith("concat("):
            for part in parts:
                yield from branches(part, file)
        case _:
            yield value


def _kind_of_literal(value: Literal) -> str:
    if isinstance(value.value, bool):
        return "bool"
    return "int" if isinstance(value.value, int) else "string"


def _not_allowed(where: str, value: object, allowed: list[str]) -> str:
    return f"{where} is {value!r}; it takes {', '.join(map(repr, allowed))}"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _a(kind: str) -> str:
    return {"int": "a whole number", "array": "a list", "object": "an object"}.get(kind, f"a {kind}")
