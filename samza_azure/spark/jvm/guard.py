"""Keep the import of a module from starting a JVM. Importing this imports no Spark."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: The module of pyspark's that starts the JVM.
_STARTS = "pyspark.core.context"


@contextmanager
def no_session(refused: Callable[[], Exception]) -> Iterator[None]:
    """Raise this if anything in this block starts a JVM, also if pyspark is first imported in it."""
    with ExitStack() as guards:
        if _STARTS in sys.modules:
            guards.enter_context(_guarded(sys.modules[_STARTS], refused))
        else:
            finder = _Finder(lambda module: guards.enter_context(_guarded(module, refused)))
            sys.meta_path.insert(0, finder)
            guards.callback(sys.meta_path.remove, finder)
        yield


@contextmanager
def _guarded(module: ModuleType, refused: Callable[[], Exception]) -> Iterator[None]:
    before = module.SparkContext._ensure_initialized

    def refuse(*arguments: Any, **options: Any) -> None:
        raise refused()

    module.SparkContext._ensure_initialized = refuse
    try:
        yield
    finally:
        module.SparkContext._ensure_initialized = before


class _Finder:
    """Find the module as Python would, and have it guarded as soon as it is executed."""

    def __init__(self, guard: Callable[[ModuleType], object]) -> None:
        self._guard = guard

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Called by Python for each module that is not imported yet."""
        spec = PathFinder.find_spec(name, path, target) if name == _STARTS else None
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_guarded(module: ModuleType) -> None:
            execute(module)
            self._guard(module)

        loader.exec_module = execute_guarded
        return spec
