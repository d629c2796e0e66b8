"""Event Hubs over AMQP, read exactly: each event once, in the order of its partition; and written at least once, with
numbers by which each event counts once.

    connector         the factory of `system = "eventhubs"`
    consumer          the stream of a task
    hub               one hub as a consumer group sees it: clients, its properties, and what its errors mean
    partition_reader  a standing reader of one partition
    receiving         the SDK's client, made to wait for its socket and to hand over events by hundreds
    transfers         events from frames, without the SDK
    events            events as rows
    producer          the stream that a task sends to a hub
    batches           what is sent at once
    jenkins           which partition a key belongs to
    options           the options of both
    hub_check         whether a hub can be read or written: `check --connect`
    emulator          an Event Hubs of our own on this machine, for tests and `dev`, over `amqp`

Promised: between two positions of a partition lie the same events in the same order, however often the connection is
cut and whoever else tries to read. What was lost before it was read (expired, or with a hub that was deleted) is an
error, never a silent gap.

Not promised: fencing. The service forgets an owner that has gone, so a stale one may read for a moment; its append to
the task's log is refused. Nothing here has been run against Azure.

Start reading at `partition_reader.py`.
"""
