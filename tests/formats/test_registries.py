"""Schemas of registries: each is asked for once, one that is away refuses nothing, and one that lies ends nothing."""

import io
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.core.credentials import AccessTokenInfo
from fastavro import parse_schema, schemaless_writer

from samza_azure.errors import AccessDenied, ConfigError, SignInFailed, StorageUnavailable
from samza_azure.storage.identity import Identity
from samza_azure.systems.formats import azure_registry, confluent, read
from samza_azure.systems.formats.azure_registry import AzureContentType
from samza_azure.systems.parsing import Parser
from samza_azure.systems.patience import Barred
from tests.tls import certificate_in

from .registries import IDENTITY, TOKEN, FakeAzureRegistry, FakeConfluentRegistry
from .streams import datum, parsed, parser, record

ID = "a1b2c3d4e5f60718293a4b5c6d7e8f90"


@pytest.fixture
def registry() -> Iterator[FakeConfluentRegistry]:
    with FakeConfluentRegistry() as registry:
        yield registry


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_in(tmp_path_factory.mktemp("tls"))


def framed(number: int, body: bytes) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + body


def reader(registry: FakeConfluentRegistry, schema: str = "n bigint, s string", **more: str) -> Parser:
    return parser(schema, registry__url=registry.url, **more)


def test_messages_of_several_schemas_are_rows_in_their_order(registry: FakeConfluentRegistry) -> None:
    schemas = [record(n="int"), record(s=["null", "string"], n="long"), record(s="string", n="long", more="bytes")]
    numbers = [registry.register("orders-value", schema) for schema in schemas]
    rows = [{"n": n, "s": f"s{n}", "more": b""} for n in range(60)]
    bodies: list[bytes | None] = [framed(numbers[n % 3], datum(schemas[n % 3], row)) for n, row in enumerate(rows)]
    reads = reader(registry)
    found, reasons = parsed(reads, bodies)
    assert found == [{"n": n, "s": f"s{n}" if n % 3 else None} for n in range(60)] and not reasons
    assert parsed(reads, bodies)[0] == found
    assert registry.asked == [f"/schemas/ids/{number}" for number in numbers]  # each once


def test_what_confluents_own_serializer_writes_is_read(registry: FakeConfluentRegistry) -> None:
    """AvroSerializer of confluent-kafka 2.16.1 wrote it for the first schema of a registry, {"n": 5, "s": "é"}."""
    registry.register("orders-value", record(n="long", s="string"))
    assert parsed(reader(registry), [bytes.fromhex("00000000010a04c3a9")]) == ([{"n": 5, "s": "é"}], [])


def test_a_schema_may_refer_to_others(registry: FakeConfluentRegistry) -> None:
    money = {"type": "record", "name": "Money", "namespace": "a", "fields": [{"name": "cents", "type": "long"}]}
    line = {"type": "record", "name": "Line", "namespace": "b", "fields": [{"name": "price", "type": "a.Money"}]}
    top = record(n="int", line="b.Line")
    registry.register("a/money", money)
    registry.register("line", line, references=[("a.Money", "a/money", 1)])
    number = registry.register("top", top, references=[("b.Line", "line", 1), ("a.Money", "a/money", 1)])
    names: dict[str, Any] = {}
    for each in (money, line, top):
        whole = parse_schema(each, names)
    written = io.BytesIO()
    schemaless_writer(written, whole, {"n": 1, "line": {"price": {"cents": 5}}})
    body = framed(number, written.getvalue())
    reads = reader(registry, "n int, cents bigint", from__cents="line.price.cents")
    assert parsed(reads, [body]) == ([{"n": 1, "cents": 5}], [])
    assert len(registry.asked) == 3


def test_a_registry_that_is_away_is_waited_for(registry: FakeConfluentRegistry) -> None:
    schema = record(n="int", s="string")
    body = framed(registry.register("s", schema), datum(schema, {"n": 1, "s": "a"}))
    reads = reader(registry)
    for fails in (0, 500, 503, 429, 404, 302, 200):
        registry.fails = fails
        with pytest.raises(StorageUnavailable, match="the schema registry http://localhost"):
            parsed(reads, [body, b"x"])
    registry.fails = None
    rows, reasons = parsed(reads, [body, b"x"])
    assert rows == [{"n": 1, "s": "a"}] and len(reasons) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_registry_that_has_let_us_in_before_is_waited_for(registry: FakeConfluentRegistry, status: int) -> None:
    """One such answer ended the task, after months."""
    schema = record(n="int", s="string")
    first, second = (framed(registry.register(name, schema), datum(schema, {"n": 1, "s": name})) for name in "ab")
    reads = reader(registry)
    assert parsed(reads, [first]) == ([{"n": 1, "s": "a"}], [])
    schema["name"] = "other"
    third = framed(registry.register("c", schema), datum(schema, {"n": 1, "s": "c"}))
    registry.fails = status
    with pytest.raises(Barred, match=rf"does not let us in \({status}\)"):
        parsed(reads, [third])
    registry.fails = None
    assert parsed(reads, [second, third]) == ([{"n": 1, "s": "b"}, {"n": 1, "s": "c"}], [])


def test_a_certificate_that_is_replaced_is_waited_for(certificate: Path, tmp_path: Path) -> None:
    """One ended the task, after months."""
    schema, bodies = record(n="int"), list[bytes | None]()
    with FakeConfluentRegistry(certificate) as registry:
        for number in range(2):
            bodies.append(framed(registry.register(f"s{number}", schema), datum(schema, {"n": number})))
        reads = parser("n int", registry__url=registry.url, registry__ca__file=str(certificate))
        assert parsed(reads, bodies[:1]) == ([{"n": 0}], [])
        registry.tls.load_cert_chain(certificate_in(tmp_path))
        with pytest.raises(Barred, match=r"does not trust.*registry\.ca\.file"):
            parsed(reads, bodies)
        assert parsed(reads, bodies[:1]) == ([{"n": 0}], [])  # what is known is not forgotten
        registry.tls.load_cert_chain(certificate)
        assert parsed(reads, bodies) == ([{"n": 0}, {"n": 1}], [])


def test_an_error_of_a_proxy_lets_nobody_in() -> None:
    """A wrong password behind one that answers 502 at first was waited for forever."""
    with FakeConfluentRegistry(user="me", password="secret") as registry:
        reads = reader(registry, registry__user="me", registry__password="wrong")
        for status in (502, 404):
            registry.fails = status
            with pytest.raises(StorageUnavailable, match=f"answers {status}"):
                parsed(reads, [framed(1, b"")])
        registry.fails = None
        with pytest.raises(AccessDenied, match="does not let us in") as raised:
            parsed(reads, [framed(1, b"")])
        assert not raised.value.may_pass


def test_nobody_there_or_a_slow_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeConfluentRegistry() as gone:
        pass
    with pytest.raises(StorageUnavailable, match="does not answer"):
        parsed(reader(gone), [framed(1, b"")])
    monkeypatch.setattr(confluent, "ANSWER_S", 0.2)
    ends = threading.Event()

    class Drips(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not ends.wait(0.02):
                self.wfile.write(b" ")

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("localhost", 0), Drips)
    threading.Thread(target=server.handle_request, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(StorageUnavailable, match="takes too long"):
        parsed(parser("n int", registry__url=f"http://localhost:{server.server_port}"), [framed(1, b"")])
    assert time.monotonic() < begun + 30  # on a busy machine; without a bound it would never end
    ends.set()
    server.server_close()


def test_what_a_registry_does_not_know_is_refused_and_asked_for_again_later(
    registry: FakeConfluentRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = record(n="int")
    reads = reader(registry, "n int")
    body = framed(1, datum(schema, {"n": 1}))
    for _ in range(2):
        rows, reasons = parsed(reads, [body, body])
        assert not rows and len(reasons) == 2
        assert reasons[0].startswith("It names the schema 1, which the schema registry http://localhost")
    assert registry.asked == ["/schemas/ids/1"]
    registry.register("s", schema)
    monkeypatch.setattr(read, "boot_time", lambda: time.monotonic() + 1e6)
    assert parsed(reads, [body]) == ([{"n": 1}], [])


def test_many_schemas_are_asked_for_in_several_reads_and_each_once(
    registry: FakeConfluentRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there are more than are remembered, and if it takes longer than one that is unknown is."""
    schema, now = record(n="int"), iter(range(1 << 30))
    monkeypatch.setattr(read, "MOST_SCHEMAS", 20)
    monkeypatch.setattr(read, "boot_time", lambda: next(now) / 10)  # so each question takes 0.1 s or more
    known = [registry.register("s", schema) for _ in range(100)]
    unknown = range(1_001, 1_061)
    bodies: list[bytes | None] = [framed(number, datum(schema, {"n": number})) for number in (*known, *unknown)]
    reads, asked, begun_at = reader(registry, "n int"), [0], next(now)
    while True:
        try:
            rows, reasons = parsed(reads, bodies)
            break
        except StorageUnavailable as error:
            said = str(error)
        asked.append(len(registry.asked))
    assert "more schemas than are known after 2 s of asking" in said
    assert [row["n"] for row in rows] == known and len(reasons) == len(unknown)
    assert len(registry.asked) == len({*registry.asked}) == len(bodies)
    assert all(0 < more - less <= 21 for less, more in pairwise(asked)) and len(asked) >= 8
    assert next(now) - begun_at > 10 * read.REFUSED_S
    parsed(reads, bodies[:1])
    assert len(registry.asked) == len(bodies) + 1, "so many are not remembered forever"


@pytest.mark.parametrize(
    ("schema", "kind", "says"),
    [
        ("[", "AVRO", "is none of Avro"),
        ("{}", "JSON", "is of JSON, and not of AVRO"),
        (record(next=["null", "R"]), "AVRO", "inside itself"),
        (record(n="boolean"), "AVRO", "The column 'n' is int, which cannot hold True"),
    ],
)
def test_messages_of_a_schema_that_is_of_no_use_are_refused(
    registry: FakeConfluentRegistry, schema: Any, kind: str, says: str
) -> None:
    number = registry.register("s", schema, kind)
    _, (reason,) = parsed(reader(registry, "n int"), [framed(number, b"\x01")])
    assert says in reason


def test_references_without_end_are_refused(registry: FakeConfluentRegistry) -> None:
    for n in range(1, 300):
        registry.register(f"s{n}", record(n="int"), references=[("x", f"s{n + 1}", 1)])
    round_and_round = registry.register("a", record(n="int"), references=[("x", "a", 1)])
    lost = registry.register("b", record(n="int"), references=[("x", "nowhere", 1)])
    reads = reader(registry, "n int")
    rows, reasons = parsed(reads, [framed(number, b"\x02") for number in (1, round_and_round, lost)])
    assert rows == [{"n": 1}] and "refers to more than 200 others" in reasons[0]
    assert "a schema that refers to version 1 of 'nowhere', which" in reasons[1]


def test_what_does_not_begin_as_it_should_is_refused(registry: FakeConfluentRegistry) -> None:
    _, reasons = parsed(reader(registry), [b"", b"\x00\x00", b'{"n": 1}', None])
    assert [reason[:24] for reason in reasons[:3]] == [
        "It begins with nothing, ",
        "It begins with 00 00, an",
        "It begins with 7b 22 6e ",
    ]
    assert reasons[3] == "It is empty." and not registry.asked


def test_a_password_is_sent_and_a_wrong_one_is_no_fault_of_a_message(certificate: Path, tmp_path: Path) -> None:
    schema = record(n="int")
    with FakeConfluentRegistry(certificate, "me", "secret") as registry:
        body = framed(registry.register("s", schema), datum(schema, {"n": 1}))
        trusted = {"registry__user": "me", "registry__ca__file": str(certificate)}
        (tmp_path / "password").write_text("wrong")
        reads = parser("n int", tmp_path, registry__url=registry.url, registry__password__file="password", **trusted)
        with pytest.raises(AccessDenied, match="does not let us in"):
            parsed(reads, [body])
        with pytest.raises(AccessDenied, match="does not let us in"):
            reads.look()
        (tmp_path / "password").write_text("secret\n")
        assert parsed(reads, [body]) == ([{"n": 1}], [])
        assert "knows schemas of JSON, PROTOBUF, AVRO" in reads.look()
        with pytest.raises(AccessDenied, match=r"does not trust.*registry\.ca\.file"):
            parser("n int", registry__url=registry.url).look()


def test_azure_schema_registry_is_asked_by_the_content_type(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azure_registry, "of_this_process", lambda: IDENTITY)
    schema = record(n="int")
    body = datum(schema, {"n": 7})
    with FakeAzureRegistry(certificate, TOKEN) as registry:
        place = {"registry__namespace": f"localhost:{registry.port}", "registry__ca__file": str(certificate)}
        reads = parser("n int", **place)
        assert reads.wants("content_type") and reads.look().endswith("may be read")
        types = [f"avro/binary+{ID}", f"avro/binary+{ID[::-1]}", "application/json", None]
        registry.fails = 500
        with pytest.raises(StorageUnavailable, match="answers 500"):
            parsed(reads, [body], types[:1])  # type: ignore[arg-type]
        registry.fails = None
        registry.schemas[ID] = json.dumps(schema)
        registry.asked.clear()
        rows, reasons = parsed(reads, [body] * 4, types)  # type: ignore[arg-type]
        assert rows == [{"n": 7}]
        assert [reason.partition(",")[0] for reason in reasons] == [
            f"It names the schema {ID[::-1]}",
            "Its content type is 'application/json'",
            "Its content type is None",
        ]
        assert len(registry.asked) == 2
        registry.schemas[other := ID.replace("a", "b")] = json.dumps(schema)
        for registry.fails in (401, 403):
            with pytest.raises(Barred, match="Schema Registry Reader"):
                parsed(reads, [body, body], [types[0], f"avro/binary+{other}"])  # type: ignore[list-item]
            assert parsed(reads, [body], types[:1])[0] == [{"n": 7}]  # type: ignore[arg-type]
            with pytest.raises(AccessDenied, match="Schema Registry Reader"):
                parser("n int", **place).look()
        registry.fails = None
        assert parsed(reads, [body], [f"avro/binary+{other}"]) == ([{"n": 7}], [])
    with pytest.raises(StorageUnavailable, match="does not answer"):
        parser("n int", **place).look()


def test_a_message_of_kafka_has_its_content_type_among_its_headers() -> None:
    framing = AzureContentType(["offset", "headers"])
    named, other = {"key": "Content-Type", "value": f"avro/binary+{ID}".encode()}, {"key": "a", "value": None}
    messages = pa.table({"body": [b"x", b"y"], "headers": [[other, named], [other]]})
    assert framing.needs == ["headers"] and framing.split(messages.slice(0, 1)) == [(ID, b"x")]
    with pytest.raises(ConfigError, match="Its content type is None"):
        framing.split(messages)


def test_without_a_token_azure_schema_registry_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.exceptions import ClientAuthenticationError

    class Nobody:
        def get_token_info(self, *_: str, options: Any = None) -> AccessTokenInfo:
            raise ClientAuthenticationError("no identity here")

    identity = Identity(Nobody)
    monkeypatch.setattr(azure_registry, "of_this_process", lambda: identity)
    reads = parser("n int", registry__namespace="localhost:1")
    with pytest.raises(SignInFailed, match=r"no token for the schema registry of localhost:1, .*no identity here"):
        parsed(reads, [b"\x02"], [f"avro/binary+{ID}"])


def test_no_address_of_a_registry_leaves_the_machine() -> None:
    with pytest.raises(ConfigError, match="no address of a registry"):
        parser("n int", registry__url="file:///etc/passwd")
