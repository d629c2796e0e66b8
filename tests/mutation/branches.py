"""Which way each decision of the pure packages went, counted while a simulation runs.

A decision is an `if`, a `while`, a conditional expression or a case of a `match` in a function of `samza_azure/group`
or `logs`. Each has two ways; a case has one. Counting costs a list element each, so a long run counts everywhere and
all the time.

Whoever imports this counts in its process and in those that it forks, so it comes before anything of the packages.
"""

import ast
import builtins
import importlib
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

from tests.mutation.hook import ROOT, load_instead, module_name

PACKAGES = ("samza_azure/group", "samza_azure/logs")
#: Where a counted statement adds one, and what a counted test of an expression calls.
COUNTS, MARK = "__counts__", "__went__"


@dataclass(frozen=True, slots=True)
class Branch:
    """One way of one decision."""

    path: str  # below the root
    function: str
    text: str  # of its line
    way: str  # true, false, or case

    def __str__(self) -> str:
        return f"{self.path} {self.function}: {self.text} [{self.way}]"


@dataclass(slots=True)
class Branches:
    """The branches, and how often each was met."""

    names: list[Branch] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, *branches: Branch) -> int:
        """New ones; the number of the first."""
        self.names += branches
        self.counts += [0] * len(branches)
        return len(self.names) - len(branches)

    def take(self) -> list[int]:
        """What was counted since the last time."""
        taken = list(self.counts)
        self.counts[:] = [0] * len(taken)
        return taken


class _Walk(ast.NodeTransformer):
    """Counts at each decision of a module."""

    def __init__(self, path: Path, known: Branches) -> None:
        self.path, self.known = str(path.relative_to(ROOT)), known
        self.lines = path.read_text().splitlines()
        self.functions: list[str] = []

    def branch(self, node: ast.expr | ast.stmt | ast.pattern, way: str) -> Branch:
        return Branch(self.path, self.functions[-1], self.lines[node.lineno - 1].strip(), way)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.functions.append(node.name)
        self.generic_visit(node)
        self.functions.pop()
        return node

    def visit_If(self, node: ast.If | ast.While) -> ast.AST:
        number = self.decision(node)
        if number is not None:
            node.body.insert(0, _add(number + 1, node.body[0]))
            node.orelse.insert(0, _add(number, node.test))
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        return self.visit_If(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        number = self.decision(node)
        if number is not None:
            call = ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(number), node.test], [])
            node.test = ast.copy_location(call, node.test)
        return node

    def decision(self, node: ast.If | ast.IfExp | ast.While) -> int | None:
        """The number of its first way; None if it has only one, or is in no function."""
        self.generic_visit(node)
        if not self.functions or isinstance(node.test, ast.Constant):
            return None
        return self.known.add(self.branch(node.test, "false"), self.branch(node.test, "true"))

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        if ast.unparse(node.body[0]).startswith("assert_never("):
            return node  # mypy shows that nothing gets there
        number = self.known.add(self.branch(node.pattern, "case"))
        self.generic_visit(node)
        node.body.insert(0, _add(number, node.body[0]))
        return node


def _add(number: int, at: ast.AST) -> ast.stmt:
    place = ast.Subscript(ast.Name(COUNTS, ast.Load()), ast.Constant(number), ast.Store())
    return ast.copy_location(ast.AugAssign(place, ast.Add(), ast.Constant(1)), at)


def _count() -> Branches:
    known = Branches()
    counts = known.counts

    def went(number: int, value: object) -> object:
        counts[number + (1 if value else 0)] += 1
        return value

    setattr(builtins, COUNTS, counts)
    setattr(builtins, MARK, went)

    def counted(name: str) -> CodeType:
        tree = _Walk(Path(name), known).visit(ast.parse(Path(name).read_text()))
        return compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)

    paths = [str(path.relative_to(ROOT)) for name in PACKAGES for path in sorted((ROOT / name).glob("*.py"))]
    load_instead(dict.fromkeys(paths, counted))
    for path in paths:
        importlib.import_module(module_name(path))
    return known


BRANCHES = _count()
