"""Stages with a query: analysed and run. The only package that imports pyspark.

Promised: a batch's rows, its state and its place in the inputs become durable in one append. Without the supervisor's
permit no batch starts and nothing is appended. A pipeline that is accepted emits the rows of one Spark batch.

Not promised: that a Python function does what it claims, that side effects happen once, or a Spark other than 4.3.

Start reading at `query.batch` (a batch becomes a record), then `tasks.poller` (what is read next, and how
much: `Poller._scan_all` bounds a batch) and `pipeline.analysis` (what is accepted).
"""
