"""Every small change that the operators make of a module: what is drawn from when the tests are tried.

A change replaces one piece of source text. So a mutant can be read as a line before and after, and lines keep their
numbers in all but a few. The operators are the ordinary ones: a condition is negated, a comparison is off by one or
turned round, `and` is `or`, a sum is a difference, a number, a flag, a key or a default is another one, a statement is
dropped, an error is not raised or not handled, nothing is returned, two arguments are swapped, or one is left out.

Nothing is changed that can make no difference by what it is: docstrings, annotations, `__repr__` and `__str__`,
`__all__`, lines of a log, notes, the words of an error, and branches that mypy shows to be unreachable.
"""

import ast
from dataclasses import dataclass

from samza_azure import errors

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*"}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: What is called with words for people.
_WORDS = {"debug", "info", "warning", "error", "exception", "note", "print", "warn", "add_note", "assert_never"}
_TEXTS = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True)
class Change:
    """One piece of a module's text, by bytes, and what stands there instead."""

    line: int
    what: str
    begin: int
    end: int
    instead: str

    def made(self, source: str) -> str:
        """The module's text with this change."""
        data = source.encode()
        return (data[: self.begin] + self.instead.encode() + data[self.end :]).decode()


def changes(source: str) -> list[Change]:
    """All changes of a module, in the order of its text; none twice."""
    walk = _Walk(source)
    walk.statements(ast.parse(source).body)
    unique = {(each.begin, each.end, each.instead): each for each in reversed(walk.found)}
    return sorted(unique.values(), key=lambda each: (each.begin, each.end, each.what))


class _Walk:
    def __init__(self, source: str) -> None:
        self.found: list[Change] = []
        self.data = source.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []

    def change(self, node: ast.AST, what: str, instead: str) -> None:
        begin, end = self.span(node)
        if self.data[begin:end] != instead.encode():
            self.found.append(Change(node.lineno, what, begin, end, instead))  # type: ignore[attr-defined]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The first byte of a node, and the one after it."""
        begin = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        begin, end = self.span(node)
        return self.data[begin:end].decode()

    # Statements.

    def statements(self, body: list[ast.stmt]) -> None:
        for each in body:
            self.statement(each)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.function(node)
            case ast.ClassDef():
                for each in node.body:
                    self.field(each)
            case ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal() | ast.Pass() | ast.Assert():
                pass
            case ast.Expr(value=ast.Constant()):
                pass  # a docstring, or `...`
            case ast.Expr(value=value):
                if not _tells(value):
                    self.dropped(node)
                    self.expression(value)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                self.assignment(node)
            case ast.Return():
                self.returned(node)
            case ast.Raise():
                if self.functions:
                    self.change(node, "not raised", "pass")
            case ast.Continue() | ast.Break():
                self.dropped(node)
            case ast.Delete():
                self.dropped(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If() | ast.While():
                self.condition(node.test)
                self.statements(node.body)
                self.statements(node.orelse)
            case ast.Try():
                self.tried(node)
            case ast.Match():
                self.expression(node.subject)
                for case in node.cases:
                    if case.guard is not None:
                        self.condition(case.guard)
                    self.statements(case.body)
            case ast.For() | ast.AsyncFor():
                self.expression(node.iter)
                self.statements(node.body)
                self.statements(node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self.expression(item.context_expr)
                self.statements(node.body)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _TEXTS:
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if isinstance(default, ast.Constant):
                self.constant(default, "another default")
        self.functions.append(node)
        self.statements(node.body)
        self.functions.pop()

    def field(self, node: ast.stmt) -> None:
        """Of a class: a value of an enum is only a name, unless it is a default."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.statement(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
            self.constant(node.value, "another default")

    def dropped(self, node: ast.stmt) -> None:
        if self.functions:
            self.change(node, "dropped", "pass")

    def assignment(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if names == ["__all__"] or node.value is None:
            return
        if self.has_value_without(targets, node):
            self.dropped(node)
        if isinstance(node, ast.AugAssign) and (other := _ARITHMETIC.get(type(node.op))):
            tail = self.text(node)[len(self.text(node.target)) :].partition("=")[2]
            self.change(node, "arithmetic", f"{self.text(node.target)} {other}={tail}")
        self.expression(node.value)

    def has_value_without(self, targets: list[ast.expr], at: ast.stmt) -> bool:
        """Whether without this statement all that it binds may have another value. Else it would have none at all."""
        if not self.functions:
            return False
        function = self.functions[-1]
        arguments = function.args
        bound = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < at.lineno:
                bound.add(node.id)
        for node in (each for target in targets for each in ast.walk(target)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in bound:
                return False
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and function.name == "__init__":
                return False
        return True

    def returned(self, node: ast.Return) -> None:
        if node.value is None:
            self.dropped(node)
            return
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.change(node, "returns None", "return None")
        self.expression(node.value)

    def tried(self, node: ast.Try) -> None:
        for handler in node.handlers:
            first, last = handler.body[0], handler.body[-1]
            begin, end = self.span(first)[0], self.span(last)[1]
            if not (isinstance(first, ast.Raise) and len(handler.body) == 1):
                self.found.append(Change(first.lineno, "not handled", begin, end, "raise"))
            self.statements(handler.body)
        for each in (node.body, node.orelse, node.finalbody):
            self.statements(each)

    # Expressions.

    def condition(self, node: ast.expr) -> None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.change(node, "negated", f"({self.text(node.operand)})")
            self.expression(node.operand)
            return
        is_turned = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot)
        if not isinstance(node, ast.Constant) and not is_turned and not isinstance(node, ast.NamedExpr):
            self.change(node, "negated", f"(not ({self.text(node)}))")
        self.expression(node)

    def expression(self, node: ast.AST) -> None:
        match node:
            case ast.JoinedStr():
                return  # words for people, and places of nodes inside are wrong before Python 3.12
            case ast.Lambda():
                self.expression(node.body)
                return
            case ast.IfExp():
                self.condition(node.test)
                self.expression(node.body)
                self.expression(node.orelse)
                return
            case ast.UnaryOp(op=ast.Not()):
                self.change(node, "negated", f"({self.text(node.operand)})")
            case ast.Compare():
                self.compare(node)
            case ast.BoolOp():
                self.boolean(node)
            case ast.BinOp():
                self.binary(node)
            case ast.Constant():
                self.constant(node, "another constant")
            case ast.Subscript(slice=ast.Constant(value=str() as key)):
                self.change(node.slice, "another key", repr(f"{key}_"))
            case ast.Dict():
                for key in node.keys:
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        self.change(key, "another key", repr(f"{key.value}_"))
            case ast.Call():
                if _tells(node) or _is_error(node):
                    return
                self.call(node)
            case ast.comprehension():
                for test in node.ifs:
                    self.condition(test)
                self.expression(node.iter)
                return
        for child in ast.iter_child_nodes(node):
            self.expression(child)

    def compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and (other := _COMPARISONS.get(type(node.ops[0]))):
            left, right = self.text(node.left), self.text(node.comparators[0])
            self.change(node, "comparison", f"(({left}) {other} ({right}))")
        for each in node.comparators:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                self.change(each, "another text", repr(f"{each.value}_"))

    def boolean(self, node: ast.BoolOp) -> None:
        parts = [f"({self.text(value)})" for value in node.values]
        word = " or " if isinstance(node.op, ast.And) else " and "
        self.change(node, "and/or", f"({word.join(parts)})")

    def binary(self, node: ast.BinOp) -> None:
        if any(isinstance(each, ast.JoinedStr) for each in ast.walk(node)):
            return
        texts = [each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if (other := _ARITHMETIC.get(type(node.op))) and not texts:
            self.change(node, "arithmetic", f"(({self.text(node.left)}) {other} ({self.text(node.right)}))")

    def constant(self, node: ast.Constant, what: str) -> None:
        match node.value:
            case bool():
                self.change(node, what, str(not node.value))
            case int():
                self.change(node, what, str(node.value + 1))
            case float():
                self.change(node, what, str(node.value * 3 if node.value else 1.0))
            case None if what == "another default":
                pass  # almost always a type error

    def call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and (twin := _TWINS.get(node.func.id)):
            self.change(node.func, "min/max", twin)
        arguments = [each for each in node.args if not isinstance(each, ast.Starred)]
        if len(arguments) >= 2 and arguments[:2] == node.args[:2]:
            first, second = arguments[:2]
            if isinstance(first, ast.Name | ast.Attribute) and isinstance(second, ast.Name | ast.Attribute):
                begin, end = self.span(first)[0], self.span(second)[1]
                between = self.data[self.span(first)[1] : self.span(second)[0]].decode()
                swapped = f"{self.text(second)}{between}{self.text(first)}"
                self.found.append(Change(first.lineno, "arguments swapped", begin, end, swapped))
        for keyword in node.keywords:
            if keyword.arg is not None:
                self.without(node, keyword)

    def without(self, call: ast.Call, keyword: ast.keyword) -> None:
        """The call without this argument, so that the default holds."""
        begin, end = self.span(keyword)
        rest = self.data[end : self.span(call)[1]]
        if rest.lstrip().startswith(b","):
            end += rest.index(b",") + 1
        elif call.args or len(call.keywords) > 1:  # the last one: the comma before it goes too
            begin = self.data.rindex(b",", 0, begin)
        self.found.append(Change(keyword.lineno, "argument left out", begin, end, ""))


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call():
            return _name(node.func)
        case _:
            return ""


def _tells(node: ast.AST) -> bool:
    """Whether it only says something to people."""
    node = node.value if isinstance(node, ast.Await) else node
    if not isinstance(node, ast.Call):
        return False
    name = _name(node.func)
    is_log = isinstance(node.func, ast.Attribute) and name == "log" and _name(node.func.value) == "log"
    return name in _WORDS or is_log


def _is_error(node: ast.Call) -> bool:
    """Whether an error is made: its words are for people."""
    name = _name(node.func)
    return name.endswith(("Error", "Exception", "Warning")) or name in _ERRORS


_ERRORS = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
