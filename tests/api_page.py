"""The page of the public names, `docs/api.md`, made from the code: signatures, fields and docstrings.

python -m tests.api_page   # after a change of a public name
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
#: The packages whose names are public.
PACKAGES = ("samza_azure", "samza_azure.tables")
#: The public names by what they are for. Those of `samza_azure.tables` are in a section of their own.
SECTIONS = {
    "The job file": ["Config"],
    "Pipelines": ["Application", "Handler", "Envelope", "Collector", "TaskCoordinator"],
    "Coordination without Spark": [
        "AzureJobCoordinatorFactory", "PassthroughJobCoordinatorFactory", "JobCoordinator", "JobCoordinatorListener",
        "JobModel", "CoordinationUtils", "ClusterMembership", "LeaderElector", "LeaderElectorListener", "Lock",
        "SharedTasks", "AzureLock", "check_token",
    ],
    "Drains": [
        "DrainNotifications", "DrainNotification", "DrainMode", "DrainMonitor", "DrainStates", "DrainMessage",
    ],
    "Writing a source stream": ["SourceWriter"],
    "Reading a stream": ["Reader"],
    "Connecting a system": [
        "SystemFactory", "SystemAdmin", "SystemStream", "SystemConsumer", "SystemRows", "SystemLag", "SystemProducer",
        "SystemWriter", "RefusedRow", "EventHubsOnce",
    ],
    "Errors": [
        "SamzaAzureError", "ConfigError", "AccessDenied", "PipelineRefused", "StorageUnavailable", "SignInFailed",
        "Unsettled", "RowsGone", "Superseded", "PermitExpired", "CorruptState", "StateLost", "JobFailed", "LeftOpen",
        "TimedOut",
    ],
}  # fmt: skip
HEAD = (
    f"# API\n\nThe public names: those of {' and '.join(f'`{each}`' for each in PACKAGES)}. Everything else may change "
    "without notice. `tests/typing/api.py` shows each of them as a type checker sees it. This page is made from the "
    "code by `python -m tests.api_page`.\n"
)
#: A signature that is longer has a line for each argument: GitHub shows about so much without scrolling.
WIDTH = 88
#: A section of a docstring: its heading, and the indented lines below it.
PART = re.compile(r"^(Raises|Example):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)


def page() -> str:
    """The whole page."""
    package, tables = map(importlib.import_module, PACKAGES)
    lines = [HEAD, *_index({**SECTIONS, "Tables": tables.__all__})]
    for section, names in SECTIONS.items():
        lines.append(f"## {section}\n")
        for name in names:
            lines += _entry(name, getattr(package, name))
    lines.append("## Tables\n\nOf `samza_azure.tables`.\n")
    for name in tables.__all__:
        lines += _entry(name, getattr(tables, name))
    return "\n".join(lines)


def _index(sections: dict[str, list[str]]) -> Iterator[str]:
    yield "| section | names |\n|---|---|"
    for section, names in sections.items():
        links = ", ".join(f"[{name}](#{name.lower()})" for name in names)
        yield f"| [{section}](#{section.lower().replace(' ', '-')}) | {links} |"
    yield ""


def _entry(name: str, value: object) -> Iterator[str]:
    yield f"### {name}\n"
    if not (inspect.isclass(value) or inspect.isfunction(value)):  # the name of a type
        yield _code(f"{name} = {value}")
        return
    node = definition(importlib.import_module(value.__module__), value.__name__)
    if isinstance(node, ast.FunctionDef):
        yield _signature(node)
        yield _text(node)
        return
    assert isinstance(node, ast.ClassDef), name
    yield _text(node)
    if fields := [ast.unparse(each) for each in node.body if _is_field(each)]:
        yield _code("\n".join(fields))
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and is_shown(each):
            yield f"#### {name}.{each.name}\n" if each.name != "__init__" else f"#### {name}(…)\n"
            yield _signature(each)
            if ast.get_docstring(each):
                yield _text(each)


def definition(module: ModuleType, name: str) -> ast.stmt:
    body = ast.parse(Path(str(module.__file__)).read_text()).body
    return next(each for each in body if getattr(each, "name", "") == name)


def _is_field(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):  # a value of an Enum
        return all(isinstance(each, ast.Name) and each.id.isupper() for each in node.targets)
    return isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_")


def is_shown(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if node.name == "__init__":
        return len(node.args.args) > 1
    if node.name.startswith("on_") and not ast.get_docstring(node):
        return False  # it overrides one that the class it comes from describes
    return node.name in ("__iter__", "__aiter__") or not node.name.startswith("_")


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.unparse(node.args)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    marks = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list)
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    line = f"{kind} {node.name}({arguments}){returned}"
    if len(line) > WIDTH:
        line = f"{kind} {node.name}(\n{_arguments(arguments)}){returned}"
    return _code(marks + line)


def _arguments(text: str) -> str:
    """The arguments, one a line: cut at each comma outside of brackets."""
    depth, lines = 0, [""]
    for each in text:
        depth += (each in "[({") - (each in "])}")
        lines = [*lines, ""] if each == "," and depth == 0 else [*lines[:-1], lines[-1] + each]
    return "".join(f"    {line.strip()},\n" for line in lines)


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _text(node: ast.stmt) -> str:
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return PART.sub(_part, f"{ast.get_docstring(node)}\n")


def _part(found: re.Match[str]) -> str:
    """The errors as a list, an example as code."""
    body = textwrap.dedent(found[2])
    if found[1] == "Example":
        return f"```python\n{body.strip()}\n```\n"
    entries = re.split(r"\n(?=\S)", re.sub(r"\n +", " ", body.strip()))
    return "**Raises**\n\n" + "".join(f"- {_raised(entry)}\n" for entry in entries)


def _raised(entry: str) -> str:
    kinds, _, why = entry.partition(": ")
    return f"{', '.join(f'`{kind}`' for kind in kinds.split(', '))}: {why}"


if __name__ == "__main__":
    PAGE.write_text(page())
