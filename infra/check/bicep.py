"""A Bicep template as plain values: what it declares, what it uses, and where each thing stands.

Only the dialect of infra/README.md is read. What is newer is a finding, never ignored: this could not check it.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
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
    "inside",
    "nearest",
    "parse",
    "text_of",
    "values_in",
]

_PARSER = Parser(Language(tree_sitter_bicep.language()))
#: What the language brings along and a template may use.
NAMESPACES = {"az", "sys"}
PRIMITIVES = {"string", "int", "bool", "array", "object"}
#: The language's functions, apart from those that only newer dialects have, and how many arguments each takes.
FUNCTIONS = {
    name: (int(least), int(most or least))
    for name, least, most in re.findall(
        r"(\w+):(\d+)-?(\d*)",
        "any:1 array:1 base64:1 base64ToString:1 bool:1 cidrHost:2 cidrSubnet:3 concat:1-99 contains:2 dataUri:1 "
        "dataUriToString:1 dateTimeAdd:2-3 deployment:0 empty:1 endsWith:2 environment:0 extensionResourceId:3-99 "
        "first:1 flatten:1 format:2-99 guid:1-99 indexOf:2 int:1 intersection:2-99 items:1 join:2 json:1 last:1 "
        "lastIndexOf:2 length:1 loadFileAsBase64:1 loadJsonContent:1-3 loadTextContent:1-2 loadYamlContent:1-3 "
        "managementGroup:0-1 managementGroupResourceId:2-99 max:1-99 min:1-99 newGuid:0 padLeft:2-3 parseCidr:1 "
        "pickZones:3-5 providers:1-2 range:2 reference:1-3 replace:3 resourceGroup:0-2 resourceId:2-99 skip:2 split:2 "
        "startsWith:2 string:1 subscription:0-1 subscriptionResourceId:2-99 substring:2-3 take:2 tenant:0 "
        "tenantResourceId:2-99 toLower:1 toUpper:1 trim:1 union:2-99 uniqueString:1-99 uri:2 uriComponent:1 "
        "uriComponentToString:1 utcNow:0-1",
    )
}
DECORATORS = {
    "allowed",
    "batchSize",
    "description",
    "maxLength",
    "maxValue",
    "metadata",
    "minLength",
    "minValue",
    "secure",
}
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
    #: `@minLength` and the like.
    bounds: dict[str, int] = field(default_factory=dict)


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
    #: What the loops go over, by the name of what they draw from it.
    loops: dict[str, list[Value]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def bodies(self) -> Iterator[Value]:
        """Everything that is written in it, but conditions."""
        yield from self.variables.values()
        yield from (each.body for each in self.resources.values())
        yield from (each.body for each in self.modules.values())
        yield from (each.value for each in self.outputs.values())

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
        _Reader(file, path.parent).read(tree.root_node)
        _names(file, tree.root_node)
    return file


def values_in(value: Value) -> Iterator[Value]:
    """The value and everything inside it."""
    yield value
    for each in inside(value):
        yield from values_in(each)


def inside(value: Value) -> "tuple[Value, ...]":
    """What a value directly consists of."""
    match value:
        case Items(items):
            return items
        case Object(entries, _, computed):
            return (*entries.values(), *computed)
        case Loop(body, over):
            return (body, over)
        case Expression(_, _, parts):
            return parts
        case _:
            return ()


def text_of(value: Value | None) -> str:
    """A literal or an expression as it is written; nothing if it is something else."""
    match value:
        case Literal(found):
            return str(found)
        case Expression(_, text):
            return text
    return ""


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

    def __init__(self, file: File, folder: Path) -> None:
        self.file, self.folder = file, folder

    def read(self, root: Node) -> None:
        decorators: list[Node] = []
        for node in root.named_children:
            match node.type:
                case "decorators":
                    decorators = node.named_children
                    for each in decorators:
                        if (used := _text(each).lstrip("@").split("(")[0].removeprefix("sys.")) not in DECORATORS:
                            self.file.find(_line(each), f"there is no decorator {used!r}{nearest(used, DECORATORS)}")
                    continue
                case "target_scope_assignment" if not _text(node).endswith("'resourceGroup'"):
                    self.file.find(_line(node), f"{_text(node)}: what is here belongs into a 'resourceGroup'")
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
            {
                name: int(found[0])
                for name, each in calls.items()
                if (found := re.findall(r"^@\w+\((-?\d+)\)", _text(each)))
            },
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
            else:
                self._loop(node)
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
                return Loop(self.value(node.named_children[-1]), self._loop(node), line)
            case "parenthesized_expression":
                return self.value(node.named_children[0])
            case "unary_expression" if _text(node).startswith("-") and node.named_children[0].type == "number":
                return Literal(int(_text(node)), line)
            case "call_expression":
                parts = tuple(self.value(each) for each in _arguments(node))
                names = parts[:1] if _text(node).startswith("load") else ()
                for name in names:
                    if isinstance(name, Literal) and not (self.folder / str(name.value)).is_file():
                        self.file.find(line, f"there is no file {name.value!r} beside this one")
                return Expression(node.type, _text(node), parts, line)
            case _:
                return Expression(node.type, _text(node), tuple(self.value(each) for each in _parts(node)), line)

    def _loop(self, node: Node) -> Value:
        """What a loop goes over, which is noted under the name of what it draws."""
        over = self.value(node.named_children[-2])
        drawn = node.child_by_field_name("initializer") or node.named_children[0].named_children[0]
        self.file.loops.setdefault(_text(drawn), []).append(over)
        return over

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
            file.find(_line(node), f"{name!r} is not declared{nearest(name, lines)}")
    for node in _nodes(root):
        function = node.child_by_field_name("function") if node.type == "call_expression" else None
        if function is None or function.type != "identifier" or (node.parent or node).type == "decorator":
            continue
        name, given = _text(function), len(_arguments(node))
        least, most = FUNCTIONS.get(name, (given, given))
        if name not in FUNCTIONS and not name.startswith("list"):
            file.find(_line(function), f"there is no function {name!r}{nearest(name, FUNCTIONS)}")
        elif not least <= given <= most:
            takes = str(least) if least == most else f"{least} to {most}"
            file.find(_line(function), f"{name} takes {takes} arguments, and gets {given}")
    for body in file.bodies():
        for each in values_in(body):
            if isinstance(each, Expression) and each.kind == "member_expression":
                _drawn(file, each)
    for name in [*file.parameters, *file.variables]:
        if name not in used:
            file.find(lines[name], f"{name!r} is declared and never used")
    for resource in file.resources.values():
        if resource.existing and resource.name not in used:
            file.find(resource.line, f"{resource.name!r} is looked up and never used")


def _drawn(file: File, value: Expression) -> None:
    """What a loop draws from a list that is written out must have the properties that are read."""
    first, _, name = value.text.partition(".")
    for over in file.loops.get(first, ()):
        lists = [each for each in values_in(_behind(file, over)) if isinstance(each, Items)][:1]
        for item in (item for each in lists for item in each.items if isinstance(item, Object)):
            if name.partition(".")[0] not in item.entries:
                file.find(value.line, f"{first} has no property {name!r}{nearest(name, item.entries)}")
                return


def _behind(file: File, value: Value) -> Value:
    """The value of a variable."""
    return file.variables.get(value.text, value) if isinstance(value, Expression) else value


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
    ahead = [node]
    while ahead:
        node = ahead.pop()
        yield node
        ahead += reversed(node.children)


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
    if text.startswith("'''"):  # as it stands there; a line break right after the quotes is no part of it
        return text[3:-3].removeprefix("\n")
    return text[1:-1].replace("\\'", "'").replace("\\\\", "\\")


def nearest(name: str, known: Iterable[str]) -> str:
    """What was meant, if that can be guessed."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _or(names: set[str]) -> str:
    return ", ".join(sorted(names))
