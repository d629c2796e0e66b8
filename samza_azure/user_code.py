"""Find the file and line in the user's code that a message should name, and what a function there was called with."""

import hashlib
import inspect
import linecache
import re
import reprlib
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any


def _folder_of(package: str) -> str:
    """Where a package is, without importing it; empty if it is not installed."""
    found = find_spec(package)
    return "" if found is None else str(found.origin).rpartition("/")[0]


_FOREIGN = tuple(
    f"{Path(each).resolve()}/"
    for each in (
        *filter(None, map(_folder_of, ("py4j", "pyspark", "samza_azure"))),
        sysconfig.get_path("stdlib"),
    )
)
#: Folders of installed packages: those of this Python, of the user (`pip install --user`), of Debian.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: How a note begins that says what Spark called a function of the user's with.
CALLED_WITH = "Called with "
#: The most characters of all values in such a note.
VALUES_LIMIT = 500
_VALUE = reprlib.Repr()
_VALUE.maxstring = _VALUE.maxother = 100


def place_of(error: BaseException) -> str:
    """The innermost line of the user's code in an error's traceback: file, line and text. Empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return place_of_line(error.filename, error.lineno or 1)
    return _innermost(traceback.extract_tb(error.__traceback__))


def place_of_call() -> str:
    """The innermost line of the user's code that is being run. Empty if there is none."""
    return _innermost(traceback.extract_stack())


def _innermost(frames: traceback.StackSummary) -> str:
    ours = next((each for each in reversed(frames) if is_ours(each.filename)), None)
    return "" if ours is None else place_of_line(ours.filename, ours.lineno or 1)


def place_of_function(function: Callable[..., Any]) -> str:
    """Where a function or a class is defined. Empty if unknown, as for other callable objects."""
    if inspect.isclass(function):
        try:
            return f"{inspect.getsourcefile(function)}, line {inspect.getsourcelines(function)[1]}"
        except (OSError, TypeError):
            return ""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else ""


def note_values(error: BaseException) -> None:
    """Add to an error what the first function of the user's code on its way was called with, if it has arguments."""
    function = next(
        (each for each, _ in traceback.walk_tb(error.__traceback__) if is_ours(each.f_code.co_filename)), None
    )
    if function is not None and (values := _values(function)):
        error.add_note(f"{CALLED_WITH}{values}")


def _values(function: FrameType) -> str:
    """The arguments as `name=value`, in short; without the ones of which only an address could be shown."""
    code = function.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
    shown = (
        f"{name}={text}" for name in names if name in function.f_locals and (text := _value(function.f_locals[name]))
    )
    return ", ".join(shown)[:VALUES_LIMIT]


def _value(value: Any) -> str:
    """In one line; empty if it does not say what the value is."""
    try:
        text = " ".join(_VALUE.repr(value).split())
    except Exception:  # noqa: BLE001  # a user's class may do anything
        return ""
    return "" if text.startswith("<") else text


def version_of_code() -> str:
    """A hash of the user's modules as far as they are imported: it differs between processors with different code."""
    found = hashlib.sha256()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_ours(file):
            with suppress(OSError):
                found.update(f"{name} ".encode() + hashlib.sha256(Path(file).read_bytes()).digest())
    return found.hexdigest()[:8]


def is_ours(file: str) -> bool:
    """Whether a file is the user's: not part of Python, an installed package, Spark or this package."""
    path = Path(file).resolve()
    return not file.startswith("<") and not str(path).startswith(_FOREIGN) and _INSTALLED.isdisjoint(path.parts)


def noted(error: Exception, place: str, stage: str = "") -> None:
    """Add a place to an error's notes, unless it has one."""
    if place and not getattr(error, "__notes__", None):
        error.add_note(place + (f" (stage {stage})" if stage else ""))


def place_of_name(module: ModuleType | None, name: str) -> str:
    """The line of a module that assigns a name at its top; empty if there is none."""
    file = getattr(module, "__file__", None) or ""
    lines = enumerate(linecache.getlines(file), 1)
    return next(
        (place_of_line(file, number) for number, line in lines if re.match(rf"{re.escape(name)}\b.*=", line)), ""
    )


def place_of_line(file: str, line: int) -> str:
    """A line as messages show it: file, number and text."""
    text = linecache.getline(file, line).strip()
    return f"{file}, line {line}" + (f": {text}" if text else "")
