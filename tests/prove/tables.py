"""Four sinks and two compactors, processes on Azurite, killed (-9) and stopped at random moments for two minutes.

python tests/prove/tables.py [--seconds 120] [--seed N]

A reader polls snapshots all the time: no row twice, none missing that was published, none of half a group. In the end
the table equals what was put into the logs. A failing run prints its seed. A run with too few kills fails, too.
"""

import argparse
import random
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from samza_azure.commands.azurite.emulator import Azurite  # noqa: E402  (needs the path above)
from tests.storage.crowd import Crowd  # noqa: E402

#: A process is killed, stopped or woken up this often, and at least this part of these are kills and stops.
EVERY_S, LEAST = 2.0, 0.25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    with Azurite().start() as azurite:
        crowd = Crowd(azurite.connection_string, "crowd", 4, 2, chosen.seed)
        crowd.run(chosen.seconds, every=EVERY_S)
    acts, wanted = crowd.kills + crowd.stops, round(chosen.seconds / EVERY_S * LEAST)
    print(
        f"{crowd.kills} killed, {crowd.stops} stopped and woken up, {crowd.number} rows, {crowd.looks} snapshots: "
        "all exact"
    )
    if acts < wanted:
        print(f"{acts} processes were killed or stopped, and {wanted} have to be: this machine is too busy to tell.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
