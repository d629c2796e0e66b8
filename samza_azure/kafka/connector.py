"""The factory of `system = "kafka"`, which says what to install if the client is missing."""

from typing import TYPE_CHECKING

from samza_azure.extras import KAFKA
from samza_azure.systems.registry import PackagedFactory

if TYPE_CHECKING:
    from samza_azure.kafka.consumer import KafkaStream
    from samza_azure.kafka.producer import KafkaOutput


class KafkaFactory(PackagedFactory["KafkaStream", "KafkaOutput"]):
    """Reads and writes topics."""

    system, packages = "kafka", KAFKA

    def consumer(self) -> type["KafkaStream"]:
        from samza_azure.kafka.consumer import KafkaStream

        return KafkaStream

    def producer(self) -> type["KafkaOutput"]:
        from samza_azure.kafka.producer import KafkaOutput

        return KafkaOutput
