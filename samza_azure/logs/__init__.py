"""The record, who may append it, what may be deleted, and how a log is read. Pure: no clock, no random numbers, no I/O.

A rule is a generator: it yields operations, such as "append these bytes at this position", and receives their answers.
`samza_azure.stream_io.driver` performs them in production, the simulator in virtual time.

Promised, if the storage honours conditional appends: the accepted records of a task form one sequence per writer,
writers only rise, batch ids strictly rise, and what was once readable never changes. A read returns what was written,
or raises `CorruptState` with blob and position.

Not promised: that a record whose append failed is not in the log. The next reader finds it, or does not.

Who deletes: the owner of a log between stages (`forget`); of source and output streams the tasks that read or write
them (`stream_io/retention.py`); after a drain the leader (`host/runs.py`).

Start reading at the docstring of `task_log`, then `task_log.take_over` and `task_log.send`; `record` has the format,
`names` the names of logs and blobs.
"""
