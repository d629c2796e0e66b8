"""The factory of `system = "eventhubs"`, which says what to install if the SDK is missing."""

from typing import TYPE_CHECKING

from samza_azure.extras import EVENTHUBS
from samza_azure.systems.api import SystemStream
from samza_azure.systems.registry import installed

if TYPE_CHECKING:
    from samza_azure.eventhubs.consumer import EventHubsStream
    from samza_azure.eventhubs.producer import EventHubsOutput


class EventHubsFactory:
    """Makes the consumer of a stream that is read, and the producer of one that is written; each is its admin, too."""

    def get_admin(self, stream: SystemStream) -> "EventHubsStream | EventHubsOutput":
        return self.get_producer(stream) if stream.is_output else self.get_consumer(stream)

    def get_consumer(self, stream: SystemStream) -> "EventHubsStream":
        with installed(f"streams.{stream.name}.system", "eventhubs", EVENTHUBS):
            from samza_azure.eventhubs.consumer import EventHubsStream
        return EventHubsStream(stream)

    def get_producer(self, stream: SystemStream) -> "EventHubsOutput":
        with installed(f"streams.{stream.name}.system", "eventhubs", EVENTHUBS):
            from samza_azure.eventhubs.producer import EventHubsOutput
        return EventHubsOutput(stream)
