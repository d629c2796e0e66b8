"""The factory of `system = "eventhubs"`, which says what to install if the SDK is missing."""

from typing import TYPE_CHECKING

from samza_azure.errors import ConfigError
from samza_azure.extras import EVENTHUBS, to_install
from samza_azure.systems.api import SystemStream

if TYPE_CHECKING:
    from samza_azure.eventhubs.consumer import EventHubsStream


class EventHubsFactory:
    """Makes the admin and the consumer of a stream, which are one."""

    def get_admin(self, stream: SystemStream) -> "EventHubsStream":
        return self._stream(stream)

    def get_consumer(self, stream: SystemStream) -> "EventHubsStream":
        return self._stream(stream)

    def _stream(self, stream: SystemStream) -> "EventHubsStream":
        try:
            from samza_azure.eventhubs.consumer import EventHubsStream
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"azure-eventhub is not installed, and streams.{stream.name}.system is 'eventhubs'. Run: "
                f"{to_install(EVENTHUBS)}."
            ) from error
        return EventHubsStream(stream)
