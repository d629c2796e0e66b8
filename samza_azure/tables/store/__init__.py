"""The tables of segments in the account: their rows in one partition of the application's table, their files beside.

What may be written is decided by the rules of `samza_azure.segments`, within the transactions of `storage`.

Promised: a publish is visible as a whole or not at all, and a snapshot reads the same until its grace period ends.

Not promised: that a publish whose answer was lost failed. Its caller reads the table again, which tells.

Start reading at `segments`, then `publishing` and `reading`.
"""
