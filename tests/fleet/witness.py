"""What the guards of tests run: it notes its start, and whether a process of another start still lived then.

The witness is a lock that all processes of a start hold together, and that the kernel gives back when the last one has
ended: a child in a session of its own, double-forked and deaf to all signals, holds it as well.

    python witness.py NOTES serve          # until it is killed or gets a signal
    python witness.py NOTES deaf           # until it is killed
    python witness.py NOTES fail           # exit with 3, and `done` with 0, as soon as there is NOTES.go
    python witness.py NOTES exec COMMAND…
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def main(notes: str, how: str, *command: str) -> None:
    """Take the lock, start the child, and do as `how` says."""

    def note(what: str) -> None:
        with Path(notes).open("a") as file:
            file.write(f"{os.environ['SAMZA_AZURE_TOKEN']} {os.environ['GUARD']} {what}\n")

    def handle(number: int, frame: object) -> None:
        note(signal.Signals(number).name)
        if how != "deaf" and number != signal.SIGUSR1:
            sys.exit(0)

    lock = os.open(f"{notes}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("two at once")
        sys.exit(9)
    if os.fork() == 0:
        os.setsid()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()
    if how == "exec":
        note("start")
        os.set_inheritable(lock, True)
        os.execvp(command[0], command)
    for number in SIGNALS:
        signal.signal(number, handle)
    note("start")
    while how in ("serve", "deaf") or not Path(f"{notes}.go").exists():
        time.sleep(0.02)
    sys.exit(3 if how == "fail" else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
