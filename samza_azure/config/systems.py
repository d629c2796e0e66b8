"""The systems of streams that we bring: what `streams.<id>.system` may name, and the factory that it means.

One more connector is a line in `BUILT_IN`, one in `CLOCKS` if many write one partition of it, and a folder or a file.
"""

BUILT_IN = {
    "tail": "samza_azure.systems.tail:TailFactory",
    "eventhubs": "samza_azure.eventhubs.connector:EventHubsFactory",
    "kafka": "samza_azure.kafka.connector:KafkaFactory",
}

#: Those of which many write one partition at once, so that its rows are not in the order of their own times: the column
#: of the envelope with the system's time, in whose order they are; None if there is none. Kafka's time is that of the
#: producer, unless its topic says otherwise (`message.timestamp.type`), which the job file does not know.
CLOCKS = {"eventhubs": "enqueued_time", "kafka": None}
