"""The task that runs a query of Spark's, and the container around the session.

Promised: a batch's rows, its state and its place in the inputs become durable in one append.
Not promised: that Spark has stopped when a task is released. What it does after the writer is closed has no effect.

Start reading at `batch.BatchWriter`, then `task.QueryTask`.
"""
