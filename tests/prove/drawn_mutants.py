"""Mutants drawn from the pure packages, hunted by the general simulator.

python tests/prove/drawn_mutants.py [--draw 60] [--from SEED] [--seconds 60] [--jobs 2] [--only FILE:LINE …]

Each mutant is one small change: a condition negated, a comparison widened, `and` and `or` swapped, a constant tripled,
or a statement dropped. Nobody chooses them: they are drawn from all places of `samza_azure/group` and
`samza_azure/logs`. A mutant plays the seeds of `samza-azure simulate`, of every style, for so many seconds of processor
time at most, and is killed by the first seed in which an invariant is broken. Lines that no seed reaches are told apart
from survivors. Ends with 1 if more than a tenth of those that are reached survive and are not explained in EXPLAINED.
"""

import argparse
import ast
import importlib.abc
import importlib.util
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import count
from pathlib import Path
from random import Random
from types import CodeType, ModuleType

ROOT = Path(__file__).parents[2]
PACKAGES = ("samza_azure/group", "samza_azure/logs")
#: Survivors that were looked at, by file and the text of the line: why no simulation can tell them from the original.
EXPLAINED: dict[tuple[str, str], str] = {}
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
HIT = "__mutant_is_reached__"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change in one file: the `number`-th place at which something can be changed."""

    path: Path
    number: int
    line: int
    what: str

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def text(self) -> str:
        """The line that is changed."""
        return self.path.read_text().splitlines()[self.line - 1].strip()


class Change(ast.NodeTransformer):
    """Counts the places at which a tree can be changed, and changes one of them."""

    def __init__(self, number: int = -1) -> None:
        self.number = number
        self.places: list[tuple[int, str]] = []
        self.depth = 0

    def is_it(self, node: ast.AST, what: str) -> bool:
        """Count a place; whether it is the one to change. What stands at the top of a module is no decision."""
        if self.depth == 0:
            return False
        self.places.append((node.lineno, what))  # type: ignore[attr-defined]
        return len(self.places) - 1 == self.number

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
            can_go = isinstance(each, ast.Assign | ast.AugAssign | ast.Expr | ast.Continue | ast.Break)
            if can_go and self.is_it(each, "dropped"):
                found.append(ast.copy_location(ast.Expr(reached(ast.Constant(None))), each))
            else:
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
        is_it = self.is_it(node, "negated")
        self.generic_visit(node)
        if is_it:
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), reached(node.test)), node.test)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self.visit_If(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        is_it = type(node.ops[0]) in WIDER and self.is_it(node, "widened")
        self.generic_visit(node)
        if is_it:
            node.ops[0] = WIDER[type(node.ops[0])]()
            node.left = reached(node.left)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        is_it = self.is_it(node, "and/or")
        self.generic_visit(node)
        if is_it:
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            node.values[0] = reached(node.values[0])
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool) and node.value != 0
        if is_number and self.is_it(node, "tripled"):
            return reached(ast.copy_location(ast.Constant(node.value * 3), node))  # type: ignore[operator]
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node  # what a message says is no decision


def reached(value: ast.expr) -> ast.expr:
    """The value, noting that the changed place is reached."""
    return ast.copy_location(ast.Call(ast.Name(HIT, ast.Load()), [value], []), value)


def places() -> Iterator[Mutant]:
    """All that can be changed."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).glob("*.py")):
            change = Change()
            change.visit(ast.parse(path.read_text()))
            for number, (line, what) in enumerate(change.places):
                yield Mutant(path, number, line, what)


# One mutant, in a process of its own.


class Loader(SourceFileLoader):
    """Loads one module with the change in it, and never from or into a cache."""

    number: int

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(Path(self.path).read_text())
        changed = ast.fix_missing_locations(Change(self.number).visit(tree))
        return compile(changed, self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    """Finds that one module."""

    def __init__(self, name: str, path: Path, number: int) -> None:
        self.name = name
        self.loader = Loader(name, str(path))
        self.loader.number = number

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.loader.path, loader=self.loader)


def played(path: Path, number: int, first: int, seconds: float) -> str:
    """Play seeds until one is broken: what became of the mutant."""
    import builtins

    hits: Counter[str] = Counter()

    def hit(value: object) -> object:
        hits["reached"] += 1
        return value

    setattr(builtins, HIT, hit)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    sys.meta_path.insert(0, Finder(name, path, number))
    try:
        from samza_azure.sim.simulate import draw
        from samza_azure.sim.world import play
    except Exception as error:  # noqa: BLE001  # a mutant that cannot be imported is seen at once
        return f"killed import {type(error).__name__}: {error}"
    end = time.process_time() + seconds
    for seeds, seed in enumerate(count(first), 1):
        result = play(draw(seed))
        if result.violation is not None:
            return f"killed {seed} after {seeds}: {result.violation[:150]}"
        if time.process_time() > (end if hits else end - 2 * seconds / 3):
            return f"{'survives' if hits else 'unreached'} {seeds} seeds, {hits['reached']} times"
    raise AssertionError


def hunt(mutant: Mutant, first: int, seconds: float) -> str:
    """The same in a process of its own, which may also hang."""
    command = [sys.executable, __file__, "--one", str(mutant.path), str(mutant.number)]
    options = ["--from", str(first), "--seconds", str(seconds)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=20 * seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return "killed it hangs"
    lines = [line for line in output.splitlines() if line.startswith(("killed", "survives", "unreached"))]
    return lines[-1] if lines else f"killed the simulator itself fails: {(output.strip() or 'silence')[-150:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=60)
    parser.add_argument("--from", dest="first", type=int, default=None, help="draws and plays from here; else fresh")
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time, for each mutant at most")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", metavar="FILE:LINE", help="all mutants of these lines")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    first = asked.first if asked.first is not None else Random().randrange(1 << 31)
    if asked.one:
        print(played(Path(asked.one[0]), int(asked.one[1]), first, asked.seconds), flush=True)
        return 0
    known = list(places())
    chosen = [each for each in known if each.where in (asked.only or ())] or Random(first).sample(known, asked.draw)
    print(f"{len(chosen)} of {len(known)} mutants, seeds from {first}", flush=True)
    tally: Counter[str] = Counter()
    with ThreadPoolExecutor(asked.jobs) as pool:
        for mutant, said in zip(chosen, pool.map(lambda each: hunt(each, first, asked.seconds), chosen), strict=True):
            verdict, _, more = said.partition(" ")
            if verdict == "survives" and (why := EXPLAINED.get((mutant.where.partition(":")[0], mutant.text))):
                verdict, more = "explained", why
            tally[verdict] += 1
            print(f"{verdict:9} {mutant.where} {mutant.what}: {mutant.text}\n          {more}", flush=True)
    print(dict(tally))
    alive = tally["survives"]
    return 1 if alive > 0.1 * (alive + tally["killed"]) else 0


if __name__ == "__main__":
    sys.exit(main())
