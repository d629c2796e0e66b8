"""The files of a job's own modules: the main one, and those beside it that it imports, found without importing any."""

import ast
from collections.abc import Iterator
from pathlib import Path


def local_modules(folder: Path, main: str) -> Iterator[bytes]:
    """The source of each module below `folder` that the module `main` imports, itself first. Nothing if it is not
    there. An import that a call makes, such as `importlib.import_module`, is not found.
    """
    left, seen = [main], set[Path]()
    while left:
        name = left.pop()
        file = next((each for each in _files(folder, name) if each.is_file()), None)
        if file is None or file in seen:
            continue
        seen.add(file)
        source = file.read_bytes()
        yield source
        is_package = file.name == "__init__.py"
        left += _imported(source, name if is_package else name.rpartition(".")[0])


def _files(folder: Path, module: str) -> tuple[Path, Path]:
    path = folder.joinpath(*module.split("."))
    return path / "__init__.py", path.with_suffix(".py")


def _imported(source: bytes, package: str) -> Iterator[str]:
    """The modules that a source may import, of which some are names in a module; with the packages around them."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _with_packages(each.name)
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*around, node.module]))
            for name in (base, *(f"{base}.{each.name}".strip(".") for each in node.names)):
                yield from _with_packages(name)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)) if name)
