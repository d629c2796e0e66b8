"""The metrics of a processor, by OpenTelemetry.

Promised: nothing is decided or requested here. One observer looks at the `View` after each turn, and is called after
each call on the storage account. Names of instruments stay, since dashboards and alerts refer to them.

Not promised: an exporter. Only OpenTelemetry's API is needed, and without an SDK every instrument is a no-op; any SDK
of the process, such as Azure Monitor's, gets everything. `prometheus` sets up one of its own.

Start reading at `observer.Observer`; `facts` is what it shows, as plain functions.
"""
