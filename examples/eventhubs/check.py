"""Compare what has come out of the example with its orders, after a drain: `EVENTHUBS=… python check.py 10000`."""

import json
import os
import sys
from collections import Counter, defaultdict
from datetime import datetime

from azure.eventhub import EventData, EventHubConsumerClient, PartitionContext
from send import body

from samza_azure import EventHubsOnce

QUIET_S = 5.0  # a partition is read to its end if nothing comes for so long


def received(connect: str) -> Counter[tuple[datetime, str, int, int]]:
    """Minute, shop, orders and cents of each row that has come out. Repeats are dropped."""
    once, quiet = defaultdict[str, EventHubsOnce](EventHubsOnce), set[str]()
    found = Counter[tuple[datetime, str, int, int]]()

    def came(partition: PartitionContext, event: EventData | None) -> None:
        number = partition.partition_id
        if event is None:
            quiet.add(number)
            if len(quiet) == partitions:
                consumer.close()
        elif once[number].is_new(event.properties):
            row = event.body_as_json()
            found[datetime.fromisoformat(row["window"]["start"]), row["shop"], row["orders"], row["cents"]] += 1

    with EventHubConsumerClient.from_connection_string(connect, "$Default", eventhub_name="takings") as consumer:
        partitions = len(consumer.get_partition_ids())
        consumer.receive(came, starting_position="-1", max_wait_time=QUIET_S)
    return found


def expected(count: int) -> Counter[tuple[datetime, str, int, int]]:
    """The same of the first orders, added up here."""
    taken: dict[tuple[datetime, str], list[int]] = defaultdict(list)
    for text in map(body, range(count)):
        if text.startswith(b"{"):
            order = json.loads(text)
            minute = datetime.fromisoformat(order["at"]).replace(second=0)
            taken[minute.replace(microsecond=0), order["shop"]].append(order["cents"])
    return Counter((*key, len(cents), sum(cents)) for key, cents in taken.items())


if __name__ == "__main__":
    came_out, due = received(os.environ["EVENTHUBS"]), expected(int(sys.argv[1]))
    missing, wrong = (due - came_out).total(), (came_out - due).total()
    print(f"{came_out.total()} rows have come out: {missing} are missing, {wrong} are wrong or there twice")
    sys.exit(missing + wrong > 0)
