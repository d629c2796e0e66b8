"""From bytes to rows: what a system hands out as bytes, one message each, becomes rows of the declared schema.

Promised: each message becomes one row, or it is refused with the reason, whatever comes beside it. With a parser of the
user's a message becomes as many rows as that returns.

What is refused is found by halves: the messages are parsed together, and only where that fails in smaller parts.
"""

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.foreign import depth, without_texts
from samza_azure.stream_io.values.fitting import fitted
from samza_azure.stream_io.values.json_texts import all_texts, as_texts, decoder, has_part
from samza_azure.systems.api import SystemStream
from samza_azure.systems.dead_letters import SCHEMA as DEAD_LETTERS
from samza_azure.systems.dead_letters import too_many
from samza_azure.systems.options import (
    AVRO,
    BODY,
    CSV,
    ENVELOPE,
    FORMAT,
    FORMATS,
    FROM,
    JSON,
    PARSE,
    PROTOBUF,
    RAW,
    REGISTRY,
    SCHEMAS,
    is_of_parser,
)

#: Some senders begin with it.
BOM = b"\xef\xbb\xbf"
#: Messages that are read together if Arrow makes a column of each name in them.
AT_ONCE = 200
#: The most characters of a reason: names in it may come from outside.
MOST_REASON = 2_000
#: How deep an object in JSON may be nested. Arrow ends the process at some depth.
DEEPEST = 200

_FIELD = rb'(?:"[^"]*+(?:""[^"]*+)*+"|[^",][^,]*+|)'
#: A line of CSV: fields in quotes, or without one in front.
_LINE = re.compile(rb"%b(?:,%b)*+" % (_FIELD, _FIELD))

#: A function from messages to rows with the columns of the schema.
Parse: TypeAlias = Callable[[pa.Table], pa.Table]


class Parser:
    """Parses the messages of one stream, as its options say."""

    def __init__(self, stream: SystemStream, envelope: Sequence[str]) -> None:
        """`envelope` names the columns that messages have beside their body. Raise ConfigError for a wrong option."""
        self._stream, self._key = stream, f"streams.{stream.name}.options"
        options, names = stream.options, stream.schema.names
        self._wanted = pa.schema(
            [field.with_nullable(field.nullable and field.name != stream.event_time) for field in stream.schema]
        )
        given = options.get(FORMAT, JSON)
        if given not in FORMATS:
            raise ConfigError(f"{self._key}.{FORMAT} is {given!r}. Write one of {', '.join(FORMATS)}.")
        if PARSE in options and (
            other := next((name for name in options if name != PARSE and is_of_parser(name)), None)
        ):
            raise ConfigError(f"{self._key} has {PARSE} and {other}: the function decides everything. Remove {other}.")
        asked = [name.strip() for name in options.get(ENVELOPE, "").split(",") if name.strip()]
        if given == RAW:
            asked = [name for name in names if name != BODY]
        self._of_envelope = tuple(asked)
        if wrong := [name for name in asked if name not in envelope or name not in names]:
            where = "the schema" if wrong[0] in envelope else f"the envelope, which has {', '.join(envelope)}"
            raise ConfigError(
                f"{self._key}: the column {wrong[0]!r} is to come from the envelope, and is not in {where}. Correct "
                "the name, or leave it out."
            )
        self._paths = {
            name.removeprefix(FROM): path.split(".") for name, path in options.items() if name.startswith(FROM)
        }
        if self._paths and given in (CSV, RAW):
            raise ConfigError(
                f"{self._key}.{FROM}{min(self._paths)} is for {FORMAT} = {JSON!r}, {AVRO!r} and {PROTOBUF!r} alone. "
                "Remove the line."
            )
        schemas = [name for name in options if name in (*SCHEMAS, *REGISTRY)]
        if schemas and given not in (AVRO, PROTOBUF):
            raise ConfigError(
                f"{self._key}.{schemas[0]} is for {FORMAT} = {AVRO!r} and {PROTOBUF!r} alone. Remove the line."
            )
        if unknown := self._paths.keys() - set(names):
            raise ConfigError(f"{self._key}.{FROM}{min(unknown)}: the schema has no column {min(unknown)!r}. Add it.")
        self._parse = (
            self._function(options[PARSE]) if PARSE in options else {JSON: self._json, CSV: self._csv}.get(given)
        )
        self._one_row_each = PARSE not in options
        body = [field for field in stream.schema if field.name not in asked]
        self._body = pa.schema(body)
        self._needs: Sequence[str] = ()
        self._look: Callable[[], str] | None = None
        self._begins: Callable[[], None] | None = None
        if given in (AVRO, PROTOBUF):
            from samza_azure.systems.formats.sources import messages_of  # what these formats need is an extra

            paths = {name: self._path(name) for name in self._body.names}
            reads, self._look = messages_of(stream, paths, self._body, envelope)
            self._parse, self._needs, self._begins = reads, reads.needs, reads.begin
        self._types = self._exact_types()
        self._has_structs = given == JSON and any(has_part(field.type, pa.types.is_struct) for field in body)
        if given == CSV and (nested := [field.name for field in body if pa.types.is_nested(field.type)]):
            raise ConfigError(
                f"streams.{stream.name}.schema: {nested[0]!r} has parts, which a line of CSV cannot hold."
            )

    def wants(self, name: str) -> bool:
        """Whether a column of the envelope is asked for."""
        return not self._one_row_each or name in self._of_envelope or name in self._needs

    def look(self) -> str:
        """What a try to reach the schemas has found; empty if they are here. Raise an error that says what to do."""
        return self._look() if self._look is not None else ""

    def rows(self, messages: pa.Table) -> Iterator[tuple[pa.Table, str]]:
        """The rows of messages in their order, in parts; or the messages of a part that is refused, with the reason:
        each of these is one.
        """
        # Senders may use ids as names, and Arrow makes a column of each unless it may ignore what nobody asked for. In
        # a struct it may not, since that would hide what is refused.
        if self._begins is not None:
            self._begins()
        at_once = AT_ONCE if self._has_structs else max(1, messages.num_rows)
        for at in range(0, max(1, messages.num_rows), at_once):
            yield from self._rows(messages.slice(at, at_once))

    def parted(
        self,
        messages: pa.Table,
        place: Callable[[dict[str, Any]], str],
        time: str,
        refused: Sequence[tuple[pa.Table, str]] = (),
    ) -> tuple[pa.Table, pa.Table | None]:
        """The rows of messages, and what is none, as dead letters. `place` says where a message was, `time` is the
        column that says when it came, `refused` are messages beside these that are no rows, with the reason. Raise
        ConfigError for one that is no row if the stream has no dead letters.
        """
        good, dead = list[pa.Table](), list[dict[str, Any]]()
        for part, reason in chain(refused, self.rows(messages)):
            if not reason:
                good.append(part)
                continue
            message = part.to_pylist()[0]
            where = place(message)
            if not self._stream.dead_letters:
                raise ConfigError(
                    f"{where[0].upper()}{where[1:]} is no row. {reason} Correct its format, or put such messages "
                    f"aside: streams.{self._stream.name}.dead_letters = 100."
                )
            said = reason[:MOST_REASON].encode(errors="replace").decode()  # names may have half a character
            if len(dead) == self._stream.dead_letters:  # another one is not looked for: each may cost a question
                raise too_many(self._stream.name, len(dead) + 1, self._stream.dead_letters, where, reason)
            dead.append({"raw": message[BODY], "reason": said, "place": where, "time": message[time]})
        rows = pa.concat_tables(good) if good else self._stream.schema.empty_table()
        return rows, pa.Table.from_pylist(dead, DEAD_LETTERS) if dead else None

    def _rows(self, messages: pa.Table, *, is_part: bool = False) -> Iterator[tuple[pa.Table, str]]:
        try:
            yield self._parsed(messages), ""
        except AccessDenied:  # it says nothing of the messages
            raise
        except ConfigError as error:
            if messages.num_rows == 1:
                yield messages, str(error)
                return
            # To halve the messages until each of these is alone takes 40 ms for each. A part was looked through with
            # the whole.
            bad = [] if is_part else self._unreadable(messages)
            if 0 < len(bad) <= self._stream.dead_letters:
                refused = [found for at in bad for found in self._rows(messages.slice(at, 1))]
                if all(reason for _, reason in refused):
                    places = pa.array(range(messages.num_rows))
                    others = messages.filter(pc.invert(pc.is_in(places, pa.array(bad, places.type))))
                    yield from self._rows(others, is_part=True)
                    yield from refused
                    return
            half = messages.num_rows // 2
            yield from self._rows(messages.slice(0, half), is_part=True)
            yield from self._rows(messages.slice(half), is_part=True)

    def _unreadable(self, messages: pa.Table) -> list[int]:
        """The places of those that are no JSON at all."""
        found, values_of = list[int](), decoder()
        for at, body in enumerate(messages[BODY].to_pylist() if self._parse == self._json else []):
            text = (body or b"").removeprefix(BOM).strip()
            try:
                _see_to(text)
                values_of.decode(text.decode())
            except (ConfigError, ValueError, RecursionError):
                found.append(at)
        return found

    def _parsed(self, messages: pa.Table) -> pa.Table:
        """All rows of the messages, in the types of the schema. Raise ConfigError if one of them is refused."""
        if self._parse is None:
            return fitted(messages.select(self._stream.schema.names), self._wanted, self._stream.event_time)
        if not messages.num_rows:
            return self._wanted.empty_table()
        rows = self._parse(messages)
        if self._one_row_each:
            if rows.num_rows != messages.num_rows:
                raise ConfigError(f"It holds {rows.num_rows} rows, and should hold one.")
            for name in self._of_envelope:
                rows = rows.append_column(name, messages[name])
        return fitted(rows, self._wanted, self._stream.event_time)

    def _function(self, named: str) -> Parse:
        module, _, name = named.partition(":")
        try:
            function: Parse = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"{self._key}.{PARSE} is {named!r}, and that cannot be imported: {error}. Write module:function; the "
                "module lies beside the job file, or is installed on each machine."
            ) from error

        def call(messages: pa.Table) -> pa.Table:
            try:
                rows = function(messages)
            except StorageUnavailable:
                raise  # it says nothing of the messages: what the function asks does not answer
            except Exception as error:
                raise ConfigError(f"{named} raised {type(error).__name__}: {error}") from error
            if not isinstance(rows, pa.Table):
                raise ConfigError(f"{named} returned a {type(rows).__name__}. Return a pyarrow.Table.")
            return rows

        return call

    def _json(self, messages: pa.Table) -> pa.Table:
        """Arrow reads values into exact types; what it refuses is read by Python, which takes ten times as long: maps,
        bytes, numbers in texts, and whole numbers like 1e3.
        """
        try:
            texts = messages[BODY].cast(pa.string())
        except pa.ArrowInvalid as error:
            raise ConfigError("It is not UTF-8.") from error
        bodies = messages[BODY].to_pylist()
        if not _are_plain(texts):
            bodies = [(body or b"").removeprefix(BOM).strip() for body in bodies]
            for body in bodies:
                _see_to(body)
        if self._types is not None:
            options, data = pyarrow.json.ParseOptions(explicit_schema=self._types), b"\n".join(bodies)
            options.newlines_in_values = True
            options.unexpected_field_behavior = "infer" if self._has_structs else "ignore"
            in_one_piece = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
            with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                rows = pyarrow.json.read_json(io.BytesIO(data), in_one_piece, options)
                if rows.num_rows == len(bodies):
                    return pa.table({name: _at(rows, self._path(name)) for name in self._body.names})
        return self._by_python(bodies)

    def _by_python(self, bodies: Sequence[bytes]) -> pa.Table:
        try:
            return self._of_python(bodies)
        except UnicodeEncodeError as error:
            raise ConfigError(f"It has half a character: {error}") from error

    def _of_python(self, bodies: Sequence[bytes]) -> pa.Table:
        columns: dict[str, list[Any]] = {name: [] for name in self._body.names}
        values_of = decoder()
        for body in bodies:
            try:
                row = values_of.decode(body.decode())
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"It is no row in JSON: {_shown(body)} ({error})") from error
            for field in self._body:
                value = row
                for name in self._path(field.name):
                    value = value.get(name) if isinstance(value, dict) else None
                columns[field.name].append(as_texts(value, field.type, field.name))
        return pa.table({each.name: pa.array(columns[each.name], all_texts(each.type)) for each in self._body})

    def _path(self, column: str) -> Sequence[str]:
        return self._paths.get(column, [column])

    def _exact_types(self) -> pa.Schema | None:
        """The types by which Arrow reads the fields of messages. None: they are read by Python."""
        found: dict[str, Any] = {}
        for field in self._body:
            kind = _exact(field.type)
            *outer, last = self._path(field.name)
            place = found
            for name in outer:
                place = place.setdefault(name, {})
                if not isinstance(place, dict):
                    return None
            if kind is None or place.setdefault(last, kind) != kind:
                return None
        return pa.schema(_fields(found))

    def _csv(self, messages: pa.Table) -> pa.Table:
        bodies = [(body or b"").removeprefix(BOM).strip(b"\r\n") for body in messages[BODY].to_pylist()]
        if not all(bodies) or any(b"\n" in body or b"\r" in body for body in bodies):
            raise ConfigError("It is not one line of CSV.")
        names, data = self._body.names, b"\n".join(bodies)
        for body in bodies:  # Arrow takes a text without its end, and what stands behind an end, for the text
            if b'"' in body and _LINE.fullmatch(body) is None:
                raise ConfigError(
                    f"It is no line of CSV with the columns {', '.join(names)}: {_shown(body)} (a text in quotes has "
                    "no end, or something behind it)"
                )
        options = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
        )
        try:
            return pyarrow.csv.read_csv(
                io.BytesIO(data),
                pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
                convert_options=options,
            )
        except pa.ArrowInvalid as error:
            raise ConfigError(
                f"It is no line of CSV with the columns {', '.join(names)}: {_shown(bodies[0])} ({error})"
            ) from error


def _at(rows: pa.Table, path: Sequence[str]) -> pa.ChunkedArray:
    """The values at a path of fields; nulls where there is none."""
    first, *inner = path
    if first not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows)])
    values = rows[first]
    for name in inner:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            return pa.chunked_array([pa.nulls(rows.num_rows)])
        at = values.type.get_field_index(name)
        values = pa.chunked_array([chunk.flatten()[at] for chunk in values.chunks], values.type.field(at).type)
    return values


def _fields(found: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields(inside)) if isinstance(inside, dict) else inside)
        for name, inside in found.items()
    ]


def _exact(kind: pa.DataType) -> pa.DataType | None:
    """The type by which Arrow reads values of a type in JSON without changing them. None: it has none."""
    if pa.types.is_map(kind) or pa.types.is_binary(kind):
        return None
    if pa.types.is_list(kind):
        return None if (inside := _exact(kind.value_type)) is None else pa.list_(inside)
    if pa.types.is_struct(kind):
        inner = {field.name: _exact(field.type) for field in kind}
        return None if None in inner.values() else pa.struct(inner)
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return kind if pa.types.is_decimal(kind) or pa.types.is_boolean(kind) else pa.string()


def _are_plain(texts: pa.ChunkedArray) -> bool:
    """Whether all texts are such that `_see_to` has nothing to say of them: found out together, which takes a tenth of
    the time. False: it has to look at each.
    """
    if texts.null_count or pc.any(pc.match_substring(texts, "\\")).as_py():
        return False
    opened = pc.add(pc.count_substring(texts, "{"), pc.count_substring(texts, "["))
    quotes = pc.bit_wise_and(pc.count_substring(texts, '"'), 1)
    return bool(
        pc.all(pc.starts_with(texts, "{")).as_py()
        and pc.all(pc.ends_with(texts, "}")).as_py()
        and not pc.any(quotes.cast(pa.bool_())).as_py()
        and pc.all(pc.less_equal(opened, DEEPEST)).as_py()
    )


def _see_to(body: bytes) -> None:
    """Raise ConfigError for a body that is not one object in itself, so that it might hide that another one is none, or
    two; and for one of a depth that Arrow does not survive."""
    if not body:
        raise ConfigError("It is empty.")
    if not (body.startswith(b"{") and body.endswith(b"}")):
        raise ConfigError(f"It is no object in JSON: {_shown(body)}")
    is_large = body.count(b"{") + body.count(b"[") > DEEPEST
    is_cut = not without_texts(body).endswith(b"}") if is_large or b"\\" in body else body.count(b'"') % 2
    if is_cut:
        raise ConfigError(f"It is no row in JSON: {_shown(body)} (a text has no end)")
    if is_large and depth(body) > DEEPEST:
        raise ConfigError(f"It has more than {DEEPEST} objects and arrays inside each other.")


def _shown(body: bytes) -> str:
    return json.dumps(body[:60].decode(errors="replace")) + ("…" if len(body) > 60 else "")
