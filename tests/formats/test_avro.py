"""Messages in Avro become rows, or are refused with the reason; hostile schemas and bytes end nothing."""

import json
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastavro import parse_schema
from fastavro.schema import fingerprint, to_parsing_canonical_form

from samza_azure.errors import ConfigError
from samza_azure.systems.formats.avro import AvroSchema

from .streams import datum, parsed, parser, record, written

#: One field of each type, what is written, the column that takes it, and what is read.
VALUES: list[tuple[Any, Any, str, Any]] = [
    ("boolean", True, "boolean", True),
    ("int", -5, "int", -5),
    ("int", 5, "bigint", 5),
    ("long", 1 << 40, "bigint", 1 << 40),
    ("long", 7, "string", "7"),
    ("float", 0.5, "double", 0.5),
    ("double", 0.1, "double", 0.1),
    ("string", "é", "string", "é"),
    ("string", "12", "bigint", 12),
    ("string", "2026-01-01T00:00:00Z", "timestamp", datetime(2026, 1, 1, tzinfo=UTC)),
    ("bytes", b"\x00\xff", "binary", b"\x00\xff"),
    ("null", None, "int", None),
    (["null", "string"], None, "string", None),
    (["null", "string"], "a", "string", "a"),
    (["int", "null", "long"], 1 << 40, "bigint", 1 << 40),
    (["long", "double"], 2.5, "double", 2.5),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "string", "B"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", "binary", b"ab"),
    ({"type": "int", "logicalType": "date"}, date(2026, 1, 2), "date", date(2026, 1, 2)),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        datetime(2026, 1, 1, 0, 0, 0, 5000, UTC),
        "timestamp",
        datetime(2026, 1, 1, 0, 0, 0, 5000, UTC),
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        datetime(1969, 1, 1, 0, 0, 0, 1, UTC),
        "timestamp",
        datetime(1969, 1, 1, 0, 0, 0, 1, UTC),
    ),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        datetime(2026, 1, 1, 5),  # noqa: DTZ001
        "timestamp_ntz",
        datetime(2026, 1, 1, 5),  # noqa: DTZ001
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        Decimal("-1234.50"),
        "decimal(6,2)",
        Decimal("-1234.50"),
    ),
    (
        {"type": "fixed", "name": "D", "size": 3, "logicalType": "decimal", "precision": 6, "scale": 2},
        Decimal("12.34"),
        "decimal(10,4)",
        Decimal("12.3400"),
    ),
    (
        {"type": "string", "logicalType": "uuid"},
        UUID(int=5),
        "string",
        str(UUID(int=5)),
    ),
    ({"type": "array", "items": ["null", "int"]}, [1, None], "array<bigint>", [1, None]),
    ({"type": "map", "values": "long"}, {"k": 1}, "map<string, bigint>", [("k", 1)]),
    (
        {
            "type": "record",
            "name": "N",
            "fields": [
                {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}},
                {"name": "es", "type": {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A"]}}},
            ],
        },
        {"d": Decimal("1.5"), "es": ["A", "A"]},
        "struct<d: decimal(4,1), es: array<string>>",
        {"d": Decimal("1.5"), "es": ["A", "A"]},
    ),
]


@pytest.mark.parametrize(("kind", "value", "column", "read"), VALUES)
def test_values_keep_their_meaning(kind: Any, value: Any, column: str, read: Any, tmp_path: Path) -> None:
    schema = record(v=kind)
    reads = parser(f"v {column}", tmp_path, schema__file=written(tmp_path, schema))
    assert parsed(reads, [datum(schema, {"v": value})] * 2) == ([{"v": read}] * 2, [])


def test_columns_are_fields_by_name_also_inside_others_and_what_stands_beside(tmp_path: Path) -> None:
    meta = {
        "type": "record",
        "name": "Meta",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
        ],
    }
    schema = record(unused="string", id="long", meta=["null", meta])
    reads = parser(
        "at timestamp, number bigint, id bigint, shop string",
        tmp_path,
        schema__file=written(tmp_path, schema),
        from__at="meta.at",
        from__shop="meta.tags.shop",
        envelope="number",
        event_time="at",
    )
    at = datetime(2026, 1, 1, tzinfo=UTC)
    bodies = [
        datum(schema, {"unused": "x", "id": 1, "meta": {"at": at, "tags": {"shop": "s1"}}}),
        datum(schema, {"unused": "x", "id": 2, "meta": {"at": at, "tags": {}}}),
        datum(schema, {"unused": "x", "id": 3, "meta": None}),
    ]
    rows, reasons = parsed(reads, bodies)
    assert rows == [
        {"at": at, "number": 0, "id": 1, "shop": "s1"},
        {"at": at, "number": 1, "id": 2, "shop": None},
    ]
    assert [reason[:60] for reason in reasons] == ["The column 'at' is null in a row, and it is the event time, "]


def test_what_does_not_fit_a_column_is_refused_alone(tmp_path: Path) -> None:
    schema = record(
        n="long",
        d={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        t={"type": "long", "logicalType": "timestamp-millis"},
        e={"type": "enum", "name": "E", "symbols": ["A", "B"]},
    )
    reads = parser("n int, d decimal(4,2), t timestamp, e string", tmp_path, schema__file=written(tmp_path, schema))
    good = {"n": 1, "d": Decimal("1.00"), "t": 0, "e": "A"}
    # Written by hand: n, the bytes of d, t, e.
    long_decimal, last_symbol = b"\x02\x06\x0f\x42\x40\x00\x00", b"\x02\x02\x64\x00\x01"
    rows, reasons = parsed(
        reads,
        [
            datum(schema, good),
            datum(schema, good | {"n": 1 << 40}),
            long_decimal,
            datum(schema, good | {"t": 1 << 50}),
            datum(schema, good | {"t": 1 << 62}),
            last_symbol,
            datum(schema, good) + b"\x00",
            datum(schema, good)[:-1],
            b"",
            None,
        ],
    )
    assert [row["n"] for row in rows] == [1]
    assert [reason.partition(":")[0].partition(".")[0] for reason in reasons] == [
        "The column 'n' is int, which cannot hold 1099511627776 (int64)",
        "The column 'd' is decimal(4,2), which cannot hold 10000",
        "The column 't' holds times of the years 1 to 9999, and this is none of them",
        "The column 't' is timestamp, which cannot hold <value out of range",
        "It was not written with the schema R",
        "It has 1 bytes behind what the schema R says",
        "It was not written with the schema R",
        "It was not written with the schema R",
        "It is empty",
    ]


def test_a_single_object_says_which_of_the_schemas_it_has(tmp_path: Path) -> None:
    first, second = record(n="int"), record(s="string", n="long")
    files = ", ".join([written(tmp_path, first, "1.avsc"), written(tmp_path, second, "2.avsc")])
    reads = parser("n bigint, s string", tmp_path, schema__file=files, framing="single-object")

    def single(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
        name = fingerprint(to_parsing_canonical_form(parse_schema(schema)), "CRC-64-AVRO")
        return b"\xc3\x01" + bytes.fromhex(name) + datum(schema, row)

    bodies = [single((first, second)[n % 2], {"n": n, "s": f"s{n}"}) for n in range(20)]
    rows, reasons = parsed(reads, [*bodies, datum(first, {"n": 1}), single(record(n="double"), {"n": 1.0})])
    assert rows == [{"n": n, "s": f"s{n}" if n % 2 else None} for n in range(20)]
    assert reasons[0].startswith("It begins with 02, and should as a single object of Avro")
    assert "which none of the files has" in reasons[1]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("[", "is none of Avro"),
        ("[" * 100_000, "more than 50 types inside each other"),
        ("3", "is none of Avro"),
        ('"int"', "is int, and should be a record"),
        ("[]", "should be a record"),
        ({"type": "record"}, '"name" is a required field'),
        ({"type": "record", "name": "R", "fields": 3}, "is none of Avro"),
        ({"type": "record", "name": "R", "fields": [{"name": ["a"], "type": "int"}]}, "is none of Avro"),
        (record(a={"type": "fixed", "name": "F", "size": -1}), "has the type F of -1 bytes"),
        (record(a="Unknown"), "is none of Avro"),
        (record(next=["null", "R"]), "has the type R inside itself"),
        (record(a={"type": "array", "items": "null"}), "a list or map of null, of which something takes no bytes"),
        (record(a={"type": "array", "items": {"type": "record", "name": "E", "fields": []}}), "takes no bytes"),
        (record(a={"type": "map", "values": record(b="int", c="null") | {"name": "M"}}), "takes no bytes"),
        (record(a="int") | {"fields": [{"name": "a", "type": "int"}] * 2}, "more than one field 'a' in R"),
        (record(a="int", doc="x" * 2_000_000) | {"doc": "x" * 2_000_000}, "are the most"),
    ],
)
def test_hostile_schemas_are_refused(schema: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        AvroSchema(schema if isinstance(schema, str) else json.dumps(schema))


def test_names_that_stand_for_ever_more_are_refused() -> None:
    """Thirty records, each with two of the one before: 2^30 types in two kilobytes, and no byte of a message each."""
    fields: list[dict[str, Any]] = [{"name": "a", "type": {"type": "record", "name": "R0", "fields": []}}]
    for n in range(1, 30):
        inner = [{"name": name, "type": f"R{n - 1}"} for name in "ab"]
        fields.append({"name": f"f{n}", "type": {"type": "record", "name": f"R{n}", "fields": inner}})
    with pytest.raises(ConfigError, match="more than 10000 types"):
        AvroSchema(json.dumps({"type": "record", "name": "Top", "fields": fields}))


def test_types_inside_each_other_are_read_up_to_some_depth() -> None:
    def nested(depth: int) -> dict[str, Any]:
        kind: Any = "int"
        for _ in range(depth):
            kind = {"type": "array", "items": kind}
        return record(a=kind)

    AvroSchema(json.dumps(nested(48)))
    for depth in (50, 100, 300):
        with pytest.raises(ConfigError, match="more than 50 types inside each other"):
            AvroSchema(json.dumps(nested(depth)))


@pytest.mark.long
def test_without_the_check_such_a_schema_ends_the_process() -> None:
    """So the check is needed: if fastavro has one of its own by now, ours may go."""
    code = (
        "from io import BytesIO; from fastavro import parse_schema, schemaless_reader; "
        "s = parse_schema({'type': 'record', 'name': 'R', 'fields': [{'name': 'n', 'type': ['null', 'R']}]}); "
        "schemaless_reader(BytesIO(b'\\2' * 1_000_000), s, None)"
    )
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode < 0


def test_a_list_that_promises_more_than_it_has_takes_no_memory() -> None:
    schema = AvroSchema(json.dumps(record(a={"type": "array", "items": "int"}, b={"type": "map", "values": "int"})))
    with pytest.raises(ConfigError, match="was not written with the schema R"):
        schema.read([b"\xfe\xff\xff\xff\xff\xff\xff\x7f"], {"a": ["a"]})


LIST, MAP = {"type": "array", "items": "int"}, {"type": "map", "values": "int"}
E = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (["null", "string"], "01", "a union of 2 types is of number -1"),
        (["null", "string"], "04", "a union of 2 types is of number 2"),
        ("long", "ff" * 9 + "03", "a number has more than 64 bits"),
        ("long", "80" * 20 + "00", "a number has more than 64 bits"),
        ("int", "ff" * 4 + "1f", "a number has more than 32 bits"),
        ("boolean", "02", "a boolean is 2"),
        (MAP, "04 02 61 02 02 61 04 00", "a map has the key 'a' twice"),
        (MAP, "02 02 61 02 02 8200 61 04 00", "a map has the key 'a' twice"),
        (E, "01", "an enum of 2 symbols is number -1"),
        (E, "04", "an enum of 2 symbols is number 2"),
        ("bytes", "01", "something has -1 bytes"),
        (MAP, "02 01", "something has -1 bytes"),
        (LIST, "01 06 02 00", "a block has other bytes than it says"),
        (LIST, "ff" * 9 + "01", "it ends early"),
        ({"type": "array", "items": "double"}, "fe" + "ff" * 8 + "01", "it ends early"),
        ("double", "00", "it ends early"),
    ],
)
def test_bytes_that_no_writer_may_write_are_refused_also_in_a_field_that_no_column_has(
    kind: Any, body: str, says: str, tmp_path: Path
) -> None:
    schema = record(v=kind, n="int")
    reads = parser("n int", tmp_path, schema__file=written(tmp_path, schema))
    rows, reasons = parsed(reads, [bytes.fromhex(body) + b"\x02"])
    assert not rows and f"It was not written with the schema R: {says}" in reasons[0]


@pytest.mark.parametrize(
    ("kind", "column", "body", "read"),
    [
        ("long", "bigint", "80" * 9 + "00", 0),
        ("long", "bigint", "ff" * 9 + "01", -(1 << 63)),
        ("int", "int", "feffffff0f", (1 << 31) - 1),
        ("string", "string", "8400 c3a9", "é"),
        (LIST, "array<int>", "03 04 02 04 02 06 00", [1, 2, 3]),
        (MAP, "map<string, int>", "01 06 02 61 02 02 02 62 04 00", [("a", 1), ("b", 2)]),
        (["null", "int"], "int", "8200 02", 1),
    ],
)
def test_what_a_writer_may_write_at_greater_length_is_read(
    kind: Any, column: str, body: str, read: Any, tmp_path: Path
) -> None:
    reads = parser(f"v {column}", tmp_path, schema__file=written(tmp_path, record(v=kind)))
    assert parsed(reads, [bytes.fromhex(body)] * 2) == ([{"v": read}] * 2, [])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "whose messages need the schema that they were written with, and nothing says where"),
        ({"schema.file": "s.avsc", "registry.url": "http://x"}, "and schema.file and registry.url says where"),
        ({"schema.file": "none.avsc"}, r"schema\.file names none.avsc, which cannot be read: No such file"),
        ({"schema.file": "wrong.avsc"}, r"schema\.file names wrong.avsc, which is of no use: Its schema is none of"),
        ({"schema.file": "s.avsc", "framing": "x"}, "framing is 'x'. Write one of none, single-object"),
        ({"schema.file": "s.avsc, s.avsc"}, "do not say which of them they were written with"),
        ({"schema.file": "s.avsc", "registry.user": "x"}, "registry.user does not go with schema.file"),
        ({"schema.file": "other.avsc"}, "has the column 'n', and the schema in the file has no field 'n'"),
        ({"schema.file": "s.avsc", "from.n": "a.b"}, "no field 'a.b'. Write options.from.n"),
        ({"schema.file": "s.avsc", "format": "json"}, "schema.file is for format = 'avro' and 'protobuf' alone"),
        ({"registry.url": "x"}, "registry.url is no address of a registry"),
        ({"registry.url": "http://h:99999"}, "registry.url is no address of a registry"),
        ({"registry.url": "https://h", "registry.user": "me"}, "has a user alone"),
        ({"registry.url": "http://h", "registry.user": "me", "registry.password": "x"}, "could read the password"),
        ({"registry.url": "https://h", "registry.ca.file": "gone.pem"}, r"registry\.ca\.file names no file on this"),
        ({"registry.namespace": "https://x"}, "registry.namespace is no namespace"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], says: str, tmp_path: Path) -> None:
    written(tmp_path, record(n="long"))
    written(tmp_path, record(m="long"), "other.avsc")
    written(tmp_path, "{}", "wrong.avsc")
    with pytest.raises(ConfigError, match=says):
        parser("n bigint", tmp_path, **{name.replace(".", "__"): value for name, value in options.items()})


def test_a_field_that_no_column_holds_matters_only_if_it_is_asked_for(tmp_path: Path) -> None:
    schema = record(n="int", mixed=["int", "string"])
    file, body = written(tmp_path, schema), datum(schema, {"n": 1, "mixed": "a"})
    assert parsed(parser("n int", tmp_path, schema__file=file), [body]) == ([{"n": 1}], [])
    _, (reason,) = parsed(parser("n int, mixed string", tmp_path, schema__file=file), [body])
    assert "that is a union of int, string, which no column holds" in reason


def test_a_field_inside_one_of_several_records_is_no_null(tmp_path: Path) -> None:
    """Else a column would be null in each row, and nobody would know."""
    placed, paid = record(shop="string") | {"name": "Placed"}, record(shop="string", cents="long") | {"name": "Paid"}
    schema = record(n="int", what=[placed, paid])
    reads = parser("n int, shop string", tmp_path, schema__file=written(tmp_path, schema), from__shop="what.shop")
    _, (reason,) = parsed(reads, [datum(schema, {"n": 1, "what": {"shop": "a", "cents": 5}})])
    assert "'what.shop' of the schema R, and that is a union of record Placed, record Paid, which no column" in reason


def test_what_is_missing_is_said_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "samza_azure.systems.formats.avro", raising=False)
    with pytest.raises(
        ConfigError, match=r"fastavro is not installed, and streams\.s\.options\.format is 'avro'\. Run"
    ):
        parser("n int", tmp_path, schema__file=written(tmp_path, record(n="int")))
