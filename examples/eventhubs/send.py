"""Send orders to the hub of the example: `EVENTHUBS=… python send.py 10000`. One in a thousand is no order."""

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from azure.eventhub import EventData, EventHubProducerClient

PARTITIONS, PER_BATCH = 4, 500
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def body(number: int) -> bytes:
    """The order with this number; they come 50 ms after one another."""
    if number % 1000 == 999:
        return b"%d: no order" % number
    at = (BEGIN + timedelta(milliseconds=50 * number)).isoformat()
    order = {"id": number, "shop": f"shop {number % 7}", "cents": 100 + number % 900, "at": at}
    return json.dumps(order).encode()


def batches(first: int, end: int) -> Iterator[tuple[str, list[bytes]]]:
    """Partitions, and what goes to them next."""
    for begin in range(first, end, PER_BATCH * PARTITIONS):
        for partition in range(PARTITIONS):
            numbers = range(begin + partition, min(begin + PER_BATCH * PARTITIONS, end), PARTITIONS)
            yield str(partition), [body(number) for number in numbers]


def send(connect: str, first: int, end: int) -> None:
    """Send the orders with these numbers."""
    with EventHubProducerClient.from_connection_string(connect, eventhub_name="orders") as producer:
        for partition, bodies in batches(first, end):
            batch = producer.create_batch(partition_id=partition)
            for each in bodies:
                batch.add(EventData(each))
            producer.send_batch(batch)


if __name__ == "__main__":
    send(os.environ["EVENTHUBS"], 0, int(sys.argv[1]))
