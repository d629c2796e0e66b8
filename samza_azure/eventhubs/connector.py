"""The factory of `system = "eventhubs"`, which says what to install if the SDK is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from samza_azure.errors import ConfigError
from samza_azure.extras import EVENTHUBS, to_install
from samza_azure.systems.api import SystemStream

if TYPE_CHECKING:
    from samza_azure.eventhubs.consumer import EventHubsStream
    from samza_azure.eventhubs.producer import EventHubsOutput


class EventHubsFactory:
    """Makes the consumer of a stream that is read, and the producer of one that is written; each is its admin, too."""

    def get_admin(self, stream: SystemStream) -> "EventHubsStream | EventHubsOutput":
        return self.get_producer(stream) if stream.is_output else self.get_consumer(stream)

    def get_consumer(self, stream: SystemStream) -> "EventHubsStream":
        with _installed(stream):
            from samza_azure.eventhubs.consumer import EventHubsStream
        return EventHubsStream(stream)

    def get_producer(self, stream: SystemStream) -> "EventHubsOutput":
        with _installed(stream):
            from samza_azure.eventhubs.producer import EventHubsOutput
        return EventHubsOutput(stream)


@contextmanager
def _installed(stream: SystemStream) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"azure-eventhub is not installed, and streams.{stream.name}.system is 'eventhubs'. Run: "
            f"{to_install(EVENTHUBS)}."
        ) from error
