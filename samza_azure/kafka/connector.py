"""The factory of `system = "kafka"`, which says what to install if the client is missing."""

from typing import TYPE_CHECKING

from samza_azure.extras import KAFKA
from samza_azure.systems.api import SystemStream
from samza_azure.systems.registry import installed

if TYPE_CHECKING:
    from samza_azure.kafka.consumer import KafkaStream
    from samza_azure.kafka.producer import KafkaOutput


class KafkaFactory:
    """Makes the consumer of a stream that is read, and the producer of one that is written; each is its admin, too."""

    def get_admin(self, stream: SystemStream) -> "KafkaStream | KafkaOutput":
        return self.get_producer(stream) if stream.is_output else self.get_consumer(stream)

    def get_consumer(self, stream: SystemStream) -> "KafkaStream":
        with installed(f"streams.{stream.name}.system", "kafka", KAFKA):
            from samza_azure.kafka.consumer import KafkaStream
        return KafkaStream(stream)

    def get_producer(self, stream: SystemStream) -> "KafkaOutput":
        with installed(f"streams.{stream.name}.system", "kafka", KAFKA):
            from samza_azure.kafka.producer import KafkaOutput
        return KafkaOutput(stream)
