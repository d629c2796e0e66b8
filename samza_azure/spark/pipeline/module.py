"""Import the user's module for Spark, and decide how its functions get to Spark's Python workers.

Functions and classes of the pipeline's main module are pickled by value, like those of a script under spark-submit.
So the module may create a session, register functions and define columns at its top level, although a worker could
not import it then. Other modules beside it are imported once by each worker, as with --py-files, and keep their
globals between batches. A module that holds an object of the session, also inside a class, a list or a dict, cannot be
imported by a worker either, so it is pickled by value too.
Promised: settings that a module makes on the session at import are in the job file too, or are refused.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from pyspark import Accumulator, Broadcast, SparkContext
from pyspark.sql import Column, DataFrame, SparkSession, WindowSpec

from samza_azure.application import Application
from samza_azure.config import Config
from samza_azure.config.spark import OWN
from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.loading import load as pipeline_load
from samza_azure.spark.jvm import reducers
from samza_azure.spark.jvm.session import is_stopped, set_unchecked
from samza_azure.spark.jvm.session_kept import settings_of
from samza_azure.spark.pipeline.environment import environment_sent
from samza_azure.spark.pipeline.left_out import LeftOut
from samza_azure.spark.pipeline.spark_errors import said_by_stage

#: Objects that a worker cannot create: it cannot import a module that holds one of them.
_OF_THE_SESSION = (SparkSession, SparkContext, DataFrame, Column, WindowSpec, Broadcast, Accumulator, Application)
#: Most values of a large table in a module are of these types, and have nothing inside.
_PLAIN = frozenset({bool, bytes, float, int, str, type(None)})
#: With one of these a class says itself how its objects are pickled.
_PICKLING = ("__getstate__", "__reduce__", "__reduce_ex__")
#: Settings that scripts often make but the container decides; no row depends on them.
_NOT_THEIRS = frozenset({"spark.app.name", "spark.master", "spark.sql.shuffle.partitions"})


def load(config: Config) -> Application:
    """The application that `app.main` names. Its functions can be sent to Spark's workers."""
    return pipeline_load(config, _for_workers, lambda error: said_by_stage(error, []))


@contextmanager
def _for_workers(name: str, directory: Path) -> Iterator[None]:
    _Finder.install(name, directory)
    with _settings_kept(name), environment_sent(name):
        yield


# By value.


class _Finder:
    """Find the user's modules as Python would, and have `_Loader` import them.

    These are the modules beside the job file and those of the pipeline's own package, also when a function imports
    them later.
    """

    def __init__(self, main: str, directory: Path) -> None:
        self._directory = directory
        self._ours = {main.partition(".")[0]}
        self._by_value = {main}

    @classmethod
    def install(cls, main: str, directory: Path) -> None:
        """Add a finder in front of Python's own, and remove the one of an earlier `load`."""
        others = [each for each in sys.meta_path if not isinstance(each, cls)]
        place = others.index(PathFinder) if PathFinder in others else len(others)
        sys.meta_path[:] = [*others[:place], cls(main, directory), *others[place:]]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Called by Python for each module that is not imported yet."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        top, is_below, _ = name.partition(".")
        if not is_below and not {self._directory, self._directory / name}.isdisjoint(_folders(spec)):
            self._ours.add(name)
        if top not in self._ours or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path, self._by_value)
        return spec


def _folders(spec: ModuleSpec) -> set[Path]:
    """Where a module's file, or a package's files, are."""
    file = [Path(spec.origin).parent] if spec.has_location and spec.origin else []
    return {*file, *map(Path, spec.submodule_search_locations or ())}


class _Loader(SourceFileLoader):
    """Execute a module of the user's and decide whether its functions are pickled by value."""

    def __init__(self, name: str, path: str, by_value: set[str]) -> None:
        super().__init__(name, path)
        self._by_value = by_value

    def exec_module(self, module: ModuleType) -> None:
        """Pickle by value during execution: the module may give functions to Spark before it is complete."""
        reducers.by_value(module, is_so=True)
        super().exec_module(module)
        if module.__name__ in self._by_value or any(map(self._is_of_the_session, _within(*vars(module).values()))):
            self._by_value.add(module.__name__)
        else:
            reducers.by_value(module, is_so=False)

    def _is_of_the_session(self, value: object) -> bool:
        """Whether a worker cannot import the value: it belongs to the session, or to a module pickled by value."""
        if isinstance(value, _OF_THE_SESSION):
            return True
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        return isinstance(origin, str) and any(f"{origin}.".startswith(f"{each}.") for each in self._by_value)


def _within(*values: object, to_pickle: bool = False) -> Iterator[object]:
    """Values of a module, and what can be reached from them. To pickle them, without what is pickled on its own."""
    known, left = dict[int, object](), [*values]
    while left:
        each = left.pop()
        if type(each) not in _PLAIN and id(each) not in known:
            known[id(each)] = each
            yield each
            left += _parts(each, to_pickle=to_pickle)


def _parts(value: Any, *, to_pickle: bool) -> Iterable[Any]:
    """Items, defaults and values around a function; attributes, if the class is the user's."""
    if isinstance(value, _OF_THE_SESSION):
        return ()
    kind = type(value)
    if issubclass(kind, dict):  # a proxy's class is said to be that of its object
        return tuple(dict.values(value))
    if issubclass(kind, list | tuple | set | frozenset | deque):
        return tuple(value)
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if isinstance(value, FunctionType):
        around = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *around)
    if isinstance(value, type):
        return () if to_pickle or not _is_users(value) else tuple(vars(value).values())
    if kind is SimpleNamespace:
        return tuple(vars(value).values())
    if to_pickle and any(getattr(kind, each) is not getattr(object, each) for each in _PICKLING):
        return ()
    return _attributes(value) if _is_users(kind) else ()


def _is_users(kind: type) -> bool:
    """Whether a class is one of the user's modules'."""
    spec = getattr(sys.modules.get(kind.__module__), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _Loader)


def _attributes(value: object) -> Iterator[object]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield getattr(value, name)


def _without_session(values: dict[str, Any], owner: str) -> dict[str, Any]:
    """What a module or a class has that is pickled by value, with a placeholder for each object of the session."""
    return {
        name: LeftOut(f"{owner}.{name}") if any(map(_stays, _within(value, to_pickle=True))) else value
        for name, value in values.items()
    }


def _stays(value: object) -> bool:
    return isinstance(value, _OF_THE_SESSION) and not isinstance(value, Broadcast | Accumulator)


reducers.install(_without_session)


# The session's settings.


@contextmanager
def _settings_kept(name: str) -> Iterator[None]:
    """Undo or refuse the settings that this block makes on the session and that the job file lacks."""
    spark = SparkSession.getActiveSession()
    if spark is None:
        yield
        return
    given = settings_of(spark)
    yield
    if is_stopped(spark):
        raise PipelineRefused(f"The module {name} stops the session, which the stages need. Remove the call to stop().")
    now = settings_of(spark)
    if now.equals(given):
        return
    before, after = dict(given), dict(now)
    changed = {key for key in after.keys() | before.keys() if after.get(key) != before.get(key)}
    refused = sorted(changed - _NOT_THEIRS)
    said = [f"The module {name} sets {key}. Remove it: {OWN[key]}." for key in refused if key in OWN]
    if movable := [key for key in refused if key not in OWN]:
        said.append(
            f"The module {name} sets {', '.join(movable)}. The session exists before the module is imported, and all "
            "processors need the same settings: write them under [spark] in the job file, not in the module."
        )
    if said:
        raise PipelineRefused(" ".join(said))
    for key in changed:
        set_unchecked(spark, key, before[key])
