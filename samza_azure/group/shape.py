"""Build typed values from JSON.

Promised: the result has the declared types all the way down, with no field missing; anything else raises `ValueError`,
`KeyError` or `TypeError`. A class that `Grows` keeps unknown fields; in any other class they are an error. Supported
are dataclasses, strings, numbers, string enums, tuples, mappings with string keys, and `X | None`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
Maker = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grows:
    """A value to which later releases may add fields. Fields that this release does not know are kept unchanged, also
    through `replace`, but are ignored in comparisons."""

    unknown: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


def made(kind: Callable[..., T], value: Any) -> T:
    """Build a value of this type from parsed JSON."""
    result: T = _maker(kind)(value)
    return result


@cache
def _maker(kind: Any) -> Maker:
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _fields(kind, {name: _maker(hint) for name, hint in get_type_hints(kind).items() if name != "unknown"})
    if origin is UnionType:
        (given,) = (_maker(each) for each in inner if each is not NoneType)
        return lambda value: None if value is None else given(value)
    if origin is tuple:
        return _tuple(tuple(_maker(each) for each in inner if each is not ...), endless=... in inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        each = _maker(inner[1])
        return lambda value: {name: each(one) for name, one in _exactly(dict)(value).items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return lambda value: kind(_exactly(str)(value))
    return _text if kind is str else _exactly(kind)


def _fields(kind: Any, makers: Mapping[str, Maker]) -> Maker:
    def make(value: Any) -> Any:
        if type(value) is not dict:
            raise TypeError(f"{kind.__name__} has the fields {', '.join(makers)}")
        known = {name: maker(value[name]) for name, maker in makers.items()}
        if len(value) == len(known):
            return kind(**known)
        return kind(**known, unknown={name: each for name, each in value.items() if name not in makers})

    return make


def _tuple(makers: tuple[Maker, ...], *, endless: bool) -> Maker:
    def make(value: Any) -> tuple[Any, ...]:
        values = _exactly(list)(value)
        return tuple(
            maker(each) for maker, each in zip(makers * len(values) if endless else makers, values, strict=True)
        )

    return make


def _text(value: Any) -> str:
    """Text that can be written down again: a lone surrogate cannot."""
    text: str = _exactly(str)(value)
    if not text.isascii():
        text.encode()
    return text


@cache
def _exactly(kind: type) -> Maker:
    def make(value: Any) -> Any:
        if type(value) is not kind:  # a bool is no number here
            raise TypeError(f"{kind.__name__} is expected")
        return value

    return make
