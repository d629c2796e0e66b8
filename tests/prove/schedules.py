"""The orders of calls of a table's actors: all of them in short plays, drawn ones in long plays.

python tests/prove/schedules.py [--faults 1] [--limit 2000] [--seeds 50] [--first 0] [--play NAME]

Of each short play at most `limit` orders are played, those with few changes from one actor to another first. A fault
is the death of an actor before a call, or a write whose answer is lost, or that arrives later than its writer believes.
What is wrong is printed with its schedule, and the exit code is 1.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.storage.schedule_plays import LONG, SHORT  # noqa: E402  (needs the path above)
from tests.storage.schedules import Violation, draw, explore  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=1)
    parser.add_argument("--limit", type=int, default=2_000)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--play", help="only this one")
    chosen = parser.parse_args()
    wrong = 0
    for play in [one for one in SHORT if chosen.play in (None, one.name) and chosen.limit]:
        began = time.monotonic()
        try:
            found = explore(play, faults=chosen.faults, limit=chosen.limit)
        except Violation as error:
            wrong += 1
            print(f"{play.name}: {error}", flush=True)
            continue
        said = "all orders" if found.changes is None else f"all with fewer than {found.changes} changes"
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{play.name}: {found.schedules} schedules, {found.states} states, {said}, {took}", flush=True)
    played = 0
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        for play in [one for one in LONG if chosen.play in (None, one.name)]:
            played += 1
            try:
                draw(play, seed, faults=chosen.faults)
            except Violation as error:
                wrong += 1
                print(f"{play.name}: {error}", flush=True)
    print(f"{played} drawn schedules; {wrong} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
