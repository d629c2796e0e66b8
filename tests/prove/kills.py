"""Twenty kills (SIGKILL) in a row, at random moments, of random processes of one fleet. After each all rows are exact.

python tests/prove/kills.py [--kills 20] [--seed N]

The victim is a leader, a follower, a container or a JVM. At the end the fleet is drained, and the windows must equal
the batch over everything. A failing run prints its seed.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "flights"), str(ROOT)]

from flights import write  # noqa: E402  (needs the path above)

from tests.end_to_end.real_processes import JobOnAzurite, daily, daily_rows  # noqa: E402

CHUNK = 6_000
RATE = 1_500.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    dice = random.Random(chosen.seed)
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-prove-"))
    write(directory / "flights.parquet")
    world = JobOnAzurite(directory, pq.read_table(directory / "flights.parquet"))
    try:
        world.start("p0", "p1", "p2")
        for number in range(chosen.kills):
            kill(world, dice, number)
        world.fleet.processes = {name: world.fleet.processes[name] for name in world.fleet.alive()}
        assert set(world.drained().values()) == {0}
        assert daily_rows(world.stream("daily-delays")) == daily(world.flights.slice(0, world.produced))
        print(f"{chosen.kills} kills, {world.produced} rows, all exact; drained, equal to the batch")
        return 0
    finally:
        world.close()


def kill(world: JobOnAzurite, dice: random.Random, number: int) -> None:
    """One kill while rows arrive, and the look afterwards."""
    shown = world.settled()
    victim = dice.choice(sorted(world.fleet.alive()))
    kind = dice.choice(["supervisor", "supervisor", "container", "jvm"])
    producer = world.producing(CHUNK, RATE)
    wait = dice.uniform(0.0, CHUNK / RATE)
    time.sleep(wait)  # the random moment
    begun = time.monotonic()
    role = "leader" if victim == shown["leader"] else "follower"
    match kind:
        case "supervisor":
            world.fleet.send(victim, signal.SIGKILL)
            world.fleet.processes[victim].wait()
        case "container":
            world.container(victim).kill()
        case "jvm":
            world.jvm(victim).kill()
    world.settled(lambda now: now["leader"] in world.fleet.alive())
    again = time.monotonic() - begun
    assert producer.wait() == 0
    world.exact()
    print(
        f"{number + 1:2} {kind} of {victim} ({role}) killed after {wait:.1f} s: all run after {again:.1f} s, exact",
        flush=True,
    )
    if kind == "supervisor":
        world.start(victim)


if __name__ == "__main__":
    sys.exit(main())
