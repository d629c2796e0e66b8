"""Messages in protobuf become rows, or are refused with the reason."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import Parse
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS

from samza_azure.errors import ConfigError, StorageUnavailable

from .registries import FakeConfluentRegistry
from .streams import parsed, parser

MONEY = """
name: "money.proto" package: "shop" syntax: "proto3"
message_type { name: "Money" field { name: "cents" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }
"""
ORDER = """
name: "order.proto" package: "shop" syntax: "proto3"
dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto" dependency: "money.proto"
enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }
message_type {
  name: "Order"
  field { name: "id" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "at" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "state" number: 3 type: TYPE_ENUM type_name: ".shop.State" label: LABEL_OPTIONAL }
  field { name: "price" number: 4 type: TYPE_MESSAGE type_name: ".shop.Money" label: LABEL_OPTIONAL }
  field { name: "tags" number: 5 type: TYPE_STRING label: LABEL_REPEATED }
  field { name: "ages" number: 6 type: TYPE_MESSAGE type_name: ".shop.Order.AgesEntry" label: LABEL_REPEATED }
  field { name: "rate" number: 7 type: TYPE_MESSAGE type_name: ".google.protobuf.DoubleValue" label: LABEL_OPTIONAL }
  field { name: "note" number: 8 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
  field { name: "lines" number: 9 type: TYPE_MESSAGE type_name: ".shop.Order.Line" label: LABEL_REPEATED }
  field { name: "first" number: 10 type: TYPE_MESSAGE type_name: ".shop.Order" label: LABEL_OPTIONAL }
  field { name: "blob" number: 11 type: TYPE_BYTES label: LABEL_OPTIONAL }
  oneof_decl { name: "_note" }
  nested_type {
    name: "AgesEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  }
  nested_type {
    name: "Line"
    field { name: "n" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
    field { name: "price" number: 2 type: TYPE_MESSAGE type_name: ".shop.Money" label: LABEL_OPTIONAL }
  }
}
"""


def file(text: str) -> FileDescriptorProto:
    """A descriptor from its text."""
    return Parse(text, FileDescriptorProto())


def message(name: str) -> Any:
    """A message of the files above."""
    pool = DescriptorPool()
    for known in (TIMESTAMP, WRAPPERS):
        pool.AddSerializedFile(known.serialized_pb)
    for text in (MONEY, ORDER):
        pool.Add(file(text))
    return GetMessageClass(pool.FindMessageTypeByName(name))


Order, Line = message("shop.Order"), message("shop.Order.Line")
AT = datetime(2026, 1, 1, 0, 0, 0, 5, UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With descriptors: `order.pb`, as `protoc --include_imports` writes it but for protobuf's own files."""
    files = [file(ORDER), file(MONEY)]
    (tmp_path / "order.pb").write_bytes(FileDescriptorSet(file=files).SerializeToString())
    (tmp_path / "alone.pb").write_bytes(FileDescriptorSet(file=files[:1]).SerializeToString())
    (tmp_path / "none.pb").write_bytes(b"\xff\xff")
    return tmp_path


@pytest.fixture
def registry() -> Iterator[FakeConfluentRegistry]:
    with FakeConfluentRegistry() as registry:
        yield registry


def reader(folder: Path, schema: str, event_time: str | None = None, **options: str) -> Any:
    given = {"descriptor__file": "order.pb", "message": "shop.Order", "format": "protobuf"} | options
    return parser(schema, folder, event_time, **given)


def order(**fields: Any) -> bytes:
    found = Order(**fields)
    if not fields:
        return b""
    written: bytes = found.SerializeToString()
    return written


def test_fields_of_all_kinds_are_columns(folder: Path) -> None:
    schema = (
        "id bigint, at timestamp, state string, price struct<cents: bigint>, tags array<string>, "
        "ages map<string, int>, rate double, note string, lines array<struct<n: int, price: struct<cents: bigint>>>, "
        "cents bigint, seconds bigint, blob binary"
    )
    reads = reader(folder, schema, from__cents="price.cents", from__seconds="at.seconds")
    full = order(
        id=7, at=AT, state=1, price={"cents": 5}, tags=["a"], ages={"k": 1}, rate={"value": 0.5}, note="",
        lines=[{"n": 1, "price": {"cents": 3}}, {}], blob=b"\xff", first={"id": 1},
    )  # fmt: skip
    rows, reasons = parsed(reads, [full, b""])
    assert not reasons and rows == [
        {
            "id": 7, "at": AT, "state": "PAID", "price": {"cents": 5}, "tags": ["a"], "ages": [("k", 1)], "rate": 0.5,
            "note": "", "lines": [{"n": 1, "price": {"cents": 3}}, {"n": 0, "price": None}], "cents": 5,
            "seconds": 1767225600, "blob": b"\xff",
        },
        {
            "id": 0, "at": None, "state": "NEW", "price": None, "tags": [], "ages": [], "rate": None, "note": None,
            "lines": [], "cents": None, "seconds": None, "blob": b"",
        },
    ]  # fmt: skip


def test_what_does_not_fit_is_refused_alone(folder: Path) -> None:
    reads = reader(folder, "id bigint, at timestamp, state string", event_time="at")
    nanos = Order(id=1)
    nanos.at.FromNanoseconds(1_767_225_600_000_000_001)
    beyond = Order(id=1)
    beyond.at.seconds = 1 << 60
    bodies = [
        order(id=1, at=AT), order(id=1 << 63, at=AT), nanos.SerializeToString(), beyond.SerializeToString(),
        order(id=1), order(id=1, at=AT, state=9), b"\xff\xff", None,
    ]  # fmt: skip
    rows, reasons = parsed(reads, bodies)
    assert [row["id"] for row in rows] == [1]
    says = [
        "The column 'id' is bigint, which cannot hold 9223372036854775808",
        "a time has 1 nanoseconds, and columns have microseconds. Send those, or write options.nanoseconds = 'cut'",
        "The field 'at' holds what it should not",
        "The column 'at' is null in a row, and it is the event time",
        "The field 'state' holds what it should not: 9",
        "It is no message shop.Order",
        "It is empty",
    ]
    assert all(said in reason for said, reason in zip(says, reasons, strict=True)), reasons
    cut, _ = parsed(reader(folder, "id bigint, at timestamp", nanoseconds="cut"), [nanos.SerializeToString()])
    assert cut == [{"id": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}]


def test_a_message_inside_itself_is_read_unless_a_column_is_to_have_it(folder: Path) -> None:
    found = Order(id=1)
    for _ in range(90):
        found = Order(id=1, first=found)
    body = found.SerializeToString()
    assert parsed(reader(folder, "id bigint"), [body]) == ([{"id": 1}], [])
    _, (reason,) = parsed(reader(folder, "first struct<id: bigint>"), [body])
    assert "which no column holds. Leave it out, take a field inside it" in reason
    assert parsed(reader(folder, "n bigint", from__n="first.first.id"), [body]) == ([{"n": 1}], [])
    for _ in range(200):  # its parser stops before the stack ends
        body = b"\x52" + bytes([len(body) & 0x7F | 0x80, len(body) >> 7]) + body
    assert "no message" in parsed(reader(folder, "id bigint"), [body])[1][0]


def framed(number: int, indexes: bytes, body: bytes) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + indexes + body


def test_a_message_of_a_registry_says_which_of_its_schema_it_is(registry: FakeConfluentRegistry) -> None:
    registry.register("money.proto", "message Money …", "PROTOBUF", descriptor=file(MONEY).SerializeToString())
    number = registry.register(
        "orders-value",
        "message Order …",
        "PROTOBUF",
        [("money.proto", "money.proto", 1)],
        file(ORDER).SerializeToString(),
    )
    reads = parser(
        "n int, id bigint, cents bigint", registry__url=registry.url, format="protobuf", from__cents="price.cents"
    )
    top, line = order(id=3, price={"cents": 4}), Line(n=5, price={"cents": 6}).SerializeToString()
    # In zigzags: the first at the top in short, the same at length, and the second inside that.
    bodies = [framed(number, b"\x00", top), framed(number, b"\x02\x00", top), framed(number, b"\x04\x00\x02", line)]
    wrong = [
        framed(number, b"\x02\x02", top), framed(number, b"\x03", top), framed(number, b"", b""),
        framed(number, b"\xfe\xff\xff\xff\x7f", top), framed(1, b"\x02\x02", b""), framed(9, b"\x00", top),
    ]  # fmt: skip
    rows, reasons = parsed(reads, [*bodies, *wrong])
    of_order = {"n": None, "id": 3, "cents": 4}
    assert rows == [of_order, of_order, {"n": 5, "id": None, "cents": 6}]
    says = [
        "It is message 1 of its schema, which has 1", "inside -2 others", "does not say which message",
        "inside 17179869183 others", "It is message 1 of its schema, which has 1", "It names the schema 9, which",
    ]  # fmt: skip
    assert all(said in reason for said, reason in zip(says, reasons, strict=True)), reasons
    parsed(reads, [framed(number, b"\x02\x04", top)])
    known = [path for path in registry.asked if not path.startswith("/schemas/ids/9")]
    assert len(known) == len({*known}), "each once, whichever message of it is named"
    registry.fails = 503
    with pytest.raises(StorageUnavailable):
        parsed(reads, [framed(8, b"\x00", top)])


def test_what_confluents_own_serializer_writes_is_read(registry: FakeConfluentRegistry) -> None:
    """ProtobufSerializer of confluent-kafka 2.16.1 wrote it: the second message, and the first one inside that."""
    schema = """
    name: "o.proto" package: "shop" syntax: "proto3" message_type { name: "A" }
    message_type {
      name: "Order" field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
      nested_type { name: "Line" field { name: "n" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } }
    }
    """
    registry.register("orders-value", "message …", "PROTOBUF", descriptor=file(schema).SerializeToString())
    reads = parser("id bigint, n int", registry__url=registry.url, format="protobuf")
    bodies: list[bytes | None] = [bytes.fromhex("000000000102020807"), bytes.fromhex("00000000010402000808")]
    assert parsed(reads, bodies) == ([{"id": 7, "n": None}, {"id": None, "n": 8}], [])


def test_a_registry_without_descriptors_is_named(registry: FakeConfluentRegistry) -> None:
    number = registry.register("s", 'syntax = "proto3"; message A {}', "PROTOBUF")
    reads = parser("n int", registry__url=registry.url, format="protobuf")
    _, (reason,) = parsed(reads, [framed(number, b"\x00", b"")])
    assert "the registry does not give descriptors" in reason


def known(name: str, fields: str) -> str:
    return f'name: "{name}.proto" package: "google.protobuf" syntax: "proto3" message_type {{ {fields} }}'


OTHERS = {
    "a time without nanoseconds": known("Timestamp", 'name: "Timestamp"'),
    "a time of texts": known(
        "Timestamp", 'name: "Timestamp" field { name: "seconds" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } '
        'field { name: "nanos" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }'
    ),
    "a number without a value": known("DoubleValue", 'name: "DoubleValue"'),
    "a number that is a list": known(
        "DoubleValue", 'name: "DoubleValue" field { name: "value" number: 1 type: TYPE_DOUBLE label: LABEL_REPEATED }'
    ),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_message_of_the_name_of_protobufs_own_is_refused(
    other: str, registry: FakeConfluentRegistry, folder: Path
) -> None:
    named = "Timestamp" if "Timestamp" in other else "DoubleValue"
    schema = f"""
    name: "x.proto" syntax: "proto3" dependency: "{named}.proto"
    message_type {{
      name: "M" field {{ name: "n" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }}
      field {{ name: "v" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.{named}" label: LABEL_OPTIONAL }}
    }}
    """
    registry.register("k", "message …", "PROTOBUF", descriptor=file(other).SerializeToString())
    references = [(f"{named}.proto", "k", 1)]
    number = registry.register("x", "message …", "PROTOBUF", references, file(schema).SerializeToString())
    column = "timestamp" if named == "Timestamp" else "double"
    reads = parser(f"n int, v {column}", registry__url=registry.url, format="protobuf")
    _, reasons = parsed(reads, [framed(number, b"\x00", b"\x08\x01\x12\x00")] * 2)
    assert all(f"has another google.protobuf.{named} than that of protobuf" in reason for reason in reasons)
    files = FileDescriptorSet(file=[file(other), file(schema)]).SerializeToString()
    (folder / "other.pb").write_bytes(files)
    with pytest.raises(ConfigError, match="than that of protobuf"):
        reader(folder, "n int", descriptor__file="other.pb", message="M")


def test_a_map_that_is_none_is_refused(registry: FakeConfluentRegistry) -> None:
    schema = """
    name: "x.proto" syntax: "proto3"
    message_type {
      name: "M" field { name: "m" number: 1 type: TYPE_MESSAGE type_name: ".M.E" label: LABEL_REPEATED }
      nested_type { name: "E" options { map_entry: true }
        field { name: "k" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "v" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }
    }
    """
    number = registry.register("x", "message …", "PROTOBUF", descriptor=file(schema).SerializeToString())
    reads = parser("m map<string, string>", registry__url=registry.url, format="protobuf")
    rows, (reason,) = parsed(reads, [framed(number, b"\x00", b"\x0a\x00")])
    assert not rows and "The field 'm' holds what it should not" in reason


CLOSED = """
name: "x.proto" syntax: "proto2" enum_type { name: "E" value { name: "A" number: 0 } value { name: "B" number: 1 } }
message_type {
  name: "M"
  field { name: "one" number: 1 type: TYPE_ENUM type_name: ".E" label: LABEL_OPTIONAL }
  field { name: "more" number: 2 type: TYPE_ENUM type_name: ".E" label: LABEL_REPEATED }
  field { name: "by" number: 3 type: TYPE_MESSAGE type_name: ".M.ByEntry" label: LABEL_REPEATED }
  field { name: "in" number: 4 type: TYPE_MESSAGE type_name: ".M" label: LABEL_OPTIONAL }
  nested_type { name: "ByEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_ENUM type_name: ".E" label: LABEL_OPTIONAL } }
}
"""


def test_a_number_that_an_enum_of_proto2_lacks_is_no_null(registry: FakeConfluentRegistry) -> None:
    number = registry.register("x", "message …", "PROTOBUF", descriptor=file(CLOSED).SerializeToString())
    schema = "one string, more array<string>, by map<string, string>, inner string"
    reads = parser(schema, registry__url=registry.url, format="protobuf", from__inner="in.one")
    good = "0801 1000 1001 1a050a0161 1001 22020801"
    bodies = [good, "", "0809", "1000 1009", "1a050a0161 1009", "22020809"]
    rows, reasons = parsed(reads, [framed(number, b"\x00", bytes.fromhex(each)) for each in bodies])
    assert rows == [
        {"one": "B", "more": ["A", "B"], "by": [("a", "B")], "inner": "B"},
        {"one": None, "more": [], "by": [], "inner": None},
    ]
    says = [f"The field {field!r} holds what it should not: an enum has a number that its schema lacks"
            for field in ("one", "more", "by", "in.one")]  # fmt: skip
    assert reasons == says


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"descriptor__file": "alone.pb"}, "order.proto imports money.proto, which is missing"),
        ({"descriptor__file": "none.pb"}, "is no set of descriptors, as protoc --descriptor_set_out writes it"),
        ({"descriptor__file": "gone.pb"}, "gone.pb, which cannot be read: No such file"),
        ({"message": "shop.Nothing"}, "has no message 'shop.Nothing'. It has shop.Money, shop.Order"),
        ({"framing": "single-object"}, "framing does not go with descriptor.file"),
        ({"from__id": "price.euros"}, "no field 'price.euros'"),
        ({"from__id": "lines.n"}, "no field 'lines.n'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], says: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        reader(folder, "id bigint", **options)


def test_what_is_missing_is_said_with_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.delitem(sys.modules, "samza_azure.systems.formats.protobuf", raising=False)
    with pytest.raises(ConfigError, match=r"protobuf is not installed, and streams\.s\.options\.format is 'protobuf'"):
        reader(folder, "id bigint")
