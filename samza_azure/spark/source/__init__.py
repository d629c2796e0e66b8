"""The data source that reads logs. Spark runs it in separate processes, which share files with the container.

Promised: `latestOffset` never raises and answers within about two seconds; the rows up to its offset can be read.
Not promised: that shutting a gate recalls an offset returned before. Acknowledgements show it.
Start reading at `poller.Poller`, then `gate_files`.
"""
