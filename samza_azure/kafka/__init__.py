"""The protocol of Kafka, read exactly: each message once, in the order of its partition; and written in transactions.
Kafka, Redpanda, Confluent Cloud, and the Kafka endpoint of Event Hubs and Fabric speak it.

    connector     the factory of `system = "kafka"`
    consumer      the stream of a task
    topic         one topic: clients of it, its ends, and what its errors mean
    access        who we are to a broker: TLS, passwords, tokens, and the settings of librdkafka
    messages      messages as rows
    producer      the stream that a task writes to a topic
    murmur        which partition a key belongs to
    topic_check   whether a topic can be read or written: `check --connect`
    local_broker  tansu, a broker on this machine, for tests and `dev`

Promised: the positions of what is read are those of the task's own log. No group is joined and no committed
offset is read, so no rebalance and no lost commit reads a message twice or passes it over. Messages that were deleted
before they were read, or with their topic, are an error, never a silent gap. A gap between offsets is none:
transactions and compaction leave some. What is promised of what is written says `producer.py`.

Not promised: that a topic which is deleted and recreated is noticed before the next look at it, which comes within
`looks.LOOK_S`; or that it is noticed at all by a broker without ids of topics, while the new one has more messages.

Start reading at `consumer.py`.
"""
