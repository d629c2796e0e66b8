"""The tasks of a container, whatever they do: a query of Spark's is one kind of several. Nothing here knows Spark.

Promised: after `release` nothing is appended under that writer. Without the supervisor's permit no batch starts and
nothing is appended. The failure of a task never ends the container.
Not promised: that what a task runs has stopped by then. What it does after the writer is closed has no effect.

Start reading at `kinds`, then `life`; `poller` decides what a stage's task reads next.
"""
