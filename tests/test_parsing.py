"""Bytes become rows, or are refused with the reason, whatever comes beside them."""

import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from samza_azure.errors import ConfigError
from samza_azure.stream_io import ddl
from samza_azure.systems.api import SystemStream
from samza_azure.systems.parsing import Parser

TWICE = """
import pyarrow as pa

def twice(messages):
    numbers = [int(body) for body in messages["body"].to_pylist()]
    return pa.table({"n": [number for number in numbers for _ in range(2)]})
"""


def parser(schema: str, event_time: str | None = None, **options: str) -> Parser:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return Parser(SystemStream("s", 1, ddl.arrow_schema(schema), given, Path(), event_time=event_time), ["number"])


def parsed(parser: Parser, bodies: list[bytes]) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, and the reasons."""
    numbers = pa.array(range(len(bodies)), pa.int64())
    parts = [*parser.rows(pa.table({"body": pa.array(bodies, pa.binary()), "number": numbers}))]
    assert all(part.num_rows == 1 for part, reason in parts if reason)
    return [row for part, reason in parts if not reason for row in part.to_pylist()], [why for _, why in parts if why]


def test_objects_of_json_are_rows_with_fields_from_inside_and_the_envelope() -> None:
    of_json = parser(
        "id bigint, at timestamp, text string, number bigint",
        from__at="meta.at",
        from__text="meta.more.text",
        envelope="number",
    )
    rows, _ = parsed(
        of_json,
        [
            b'{"id": 1, "meta": {"at": "2026-01-01T00:00:00.5Z", "more": {"text": "2026-01-01"}}, "other": []}',
            b'{"id": "2",\n"meta": {}}',
        ],
    )
    assert rows == [
        {"id": 1, "at": datetime(2026, 1, 1, 0, 0, 0, 500_000, UTC), "text": "2026-01-01", "number": 0},
        {"id": 2, "at": None, "text": None, "number": 1},
    ]


def test_lines_of_csv_are_rows_in_the_order_of_the_schema() -> None:
    rows, reasons = parsed(
        parser("n bigint, s string, d decimal(5,2)", format="csv"),
        [b'1,"a,b",1.10\r\n', b"x,y,1", b"2,", b"3,4,5\n6,7,8", b'4,"', b"5,,2"],
    )
    assert rows == [{"n": 1, "s": "a,b", "d": Decimal("1.10")}, {"n": 5, "s": None, "d": Decimal("2.00")}]
    assert [why.partition(":")[0] for why in reasons] == [
        "The column 'n' is bigint, which cannot hold 'x'. Write a whole number, like 20.",
        "It is no line of CSV with the columns n, s, d",
        "It is not one line of CSV.",
        "It is no line of CSV with the columns n, s, d",
    ]


def test_a_text_in_quotes_ends_where_its_field_ends() -> None:
    """Arrow makes xy of the one and x of the other."""
    good = [b'1,"a""b"', b'2,""', b'3,a"b', b'"4","c,d"']
    rows, reasons = parsed(parser("n bigint, s string", format="csv"), [*good, b'5,"x"y', b'6,"x', b'7,"x"""y"'])
    assert [(row["n"], row["s"]) for row in rows] == [(1, 'a"b'), (2, None), (3, 'a"b'), (4, "c,d")]
    assert len(reasons) == 3 and all("a text in quotes has no end, or something behind it" in why for why in reasons)


def test_a_function_of_the_users_makes_any_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twice_of_a_test.py").write_text(TWICE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    rows, reasons = parsed(parser("n int", parse="twice_of_a_test:twice"), [b"1", b"x", b"2"])
    assert [row["n"] for row in rows] == [1, 1, 2, 2]
    assert reasons == ["twice_of_a_test:twice raised ValueError: invalid literal for int() with base 10: b'x'"]


def test_numbers_of_json_keep_all_their_digits() -> None:
    exact = parser("a decimal(20,0), b struct<x: array<decimal(19,6)>>, c bigint, d struct<y: bigint>")
    bodies = [
        b'{"a": 12345678901234567890, "b": {"x": [1234567890123.123456]}, "c": 9007199254740993.0, "d": {"y": 1.0}}',
        b'{"a": "12345678901234567890", "b": {"x": [0.1, null]}, "c": 1e3, "d": {"y": 9007199254740993}}',
    ]
    rows = [
        {
            "a": Decimal(12345678901234567890),
            "b": {"x": [Decimal("1234567890123.123456")]},
            "c": 9007199254740993,
            "d": {"y": 1},
        },
        {
            "a": Decimal(12345678901234567890),
            "b": {"x": [Decimal("0.100000"), None]},
            "c": 1000,
            "d": {"y": 9007199254740993},
        },
    ]
    assert parsed(exact, bodies) == (rows, [])
    assert [parsed(exact, [body]) for body in bodies] == [([row], []) for row in rows]


def test_texts_in_json_are_texts_and_objects_are_maps() -> None:
    nested = parser("a array<string>, b struct<c: string, d: date>, m map<string, int>", from__m="x.m")
    rows, _ = parsed(
        nested, [b'{"a": ["2024-01-01"], "b": {"c": "2024-01-01", "d": "2024-01-01"}, "x": {"m": {"k": 1}}}']
    )
    assert rows == [
        {"a": ["2024-01-01"], "b": {"c": "2024-01-01", "d": date(2024, 1, 1)}, "m": [("k", 1)]},
    ]
    _, (reason,) = parsed(nested, [b'{"b": {"c": "", "e": 1}}'])
    assert "'b.e'" in reason


def test_what_nobody_asked_for_may_be_anything() -> None:
    rows, _ = parsed(
        parser("n int"), [b'{"n": 1, "x": [1, "b"]}', b'{"n": 2, "x": {"y": null}}', b'{"n": 3, "x": 1e999}']
    )
    assert [row["n"] for row in rows] == [1, 2, 3]


@pytest.mark.parametrize("schema", ["n int", "n int, o struct<x: int>"])
def test_names_that_are_ids_take_no_memory_of_their_own(schema: str) -> None:
    ids = [{"n": 1, "ids": {f"{row}.{key}": 1 for key in range(20)}} for row in range(1000)]
    before = pa.default_memory_pool().max_memory()
    rows, _ = parsed(parser(schema), [json.dumps(each).encode() for each in ids])
    assert len(rows) == 1000 and pa.default_memory_pool().max_memory() < before + (64 << 20)


@pytest.mark.parametrize("options", [{"format": "json"}, {"format": "csv"}])
def test_a_byte_order_mark_is_no_part_of_a_row(options: dict[str, str]) -> None:
    bodies = [b'\xef\xbb\xbf{"s": "y"}'] * 2 if options["format"] == "json" else [b"\xef\xbb\xbfy"] * 2
    assert parsed(parser("s string", **options), bodies) == ([{"s": "y"}] * 2, [])


@pytest.mark.parametrize("body", [b'{"a": "x", "\xff": 1}', b'{"a": "\xff"}', b'{"o": {"\xff": 1}}'])
def test_bytes_that_are_no_utf_8_are_refused(body: bytes) -> None:
    of_json = parser("a string, o struct<x: int>")
    assert parsed(of_json, [body, b'{"a": "b"}']) == ([{"a": "b", "o": None}], ["It is not UTF-8."])


def test_deep_messages_are_refused_before_arrow_ends_the_process() -> None:
    deep = [b'{"n": 1, "x": ' + b'{"y": ' * 40_000 + b"1" + b"}" * 40_001, b'{"n": 1, "x": ' + b"[" * 200_000 + b"}"]
    wide = [b'{"n": 2, "x": [%s]}' % b", ".join([b"{}"] * 300), b'{"n": 3, "x": "%s \\" "}' % (b"[" * 300)]
    rows, reasons = parsed(parser("n int"), [*deep, *wide])
    assert [row["n"] for row in rows] == [2, 3]
    assert reasons == ["It has more than 200 objects and arrays inside each other."] * 2


def test_bodies_do_not_make_up_for_each_other() -> None:
    rows, reasons = parsed(parser("n int"), [b'{"s": "}', b'{"}', b'{"n": 1}{"n": 2}', b'{"n": 3}'])
    assert rows == [{"n": 3}] and len(reasons) == 3


@pytest.mark.parametrize("seed", range(20))
def test_what_is_refused_does_not_depend_on_what_comes_beside_it(seed: int) -> None:
    dice, large = Random(seed), (1 << 53) + 1
    values = [1, large, 1.0, 2.5, "7", "x", None, True, [], {"a": 1}, "2026-01-01", 1 << 70, 1e3]
    bodies = [
        json.dumps({"n": dice.choice(values), "s": dice.choice(values), "d": dice.choice(values)}).encode()
        for _ in range(60)
    ]
    bodies += [b"", b" ", b"[1]", b'{"n": 1}{"n": 2}', b'{"n": 1}\n{"n": 2}', b'{"n": {}', b"null", b'"{}"']
    dice.shuffle(bodies)
    of_json = parser("n bigint, s string, d double")
    alone = [parsed(of_json, [body]) for body in bodies]
    assert parsed(of_json, bodies) == (
        [row for rows, _ in alone for row in rows],
        [why for _, refused in alone for why in refused],
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"format": "xml"}, "format is 'xml'. Write one of json, csv, raw, avro, protobuf"),
        ({"format": "csv", "parse": "a:b"}, "has parse and format"),
        ({"parse": "nothing_of_this_name:b"}, "that cannot be imported"),
        ({"envelope": "offset"}, "'offset' is to come from the envelope, and is not in the envelope, which has number"),
        ({"envelope": "number"}, "'number' is to come from the envelope, and is not in the schema"),
        ({"from.x": "a.b"}, "from.x: the schema has no column 'x'"),
        ({"from.n": "a.b", "format": "csv"}, "from.n is for format = 'json', 'avro' and 'protobuf' alone"),
        ({"format": "raw"}, "'n' is to come from the envelope"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parser("n bigint", **options)


def test_a_message_is_put_aside_whatever_its_names_are() -> None:
    schema = ddl.arrow_schema("s struct<n bigint>")
    of_json = Parser(SystemStream("s", 1, schema, {}, Path(), dead_letters=1), ["number"])
    messages = pa.table({"body": pa.array([b'{"s": {"\\ud800": 1}}'], pa.binary()), "number": [7]})
    rows, dead = of_json.parted(messages, lambda message: f"message {message['number']}", "number")
    assert rows.num_rows == 0 and dead is not None and "half a character" in dead["reason"][0].as_py()


def test_a_reason_may_be_of_any_characters() -> None:
    """As the one that a function of the user's raises, or the schema of a hostile registry."""
    schema = ddl.arrow_schema("n bigint")
    named = SystemStream("s", 1, schema, {"parse": f"{__name__}:refuse"}, Path(), dead_letters=1)
    messages = pa.table({"body": pa.array([b"x"], pa.binary()), "number": [7]})
    _, dead = Parser(named, ["number"]).parted(messages, lambda _: "a message", "number")
    assert dead is not None and dead["reason"][0].as_py().endswith("refuse raised ValueError: ?")


def refuse(_messages: pa.Table) -> pa.Table:
    raise ValueError("\ud800")


def test_messages_that_are_no_json_are_found_without_halving_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them took 40 ms. What is refused, and why, is the same as where all are halved."""
    no_json = [b"no", b"", b'{"n": 1', b'{"n": 1, "n": 2}', b'\xff{"n": 1}', b"[1]", b"\xef\xbb\xbf {}x"]
    bodies = [b'{"n": %d}' % number for number in range(1_000)]
    bodies[50:950:130] = no_json
    halving, calls = parser("n bigint, number bigint", envelope="number"), list[int]()
    declared = SystemStream(
        "s", 1, ddl.arrow_schema("n bigint, number bigint"), {"envelope": "number"}, Path(), dead_letters=9
    )
    finding, whole = Parser(declared, ["number"]), Parser._parsed

    def counted(self: Parser, messages: pa.Table) -> pa.Table:
        calls.append(messages.num_rows)
        return whole(self, messages)

    wanted = parsed(halving, bodies)
    with monkeypatch.context() as patch:
        patch.setattr(Parser, "_parsed", counted)
        assert parsed(finding, bodies) == wanted
    assert len(wanted[1]) == len(no_json) and len(calls) == 2 + len(no_json)
    bodies[3] = b'{"n": "text"}'  # JSON, and no row: the others are halved for it
    looked, look = list[int](), Parser._unreadable

    def looking(self: Parser, messages: pa.Table) -> list[int]:
        looked.append(messages.num_rows)
        return look(self, messages)

    wanted = parsed(halving, bodies)
    monkeypatch.setattr(Parser, "_unreadable", looking)
    assert parsed(finding, bodies) == wanted
    assert looked == [len(bodies)], "parts of what was looked through are not looked through again"
