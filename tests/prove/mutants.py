"""A fresh seed for every known mistake: python tests/prove/mutants.py [--from SEED] [--seconds S]; about two minutes.

For each mutant seeds are played, for S seconds of processor time at most, until the invariant that it names notices
and notices nothing in the same seed without the mistake. Ends with 1 if one survives.
"""

import argparse
import sys
import time
from itertools import count
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.sim.mutants import ELSEWHERE, MUTANTS, Mutant


def hunt(mutant: Mutant, first: int, seconds: float) -> tuple[int, int] | None:
    """The seed that kills it, and how many were played."""
    end = time.process_time() + seconds
    for played, seed in enumerate(count(first), 1):
        if mutant.kills(seed):
            return seed, played
        if time.process_time() > end:
            return None
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=None, help="the first seed; a fresh one without it")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each mutant at most")
    asked = parser.parse_args()
    first = asked.first if asked.first is not None else Random().randrange(1 << 31)
    print(f"seeds from {first}")
    print(f"{'mutant':40} {'whose':32} {'killed by':10} {'seeds':>5}  seed")
    alive = []
    for mutant in MUTANTS:
        found = hunt(mutant, first, asked.seconds)
        seed, played = found or ("survives", "")
        print(f"{mutant.name:40} {mutant.whose:32} {mutant.killed_by:10} {played:>5}  {seed}", flush=True)
        alive += [] if found else [mutant.name]
    for named in ELSEWHERE:
        print(f"{named.name:40} {named.whose:32} {named.test.__name__}, which is no simulation; see `make test`")
    print(f"{len(MUTANTS) - len(alive)} of {len(MUTANTS)} mutants killed by the invariant that they name")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
