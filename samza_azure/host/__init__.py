"""A processor's life: observe, decide, perform; and the child process that runs its tasks.

Promised: all that a processor does to the account is in `perform`, one `match`. The container and its JVM end when the
supervisor does, even by SIGKILL. Work stops before the row says LEFT, and the lease is released last.

Not promised: that a processor ends at once while the storage is down. It tries its last writes for a few seconds.

Start reading at `processor.Processor`, then `perform`; `supervisor` is the process around them.
"""
