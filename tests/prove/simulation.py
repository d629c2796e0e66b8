"""Many seeds, for as long as it is given: python tests/prove/simulation.py [--from SEED] [--seconds S] [--jobs N].

Ends with 1 if anything was violated, with the command that replays each seed. The counts show what was exercised.
"""

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from random import Random

from samza_azure.sim.simulate import Tally, play_all


def job(first: int, step: int, seconds: float) -> Tally:
    end = time.monotonic() + seconds
    seeds = range(first, first + 10_000_000, step)
    return play_all(seeds, lambda text: print(text, flush=True), until=lambda: time.monotonic() > end)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=None, help="the first seed; fresh ones without it")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    first = asked.first if asked.first is not None else Random().randrange(1 << 31)
    print(f"seeds from {first}, {asked.seconds:.0f} s, {asked.jobs} jobs")
    with ProcessPoolExecutor(asked.jobs) as pool:
        jobs = [pool.submit(job, first + number, asked.jobs, asked.seconds) for number in range(asked.jobs)]
        tallies = [each.result() for each in jobs]
    seen = sum((tally.seen for tally in tallies), Counter())
    for name, count in sorted(seen.items()):
        print(f"{count:9}  {name}")
    failed = {seed: text for tally in tallies for seed, text in tally.failed.items()}
    seeds, hours = sum(tally.seeds for tally in tallies), sum(tally.hours for tally in tallies)
    print(f"{seeds} seeds, {hours:.1f} simulated hours of a fleet, {len(failed)} violations")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
