"""What a stream outside of the account is read through: the interface of a connector, and those that come with us.

Promised: a connector need not know logs, drains or other processors. A task keeps its position, and reads on from it.
Not promised: anything about rows that the outside deletes before they are read.

Start reading at `api`, then `tail`, the smallest connector.
"""
