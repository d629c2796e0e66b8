"""The life of a task (restored from its log, run as a query, drained or released), and the container's part in it.

Promised: after `release` nothing is appended under that writer. The failure of a task never ends the container.
Not promised: that Spark has stopped by then. What it does after the writer is closed has no effect.
Start reading at `batch.BatchWriter`, then `task.Task`.
"""
