"""`make bench` and `make bench-rest`: claims of docs/measured.md, one script after the other, and one table at the end.

`python benchmarks/run.py [PART]`: `first`, in 17 minutes, is what README shows; `rest` is all else, in about two
hours, estimated. What no part has is run by hand: an asterisk in docs/measured.md.
"""

import argparse
import sys
import time
from collections.abc import Callable

import coordination
import drain
import drain_backlog
import drain_idle
import fail_over
import hand_over
import killed
import outlet
import passes
import restore
import routing
import same_job
import scale
import segments
import sink
import small_batch
import start
import tables
import take_over
import throughput
from common import Claim, console, show

PARTS: dict[str, list[Callable[[bool], list[Claim]]]] = {
    "first": [
        passes.measure,
        small_batch.beside_plain,
        killed.of_default,
    ],
    "rest": [
        same_job.measure,
        small_batch.beside_shuffles,
        throughput.measure,
        routing.measure,
        take_over.measure,
        hand_over.measure,
        fail_over.measure,
        killed.of_fast,
        killed.with_replicas,
        start.measure,
        restore.measure,
        drain.measure,
        drain_backlog.measure,
        drain_idle.measure,
        coordination.measure,
        scale.measure,
        segments.measure,
        tables.measure,
        sink.measure,
        outlet.measure,
    ],
}


def main() -> None:
    """Run a part; nothing is compared with an absolute time to pass or fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, default="first")
    parser.add_argument("--quick", action="store_true", help="fewer rows and repetitions: to see that it works")
    chosen, begun, claims = parser.parse_args(), time.monotonic(), []
    for measure in PARTS[chosen.part]:
        script, started = sys.modules[measure.__module__], time.monotonic()
        console.rule((script.__doc__ or "").splitlines()[0], align="left")
        claims += measure(chosen.quick)
        claims.append(Claim(f"{script.__name__}.py has taken", f"{time.monotonic() - started:.0f} s"))
    show(claims, time.monotonic() - begun)


if __name__ == "__main__":
    main()
