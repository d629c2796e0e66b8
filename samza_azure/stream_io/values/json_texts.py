"""JSON in texts, which `fitting` reads with all their digits and zones, and bytes, which JSON has as base64."""

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from samza_azure.errors import ConfigError
from samza_azure.stream_io.values.refusals import refusal, unknown_field, without_unit


class Number(str):
    """A number of a JSON file, with all its digits."""

    __slots__ = ()


def decoder() -> json.JSONDecoder:
    """One that keeps all digits, and refuses an object that names a key twice, as Arrow does."""
    return json.JSONDecoder(
        parse_float=Number, parse_int=Number, parse_constant=Number, object_pairs_hook=_with_unique_keys
    )


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has the key {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def as_texts(value: Any, kind: pa.DataType, path: str) -> Any:
    """A value of JSON for a column of this type, with texts for all that has no parts; bytes for texts in base64.

    Raise ConfigError if it is of another kind.
    """
    match kind, value:
        case _, None:
            return None
        case pa.StructType(), dict():
            return _struct(value, kind, path)
        case pa.MapType(), dict() | list():
            return _map(value, kind, path)
        case pa.ListType(), list():
            return [as_texts(each, kind.value_type, f"{path}.element") for each in value]
        case _, dict() | list():
            raise refusal(path, kind, shown(value))
    if pa.types.is_nested(kind):
        raise refusal(path, kind, shown(value))
    if isinstance(value, Number):
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            raise without_unit(path, shown(value))
        if is_text(kind) or pa.types.is_boolean(kind):
            raise refusal(path, kind, shown(value))
    elif isinstance(value, bool) and not pa.types.is_boolean(kind):
        raise refusal(path, kind, shown(value))
    return _bytes(value, kind, path) if pa.types.is_binary(kind) else text_of(value)


def _bytes(value: str, kind: pa.DataType, path: str) -> bytes:
    """As Spark writes and reads them in JSON, and as `json_lines` does."""
    try:
        return b64decode(value, validate=True)
    except ValueError as error:
        raise refusal(path, kind, shown(value)) from error


def _struct(value: dict[str, Any], kind: pa.StructType, path: str) -> dict[str, Any]:
    for name, inside in value.items():
        if inside is not None and kind.get_field_index(name) < 0:
            raise unknown_field(f"{path}.{name}", shown(inside))
    return {field.name: as_texts(value.get(field.name), field.type, f"{path}.{field.name}") for field in kind}


def _map(value: dict[str, Any] | list[Any], kind: pa.MapType, path: str) -> list[tuple[Any, Any]]:
    """As `export` writes it: pairs, since keys need not be texts."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise refusal(path, kind, shown(value))
    if any(key is None for key, _ in pairs):
        raise ConfigError(f"The field '{path}.key' must not be null.")
    return [
        (as_texts(key, kind.key_type, f"{path}.key"), as_texts(item, kind.item_type, f"{path}.value"))
        for key, item in pairs
    ]


def text_of(value: Any) -> str | None:
    """The text of a value in a column that the stream does not have."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def all_texts(kind: pa.DataType) -> pa.DataType:
    """The type of what `as_texts` returns."""
    if pa.types.is_map(kind):
        return pa.map_(all_texts(kind.key_type), all_texts(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(all_texts(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct({field.name: all_texts(field.type) for field in kind})
    return kind if pa.types.is_binary(kind) else pa.string()


def with_texts(kind: pa.DataType) -> pa.DataType | None:
    """The type with only those parts that are texts in JSON, as texts: Arrow takes some for times, and loses zones."""
    if pa.types.is_list(kind):
        inside = with_texts(kind.value_type)
        return None if inside is None else pa.list_(inside)
    if pa.types.is_struct(kind):
        fields = {field.name: found for field in kind if (found := with_texts(field.type)) is not None}
        return pa.struct(fields) if fields else None
    return pa.string() if is_text(kind) else None


def is_text(kind: pa.DataType) -> bool:
    """Whether JSON has texts, and nothing else, for values of a type."""
    is_times = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return bool(is_times or pa.types.is_string(kind) or pa.types.is_binary(kind))


def has_bytes(kind: pa.DataType) -> bool:
    """Whether a type, or one within it, is one of bytes, whose base64 Arrow does not read."""
    return has_part(kind, pa.types.is_binary)


def has_part(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one within it, is of a kind."""
    return is_kind(kind) or any(has_part(kind.field(number).type, is_kind) for number in range(kind.num_fields))


def may_lose_digits(kind: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow has read numbers as doubles that become decimals or whole numbers."""
    if pa.types.is_list(kind) and pa.types.is_list(target):
        return may_lose_digits(kind.value_type, target.value_type)
    if pa.types.is_struct(kind) and pa.types.is_struct(target):
        targets = {field.name: field.type for field in target}
        return any(may_lose_digits(each.type, targets[each.name]) for each in kind if each.name in targets)
    return pa.types.is_floating(kind) and bool(pa.types.is_decimal(target) or pa.types.is_integer(target))


def shown(value: Any) -> str:
    """A value of JSON, with its type; that of a text is plain."""
    if type(value) is str:
        return f"{value!r:.80}"
    names = {Number: "a number", bool: "a boolean", dict: "an object", list: "a list"}
    return f"{value if isinstance(value, Number) else json.dumps(value):.80} ({names.get(type(value), 'null')})"
