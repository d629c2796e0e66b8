"""The life of a task: restored from its log, run as a query, drained or released; and what the container does for all.

Promised: after `release` nothing is appended under that writer. A task's trouble never takes the container down.
Not promised: that Spark has stopped by then. What it does after the writer is closed does not count.
Start reading at `batch.BatchWriter`, then `task.Task`.
"""
