"""The stream of a task: its options, what it hands out, and when it is silent."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.eventhub import EventData

from samza_azure.errors import ConfigError, RowsGone, StorageUnavailable
from samza_azure.eventhubs import consumer as consumer_module
from samza_azure.eventhubs import hub as hub_module
from samza_azure.eventhubs import partition_reader as partition_module
from samza_azure.eventhubs.consumer import EventHubsStream
from samza_azure.eventhubs.emulator import EventHubs, Refused
from samza_azure.eventhubs.producer import EventHubsOutput
from samza_azure.stream_io import ddl
from samza_azure.systems import looks as looks_module
from samza_azure.systems.api import SystemRows, SystemStream, SystemWriter
from samza_azure.systems.formats import azure_registry
from tests.faltering import parser_that_falters
from tests.formats.registries import IDENTITY, TOKEN, FakeAzureRegistry
from tests.formats.streams import datum, record
from tests.tls import certificate_in

from .clients import consumer, producer, receiving, until

JSON, RAW = "n bigint, s string", "body binary, sequence_number bigint"


@pytest.fixture
def hubs() -> Iterator[EventHubs]:
    with EventHubs({"hub": 2}) as hubs:
        yield hubs


def stream(hubs: EventHubs | None, schema: str = JSON, dead_letters: int = 0, **options: str) -> EventHubsStream:
    connect = hubs.connection_string if hubs else "Endpoint=sb://nowhere"
    given: Mapping[str, str] = {"name": "hub", "connect": connect} | options
    declared = SystemStream("s", 2, ddl.arrow_schema(schema), given, Path(), owner=1, dead_letters=dead_letters)
    return EventHubsStream(declared)


def following(reading: EventHubsStream) -> SystemRows:
    """The next rows of one partition: all that were there when the last of them was sent."""
    found: list[SystemRows] = []
    readers = reading._readers.values()
    until(
        lambda: (
            any(
                each._held or each._fault or each.position != reading._told[at] for at, each in reading._readers.items()
            )
            or reading._taken
        )
    )
    until(
        lambda: all(
            not each._held or each.end is None or each.end.number <= each._held[-1].position.number for each in readers
        )
    )

    def comes() -> bool:
        rows = reading.read()
        found.extend([rows] if rows else [])
        return bool(found)

    until(comes)
    return found[0]


def test_events_say_by_their_content_type_which_schema_they_have(
    hubs: EventHubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_registry, "of_this_process", lambda: IDENTITY)
    schema, number, certificate = record(n="long", s="string"), "0123456789abcdef" * 2, certificate_in(tmp_path)
    with FakeAzureRegistry(certificate, TOKEN) as registry, producer(hubs) as client:
        registry.schemas[number] = json.dumps(schema)
        batch = client.create_batch(partition_id="0")
        for content_type in (f"avro/binary+{number}", "application/json"):
            event = EventData(datum(schema, {"n": 1, "s": "a"}))
            event.content_type = content_type
            batch.add(event)
        client.send_batch(batch)
        place = {"registry.namespace": f"localhost:{registry.port}", "registry.ca.file": str(certificate)}
        reading = stream(hubs, dead_letters=1, format="avro", **place)
        assert reading.look().endswith(f", and the schema registry of localhost:{registry.port} may be read")
        reading.open(0, (0, 0))
        rows = following(reading)
        reading.close()
    assert rows.table.to_pylist() == [{"n": 1, "s": "a"}] and rows.dead is not None
    assert "Its content type is 'application/json'" in rows.dead["reason"][0].as_py()


def test_another_program_in_the_consumer_group_is_named(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions and processors of the SDKs have the owner level 0: they were disconnected, and nobody was told."""
    monkeypatch.setattr(partition_module, "WHO_S", 30.0)
    with receiving(consumer(hubs), lambda *_: None, owner_level=0):
        until(lambda: hubs.readers("hub", 0))
        reading = stream(hubs)
        reading.open(0, (0, 0))
        reading.open(1, (0, 0))
        until(lambda: hubs.readers("hub", 1) and reading.warning())
        assert reading.warning() == (
            "When this task began, another program read partition 0 of the hub 'hub' in the consumer group '$Default', "
            "and was disconnected: a reader of the owner level 0, which the service does not name. A consumer group is "
            "for one job: write another one, streams.s.options.consumer_group."
        )
        reading.close()
    until(lambda: not hubs.readers("hub", 0))
    with receiving(consumer(hubs), lambda *_: None, owner_level=0):
        until(lambda: hubs.readers("hub", 0))
        later, created_ms = stream(hubs), hubs._hubs["hub"].created_ms
        later.open(0, (created_ms, 0))
        until(lambda: later._readers[0]._was_let_in)
        assert not later.warning(), "a take-over is not held up"
        later.close()
    monkeypatch.setattr(consumer_module, "TOLD_S", 0.0)
    assert not reading.warning(), "it is told for an hour"


def test_one_partition_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others were read, and nobody was told that event time stood still because of it."""
    monkeypatch.setattr(partition_module, "FAILING_S", 0.3)

    class Broken(EventHubs):
        is_broken = True

        def link(self, session: Any, said: Any) -> Any:
            if self.is_broken and said.values[2] and said.values[5].value[0].endswith("Partitions/1"):
                raise Refused("com.microsoft:internal-error", "The server was unable to process the request.")
            return super().link(session, said)

    with Broken({"hub": 2}) as hubs:
        reading = stream(hubs)
        reading.open(0, (0, 0))
        reading.open(1, (0, 0))
        hubs.send("hub", 0, [b'{"n": 1}'])
        assert following(reading).partition == 0
        until(reading.warning)
        assert reading.warning() == (
            "Partition 1 of the hub 'hub' has not been read for a minute or longer: The hub 'hub' does not answer: The "
            "server was unable to process the request."
        )
        hubs.is_broken = False
        until(lambda: not reading.warning())
        reading.close()


def test_rows_are_parsed_or_handed_out_as_they_are(hubs: EventHubs) -> None:
    hubs.send("hub", 1, [b'{"n": 1, "s": "a"}', b'{"n": 2, "other": 0}'])
    parsed = stream(hubs)
    parsed.open(1, (0, 0))
    rows = following(parsed)
    parsed.close()
    assert rows.partition == 1 and rows.position[1] == 2
    assert rows.table.select(["n", "s"]).to_pylist() == [{"n": 1, "s": "a"}, {"n": 2, "s": None}]
    raw = stream(hubs, RAW, format="raw")
    raw.open(1, (rows.position[0], 1))
    assert following(raw).table.to_pylist() == [{"body": b'{"n": 2, "other": 0}', "sequence_number": 1}]
    raw.close()


def test_an_event_that_is_no_row_is_named(hubs: EventHubs) -> None:
    hubs.send("hub", 0, [b'{"n": 1}', b"[1]"])
    reading = stream(hubs)
    reading.open(0, (0, 0))
    with pytest.raises(ConfigError, match=r"Event 1 of partition 0 of the hub 'hub' is no row.*dead_letters = 100"):
        following(reading)
    reading.close()


def test_an_event_that_is_no_row_is_put_aside_with_its_place(hubs: EventHubs) -> None:
    hubs.send("hub", 0, [b'{"n": 1}', b"[1]", b'{"n": 3}'])
    reading = stream(hubs, dead_letters=1)
    reading.open(0, (0, 0))
    rows = following(reading)
    reading.close()
    assert (rows.table["n"].to_pylist(), rows.position[1]) == ([1, 3], 3)
    assert rows.dead is not None
    [dead] = rows.dead.to_pylist()
    assert (dead["raw"], dead["place"]) == (b"[1]", "event 1 of partition 0 of the hub 'hub'")
    assert dead["reason"].startswith("It is no object in JSON")


def test_where_newest_begins_is_handed_out_before_any_row(hubs: EventHubs) -> None:
    hubs.send("hub", 0, [b'{"n": 1}'] * 3)
    reading = stream(hubs, start="newest")
    reading.open(0, (0, 0))
    rows = following(reading)
    reading.close()
    assert rows.table.num_rows == 0 and rows.position[1] == 3


def test_what_cannot_be_parsed_for_a_while_is_parsed_later(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what another job has sent, of which the numbers are remembered."""
    asked = parser_that_falters(monkeypatch)
    options = {"name": "hub", "connect": hubs.connection_string, "partition.by": "n"}
    options["partition.method"] = "PARTITION_KEY_AS_PARTITION"
    sender = EventHubsOutput(SystemStream("s", 2, ddl.arrow_schema("n bigint"), options, Path(), is_output=True))
    sender.open(SystemWriter("g:r:out-0", 2, 1))
    sender.send(0, pa.table({"n": [0, 2, 4]}))
    sender.flush()
    sender.close()
    reading = stream(hubs, "n bigint", parse="faltering:parse")
    reading.open(0, (0, 0))
    with pytest.raises(StorageUnavailable, match="the registry"):
        following(reading)
    assert reading.state(0) == b""
    found = list[int]()
    while len(found) < 3:  # on a busy machine they come in parts
        found += following(reading).table["n"].to_pylist()
    assert found == [0, 2, 4] and reading.state(0) == b'{"g:r:out-0":2}'
    assert asked[1] == asked[0] and sum(asked[1:]) == 3, "the same ones again"
    reading.close()


def test_an_outage_is_no_silence(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a connection nor of the properties alone; nor does the silence before it go on. Afterwards the next
    look is enough, also where no event comes.
    """
    hubs.send("hub", 0, [b'{"n": 1}'])
    reading = stream(hubs)
    reading.open(0, (0, 0))
    following(reading)
    monkeypatch.setattr(looks_module, "LOOK_S", 0.2)
    looks = hubs.counts["looks at partitions"]

    def raises() -> bool:
        try:
            reading.read()
        except StorageUnavailable:
            return True
        return False

    def is_current() -> bool:
        lag = reading.lag(0)
        assert lag is not None
        return lag.is_current

    until(lambda: not raises() and hubs.counts["looks at partitions"] > looks)  # a silent partition
    assert is_current()
    hubs.management = False
    until(raises)
    assert not is_current()
    hubs.management = True
    until(lambda: not raises() and is_current())
    hubs.close()
    until(raises)
    assert not is_current()
    hubs.listen()
    until(lambda: not raises() and is_current())
    reading.close()


def test_a_silent_partition_is_looked_at_though_another_one_always_has_events(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as active again, and held back event time until the other one was read to its end."""
    monkeypatch.setattr(looks_module, "LOOK_S", 0.1)
    hubs.add_partitions("hub", 2)
    reading = stream(hubs)
    for number in range(2):
        reading.open(number, (0, 0))

    seen = set[float]()

    def is_looked_at() -> bool:
        hubs.send("hub", 0, [b'{"n": 1}'])
        until(lambda: reading._readers[0]._held)
        assert reading.read() is not None, "it always has some"
        seen.update(each.end.asked_at for number, each in reading._readers.items() if number == 1 and each.end)
        return len(seen) == 3

    until(is_looked_at)
    reading.close()


def test_what_is_left_is_told_in_events_bytes_and_seconds(hubs: EventHubs) -> None:
    hubs.send("hub", 0, [b'{"n": 1}'])
    reading = stream(hubs)
    reading.open(0, (0, 0))
    assert reading.lag(0) is None
    following(reading)
    read = reading.lag(0)
    assert read is not None and (read.rows, read.size, read.seconds) == (0, 0, 0.0)
    hubs.send("hub", 0, [b'{"n": 1}'] * 3)
    until(lambda: (end := reading._readers[0].end) is not None and end.number == 3)
    left = reading.lag(0)
    assert left is not None and left.rows == 3 and left.size > 0
    assert left.seconds is not None and 0 <= left.seconds < 60 and left.age_s >= 0
    reading.close()


def test_nothing_is_left_where_all_events_have_expired(hubs: EventHubs) -> None:
    hubs.send("hub", 0, [b'{"n": 1}'] * 3)
    hubs.trim("hub", 0, 3)
    later = stream(hubs, start="2026-01-31T12:00:00Z", on_expired="skip")
    later.open(0, (0, 0))
    later._readers[0].look()
    left = later.lag(0)
    assert left is not None and left.rows == 0
    later.close()


def test_events_that_were_passed_over_are_told(hubs: EventHubs) -> None:
    reading, created_ms = stream(hubs, on_expired="skip"), hubs._hubs["hub"].created_ms
    hubs.send("hub", 0, [b'{"n": 1}'] * 5)
    hubs.trim("hub", 0, 4)
    reading.open(0, (created_ms, 1))
    following(reading)
    assert reading.warning() == "Of the hub 'hub' 3 events expired unread; the log says which."
    reading.close()


def test_what_is_left_is_told_also_while_nothing_is_read(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs.send("hub", 0, [b'{"n": 1}'])
    reading = stream(hubs)
    reading.open(0, (0, 0))
    following(reading)
    monkeypatch.setattr(looks_module, "LOOK_S", 0.2)
    reading._readers[0]._rows_max = 0  # it takes in no more than one batch
    hubs.send("hub", 0, [b'{"n": 1}'])
    until(lambda: reading._readers[0]._held)
    hubs.send("hub", 0, [b'{"n": 1}'] * 3)

    def is_told() -> bool:
        reading.pause()
        left = reading.lag(0)
        return left is not None and left.rows == 4

    until(is_told)
    reading.close()


@pytest.mark.long
def test_all_is_left_of_a_hub_that_was_made_anew(hubs: EventHubs) -> None:
    hubs.send("hub", 0, [b'{"n": 1}'] * 3)
    again = stream(hubs, on_expired="skip")
    again.open(0, (hubs._hubs["hub"].created_ms, 3))
    reader = again._readers[0]
    until(lambda: hubs.readers("hub", 0))
    hubs.make_again("hub")
    hubs.send("hub", 0, [b'{"n": 1}'] * 5)
    until(lambda: reader.created_ms == hubs._hubs["hub"].created_ms)
    reader.look()
    left = again.lag(0)
    assert left is not None and left.rows == 5
    until(lambda: reader._held)
    assert following(again).table.num_rows == 5
    again.close()


def test_a_service_that_takes_questions_and_answers_none_is_an_outage(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "ANSWER_S", 0.2)
    monkeypatch.setattr(partition_module, "CLOSE_S", 0.1)
    hubs.management = False
    reading = stream(hubs)
    with pytest.raises(StorageUnavailable, match=r"has not answered within 0\.2 s"):
        reading.partitions()
    reading.open(0, (0, 0))
    reading.close()


def test_a_partition_that_is_away_does_not_hold_back_another(hubs: EventHubs) -> None:
    reading = stream(hubs)
    for partition in (0, 1):
        reading.open(partition, (0, 0))
    reading._looks[0].unseen = StorageUnavailable("It is away.")
    hubs.send("hub", 1, [b'{"n": 2}'])
    assert following(reading).table["n"].to_pylist() == [2]
    assert reading.read() is None
    reading._looks[1].unseen = StorageUnavailable("It is away, too.")
    with pytest.raises(StorageUnavailable, match="It is away"):
        reading.read()
    reading.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hub": "x"}, "hub is not an option of eventhubs"),
        ({"namespace": "n"}, "should name the hub, and one way to it"),
        ({"start": "yesterday"}, "start is 'yesterday'"),
        ({"start": "0:1"}, "start is '0:1'. Write the number of an event for each of the 2 partitions"),
        ({"start": "0:1,0:2,1:3"}, "Write the number of an event for each of the 2 partitions"),
        ({"on_expired": "wait"}, "on_expired is 'wait'. Write one of fail, skip"),
        ({"format": "raw"}, "'n' is to come from the envelope, and is not in the envelope, which has sequence_number"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        stream(None, **options)


def test_events_that_a_job_of_ours_has_sent_again_are_dropped(hubs: EventHubs) -> None:
    """What is kept beside the position says which, also for the next owner."""
    written = SystemStream(
        "s", 1, ddl.arrow_schema(JSON), {"name": "hub", "connect": hubs.connection_string}, Path(), is_output=True
    )
    sender = EventHubsOutput(written)
    sender.open(SystemWriter("w", 1, 0))  # as if the hub had had one partition then

    def send(begin: int, end: int) -> None:
        sender.send(begin, pa.table([range(begin, end), [None] * (end - begin)], schema=written.schema))
        sender.flush()

    send(0, 3)
    reading = stream(hubs)
    reading.open(0, (0, 0))
    assert following(reading).table["n"].to_pylist() == [0, 1, 2]
    send(1, 3)
    again = following(reading)
    assert again.table.num_rows == 0 and again.position[1] == 5, "the position moves on"
    state = reading.state(0)
    reading.close()
    send(2, 4)
    hubs.send("hub", 0, [b'{"n": 2}'])  # of somebody else
    after = stream(hubs)
    after.restore(0, state)
    after.open(0, again.position)
    found: list[int] = []
    until(lambda: (found.extend(following(after).table["n"].to_pylist()), len(found) == 2)[1])
    assert found == [3, 2]
    after.close()
    sender.close()


def test_events_are_found_by_the_time_at_which_they_came(hubs: EventHubs) -> None:
    def tick() -> datetime:
        """Between what came and what comes."""
        now = datetime.now(UTC)
        until(lambda: datetime.now(UTC) > now + timedelta(milliseconds=3))
        return now + timedelta(milliseconds=2)

    before = tick()
    hubs.send("hub", 0, [b"a", b"b", b"c"])
    hubs.send("hub", 1, [b"d"])
    between = tick()
    hubs.send("hub", 0, [b"e", b"f"])
    after = tick()
    reading = stream(hubs)
    made = reading._hub.facts().created_ms
    stood = {0: (made, 5), 1: (made, 1)}
    assert reading.back_to(between, stood) == {0: (made, 3)}, "of the other one nothing came since"
    assert reading.back_to(after, stood) == {}
    assert reading.back_to(before, {0: (0, 0)}) == {}, "nothing was read"
    hubs.trim("hub", 0, 1)
    assert reading.back_to(before, {0: (made, 5), 1: (made, 0)}) == {0: (made, 1)}, "the oldest; the other stands there"
    with pytest.raises(ConfigError, match="deleted and recreated since it was read"):
        reading.back_to(before, {0: (made - 1, 5)})


def test_a_time_to_begin_at_has_its_own_events(hubs: EventHubs) -> None:
    """As with Kafka and `rewind --to`; and until the hub has said that none is left, there may be some."""
    for n in (0, 1, 2):
        hubs.send("hub", 0, [b'{"n": %d}' % n])
        sent = datetime.now(UTC)
        until(lambda: datetime.now(UTC) > sent + timedelta(milliseconds=3))  # noqa: B023
    raw = stream(hubs, "body binary, enqueued_time timestamp", format="raw")
    raw.open(0, (0, 0))
    _, second, third = following(raw).table["enqueued_time"].to_pylist()
    raw.close()
    for start, read in ((second, [1, 2]), (third, [2])):
        reading = stream(hubs, start=start.isoformat())
        reading.open(0, (0, 0))
        reading._readers[0].look()
        assert reading.lag(0) is None, "it is not known how many, and they may be none"
        found: list[int] = []
        until(lambda: (found.extend(following(reading).table["n"].to_pylist()), len(found) == len(read))[1])  # noqa: B023
        assert found == read
        reading.close()
    later = stream(hubs, start=(third + timedelta(microseconds=1)).isoformat())
    later.open(0, (0, 0))
    later._readers[0].look()
    left = later.lag(0)
    later.close()
    assert left is not None and left.rows == 0


def test_partitions_that_are_added_are_told_while_the_others_are_read(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads them. The task of partition 0 asks, also while events come."""
    monkeypatch.setattr(consumer_module, "COUNT_S", -looks_module.LOOK_S)
    reading, other = stream(hubs), stream(hubs)
    reading.open(0, (0, 0))
    other.open(1, (0, 0))
    hubs.add_partitions("hub", 1)
    assert reading.warning() == ""

    def warns() -> bool:
        hubs.send("hub", 0, [b'{"n": 1}'])
        reading.read()
        return reading.warning() != ""

    until(warns)
    assert reading.warning() == (
        "streams.s.partitions is 2, and the stream has 3 there by now: nobody reads the new ones. Drain the run, write "
        "partitions = 3, and start again: then they are read from their beginning."
    )
    assert other.read() is None and other._count._looking is None, "one task of the stream is enough"
    reading.close()
    other.close()


def test_a_hub_that_sends_nothing_of_a_time_is_no_hub_without_it(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a rewind would leave out what is there."""
    hubs.send("hub", 0, [b"a"])
    reading = stream(hubs)
    made = reading._hub.facts().created_ms
    hubs.hold("hub", 0)
    monkeypatch.setattr(hub_module, "ANSWER_S", 2.0)  # a busy machine needs most of that to connect
    with pytest.raises(StorageUnavailable, match="sent no event within 2 s"):
        reading.back_to(datetime(2020, 1, 1, tzinfo=UTC), {0: (made, 1)})


def test_it_may_begin_with_the_event_of_a_number_in_each_partition(hubs: EventHubs) -> None:
    """A later owner must begin there, too, so the place is handed out before any row."""
    for partition in (0, 1):
        hubs.send("hub", partition, [b'{"n": %d}' % n for n in range(4)])
    reading = stream(hubs, start="0:3,1:newest")
    for partition in (0, 1):
        reading.open(partition, (0, 0))
    found = [following(reading) for _ in range(3)]
    reading.close()
    rows = [(each.partition, each.position[1], each.table.num_rows) for each in found]
    assert sorted(rows) == [(0, 3, 0), (0, 4, 1), (1, 4, 0)]
    assert [each.table["n"].to_pylist() for each in found if each.table.num_rows] == [[3]]


@pytest.mark.parametrize(
    ("start", "error", "says"),
    [
        ("0:5,1:0", ConfigError, r"has the number 5 for partition 0 of the hub 'hub', whose next event will be 4\."),
        ("0:1,1:0", RowsGone, r"was read up to event 0, and its oldest event is 2 now"),
    ],
)
def test_a_number_without_an_event_ends_the_reading(
    hubs: EventHubs, start: str, error: type[Exception], says: str
) -> None:
    hubs.send("hub", 0, [b'{"n": 0}'] * 4)
    hubs.trim("hub", 0, 2)
    reading = stream(hubs, start=start)
    reading.open(0, (0, 0))
    with pytest.raises(error, match=says):
        [following(reading) for _ in range(2)]
    reading.close()
