"""From hub to job to hub to job, while the tasks of both jobs are killed, wake up late, lose answers and connections,
and go through drains: the last log must hold each event once (`tests/eventhubs/chain.py`).

python tests/prove/eventhubs_out.py [--seeds 30] [--seed N] [--events 600]

A failing run prints its seed.
"""

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.eventhubs.chain import play


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=30)
    options.add_argument("--seed", type=int)
    options.add_argument("--events", type=int, default=600)
    asked = options.parse_args()
    first = random.randrange(1 << 32) if asked.seed is None else asked.seed
    happened: Counter[str] = Counter()
    seeds = range(first, first + (asked.seeds if asked.seed is None else 1))
    for seed in seeds:
        try:
            happened += play(seed, asked.events)
        except BaseException:
            print(f"python tests/prove/eventhubs_out.py --seed {seed} --events {asked.events}")
            raise
    print(f"{len(seeds) * asked.events:,} events, each once; what happened: {dict(happened)}")


if __name__ == "__main__":
    main()
