"""Find and import the user's module."""

import dis
import importlib
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from samza_azure.application import Application, collected
from samza_azure.config import Config
from samza_azure.config.jobfile import place_of_mistake
from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.names import nearest
from samza_azure.pipeline.packages import needs
from samza_azure.user_code import noted, place_of

#: What an import happens in, by the module's name and folder.
Around: TypeAlias = Callable[[str, Path], AbstractContextManager[object]]


def _nothing(name: str, directory: Path) -> AbstractContextManager[object]:
    return nullcontext()


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def load(config: Config, around: Around = _nothing, said: Callable[[BaseException], str] = _in_words) -> Application:
    """The application that `app.main` names, from a module beside the job file or an installed one.

    The module is imported inside `around`, and `said` describes an error of its code.
    """
    module_name, _, attribute = config.app.main.partition(":")
    module = _imported(module_name, config, around, said)
    _check_file(module, config)
    application = getattr(module, attribute, None)
    if application is None:
        others = [name for name, each in vars(module).items() if isinstance(each, Application)]
        instead = f'Write in the job file: main = "{module_name}:{others[0]}".' if others else ""
        refused = PipelineRefused(
            f"app.main is {config.app.main!r}, but {module_name} has no attribute {attribute}. "
            + (instead or f"Write there: {attribute} = Application().")
        )
    elif not isinstance(application, Application):
        refused = PipelineRefused(
            f"{config.app.main} is a {type(application).__name__}, not an Application. "
            f"Write: {attribute} = Application()."
        )
    else:
        application.stages[:] = [replace(stage, application=attribute) for stage in application.stages]
        return application
    noted(refused, place_of_mistake(config.path, "app.main"))
    raise refused


def _imported(name: str, config: Config, around: Around, said: Callable[[BaseException], str]) -> ModuleType:
    directory = config.path.absolute().parent
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    with around(name, directory), collected():
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                refused = PipelineRefused(f"app.main is {config.app.main!r}, and {name} {_needs(error)}")
                noted(refused, place_of(error))
                raise refused from error
            beside = [path.stem for path in directory.glob("*.py")]
            refused = PipelineRefused(
                f"app.main is {config.app.main!r}, but there is no module {name} next to {config.path} "
                f"and none is installed.{nearest(name, beside)} Write it, or name another one."
            )
            noted(refused, place_of_mistake(config.path, "app.main"))
            raise refused from error
        except PipelineRefused as error:
            noted(error, place_of(error))
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and not _raises(error):
                raise  # Ctrl-C
            refused = PipelineRefused(f"The module {name} cannot be imported: {_said(error, said)}")
            noted(refused, place_of(error))
            raise refused from error


def _check_file(module: ModuleType, config: Config) -> None:
    """Refuse a file beside the job file instead of which Python imports, or has imported, its own module."""
    name, file = module.__name__, config.path.absolute().with_name(f"{module.__name__}.py")
    origin = getattr(module, "__file__", None)  # it has none if it is part of Python's program
    if file.exists() and not (origin and Path(origin).exists() and file.samefile(origin)):
        is_pythons = name in sys.stdlib_module_names
        other = f"Python has a module {name} of its own" if is_pythons else f"another module {name} is at {origin}"
        refused = PipelineRefused(
            f"app.main is {config.app.main!r}, but {other}, which is imported instead. "
            f"Rename {file.name}, and write its new name in app.main."
        )
        noted(refused, place_of_mistake(config.path, "app.main"))
        raise refused


def _raises(error: BaseException) -> bool:
    """Whether the code itself raised an error, by a statement."""
    last = list(traceback.walk_tb(error.__traceback__))[-1][0]
    return last.f_code.co_code[last.f_lasti] == dis.opmap["RAISE_VARARGS"]


def _said(error: BaseException, said_by: Callable[[BaseException], str]) -> str:
    said = f"Syntax error: {error.msg}" if isinstance(error, SyntaxError) else said_by(error)
    decorator = re.match(r"TypeError: Application\.(stage|task)\(\)", said)
    written = f' Write it like @app.{decorator[1]}("orders", output="matched").' if decorator else ""
    return f"{said.rstrip('.')}.{written}"


def _needs(error: ModuleNotFoundError) -> str:
    """Name the missing module and what to do."""
    return f"needs the module {error.name}, which is not installed. {needs(str(error.name))}"
