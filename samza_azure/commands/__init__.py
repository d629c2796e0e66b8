"""The commands, one file each, and what several of them share.

Promised: results go to stdout, progress and warnings to stderr; exit codes are those of `samza_azure.errors`. While
processors may run, a command writes a request and waits for the leader's answer; only `exclusive` writes the control
blob.

Not promised: that importing a command is cheap. So `samza_azure.cli` imports a command only when it is called.

Start reading at `run`. `drain` and `stop` use `requests` and `waiting`.
"""
