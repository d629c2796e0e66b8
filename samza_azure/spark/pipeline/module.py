"""The user's module: found, imported, and how its functions get to Spark's Python processes.

Functions and classes of the pipeline's own module travel by value, as those of a script do under spark-submit. So it
may make a session, register functions and name columns at its top, though no worker could import it then. A module
beside it is imported by each worker once, as with --py-files, and keeps what it remembers between batches; but if it
holds something of the session, no worker can import it either, and it travels by value too.
Promised: what a module sets on the session at its import is in the job file as well, or refused.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import Accumulator, Broadcast, SparkContext, cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession

from samza_azure.application import Application
from samza_azure.config import Config
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.names import nearest
from samza_azure.spark.pipeline.places import noted, place_of
from samza_azure.spark.pipeline.words import said_by_stage

_CLOUDPICKLE: Any = cloudpickle.cloudpickle  # it comes without types
#: What a worker cannot make: a module that holds any of it cannot be imported there.
_OF_THE_SESSION = (SparkSession, SparkContext, DataFrame, Column, Broadcast, Accumulator, Application)
#: What scripts set and the container decides; no row depends on it.
_NOT_THEIRS = frozenset({"spark.app.name", "spark.master", "spark.sql.shuffle.partitions"})


def load(config: Config) -> Application:
    """The application that `app.main` names, from a module beside the job file or an installed one."""
    module_name, _, attribute = config.app.main.partition(":")
    module = _imported(module_name, config)
    application = getattr(module, attribute, None)
    if application is None:
        others = [name for name, each in vars(module).items() if isinstance(each, Application)]
        instead = f'Write in the job file: main = "{module_name}:{others[0]}".' if others else ""
        raise PipelineRefused(
            f"app.main is {config.app.main!r}, but {module_name} has no attribute {attribute}. "
            + (instead or f"Write there: {attribute} = Application().")
        )
    if not isinstance(application, Application):
        raise PipelineRefused(
            f"{config.app.main} is a {type(application).__name__}, not an Application. "
            f"Write: {attribute} = Application()."
        )
    return application


def _imported(name: str, config: Config) -> ModuleType:
    directory = config.path.absolute().parent
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    _Finder.install(name, directory)
    with _settings_kept(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                refused = PipelineRefused(f"app.main is {config.app.main!r}, and {name} {_needs(error)}")
                noted(refused, place_of(error))
                raise refused from error
            beside = [path.stem for path in directory.glob("*.py")]
            raise PipelineRefused(
                f"app.main is {config.app.main!r}, but there is no module {name} next to {config.path} "
                f"and none is installed.{nearest(name, beside)} Write it, or name another one."
            ) from error
        except PipelineRefused as error:
            noted(error, place_of(error))
            raise
        except (Exception, SystemExit) as error:
            refused = PipelineRefused(f"The module {name} cannot be imported: {_said(error)}")
            noted(refused, place_of(error))
            raise refused from error


def _said(error: BaseException) -> str:
    return f"Syntax error: {error.msg}." if isinstance(error, SyntaxError) else f"{said_by_stage(error, [])}."


def _needs(error: ModuleNotFoundError) -> str:
    """A package that is missing, and the line that brings it."""
    package = str(error.name).partition(".")[0]
    wanted = "samza-azure[pandas]" if package in ("pandas", "google") else package
    return f"needs the package {package}, which is not installed. Run on each machine: pip install '{wanted}'"


# By value.


class _Finder:
    """Finds the user's modules as Python would, and has them imported by `_Loader`.

    They are those beside the job file and those of the pipeline's own package. Modules that a function imports later
    come this way too.
    """

    def __init__(self, main: str, directory: Path) -> None:
        self._directory = directory
        self._ours = {main.partition(".")[0]}
        self._by_value = {main}

    @classmethod
    def install(cls, main: str, directory: Path) -> None:
        """Put it where Python looks for files; the one of an earlier `load` goes."""
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
    """Executes a module of the user's and decides how its functions travel."""

    def __init__(self, name: str, path: str, by_value: set[str]) -> None:
        super().__init__(name, path)
        self._by_value = by_value

    def exec_module(self, module: ModuleType) -> None:
        """By value while it is executed: it may hand functions to Spark before it is complete."""
        _CLOUDPICKLE.register_pickle_by_value(module)
        super().exec_module(module)
        if module.__name__ in self._by_value or any(map(self._is_of_the_session, list(vars(module).values()))):
            self._by_value.add(module.__name__)
        else:
            _CLOUDPICKLE.unregister_pickle_by_value(module)

    def _is_of_the_session(self, value: object) -> bool:
        """Whether no worker can import a module that has this: it is the session's, or from another such module."""
        if isinstance(value, _OF_THE_SESSION):
            return True
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        return isinstance(origin, str) and any(f"{origin}.".startswith(f"{each}.") for each in self._by_value)


def _reduced(module: ModuleType) -> Any:
    """A module that a function refers to as a whole. By value it goes without what is the session's."""
    function, (name, *rest) = _CLOUDPICKLE._module_reduce(module)
    return function, (name, *({key: each for key, each in state.items() if not _stays(each)} for state in rest))


def _stays(value: Any) -> bool:
    return isinstance(value, _OF_THE_SESSION) and not isinstance(value, Broadcast | Accumulator)


_CLOUDPICKLE.CloudPickler._dispatch_table[ModuleType] = _reduced


# The session's settings.


@contextmanager
def _settings_kept(name: str) -> Iterator[None]:
    """Import a module in here. What it sets on the session, and the job file does not, is refused or taken back."""
    spark = SparkSession.getActiveSession()
    before = dict(spark.conf.getAll) if spark else {}
    yield
    if spark is None:
        return
    after = dict(spark.conf.getAll)
    changed = {key for key in after.keys() | before.keys() if after.get(key) != before.get(key)}
    if refused := sorted(changed - _NOT_THEIRS):
        raise PipelineRefused(
            f"The module {name} sets {', '.join(refused)}. The session is there before the module is imported, and "
            "all processors must have the same: write it under [spark] in the job file, and take it out of the module."
        )
    for key in changed:  # past the check of `spark.conf.set`, which leaves Spark's core settings alone
        spark._jsparkSession.sessionState().conf().setConfString(key, before[key])
