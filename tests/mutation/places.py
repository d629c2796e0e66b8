"""All places of the pure packages at which something small can be changed, and modules loaded with such a change.

A condition is negated, a comparison widened, `and` and `or` swapped, a number tripled, or a statement dropped. Nobody
chooses these places: every one counts that stands in a function of `samza_azure/group`, `logs` or `streams`.
The same walk over the tree serves to count them, to change one, and to mark all of them, so that a seed tells which
of them it meets.
"""

import ast
import builtins
import importlib.abc
import importlib.util
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("samza_azure/group", "samza_azure/logs", "samza_azure/streams")
WIDER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.GtE,
    ast.NotEq: ast.Lt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
}
#: What the marks call: one for a comparison, one for everything else.
MARK, MARK_COMPARISON = "__met__", "__met_comparison__"
ALL = -2


@dataclass(frozen=True, slots=True)
class Place:
    """The `number`-th place of a file, and what is done to it."""

    path: str  # below the root
    number: int
    line: int
    what: str

    @property
    def key(self) -> str:
        """Names it as long as the file stays as it is."""
        return f"{self.path}#{self.number}"

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path}:{self.line}"

    @property
    def text(self) -> str:
        """The line that is changed."""
        return (ROOT / self.path).read_text().splitlines()[self.line - 1].strip()


class Walk(ast.NodeTransformer):
    """Counts the places of a tree; changes one of them, or marks all."""

    def __init__(self, path: str = "", change: int = -1) -> None:
        self.path = path
        self.change = change
        self.places: list[tuple[int, str]] = []
        self.depth = 0

    def here(self, node: ast.AST, what: str) -> int:
        """Count a place. What stands at the top of a module is no decision: -1."""
        if self.depth == 0:
            return -1
        self.places.append((node.lineno, what))  # type: ignore[attr-defined]
        return len(self.places) - 1

    def marked(self, number: int, value: ast.expr) -> ast.expr:
        """The value, noted if all are."""
        return value if self.change != ALL or number < 0 else _call(MARK, value, self.name(number), value)

    def name(self, number: int) -> ast.expr:
        return ast.Constant(f"{self.path}#{number}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        docstring = ast.get_docstring(node) is not None
        node.body = [*node.body[:docstring], *self.block(node.body[docstring:])]
        self.depth -= 1
        return node

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Statements: each may be dropped."""
        found: list[ast.stmt] = []
        for each in body:
            number = -1
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                pass  # a body that is `...` does nothing
            elif isinstance(each, ast.Expr) and ast.unparse(each).startswith("assert_never("):
                pass  # mypy shows that nothing comes here
            elif isinstance(each, ast.Assign | ast.AugAssign | ast.Expr | ast.Continue | ast.Break):
                number = self.here(each, "dropped")
            if number >= 0 and number == self.change:
                found.append(ast.copy_location(ast.Pass(), each))
                continue
            if number >= 0 and self.change == ALL:
                found.append(ast.copy_location(ast.Expr(self.marked(number, ast.Constant(None))), each))
            found.append(self.visit(each))
        return found

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody") and isinstance(value, list) and self.depth:
                setattr(node, name, self.block(value))
            elif isinstance(value, list):
                setattr(node, name, [self.visit(each) if isinstance(each, ast.AST) else each for each in value])
            elif isinstance(value, ast.AST) and name not in ("annotation", "returns"):
                setattr(node, name, self.visit(value))
        return node

    def visit_If(self, node: ast.If | ast.IfExp) -> ast.AST:
        number = self.here(node, "negated")
        self.generic_visit(node)
        if number >= 0 and number == self.change:
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        else:
            node.test = self.marked(number, node.test)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self.visit_If(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        first = type(node.ops[0])
        number = self.here(node, "widened") if first in WIDER else -1
        self.generic_visit(node)
        if number >= 0 and number == self.change:
            node.ops[0] = WIDER[first]()
        elif number >= 0 and self.change == ALL and len(node.ops) == 1:
            kinds = [ast.Constant(first.__name__), ast.Constant(WIDER[first].__name__)]
            return _call(MARK_COMPARISON, node, self.name(number), *kinds, node.left, *node.comparators)
        elif self.change == ALL:
            node.left = self.marked(number, node.left)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        number = self.here(node, "and/or")
        self.generic_visit(node)
        if number >= 0 and number == self.change:
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        node.values[0] = self.marked(number, node.values[0])
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float) or node.value == 0:
            return node
        number = self.here(node, "tripled")
        if number >= 0 and number == self.change:
            return ast.copy_location(ast.Constant(node.value * 3), node)
        return self.marked(number, node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node  # what a message says is no decision

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.AST:
        return node  # a pattern calls nothing


def _call(name: str, where: ast.expr, *values: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(values), []), where)


def files() -> Iterator[Path]:
    """The modules of the pure packages."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).glob("*.py"))


def places() -> Iterator[Place]:
    """All that can be changed."""
    for path in files():
        name = str(path.relative_to(ROOT))
        walk = Walk()
        walk.visit(ast.parse(path.read_text()))
        for number, (line, what) in enumerate(walk.places):
            yield Place(name, number, line, what)


class _Loader(SourceFileLoader):
    """Loads a module through a walk, and never from or into a cache."""

    def __init__(self, name: str, path: str, walk: ast.NodeTransformer) -> None:
        super().__init__(name, path)
        self.walk = walk

    def get_code(self, fullname: str) -> CodeType:
        tree = self.walk.visit(ast.parse(Path(self.path).read_text()))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, walks: dict[str, tuple[Path, ast.NodeTransformer]]) -> None:
        self.walks = walks

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.walks:
            return None
        source, walk = self.walks[name]
        return importlib.util.spec_from_file_location(name, str(source), loader=_Loader(name, str(source), walk))


def make(place: str) -> None:
    """Make the change with this key, in this process, before anything of the packages is imported."""
    path, _, number = place.partition("#")
    find({ROOT / path: Walk(path, int(number))})


def mark() -> Counter[str]:
    """Mark all places, in this process. The counter says how often each was met so that its change would show."""
    met: Counter[str] = Counter()

    def note(key: str, value: object) -> object:
        met[key] += 1
        return value

    def compare(key: str, kind: str, wider: str, left: Any, right: Any) -> Any:
        answer = COMPARE[kind](left, right)
        try:
            met[key] += bool(COMPARE[wider](left, right)) != bool(answer)
        except TypeError:
            met[key] += 1  # what cannot be compared so would be an error
        return answer

    setattr(builtins, MARK, note)
    setattr(builtins, MARK_COMPARISON, compare)
    find({path: Walk(str(path.relative_to(ROOT)), ALL) for path in files()})
    return met


def find(walks: Mapping[Path, ast.NodeTransformer]) -> None:
    """Let these modules be loaded through these walks."""
    named = {module_name(path): (path, walk) for path, walk in walks.items()}
    assert not set(named) & set(sys.modules), "the packages are imported already"
    sys.meta_path.insert(0, _Finder(named))


def module_name(path: Path) -> str:
    """As it is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
