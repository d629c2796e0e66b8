"""A Bicep template as plain values: what it declares, what it uses, and where each thing stands.

Only the dialect of infra/README.md is read. What is newer is a finding, never ignored: this could not check it.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import tree_sitter_bicep
from tree_sitter import Language, Node, Parser

__all__ = [
    "Expression",
    "File",
    "Finding",
    "Items",
    "Literal",
    "Loop",
    "Module",
    "Object",
    "Output",
    "Parameter",
    "Resource",
    "Value",
    "parse",
    "values_in",
]

_PARSER = Parser(Language(tree_sitter_bicep.language()))
#: What the language brings along and a template may use.
NAMESPACES = {"az", "sys"}
PRIMITIVES = {"string", "int", "bool", "array", "object"}
#: The language's functions, apart from those that only newer dialects have.
FUNCTIONS = set(
    re.findall(
        r"\w+",
        "any array base64 base64ToString bool cidrHost cidrSubnet concat contains dataUri dataUriToString dateTimeAdd "
        "deployment empty endsWith environment extensionResourceId first flatten format guid indexOf int intersection "
        "items join json last lastIndexOf length loadFileAsBase64 loadJsonContent loadTextContent loadYamlContent "
        "managementGroup managementGroupResourceId max min newGuid padLeft parseCidr pickZones providers range "
        "reference replace resourceGroup resourceId skip split startsWith string subscription subscriptionResourceId "
        "substring take tenant tenantResourceId toLower toUpper trim union uniqueString uri uriComponent "
        "uriComponentToString utcNow",
    )
)
_LITERALS = {"string", "number", "boolean", "null"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to repair, and where."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A text without anything in it to be filled in, a number, a truth, or null."""

    value: str | int | bool | None
    line: int


@dataclass(frozen=True, slots=True)
class Items:
    """A list, written out."""

    items: "tuple[Value, ...]"
    line: int


@dataclass(frozen=True, slots=True)
class Object:
    """An object, written out. A key that is computed is not in `entries`, but its value is in `computed`."""

    entries: "dict[str, Value]"
    lines: dict[str, int]
    computed: "tuple[Value, ...]"
    line: int


@dataclass(frozen=True, slots=True)
class Loop:
    """`[for … in …: body]`."""

    body: "Value"
    over: "Value"
    line: int


@dataclass(frozen=True, slots=True)
class Expression:
    """Whatever has to be computed: `kind` is the node's, `parts` its operands."""

    kind: str
    text: str
    parts: "tuple[Value, ...]"
    line: int


Value: TypeAlias = Literal | Items | Object | Loop | Expression


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that the deployment of the template gives."""

    name: str
    type: str
    default: Value | None
    described: bool
    allowed: Value | None
    line: int


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, or as many as a loop makes."""

    name: str
    type: str
    version: str
    existing: bool
    body: Object
    line: int
    condition: "Value | None" = None


@dataclass(frozen=True, slots=True)
class Module:
    """Another template, with its parameters."""

    name: str
    path: str
    body: Object
    line: int
    condition: "Value | None" = None


@dataclass(frozen=True, slots=True)
class Output:
    """What a template hands back."""

    name: str
    type: str
    value: Value
    described: bool
    line: int


@dataclass(slots=True)
class File:
    """One template."""

    name: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)
    outputs: dict[str, Output] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def find(self, line: int, text: str) -> None:
        """Note what is wrong."""
        self.findings.append(Finding(self.name, line, text))


def parse(path: Path, text: str | None = None) -> File:
    """Read a template. `text` goes before what is in the file."""
    source = path.read_text() if text is None else text
    file = File(path.name)
    tree = _PARSER.parse(source.encode())
    broken = [node for node in _nodes(tree.root_node) if node.type == "ERROR" or node.is_missing]
    for node in broken[:3]:
        what = _text(node).splitlines()[0] if _text(node) else f"{node.type} is missing"
        file.find(_line(node), f"this cannot be read: {what!r}. Write it in the dialect of infra/README.md")
    if not broken:
        _newer_syntax(file, tree.root_node)
        _Reader(file).read(tree.root_node)
        _names(file, tree.root_node)
    return file


def values_in(value: Value) -> Iterator[Value]:
    """The value and everything inside it."""
    yield value
    match value:
        case Items(items):
            inner: tuple[Value, ...] = items
        case Object(entries, _, computed):
            inner = (*entries.values(), *computed)
        case Loop(body, over):
            inner = (body, over)
        case Expression(_, _, parts):
            inner = parts
        case _:
            inner = ()
    for each in inner:
        yield from values_in(each)


def _newer_syntax(file: File, root: Node) -> None:
    for node in _nodes(root):
        if node.type in ("type_declaration", "import_statement", "nullable_type", "union_type", "negated_type"):
            file.find(_line(node), f"{_text(node)!r} is newer than the dialect of infra/README.md")
        elif node.type == "member_expression" and "." in (between := _between(node)) and between.strip() != ".":
            file.find(_line(node), f"{between.strip()!r} is newer than the dialect of infra/README.md")


def _between(node: Node) -> str:
    """What stands between an object and its property: the parser takes `.?` and `!.` for a point."""
    thing, member = node.child_by_field_name("object"), node.child_by_field_name("property")
    if thing is None or member is None or node.text is None:
        return "."
    return node.text[thing.end_byte - node.start_byte : member.start_byte - node.start_byte].decode()


class _Reader:
    """Turns declarations into values."""

    def __init__(self, file: File) -> None:
        self.file = file

    def read(self, root: Node) -> None:
        decorators: list[Node] = []
        for node in root.named_children:
            match node.type:
                case "decorators":
                    decorators = node.named_children
                    continue
                case "parameter_declaration":
                    self._parameter(node, decorators)
                case "variable_declaration":
                    name, value = node.named_children[0], node.named_children[-1]
                    self._declare(self.file.variables, _text(name), self.value(value), name)
                case "resource_declaration":
                    self._resource(node)
                case "module_declaration":
                    self._module(node)
                case "output_declaration":
                    self._output(node, decorators)
            decorators = []

    def _declare(self, where: dict[str, Value], name: str, value: Value, node: Node) -> None:
        if name in where:
            self.file.find(_line(node), f"{name!r} is declared twice")
        where[name] = value

    def _parameter(self, node: Node, decorators: list[Node]) -> None:
        name, kind, *default = [child for child in node.named_children if child.type != "comment"]
        text = _text(kind)
        if text not in PRIMITIVES:
            self.file.find(
                _line(node), f"the parameter {_text(name)!r} has the type {text!r}; write one of {_or(PRIMITIVES)}"
            )
        if _text(name) in self.file.parameters:
            self.file.find(_line(node), f"{_text(name)!r} is declared twice")
        calls = {_text(each).lstrip("@").split("(")[0]: each for each in decorators}
        allowed = calls.get("allowed")
        self.file.parameters[_text(name)] = Parameter(
            _text(name),
            text,
            self.value(default[0]) if default else None,
            "description" in calls,
            self.value(_arguments(allowed)[0]) if allowed is not None else None,
            _line(node),
        )

    def _resource(self, node: Node) -> None:
        name, kind = node.named_children[:2]
        existing = any(child.type == "existing" for child in node.children)
        full, _, version = _text(kind).strip("'").partition("@")
        condition, body = self._body(node.named_children[-1])
        self.file.resources[_text(name)] = Resource(_text(name), full, version, existing, body, _line(node), condition)

    def _module(self, node: Node) -> None:
        name, path = node.named_children[:2]
        condition, body = self._body(node.named_children[-1])
        self.file.modules[_text(name)] = Module(_text(name), _text(path).strip("'"), body, _line(node), condition)

    def _output(self, node: Node, decorators: list[Node]) -> None:
        name, kind, value = [child for child in node.named_children if child.type != "comment"]
        described = any(_text(each).startswith("@description") for each in decorators)
        self.file.outputs[_text(name)] = Output(_text(name), _text(kind), self.value(value), described, _line(node))

    def _body(self, node: Node) -> tuple[Value | None, Object]:
        """The object of a declaration, out of its condition or loop, and the condition."""
        condition = None
        while node.type in ("if_statement", "for_statement"):
            if node.type == "if_statement":
                condition = self.value(node.named_children[0])
            node = node.child_by_field_name("body") or node.named_children[-1]
        value = self.value(node)
        assert isinstance(value, Object)
        return condition, value

    def value(self, node: Node) -> Value:
        """A value, as far as it can be known without computing."""
        line = _line(node)
        match node.type:
            case "number":
                return Literal(int(_text(node)), line)
            case "boolean":
                return Literal(_text(node) == "true", line)
            case "null":
                return Literal(None, line)
            case "string" if all(child.type != "interpolation" for child in node.children):
                return Literal(_unquoted(_text(node)), line)
            case "array":
                return Items(tuple(self.value(each) for each in _parts(node)), line)
            case "object":
                return self._object(node)
            case "for_statement":
                *_, over, body = node.named_children
                return Loop(self.value(body), self.value(over), line)
            case "parenthesized_expression":
                return self.value(node.named_children[0])
            case "unary_expression" if _text(node).startswith("-") and node.named_children[0].type == "number":
                return Literal(int(_text(node)), line)
            case "call_expression":
                return Expression(node.type, _text(node), tuple(self.value(each) for each in _arguments(node)), line)
            case _:
                return Expression(node.type, _text(node), tuple(self.value(each) for each in _parts(node)), line)

    def _object(self, node: Node) -> Object:
        entries: dict[str, Value] = {}
        lines: dict[str, int] = {}
        computed: list[Value] = []
        for each in _parts(node):
            key, value = each.named_children[0], self.value(each.named_children[-1])
            if any(child.type == "interpolation" for child in key.children):
                computed.append(value)
                continue
            name = _unquoted(_text(key))
            if name in entries:
                self.file.find(_line(each), f"{name!r} stands here twice")
            entries[name], lines[name] = value, _line(each)
        return Object(entries, lines, tuple(computed), _line(node))


def _names(file: File, root: Node) -> None:
    """What is used must be declared, and what is declared must be used."""
    lines = {name: value.line for name, value in file.variables.items()}
    lines |= {name: parameter.line for name, parameter in file.parameters.items()}
    lines |= {name: resource.line for name, resource in file.resources.items()}
    lines |= {name: module.line for name, module in file.modules.items()}
    used: set[str] = set()
    for node, inner in _identifiers(root, frozenset()):
        name = _text(node)
        used.add(name)
        if name not in lines and name not in inner and name not in NAMESPACES:
            file.find(_line(node), f"{name!r} is not declared{_nearest(name, lines)}")
    for node in _nodes(root):
        function = node.child_by_field_name("function") if node.type == "call_expression" else None
        if function is None or function.type != "identifier" or (node.parent or node).type == "decorator":
            continue
        if (name := _text(function)) not in FUNCTIONS and not name.startswith("list"):
            known = dict.fromkeys(FUNCTIONS, 0)
            file.find(_line(function), f"there is no function {name!r}{_nearest(name, known)}")
    for name in [*file.parameters, *file.variables]:
        if name not in used:
            file.find(lines[name], f"{name!r} is declared and never used")
    for resource in file.resources.values():
        if resource.existing and resource.name not in used:
            file.find(resource.line, f"{resource.name!r} is looked up and never used")


def _identifiers(node: Node, inner: frozenset[str]) -> Iterator[tuple[Node, frozenset[str]]]:
    """Each use of a name, with the names of the loops around it."""
    if node.type == "for_statement":
        first = node.child_by_field_name("initializer")
        found = [first] if first is not None else node.named_children[0].named_children
        inner = inner | {_text(each) for each in found}
        rest = node.named_children[1:]
    elif node.type.endswith("_declaration"):
        rest = [child for child in node.named_children[1:] if child.type != "type"]
    elif node.type == "object_property":
        key, *rest = node.named_children
        rest = [*key.named_children, *rest] if key.type == "string" else rest
    elif node.type == "decorators":
        rest = []
    elif node.type == "call_expression":
        thing = node.child_by_field_name("function")
        rest = [*_arguments(node), *([thing] if thing is not None and thing.type != "identifier" else [])]
    else:
        rest = node.named_children
        if node.type == "identifier":
            yield node, inner
    for child in rest:
        yield from _identifiers(child, inner)


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _nodes(child)


def _parts(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


def _arguments(call: Node) -> list[Node]:
    """Of a call, or of the decorator that holds one."""
    if call.type == "decorator":
        call = call.named_children[0]
    found = call.child_by_field_name("arguments")
    return _parts(found) if found is not None else []


def _line(node: Node) -> int:
    return node.start_point[0] + 1


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _unquoted(text: str) -> str:
    if not text.startswith("'"):
        return text
    return text[1:-1].replace("\\'", "'").replace("\\\\", "\\")


def _nearest(name: str, known: "dict[str, int]") -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _or(names: set[str]) -> str:
    return ", ".join(sorted(names))
