"""Streams and task logs, read and written over a storage account: Arrow data in records, readers, writers, retention.

What may be appended is decided by the rules of `samza_azure.logs`; `driver` performs them on a storage, one call after
the other. The public `Reader` and `SourceWriter` are here.

Promised: a reader gives the committed rows of a stream in order, each once; what a writer has flushed is durable.

Not promised: that a row whose write raised is not there. The next owner of the log finds it, or does not.

Start reading at `log`, then `reader` and `source_stream`.
"""
