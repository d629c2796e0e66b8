"""What is said of a value that its column does not hold, and what to write, or a handler to send, in its place."""

import re
from collections.abc import Callable, Iterable

import pyarrow as pa

from samza_azure.errors import ConfigError
from samza_azure.stream_io.columns import type_name

#: Texts, as they are shown, of a number with a decimal comma, and of one that a number's type may be too small for.
_COMMA, _NUMBER = re.compile(r"'([+-]?\d+),(\d+)'"), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def lacking(missing: Iterable[str], found: Iterable[str]) -> ConfigError:
    """The error for rows without columns that the stream has."""
    return ConfigError(f"The rows lack {', '.join(missing)}. They have {', '.join(found)}.")


def refusal(path: str, kind: pa.DataType, shown: str) -> ConfigError:
    """The error for a value, shown with its type, that a column or a part of it does not hold."""
    return ConfigError(
        f"The column {path!r} is {type_name(kind)}, which cannot hold {shown}. Write {_to_write(kind, shown)}."
    )


def without_unit(path: str, shown: str) -> ConfigError:
    """The error for a number in a column of times."""
    return ConfigError(
        f"The column {path!r} holds numbers, and their unit of time is unknown: {shown}. "
        "Write timestamps, like 2013-01-31 05:00:00."
    )


def unknown_field(path: str, shown: str) -> ConfigError:
    """The error for a field that the struct of the stream does not have."""
    return ConfigError(
        f"The field {path!r} is {shown}, and the stream has no such field. Leave it out, or add it to the schema."
    )


def why_not_sent(kind: pa.DataType | None) -> str:
    """Why a column of this type, or none, does not hold what a handler has sent, and what it is to send."""
    if kind is None:
        return "which the schema does not have. Leave it out, or add it to the stream's schema."
    _, to_send = _instead(kind)
    return f"whose type is {type_name(kind)}. Send {to_send}, or change the type in the stream's schema."


def _to_write(kind: pa.DataType, shown: str) -> str:
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        if comma := _COMMA.fullmatch(shown):
            return f"a point instead of the comma: {comma[1]}.{comma[2]}"
        if shown.startswith(("'", '"')) and _NUMBER.fullmatch(shown[1:-1].strip()) is None:
            return "a whole number, like 20" if pa.types.is_integer(kind) else "a number, like 20.5"
    return _instead(kind)[0]


def _instead(kind: pa.DataType) -> tuple[str, str]:
    """What a column of this type holds: what to write, and what a handler has to send."""
    match kind:
        case pa.StructType():
            fields = ", ".join(field.name for field in kind) or "(none)"
            return f"an object with the fields {fields}", f"a dict with the fields {fields}"
        case pa.Decimal128Type():
            digits = f"with at most {kind.precision} digits, {kind.scale} of them after the point"
            return f"a number {digits}", f"an int or a Decimal {digits}"
    other = "a value of this type"
    return next(((write, send) for is_kind, write, send in _INSTEAD if is_kind(kind)), (other, other))


def _is_zoned(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


_TIMES = "times like 2013-01-31 05:00:00Z"
_IN_RANGE, _PRECISE = "a whole number within its range", "a number within its range and precision"
_INSTEAD: tuple[tuple[Callable[[pa.DataType], bool], str, str], ...] = (
    (pa.types.is_map, "a map, in JSON an object", "a dict without None as a key"),
    (pa.types.is_list, "a list", "a list"),
    (pa.types.is_integer, _IN_RANGE, f"{_IN_RANGE}, such as round(value)"),
    (pa.types.is_floating, _PRECISE, f"{_PRECISE}: float(value)"),
    (pa.types.is_date, "a date like 2013-01-31", "a date, value.date() of a datetime"),
    (_is_zoned, _TIMES, "a datetime, such as datetime.fromtimestamp(seconds, UTC)"),
    (pa.types.is_timestamp, _TIMES, "a datetime without a zone: value.replace(tzinfo=None), in the zone that is meant"),
    (pa.types.is_duration, "a duration", "a timedelta"),
    (pa.types.is_string, "a text", "a text that UTF-8 can represent"),
    (pa.types.is_binary, "bytes, in JSON their base64", "bytes"),
    (pa.types.is_boolean, "true or false", "True or False: bool(value)"),
)
