"""Formats whose messages need a schema of their writer to be read: Avro and protobuf.

    read        messages to the columns of a stream: each by the schema that it was written with
    sources     where the schemas of a stream are, as its options say
    avro        a schema of Avro, and what is written with it
    avro_bytes  that the bytes of a datum are those that Avro allows
    protobuf    a message of a descriptor set, and what is written with it
    confluent   schemas of a registry that speaks Confluent's interface
    azure_registry  schemas of Azure Schema Registry

Promised: a message is read as its writer has written it, or refused with the reason; a registry that does not answer
refuses none. Bytes, schemas and names come from outside: no schema makes the data deeper than `avro.DEEPEST`, or more
than so many objects for each byte, and a value that a column cannot hold is refused, not brought near to it.

Not promised: what else a format has. Types that no column takes are refused where a column is to have them, and nothing
is written in these formats.

Start reading at `read.py`.
"""
