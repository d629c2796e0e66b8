"""The data source that reads logs. Spark runs it in processes of its own; files connect them with the container.

Promised: `latestOffset` never raises and answers within a second; what it has promised can be read.
Not promised: that a gate that is shut recalls what was promised before. Acknowledgements tell.
Start reading at `poller.Poller`, then `gate_files`.
"""
