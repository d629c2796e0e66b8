"""What azure-eventhub does to those who use it, seen against our fake.

A test that fails says that the SDK has changed: then look whether `samza_azure/eventhubs` still has to guard against
it, and whether it still does.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient
from azure.eventhub._consumer import EventHubConsumer
from azure.eventhub.exceptions import EventDataSendError, EventHubError

from samza_azure.eventhubs import batches
from samza_azure.eventhubs.amqp import Code, composite, sections, string, symbol
from samza_azure.eventhubs.emulator import EventHubs

from .clients import consumer, producer, receiving, until


@pytest.fixture
def hubs() -> Iterator[EventHubs]:
    with EventHubs({"hub": 2}) as hubs:
        yield hubs


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_reconnection_hands_over_events_again(hubs: EventHubs) -> None:
    """It reads on after the last event that it has handed over, and keeps those that it has fetched already."""
    hubs.send("hub", 0, numbered(300))
    seen: list[int] = []

    def on_events(_: object, events: list[EventData]) -> None:
        if not seen:
            hubs.cut("tcp")
        seen.extend(event.sequence_number or 0 for event in events)

    with receiving(consumer(hubs), on_events, max_batch_size=200, max_wait_time=3):
        until(lambda: len(seen) > 300)
    assert seen == [*range(300), *range(200, 300)]


def test_an_inclusive_position_repeats_an_event_at_each_reconnection(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(3))
    seen: list[int] = []
    with receiving(
        consumer(hubs),
        lambda _, event: seen.append(event.sequence_number),
        starting_position=0,
        starting_position_inclusive=True,
    ):
        until(lambda: len(seen) == 3)
        hubs.cut("tcp")
        until(lambda: len(seen) > 3)
    assert seen == [0, 1, 2, 2]


@pytest.mark.long  # it waits for timeouts of the SDK
def test_with_retries_left_no_error_is_shown(hubs: EventHubs) -> None:
    """It tries forever, here with a consumer group that does not exist."""
    errors: list[Exception] = []
    attaches = lambda: hubs.counts["readers of hub/0"]  # noqa: E731
    with receiving(consumer(hubs, group="none"), lambda *_: None, on_error=lambda _, error: errors.append(error)):
        until(lambda: attaches() > 5)
    assert errors == []
    with receiving(
        consumer(hubs, group="none", retry_total=0), lambda *_: None, on_error=lambda _, error: errors.append(error)
    ):
        until(lambda: errors)
    assert [getattr(error, "error", None) for error in errors[:1]] == ["not-found"]


def test_after_an_error_it_opens_the_link_again_by_itself(hubs: EventHubs) -> None:
    """Also one that a newer owner has stolen, so owners of the same level would evict each other forever."""
    errors: list[EventHubError] = []
    stale = consumer(hubs, retry_total=0, load_balancing_interval=0.1)
    with receiving(stale, lambda *_: None, owner_level=5, on_error=lambda _, error: errors.append(error)):
        until(lambda: hubs.readers("hub", 0) == 1)
        with receiving(consumer(hubs), lambda *_: None, owner_level=7):
            until(lambda: hubs.counts["readers of hub/0"] >= 4)
    assert {error.error for error in errors} == {"link:stolen"}


def test_a_batch_is_sent_again_without_being_asked_to(hubs: EventHubs) -> None:
    """Here its first answer was lost. There is no error, although retries are off."""
    with producer(hubs, retry_total=0) as client:
        client.send_event(EventData(b"first"), partition_id="0")
        hubs.lost["after"] = 1
        client.send_batch([EventData(body) for body in numbered(10)], partition_id="0")
    assert hubs.bodies("hub", 0) == [b"first", *numbered(10), *numbered(10)]


def test_a_throttled_send_is_repeated_at_once(hubs: EventHubs) -> None:
    """The service asks for a wait of four seconds."""
    with producer(hubs, retry_total=0) as client:
        client.send_event(EventData(b"first"), partition_id="0")
        hubs.throttle(10)
        with pytest.raises(EventDataSendError) as refused:
            client.send_event(EventData(b"0"), partition_id="0")
    assert refused.value.error == "server-busy"
    first, second = hubs.refused_at
    assert second - first < 4


def test_a_link_keeps_some_bytes_of_each_event(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(2_000))
    seen: list[EventData] = []
    client = consumer(hubs)
    with receiving(client, lambda _, event: seen.append(event)):
        until(lambda: len(seen) == 2_000)
        (reader,) = next(iter(client._event_processors.values()))._consumers.values()  # type: ignore[attr-defined]
        assert len(reader._handler._link._received_delivery_tags) == 2_000  # type: ignore[union-attr]


@pytest.mark.long  # it waits for timeouts of the SDK
def test_an_event_is_handed_over_after_the_socket_timeout(hubs: EventHubs) -> None:
    """The reader waits for another one for so long. By default that is 0.2 seconds."""

    def least_wait_s(**options: float) -> float:
        waits = []
        seen: list[EventData] = []
        with receiving(consumer(hubs, **options), lambda _, event: seen.append(event), starting_position="@latest"):
            until(lambda: hubs.readers("hub", 0) == 1)
            for count in range(1, 6):
                began = time.monotonic()
                hubs.send("hub", 0, [b"0"])
                until(lambda: len(seen) == count)  # noqa: B023
                waits.append(time.monotonic() - began)
        return min(waits)

    assert least_wait_s() > 0.18
    assert least_wait_s(socket_timeout=0.02) < 0.18


@pytest.mark.long
def test_with_a_second_thread_that_reads_events_change_places(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the connection alive, by reading whatever comes on it. Here it does so each second."""
    create = EventHubConsumerClient._create_consumer

    def often(*of: Any, **more: Any) -> EventHubConsumer:
        made = create(*of, **more)
        made._keep_alive = 1
        return made

    monkeypatch.setattr(EventHubConsumerClient, "_create_consumer", often)
    hubs.send("hub", 0, numbered(300_000))
    seen: list[int] = []

    def take(_: object, events: list[EventData]) -> None:
        seen.extend(event.sequence_number or 0 for event in events)

    with receiving(consumer(hubs), take, max_batch_size=2_000, prefetch=2_000):
        until(lambda: seen != sorted(seen))


def test_each_look_at_a_partition_takes_a_connection(hubs: EventHubs) -> None:
    with consumer(hubs) as client:
        for _ in range(3):
            client.get_partition_properties("0")
    assert hubs.counts["connections"] == 3


@pytest.mark.long  # it waits for timeouts of the SDK
def test_a_refusal_without_details_hangs_a_send(hubs: EventHubs) -> None:
    """AMQP allows to leave out the last field of an error. Not even a timeout ends the send."""
    short = composite(Code.ERROR, symbol("amqp:internal-error"), string("No details."))
    with producer(hubs, retry_total=0) as client:
        client.send_event(EventData(b"first"), partition_id="0")
        hubs.answers.append(composite(Code.REJECTED, short))

        def sends() -> None:
            with suppress(EventHubError):
                client.send_event(EventData(b"0"), partition_id="0", timeout=0.5)

        send = threading.Thread(target=sends, daemon=True)
        send.start()
        until(lambda: not hubs.answers)
        send.join(3)
        assert send.is_alive()
        hubs.cut("tcp")  # so that it ends now
        send.join()


def test_batches_are_filled_without_the_sdk_as_by_it(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if its batches change: they are filled in its own way then, five times as slowly. That takes no number of
    more than 32 bits, so it gets texts.
    """
    assert batches.are_known()
    for is_known in (True, False):
        monkeypatch.setattr(batches, "are_known", lambda is_known=is_known: is_known)
        with producer(hubs) as client:
            batch = client.create_batch(partition_id="0")
            for number in (0, 3_000_000_000):
                batches.add(batch, b"x" * 300, {"who": "Zürich"}, {"number": number})
            client.send_batch(batch)
            small = client.create_batch(partition_id="0", max_size_in_bytes=500)
            batches.add(small, b"x" * 300, {}, {"number": 1})
            with pytest.raises(ValueError, match=r"full|size limit"):
                batches.add(small, b"x" * 300, {}, {"number": 1})
    found = [event.body for event in hubs._hubs["hub"].partitions[0].events]
    values = [[value for _, value, _ in sections(each)] for each in found]
    assert values == [
        [{"who": "Zürich", "number": kind(number)}, b"x" * 300] for kind in (int, str) for number in (0, 3_000_000_000)
    ]
