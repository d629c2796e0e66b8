"""Modules that are loaded from other text than stands in their files, in this process and in those that it starts.

The files stay as they are. `site/sitecustomize.py` calls `install` in each Python process whose PYTHONPATH has that
folder, before anything is imported: so a processor, a container and a worker of Spark run the same mutant as the test
that started them.
"""

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).parents[2]
#: Says which mutant is loaded: a file below the root, a colon, and the file that has the text instead.
MUTANT = "SAMZA_AZURE_MUTANT"
#: Says that what is reached is recorded (`reach.py`): folder of the marked modules, a colon, file of marks.
REACH = "SAMZA_AZURE_REACH"
#: Names the file that `plugin.py`, and the games, write.
TESTED = "SAMZA_AZURE_TESTED"


def module_name(path: Path | str) -> str:
    """As a file below the root is imported."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Loader(SourceFileLoader):
    """Loads a module from the code that it is given, and never from or into a cache."""

    def __init__(self, name: str, path: str, code: Callable[[str], CodeType]) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code(self.path)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, codes: Mapping[str, tuple[Path, Callable[[str], CodeType]]]) -> None:
        self.codes = codes

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.codes:
            return None
        source, code = self.codes[name]
        return importlib.util.spec_from_file_location(name, str(source), loader=_Loader(name, str(source), code))


def load_instead(codes: Mapping[str, Callable[[str], CodeType]]) -> None:
    """Let these files below the root be loaded from what the functions return, which get the path of the file."""
    named = {module_name(path): (ROOT / path, code) for path, code in codes.items()}
    assert not set(named) & set(sys.modules), "they are imported already"
    sys.meta_path.insert(0, _Finder(named))


def install() -> None:
    """What the environment asks for."""
    if mutant := os.environ.get(MUTANT):
        path, _, text = mutant.partition(":")
        load_instead({path: lambda name: compile(Path(text).read_text(), name, "exec", dont_inherit=True)})
    if reach := os.environ.get(REACH):
        from tests.mutation import reach as recorder

        folder, marks = map(Path, reach.split(":"))
        recorder.share(marks)
        files = [str(path.relative_to(folder).with_suffix(".py")) for path in folder.rglob("*.code")]
        load_instead(dict.fromkeys(files, lambda name: recorder.code_of(name, ROOT, folder)))
