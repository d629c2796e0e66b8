"""One hash for each of 60 pinned seeds: python tests/prove/histories.py [--write FILE | --same FILE] [--jobs N].

A seed's hash covers all that the simulator says of it: its scenario, its history, the counts of what was exercised,
the seconds it took and what was violated. Code that is only moved leaves every hash as it was; write them before,
compare them after. The seeds draw every profile and every style.
"""

import argparse
import hashlib
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from simulator.scenario import draw
from simulator.world import play

SEEDS = range(60)


def fingerprint(seed: int) -> str:
    """The hash of everything that comes of a seed."""
    scenario = draw(seed)
    result = play(scenario)
    said = [repr(scenario), *result.history, repr(sorted(result.seen.items()))]
    said += [repr(result.seconds), repr(result.violation)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="keep the hashes in this file")
    parser.add_argument("--same", type=Path, help="compare with the hashes of this file; 1 if one differs")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=len(SEEDS), help="only the first so many seeds")
    asked = parser.parse_args()
    seeds = SEEDS[: asked.first]
    drawn = [draw(seed) for seed in seeds]
    print(*(f"{len(seeds)} seeds: {Counter(each.profile for each in drawn)}, {Counter(each.style for each in drawn)}",))
    with ProcessPoolExecutor(asked.jobs) as pool:
        lines = [f"{seed:4}  {digest}" for seed, digest in zip(seeds, pool.map(fingerprint, seeds), strict=True)]
    if asked.write:
        asked.write.write_text("\n".join(lines) + "\n")
    if asked.same:
        other = [line for line in lines if line not in asked.same.read_text().splitlines()]
        print(f"{len(lines) - len(other)} of {len(lines)} hashes are the same")
        print(*other, sep="\n")
        return 1 if other else 0
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
