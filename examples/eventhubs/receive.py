"""Print what the example has sent to its hub, until Ctrl-C: `EVENTHUBS=… python receive.py`. Repeats are dropped."""

import os
from collections import defaultdict

from azure.eventhub import EventData, EventHubConsumerClient, PartitionContext

from samza_azure import EventHubsOnce

once: defaultdict[str, EventHubsOnce] = defaultdict(EventHubsOnce)  # a program that stores things stores these, too


def show(partition: PartitionContext, event: EventData | None) -> None:
    """Print an event that is new."""
    if event is not None and once[partition.partition_id].is_new(event.properties):
        print(event.body_as_str())


if __name__ == "__main__":
    with EventHubConsumerClient.from_connection_string(
        os.environ["EVENTHUBS"], "$Default", eventhub_name="takings"
    ) as consumer:
        consumer.receive(show, starting_position="-1")
