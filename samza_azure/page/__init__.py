"""The status page: the state of a fleet in a browser, read from the account, whether the fleet is alive or not.

Promised: it reads the control blob and the members' rows, once per heartbeat and only while somebody looks, and writes
nothing. It shows no configuration and no secret, and data only in errors: the first line of one may quote a value.

Not promised: that what it shows is newer than a heartbeat, nor an instant verdict: whether a processor is dead whose
heartbeat is late is shown by the next read. Until then the page says that it looks.

Start reading at `watch.Watcher`, then `document.made` and `verdict.verdict`; `server` decides who may see it.
"""
