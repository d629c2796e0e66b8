"""Which blocks of the code a test or a game reaches, also in the processes that it starts and kills.

A block is what is run as a whole as long as nothing returns or raises: the body of a function, of a branch, of a loop.
Each has a number and a byte. The bytes are in a file that all processes of a test have mapped into their memory, so
what a killed process has reached is known, and marking costs next to nothing.
"""

import ast
import builtins
import json
import marshal
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import CodeType

#: What the marked code calls the bytes.
MARKS = "__reached__"
_TABLE = "table.json"


@dataclass(frozen=True, slots=True)
class Block:
    """The `number`-th block of a function, and the lines from its first to its last."""

    path: str  # below the root
    function: str  # its qualified name; empty for what stands outside of functions
    number: int
    state: str  # changes with the text of the function
    begin: int
    end: int

    @property
    def key(self) -> tuple[str, str, int, str]:
        """The same as long as its function stays as it is, whatever else changes in the file."""
        return self.path, self.function, self.number, self.state


@dataclass(frozen=True, slots=True)
class Table:
    """All blocks of one state of the code; the place in the list is the number of the byte."""

    blocks: list[Block]

    @classmethod
    def load(cls, folder: Path) -> "Table":
        """As `prepare` has left it."""
        return cls([Block(*each) for each in json.loads((folder / _TABLE).read_text())])

    def at(self, path: str, line: int) -> Block | None:
        """The innermost block with this line; None if the line stands outside of functions."""
        around = [each for each in self.blocks if each.path == path and each.begin <= line <= each.end]
        return min(around, key=lambda each: each.end - each.begin, default=None)


class _Marker(ast.NodeTransformer):
    """Marks each block of a module."""

    def __init__(self, path: str, first: int) -> None:
        self.path, self.first = path, first
        self.blocks: list[Block] = []
        self.above: list[str] = []
        self.state, self.count = "", 0

    def marked(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A body that marks itself first; its docstring stays where it is."""
        number = self.first + len(self.blocks)
        begin, end = body[0].lineno, max(each.end_lineno or each.lineno for each in body)
        self.blocks.append(Block(self.path, ".".join(self.above), self.count, self.state, begin, end))
        self.count += 1
        is_text = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        place = ast.Subscript(ast.Name(MARKS, ast.Load()), ast.Constant(number), ast.Store())
        mark = ast.copy_location(ast.Assign([place], ast.Constant(1)), body[0])
        return [*body[:is_text], mark, *body[is_text:]]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.above.append(node.name)
        self.generic_visit(node)
        self.above.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before = self.state, self.count
        self.above.append(node.name)
        self.state, self.count = sha256(ast.unparse(node).encode()).hexdigest()[:12], 0
        body = self.marked(node.body)
        self.generic_visit(node)
        node.body = body
        self.above.pop()
        self.state, self.count = before
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(node)  # type: ignore[arg-type]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self.state and isinstance(
            node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.match_case
        ):
            bodies = {name: self.marked(body) for name in ("body", "orelse") if (body := getattr(node, name, None))}
            super().generic_visit(node)
            for name, body in bodies.items():
                setattr(node, name, body)
            return node
        return super().generic_visit(node)


def prepare(root: Path, files: list[str], folder: Path) -> Table:
    """Compile these files with their marks into the folder, and keep the table of their blocks there."""
    blocks: list[Block] = []
    for path in files:
        marker = _Marker(path, len(blocks))
        tree = ast.fix_missing_locations(marker.visit(ast.parse((root / path).read_text())))
        blocks += marker.blocks
        target = (folder / path).with_suffix(".code")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(marshal.dumps(compile(tree, str(root / path), "exec", dont_inherit=True)))
    rows = [[each.path, each.function, each.number, each.state, each.begin, each.end] for each in blocks]
    (folder / _TABLE).write_text(json.dumps(rows))
    return Table(blocks)


def code_of(name: str, root: Path, folder: Path) -> CodeType:
    """The marked code of a file."""
    path = (folder / Path(name).relative_to(root)).with_suffix(".code")
    code = marshal.loads(path.read_bytes())
    assert isinstance(code, CodeType)
    return code


_shared: mmap.mmap | None = None


def share(marks: Path) -> None:
    """Map the file of marks into the memory of this process and of those that it forks."""
    global _shared  # noqa: PLW0603 -- one for the process, as are the builtins
    with marks.open("r+b") as file:
        _shared = mmap.mmap(file.fileno(), 0)
    setattr(builtins, MARKS, _shared)


def clear() -> None:
    """Begin to look."""
    assert _shared is not None
    _shared[:] = bytes(len(_shared))


def reached() -> Iterator[int]:
    """The numbers of the blocks that were reached since `clear`."""
    assert _shared is not None
    return (number for number, mark in enumerate(bytes(_shared)) if mark)
