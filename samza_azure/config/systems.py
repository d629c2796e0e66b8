"""The systems of streams that we bring: what `streams.<id>.system` may name, and the factory that it means.

A connector more of ours is a line here, and a folder or a file of its own.
"""

BUILT_IN = {
    "tail": "samza_azure.systems.tail:TailFactory",
    "eventhubs": "samza_azure.eventhubs.connector:EventHubsFactory",
    "kafka": "samza_azure.kafka.connector:KafkaFactory",
}
