"""Clients of the fake, as tests use them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from azure.eventhub import EventHubConsumerClient, EventHubProducerClient

from samza_azure.eventhubs.emulator import EventHubs

PATIENCE_S = 60.0


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def consumer(hubs: EventHubs, *, group: str = "$Default", **options: Any) -> EventHubConsumerClient:
    return EventHubConsumerClient.from_connection_string(
        hubs.connection_string, group, eventhub_name="hub", **({"retry_backoff_factor": 0.01} | options)
    )


def producer(hubs: EventHubs, **options: Any) -> EventHubProducerClient:
    return EventHubProducerClient.from_connection_string(
        hubs.connection_string, eventhub_name="hub", **({"retry_backoff_factor": 0.01} | options)
    )


@contextmanager
def receiving(client: EventHubConsumerClient, on_event: Callable[[Any, Any], None], **options: Any) -> Iterator[None]:
    """Let a client receive from partition 0 in a thread, in batches if their size is given."""
    receive = client.receive_batch if "max_batch_size" in options else client.receive
    options = {"partition_id": "0", "starting_position": "-1"} | options
    thread = threading.Thread(target=receive, args=[on_event], kwargs=options, daemon=True)
    thread.start()
    try:
        yield
    finally:
        client.close()
        thread.join(PATIENCE_S)
