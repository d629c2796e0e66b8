"""The factory of `system = "eventhubs"`, which says what to install if the SDK is missing."""

from typing import TYPE_CHECKING

from samza_azure.extras import EVENTHUBS
from samza_azure.systems.registry import PackagedFactory

if TYPE_CHECKING:
    from samza_azure.eventhubs.consumer import EventHubsStream
    from samza_azure.eventhubs.producer import EventHubsOutput


class EventHubsFactory(PackagedFactory["EventHubsStream", "EventHubsOutput"]):
    """Reads and writes hubs."""

    system, packages = "eventhubs", EVENTHUBS

    def consumer(self) -> type["EventHubsStream"]:
        from samza_azure.eventhubs.consumer import EventHubsStream

        return EventHubsStream

    def producer(self) -> type["EventHubsOutput"]:
        from samza_azure.eventhubs.producer import EventHubsOutput

        return EventHubsOutput
