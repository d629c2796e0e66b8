"""The commands: one file each, and what several of them share.

Promised: results go to stdout, progress and warnings to stderr; exit codes are those of `samza_azure.errors`. A command
that asks something of the group writes a request and waits for the leader's answer; it never writes the control blob.

Not promised: that importing a command is cheap. So `samza_azure.cli` imports each only when it is called.

Start reading at `run`; `ask` and `waiting` are behind drain and stop.
"""
