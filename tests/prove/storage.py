"""The memory and Azurite compared for as long as it is given: python tests/prove/storage.py [--seconds S] [--seed N].

Ends with 1 at the first difference that is not in tests/storage/differences.py, with the history as a program. At the
end it prints how often each call met each state of the lease, and with which answer.
"""

import argparse
import asyncio
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis.stateful import get_state_machine_test

sys.path[:0] = [str(Path(__file__).parents[2])]

from samza_azure.commands.azurite.emulator import Azurite  # noqa: E402  (needs the path above)
from tests.storage.conftest import A  # noqa: E402
from tests.storage.conftest import settings as fresh_place  # noqa: E402
from tests.storage.differences import AZURITE  # noqa: E402
from tests.storage.same import Leases, LogsAndRows, Pair  # noqa: E402
from tests.storage.stock import Stock  # noqa: E402

TURN = settings(
    max_examples=50, stateful_step_count=60, deadline=None, database=None, suppress_health_check=[*HealthCheck]
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the first turn; then one more")
    asked = parser.parse_args()
    with Azurite() as azurite, asyncio.Runner() as runner:
        stock = Stock(fresh_place(azurite.connection_string), A)
        stock.service.ensure_created()
        stock.fill()
        pair = Pair(stock, runner, AZURITE)
        try:
            return compare(pair, asked.seed, time.monotonic() + asked.seconds)
        finally:
            stock.service.close()
            runner.run(stock.service.aclose())


def compare(pair: Pair, seed: int, until: float) -> int:
    """Turn after turn, each with a seed of its own."""
    turns = 0
    while not turns or time.monotonic() < until:
        for machine in (Leases, LogsAndRows):
            try:
                turn(machine, pair, seed + turns)
            except Exception:  # noqa: BLE001 - whatever it is, the seed belongs to it
                traceback.print_exc()
                print(f"python tests/prove/storage.py --seconds 0 --seed {seed + turns}")
                return 1
        turns += 1
    for met, number in sorted(pair.met.items(), key=str):
        differs = "" if met.documented == met.azurite else f", Azurite: {met.azurite}"
        print(f"{number:7}  {met.call:16} {met.state:10} {met.documented}{differs}")
    print(f"{turns} turns from seed {seed}, {pair.met.total()} calls, the same on both but for the known differences")
    return 0


def turn(machine: type[Leases | LogsAndRows], pair: Pair, seed: int) -> None:
    """Some histories of one kind."""
    made: Any = lambda: machine(pair)  # noqa: E731  (a class for the library, which only calls it)
    seeded(seed)(get_state_machine_test(made, settings=TURN))()


if __name__ == "__main__":
    sys.exit(main())
