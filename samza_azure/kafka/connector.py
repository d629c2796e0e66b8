"""The factory of `system = "kafka"`, which says what to install if the client is missing."""

from typing import TYPE_CHECKING

from samza_azure.errors import ConfigError
from samza_azure.extras import KAFKA, to_install
from samza_azure.systems.api import SystemStream

if TYPE_CHECKING:
    from samza_azure.kafka.consumer import KafkaStream


class KafkaFactory:
    """Makes the admin and the consumer of a stream, which are one."""

    def get_admin(self, stream: SystemStream) -> "KafkaStream":
        return self._stream(stream)

    def get_consumer(self, stream: SystemStream) -> "KafkaStream":
        return self._stream(stream)

    def _stream(self, stream: SystemStream) -> "KafkaStream":
        try:
            from samza_azure.kafka.consumer import KafkaStream
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"confluent-kafka is not installed, and streams.{stream.name}.system is 'kafka'. Run: "
                f"{to_install(KAFKA)}."
            ) from error
        return KafkaStream(stream)
