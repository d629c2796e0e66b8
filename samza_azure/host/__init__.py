"""A processor's life: observe, decide, perform; and the child process that runs its tasks.

Promised: what a processor does to the account is in `perform`, one `match`. The container ends when its supervisor
does, also by SIGKILL, and its JVM with it. Work stops before the row says LEFT, and the lease is given up last.

Not promised: that a processor ends soon while the storage is down. It gives its last words a few seconds.

Start reading at `processor.Processor`, then `perform`; `supervisor` is the process around them.
"""
