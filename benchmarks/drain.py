"""A drain, from starting `samza-azure drain --wait` to the last exit, and the share of each of its phases.

The example's two stages with four tasks each, one processor, profile `default`, everything read before. Each round is
a run of its own. Rows arrive for forty seconds, and the drain begins when they are read: what is drained for an
upgrade has run for some time, and its JVM has compiled what a batch needs. `--cold` gives all rows at once and drains
a JVM that has run four batches. `--beside FOLDER` takes turns with another checkout, for example the commit before, on
the same emulator: its processors and its command run from there, and what is watched from here is the same for both.

The phases, as the account shows them, asked every 20 ms:
    command    from the start of the command until its request stands in the table
    take-up    until FREEZE stands in the control blob
    freeze     until FLUSH does: every reader of a source stands still
    flush      until DRAINED does: every log ends in DRAINED
    exit       until the last process has ended, clean-up included
"""

import argparse
import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
from common import EXAMPLE, PATIENCE_S, Claim, flights, middle, p95, say, scratch, show

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.group.control import Control
from samza_azure.group.rows import REQUESTS
from samza_azure.host.status import control_of
from samza_azure.machine import boot_time as now
from samza_azure.storage.connection import Account

HERE = Path(__file__).parents[1]
MEDIAN_GOAL_S, P95_GOAL_S = 3.5, 5.0
ROWS = 20_000
RATE = 500
LOOK_S = 0.02
PHASES = ("command", "take-up", "freeze", "flush", "exit")


@dataclass(frozen=True, slots=True)
class Drained:
    """One drain: seconds of each phase, in the order of `PHASES`, and until the command had ended, too."""

    phases: tuple[float, ...]
    answered_s: float

    @property
    def seconds(self) -> float:
        """From the start of the command to the last exit of a processor."""
        return sum(self.phases)


def measure(quick: bool, beside: Path | None = None, rounds: int | None = None, *, cold: bool = False) -> list[Claim]:
    """Drain this checkout's fleets, in turns with another's if there is one."""
    rounds = rounds or (2 if quick else 12)
    found: dict[Path, list[Drained]] = {root: [] for root in (HERE, beside) if root is not None}
    with scratch() as directory, Azurite() as emulator:
        pq.write_table(flights(1).slice(0, ROWS), directory / "flights.parquet")
        for number in range(rounds + 1):
            for root, drains in found.items():
                drained = drain(root, directory / f"{number}-{len(root.parts)}-{root.name}", emulator, cold)
                if number:  # the first round compiles, and fills caches
                    drains.append(drained)
                shares = ", ".join(f"{name} {took:.2f}" for name, took in zip(PHASES, drained.phases, strict=True))
                say(f"{root.name}: {drained.seconds:.2f} s: {shares}; the command {drained.answered_s:.2f} s")
    return [
        claim for root, drains in found.items() for claim in claims("" if root == HERE else f"{root.name}: ", drains)
    ]


def claims(whose: str, drains: list[Drained]) -> list[Claim]:
    """The whole, and the share of each phase."""
    seconds = [each.seconds for each in drains]
    whole, worst = middle(seconds), p95(seconds)
    lines = [
        Claim(f"{whose}drain, median of {len(drains)}", f"{whole:.2f} s", "3.5 s", whole <= MEDIAN_GOAL_S),
        Claim(f"{whose}drain, 95th percentile", f"{worst:.2f} s", "5 s", worst <= P95_GOAL_S),
    ]
    for place, name in enumerate(PHASES):
        took = middle([each.phases[place] for each in drains])
        lines.append(Claim(f"{whose}  {name}", f"{took:.2f} s ({took / whole:.0%})"))
    return lines


def drain(root: Path, directory: Path, emulator: Azurite, cold: bool) -> Drained:
    """One run of an application of its own, from its start to its end."""
    directory.mkdir()
    name = f'name = "drain-{directory.name}"'
    (directory / "job.toml").write_text((EXAMPLE / "job.toml").read_text().replace('name = "flights"', name))
    (directory / "pipeline.py").write_text((EXAMPLE / "pipeline.py").read_text())
    environment = {VARIABLE: emulator.connection_string, "PYTHONPATH": str(root)}
    fleet = Fleet(directory / "job.toml", directory / "logs", environment)
    try:
        fleet.start("p0")
        fleet.wait_until("all tasks run", all_running, PATIENCE_S)
        command = [sys.executable, "-m", "samza_azure"]
        rows = str(directory.parent / "flights.parquet")
        produce = [*command, "produce", str(fleet.job), "flights", rows, "--key", "dest"]
        produce += [] if cold else ["--rate", str(RATE)]
        subprocess.run(produce, env=fleet.environment, check=True, stderr=subprocess.DEVNULL)
        fleet.wait_until("all is read", lambda shown: all_running(shown) and fleet.unread(shown) == 0, PATIENCE_S)
        begun = now()
        asked = subprocess.Popen(
            [*command, "drain", str(fleet.job), "--wait", "--timeout", f"{PATIENCE_S:.0f}"],
            env=fleet.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return asyncio.run(watch(fleet, asked, begun))
    finally:
        fleet.stop()


async def watch(fleet: Fleet, asked: "subprocess.Popen[bytes]", begun: float) -> Drained:
    """When each step was first seen."""
    account = Account.from_config(fleet.config.storage)
    blob, table = account.control_blob(), account.rows()
    reached: dict[str, float] = {}
    answered, deadline = 0.0, now() + PATIENCE_S
    try:
        while fleet.alive() or not answered:
            if not reached and await table.query(REQUESTS, timeout=5):
                reached["command"] = now()
            control = await control_of(blob)
            for name, step in (("take-up", "FREEZE"), ("freeze", "FLUSH"), ("flush", "DRAINED")):
                if control is not None and has_taken(control, step):
                    reached.setdefault("command", now())
                    reached.setdefault(name, now())
            if not fleet.alive():
                reached.setdefault("exit", now())
            if not answered and asked.poll() is not None:
                answered = now() - begun
            if now() > deadline:
                raise SystemExit(f"Not drained within {PATIENCE_S:.0f} s: {reached}")
            await asyncio.sleep(LOOK_S)
    finally:
        await account.aclose()
    if asked.wait() != 0 or set(fleet.exit_codes(1).values()) != {0}:
        raise SystemExit(f"The drain failed: {asked.returncode}, {fleet.exit_codes(1)}")
    reached.setdefault("exit", now())
    times = [begun, *(reached[name] for name in PHASES)]
    return Drained(tuple(max(end - start, 0.0) for start, end in pairwise(times)), answered)


def has_taken(control: Control, step: str) -> bool:
    """Whether the drain has come so far; a processor of an older version tells by the same history."""
    return control.drain is not None and step in control.drain.history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds: to see that it works")
    parser.add_argument("--rounds", type=int, help="how many rounds; 12 without it")
    parser.add_argument("--cold", action="store_true", help="all rows at once, and drain when they are read")
    parser.add_argument("--beside", type=Path, help="another checkout, to take turns with")
    chosen = parser.parse_args()
    started = time.monotonic()
    other = chosen.beside.absolute() if chosen.beside else None
    show(measure(chosen.quick, other, chosen.rounds, cold=chosen.cold), time.monotonic() - started)
