"""A job's pipeline without Spark: its names, its handlers, sources and sinks, and the plan that all processors share.

Promised: the plan and its fingerprint are the same whether Spark has analysed the pipeline or not.
Not promised: that a query is right. `spark.pipeline` analyses those.

Start reading at `analysed` (what tasks need to know), then `assembly` (how it is put together).
"""
