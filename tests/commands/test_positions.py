"""`positions`: where another job has stopped, with the real reader of Event Hubs, its checkpoints, and tansu.

The files of Spark are as Spark 4.3 writes them, but for the line of the source: neither the connector for Event Hubs
nor that for Kafka can be had from PyPI, so it is written as their sources and documents say.
"""

import io
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from azure.eventhub import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas
from confluent_kafka import Consumer, TopicPartition

from samza_azure import cli
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.eventhubs.consumer import EventHubsStream
from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.kafka.local_broker import LocalBroker
from samza_azure.stream_io import ddl
from samza_azure.systems.api import SystemStream
from tests.kafka.clients import Messages, bodies, until

JOB = """
app = {{ name = "shop", main = "none:none" }}
azure.storage.connect = "UseDevelopmentStorage=true"
[streams.orders]
system = "{system}"
{options}
partitions = {partitions}
schema = "n bigint"
[streams.sums]
schema = "n bigint"
"""
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The command, with the job file that is told; its exit code, and what it has printed and said."""

    def run(
        *options: str, stream: str = "orders", system: str = "kafka", partitions: int = 2, **more: str
    ) -> tuple[int, str, str]:
        job = tmp_path / "job.toml"
        given = more or {"topic": "orders", "brokers": "nowhere:1"}
        lines = "\n".join(f'options.{name} = "{value}"' for name, value in given.items())
        job.write_text(JOB.format(system=system, options=lines, partitions=partitions))
        monkeypatch.setattr(sys, "argv", ["samza-azure", "positions", str(job), stream, *options])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def query(folder: Path, *batches: str, committed: int) -> Path:
    """The checkpointLocation of a query of Spark, with a batch for each line of its source."""
    for kind in ("offsets", "commits"):
        (folder / kind).mkdir()
    head = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795918201421,"conf":{"spark.sql.shuffle.partitions":"1"}}'
    for number, line in enumerate(batches):
        (folder / "offsets" / str(number)).write_text(f"{head}\n{line}")
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in range(committed):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


@pytest.mark.parametrize("system", ["kafka", "eventhubs"])
def test_a_query_of_spark_has_stopped_behind_its_last_finished_batch(ask: Ask, tmp_path: Path, system: str) -> None:
    """Both connectors write the number behind the last row of a batch."""
    options = {"name": "orders", "connect": "Endpoint=sb://nowhere"} if system == "eventhubs" else {}
    folder = query(
        tmp_path, '{"orders":{"0":7,"1":0}}', '{"orders":{"1":9,"0":120}}', '{"orders":{"0":200,"1":9}}', committed=2
    )
    code, out, said = ask("--spark", str(folder), system=system, **options)
    assert (code, out) == (0, 'options.start = "0:120,1:9"\n')
    assert "Batch 2 of the query has begun and not ended" in said, "it may have written some of it"


@pytest.mark.parametrize(
    ("lines", "committed", "says"),
    [
        (['{"orders":{"0":1,"1":2}}'], 0, "has no finished batch. Name the folder"),
        (['{"other":{"0":1}}\n{"more":{"0":1}}'], 1, "has no source that read 'orders'. What they read: more, other."),
        (['{"orders":{"0":1}}\n{"orders":{"0":2}}'], 1, "has several sources that read 'orders'"),
        (['{"orders":{"0":"x"}}'], 1, "cannot be read as the offsets of a batch of Spark"),
        (
            ['{"orders":{"0":null,"1":2}}'],
            1,
            "cannot be read as the offsets of a batch of Spark: int is expected, not None",
        ),
        (
            ['{"orders":{"0":1e400,"1":2}}'],
            1,
            "cannot be read as the offsets of a batch of Spark: int is expected, not inf",
        ),
        (['{"orders":{"0":-1,"1":2}}'], 1, "cannot be read as the offsets of a batch of Spark: it has -1"),
        (['{"a":' * 9_999], 1, "cannot be read as the offsets of a batch of Spark: the JSON is nested too deeply"),
        (["-\n11"], 1, "has no source that read 'orders'. What they read: nothing."),
        (['{"orders":{"0":1,"1":2,"2":3}}'], 1, "has read partition 2, and the job file says partitions = 2"),
        (['{"orders":{"1":2}}'], 1, "has no position for partition 0: it never read anything there."),
    ],
)
def test_what_is_no_place_in_all_partitions_is_one_sentence(
    ask: Ask, tmp_path: Path, lines: list[str], committed: int, says: str
) -> None:
    code, out, said = ask("--spark", str(query(tmp_path, *lines, committed=committed)))
    assert (code, out) == (2, "") and says in " ".join(said.split())


def test_a_partition_without_a_position_begins_where_the_user_says(ask: Ask, tmp_path: Path) -> None:
    folder = query(tmp_path, '{"orders":{"1":2}}', committed=1)
    assert ask("--spark", str(folder), "--otherwise", "newest")[1] == 'options.start = "0:newest,1:2"\n'


@pytest.mark.parametrize(
    ("options", "more", "says"),
    [
        ((), {}, "Say where the other job keeps its positions"),
        (("--spark", "x", "--group", "g"), {}, "Say where the other job keeps its positions"),
        (("--group", "g", "--otherwise", "end"), {}, "--otherwise is 'end'. Write oldest or newest."),
        (("--group", "g"), {"stream": "sums"}, "'sums' is no stream from outside"),
        (("--checkpoints", "http://x/y"), {}, '--checkpoints is for streams of system = "eventhubs"'),
        (
            ("--group", "g"),
            {"system": "eventhubs", "name": "h", "connect": "Endpoint=sb://nowhere"},
            '--group alone is for streams of system = "kafka"',
        ),
        (
            ("--checkpoints", "http://x/y?sig=1"),
            {"system": "eventhubs", "name": "h", "connect": "nonsense"},
            "The connection string of the hub 'h' cannot be used",
        ),
    ],
)
def test_wrong_words_are_answered(ask: Ask, options: tuple[str, ...], more: dict[str, str], says: str) -> None:
    code, _, said = ask(*options, **more)
    assert code == 2 and says in " ".join(said.split())


def test_a_consumer_group_has_stopped_at_what_it_has_committed(ask: Ask) -> None:
    with LocalBroker({"orders": 2}) as broker:
        messages = Messages.of(broker.brokers, "orders")
        messages.send(0, bodies(0, 5))
        consumer = Consumer({"bootstrap.servers": broker.brokers, "group.id": "former", "log_level": 0})
        consumer.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
        consumer.close()
        options = {"topic": "orders", "brokers": broker.brokers}
        code, _, said = ask("--group", "former", **options)
        assert code == 2 and "no position for partition 1" in " ".join(said.split())
        assert ask("--group", "former", "--otherwise", "oldest", **options)[1] == 'options.start = "0:3,1:oldest"\n'
        code, out, said = ask("--group", "Former", "--otherwise", "newest", **options)
        assert (code, out) == (2, "") and "'Former' has committed no offset in the topic 'orders'" in " ".join(
            said.split()
        )


@pytest.fixture
def container(emulator: Azurite) -> Iterator[tuple[str, str]]:
    """A container of blobs, and its URL with a signature."""
    service = BlobServiceClient.from_connection_string(emulator.connection_string)
    made = service.create_container("azure-webjobs-eventhub")
    signature = generate_container_sas(
        service.account_name or "",
        made.container_name,
        account_key=service.credential.account_key,
        permission=ContainerSasPermissions(read=True, list=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    yield made.container_name, f"{made.url}?{signature}"
    made.delete_container()
    service.close()


def test_a_reader_of_a_hub_has_stopped_behind_its_checkpoint_and_this_job_begins_there(
    ask: Ask, emulator: Azurite, container: tuple[str, str]
) -> None:
    """The SDK's own client reads and keeps its checkpoints as Azure Functions do."""
    with EventHubs({"Orders": 2}) as hubs:
        hubs.send("Orders", 0, [b'{"n": %d}' % n for n in range(5)])
        hubs.send("Orders", 1, [b'{"n": 9}'])
        store = BlobCheckpointStore.from_connection_string(emulator.connection_string, container[0])
        client = EventHubConsumerClient.from_connection_string(
            hubs.connection_string, "$Default", eventhub_name="Orders", checkpoint_store=store
        )
        handled: set[str] = set()

        def on_event(context: object, event: object) -> None:
            context.update_checkpoint(event)  # type: ignore[attr-defined]
            handled.add(f"{context.partition_id}:{event.sequence_number}")  # type: ignore[attr-defined]
            if handled >= {"0:2", "1:0"}:
                client.close()

        options = {"name": "Orders", "connect": hubs.connection_string}
        client.receive(on_event, starting_position="-1", prefetch=1)
        code, out, said = ask("--checkpoints", container[1], system="eventhubs", **options)
        assert code == 0, said
        last = {each: max(int(n.partition(":")[2]) for n in handled if n.startswith(each)) for each in ("0", "1")}
        begins = f"0:{last['0'] + 1},1:1"
        assert out == f'options.start = "{begins}"\n'
        assert left(hubs, begins) == [*range(last["0"] + 1, 5)], "and no other"
        code, _, said = ask("--checkpoints", container[1], "--group", "other", system="eventhubs", **options)
        assert code == 2 and "has no checkpoints below" in said and "sig=" not in said
        code, _, said = ask("--checkpoints", container[1].replace("sig=", "sig=0"), system="eventhubs", **options)
        assert code != 0 and "may not be read" in said and "sig=" not in said


HUB = {
    "system": "eventhubs",
    "name": "Orders",
    "connect": "Endpoint=sb://h/;SharedAccessKeyName=k;SharedAccessKey=a2V5",
}


def test_a_blob_of_no_partition_among_the_checkpoints_is_named(
    ask: Ask, emulator: Azurite, container: tuple[str, str]
) -> None:
    with BlobServiceClient.from_connection_string(emulator.connection_string) as service:
        blobs = service.get_container_client(container[0])
        blobs.upload_blob("h/orders/$default/checkpoint/0", b"", metadata={"sequencenumber": "5"})
        blobs.upload_blob("h/orders/$default/checkpoint/0.bak", b"", metadata={"sequencenumber": "5"})
    code, out, said = ask("--checkpoints", container[1], **HUB)
    assert (code, out) == (2, "") and "checkpoint/0.bak lies among the checkpoints" in " ".join(said.split())


@pytest.mark.parametrize(("status", "says"), [(500, "answers 500, which says nothing"), (403, "may not be read")])
def test_an_account_in_trouble_is_no_missing_role(ask: Ask, status: int, says: str) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("localhost", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        code, _, said = ask("--checkpoints", f"http://localhost:{server.server_port}/account/c?sig=1", **HUB)
        server.shutdown()
    assert code != 0 and says in " ".join(said.split()) and "Traceback" not in said


def left(hubs: EventHubs, start: str) -> list[int]:
    """What our own stream reads that begins there."""
    options = {"name": "Orders", "connect": hubs.connection_string, "start": start}
    reading = EventHubsStream(SystemStream("orders", 2, ddl.arrow_schema("n bigint"), options, Path(), owner=1))
    found = list[int]()
    for partition in (0, 1):
        reading.open(partition, (0, 0))
    ends = {0: 5, 1: 1}

    def is_read() -> bool:
        if (rows := reading.read()) is not None:
            found.extend(rows.table["n"].to_pylist())
            if rows.position[1] == ends[rows.partition]:
                del ends[rows.partition]
        return not ends

    until(is_read)
    reading.close()
    return found
