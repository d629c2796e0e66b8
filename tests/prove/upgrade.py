"""Upgrades in random orders: python tests/prove/upgrade.py [--orders 20] [--releases 3] [--seed N].

First the pipeline, in the simulator: a run that reads its source with one stage or two is upgraded to code with a stage
in front, or with a renamed one. The new code is started early, processors are asked to leave (SIGTERM), killed and
paused, and drains are requested and cancelled, half of them just when a step of the protocol begins. Each row of the
input must be in the output of exactly one run, and the next run must begin and be drained (S7, S12, L1).

Then samza_azure itself, on Azurite: processes of a pinned release and of today's code take each other's place one by
one, by SIGTERM or by a kill. After each of them all tasks must run and each log must be exact. A failing order prints
its seed. Four processes at a time; about two minutes.
"""

import argparse
import random
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from samza_azure.commands.azurite.emulator import Azurite
from simulator.scenario import Scenario
from simulator.world import play
from tests.fleet.group_members import GroupOnAzurite

RELEASES = sorted((Path(__file__).parents[1] / "fleet/releases").glob("*.zip"))
FAULTS = ("other stages", "leaves", "crash", "supervisor freezes", "drain", "drain", "cancel", "joins")
CHANGES = 5


def scenario(seed: int) -> Scenario:
    """One order of an upgrade of the pipeline."""
    dice = random.Random(f"upgrade {seed}")
    rare = ("tail", "refused", "lost", "slow_batch", "slow_release")
    trouble: dict[str, Any] = {name: dice.choice([0.0, 0.05]) for name in rare}
    return Scenario(
        seed=seed,
        style="storm",
        processors=dice.choice([2, 3, 4]),
        sources=dice.choice([1, 2, 3]),
        counts=dice.choice([1, 2]),
        profile=dice.choice(["fast", "default"]),
        fault_s=120.0,
        every_s=dice.choice([2.0, 4.0, 8.0]),
        faults=FAULTS,
        aimed=0.5,
        forgets=dice.random() < 0.5,
        audited=dice.random() < 0.5,
        **trouble,
    )


def pipelines(first: int, orders: int) -> int:
    """How many orders broke something."""
    seen: Counter[str] = Counter()
    wrong = 0
    for seed in range(first, first + orders):
        drawn = scenario(seed)
        result = play(drawn)
        seen.update(result.seen)
        wrong += result.violation is not None
        runs = result.seen["phase DRAINED"]
        print(f"seed {seed}: {drawn.processors} processors, {runs} runs, {result.violation or 'exact'}", flush=True)
    print(f"{seen['phase DRAINED']} runs drained, {seen['rows checked']} rows, all else counted:")
    print(", ".join(f"{name}: {seen[name]}" for name in sorted(seen) if name.startswith(("fault", "exit", "drain"))))
    return wrong


def release(path: Path, seed: int, emulator: Azurite) -> None:
    """One order in which a release and today's code take each other's place; raises if anything is wrong."""
    dice, group = random.Random(seed), GroupOnAzurite(emulator, tasks=6, profile="default")
    try:
        with tempfile.TemporaryDirectory(prefix="samza-azure-release-") as folder:
            with zipfile.ZipFile(path) as pinned:
                pinned.extractall(folder)
            code = {"old": Path(folder), "new": None}
            ages = dict.fromkeys(("p0", "p1", "p2"), "old")
            for name in ages:
                group.start(name, release=code["old"])
            group.settled()
            for _ in range(CHANGES):
                name, how, age = (
                    dice.choice(sorted(ages)),
                    dice.choice(["SIGTERM", "kill"]),
                    dice.choice(["old", "new"]),
                )
                if age == ages[name] == "old":
                    age = "new"  # or nothing might ever be upgraded
                if how == "kill":
                    group.kill(name)
                else:
                    group.leave(name)
                group.start(name, release=code[age])
                ages[name] = age
                shown = group.settled()
                print(f"  {how} {name}, back as {age}: {shown['leader']} leads, all exact", flush=True)
    finally:
        group.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=20, help="of upgrades of the pipeline, in the simulator")
    parser.add_argument("--releases", type=int, default=3, help="orders for each pinned release, on Azurite")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    asked = parser.parse_args()
    wrong = pipelines(asked.seed, asked.orders)
    with Azurite(separate=True) as emulator:
        for path in RELEASES if asked.releases else ():
            for seed in range(asked.seed, asked.seed + asked.releases):
                print(f"{path.stem} and today's code, seed {seed}", flush=True)
                release(path, seed, emulator)
    print(f"{asked.orders - wrong} of {asked.orders} orders of the pipeline's upgrade are exact")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
