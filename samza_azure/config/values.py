"""The types of values in a job file: durations, sizes, counts, names, and immutable mappings."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

__all__ = [
    "Count",
    "Duration",
    "Frozen",
    "Hidden",
    "LargeSize",
    "Limit",
    "LongDuration",
    "Milliseconds",
    "MillisecondsOrNever",
    "Port",
    "PositiveDuration",
    "Size",
    "Switch",
    "in_words",
    "matching",
    "module_names",
    "one_or_several",
]

V = TypeVar("V")

_YEAR_S = 366 * 86_400
_UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3_600, "d": 86_400}
#: Spark's words for units of time, as `withWatermark` accepts them.
_WORDS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_LENGTHS = {**_UNITS, **_WORDS, **{f"{word}s": length for word, length in _WORDS.items()}}
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _measure(value: object, units: Mapping[str, float], example: str) -> float:
    """A number with its unit. A number without one is refused, except 0, which is the same in any unit."""
    if value in (0, "0") and value is not False:
        return 0.0
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]+)", value.strip()) if isinstance(value, str) else None
    if not found or found[2] not in units:
        raise ValueError(f"should be a number and a unit ({', '.join(units)}), like {example!r}")
    return float(found[1]) * units[found[2]]


def _seconds(value: object) -> float:
    """Seconds, from a number and a unit, or from Spark's words, as in "1 hour 30 minutes"."""
    if value in (0, "0") and value is not False:
        return 0.0
    text = value.strip().lower().removeprefix("interval ") if isinstance(value, str) else ""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?) *([a-z]+) *", text)
    is_whole = re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)? *[a-z]+ *)+", text) is not None
    if not is_whole or not all(unit in _LENGTHS for _, unit in parts):
        raise ValueError(
            f"should be a number and a unit ({', '.join(_UNITS)}, or seconds, minutes, hours, days, weeks), "
            "like '2 s' or '1 hour'"
        )
    return sum(float(number) * _LENGTHS[unit] for number, unit in parts)


def in_words(seconds: float) -> str:
    """A duration in the form that Spark and a job file accept: "1 hour", "90 minutes"."""
    for word, length in reversed(_WORDS.items()):
        number = round(seconds / length, 6)
        if word != "week" and number >= 1 and number.is_integer():
            return f"{number:.0f} {word}" + ("" if number == 1 else "s")
    return f"{seconds:g} seconds"


def _bytes(value: object) -> int:
    """Bytes, from a plain integer, as in Samza, or from a number and its unit."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return int(_measure(value, _SIZES, "32 MiB"))


def _number(value: object) -> object:
    """Refuse true and false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("should be a number, not true or false")
    return value


def _milliseconds(value: object) -> object:
    """Refuse a duration with a unit, and say how many milliseconds it is."""
    if isinstance(value, str) and not value.strip().lstrip("-").isdecimal():
        try:
            number = _seconds(value) * 1000
        except ValueError:
            return value
        raise ValueError(f"should be a number of milliseconds, like {number:.0f}")
    return _number(value)


def _switch(value: object) -> bool:
    """true or false, also as text, since a value from the environment is always text."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError("should be true or false")


def one_or_several(value: object) -> object:
    """A name, or a list of names."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError('should be a column, like "carrier", or a list of columns')


def module_names(value: object) -> tuple[str, ...]:
    """Check a list of module names."""
    names = value if isinstance(value, list) else [None]
    if not all(isinstance(name, str) and all(part.isidentifier() for part in name.split(".")) for name in names):
        raise ValueError("should be a list of module names, like ['torch', 'sklearn.linear_model']")
    return tuple(names)


def matching(pattern: str, rule: str) -> AfterValidator:
    """Text that matches the pattern; `rule` is the message if it does not."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value, re.ASCII):
            raise ValueError(rule)
        return value

    return AfterValidator(check)


Duration: TypeAlias = Annotated[float, BeforeValidator(_seconds), Field(le=_YEAR_S)]
LongDuration: TypeAlias = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=1000 * _YEAR_S)]
PositiveDuration: TypeAlias = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=_YEAR_S)]
Size: TypeAlias = Annotated[int, BeforeValidator(_bytes), Field(ge=1024, le=1 << 30)]
LargeSize: TypeAlias = Annotated[int, BeforeValidator(_bytes), Field(ge=1024, le=1 << 50)]
Switch: TypeAlias = Annotated[bool, BeforeValidator(_switch)]
Count: TypeAlias = Annotated[int, BeforeValidator(_number), Field(ge=1, le=10_000)]
Limit: TypeAlias = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Port: TypeAlias = Annotated[int, BeforeValidator(_number), Field(ge=0, le=65_535)]
Milliseconds: TypeAlias = Annotated[int, BeforeValidator(_milliseconds), Field(ge=0, le=_YEAR_S * 1000)]
MillisecondsOrNever: TypeAlias = Annotated[int, BeforeValidator(_milliseconds), Field(ge=-1, le=_YEAR_S * 1000)]


class Frozen(Mapping[str, V]):
    """An immutable mapping. Unlike a mapping proxy it can be copied and pickled."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, V]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> V:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class Hidden(Frozen[str]):
    """Settings that may hold secrets: values can be read, but `repr` shows only the names."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(dict.fromkeys(self, "**********"))
