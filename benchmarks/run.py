"""`make bench`: each claim of docs/measured.md, one script after the other, and one table at the end."""

import argparse
import time

import coordination
import drain
import drain_backlog
import drain_idle
import fail_over
import hand_over
import outlet
import restore
import routing
import scale
import segments
import sink
import small_batch
import start
import tables
import take_over
import throughput
from common import console, show

SCRIPTS = [
    throughput,
    routing,
    small_batch,
    hand_over,
    take_over,
    fail_over,
    start,
    restore,
    drain,
    drain_backlog,
    drain_idle,
    coordination,
    scale,
    segments,
    tables,
    sink,
    outlet,
]


def main() -> None:
    """Run them all; nothing is compared with an absolute time to pass or fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and repetitions: to see that it works")
    quick, begun, claims = parser.parse_args().quick, time.monotonic(), []
    for script in SCRIPTS:
        console.rule((script.__doc__ or "").splitlines()[0], align="left")
        claims += script.measure(quick)
    show(claims, time.monotonic() - begun)


if __name__ == "__main__":
    main()
