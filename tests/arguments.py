"""For tables of cases: the optional arguments of public functions, found by inspection, and functions that ignore one.

Left out by rule: what is inherited from outside of the package, constructors that `@dataclass` has made, since they
only store their arguments, and methods of a protocol or without a body.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest


def optional_arguments(*modules: ModuleType) -> set[str]:
    """The arguments with a default, and `**options`, of all that `__all__` names: `function(a)`, `Class()(b)` for its
    constructor, and `Class.method(c)` where the class defines or inherits it."""
    return {argument for module in modules for name in module.__all__ for argument in _of(name, getattr(module, name))}


def ignore(argument: str, home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a function behave as if it had not been given this argument. `home` has the class or function of this name.

    A case that still holds does not show the argument's effect.
    """
    path, name = re.fullmatch(r"(.+)\(\**(\w+)\)", argument).groups()  # type: ignore[union-attr]
    owner, attribute = home, path
    if match := re.fullmatch(r"(\w+)(?:\(\)|\.(\w+))", path):
        owner, attribute = getattr(home, match[1]), match[2] or "__init__"
    getattr(owner, attribute)  # a package may load its names late
    member = inspect.getattr_static(owner, attribute)
    function = getattr(member, "__func__", member)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def ignoring(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.arguments.pop(name, None)
        return function(*bound.args, **bound.kwargs)

    monkeypatch.setattr(owner, attribute, type(member)(ignoring) if function is not member else ignoring)


def holds(case: Callable[..., object], *arguments: Any) -> bool:
    """Whether a case holds; one that raises does not."""
    try:
        return bool(case(*arguments))
    except (Exception, pytest.fail.Exception):  # noqa: BLE001  # however it fails
        return False


def _of(name: str, one: Any) -> Iterator[str]:
    functions = {name: one} if inspect.isfunction(one) else dict(_methods(name, one)) if inspect.isclass(one) else {}
    for said, function in functions.items():
        for each in inspect.signature(function).parameters.values():
            if each.default is not each.empty:
                yield f"{said}({each.name})"
            elif each.kind is each.VAR_KEYWORD:
                yield f"{said}(**{each.name})"


def _methods(name: str, one: type) -> Iterator[tuple[str, Any]]:
    if getattr(one, "_is_protocol", False):
        return
    for attribute, member in inspect.getmembers_static(one):
        function = getattr(member, "__func__", member)  # of a class method
        if not inspect.isfunction(function) or not function.__module__.startswith("samza_azure"):
            continue
        if attribute == "__init__" and not _is_made(one):
            yield f"{name}()", function
        elif not attribute.startswith("_") and not getattr(function, "__isabstractmethod__", False):
            yield f"{name}.{attribute}", function


def _is_made(one: type) -> bool:
    """Whether `@dataclass` has made the constructor."""
    return dataclasses.is_dataclass(one) and "__init__" in vars(one) and one.__dataclass_params__.init
