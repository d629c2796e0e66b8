"""Functions that rebuild, in a worker, objects pickled by value that cloudpickle alone cannot rebuild.

Workers import this file, so it imports only what they have.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

from pyspark import cloudpickle

_CLOUDPICKLE: Any = cloudpickle.cloudpickle  # untyped


def cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """The function with a cache of its own, which is empty."""
    return lru_cache(**parameters)(function)


def with_property(function: Callable[[Any], Any], name: str | None) -> "cached_property[Any]":
    """The property under its name, which Python tells it only when a class is defined."""
    made = cached_property(function)
    if name is not None:
        made.__set_name__(object, name)
    return made


def set_state_of_enum(kind: type[Enum], state: tuple[Any, Mapping[str, Mapping[str, Any]]]) -> None:
    """Set the attributes of the class, and those that `__init__` has given to its members."""
    of_class, of_members = state
    _CLOUDPICKLE._class_setstate(kind, of_class)
    for name, attributes in of_members.items():
        vars(kind[name]).update(attributes)
