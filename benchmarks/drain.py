"""A drain, from starting `samza-azure drain --wait` to the last exit, and the share of each of its phases.

The example's two stages with four tasks each, one processor, profile `default`, everything read before. Each round is
a run of its own. Rows arrive for forty seconds, and the drain begins when all tasks are idle: what is drained for an
upgrade has run for some time, and its JVM has compiled what a batch needs. `--cold` gives all rows at once and drains
a JVM that has run four batches. `--beside FOLDER` takes turns with another checkout, for example the commit before: its
processors and its command run from there, and what is watched from here is the same for both.

The phases, as the account shows them, asked every 20 ms:
    command    from the start of the command until its request stands in the table
    take-up    until FREEZE stands in the control blob
    freeze     until FLUSH does: every reader of a source stands still
    flush      until DRAINED does: every log ends in DRAINED
    exit       until the last process has ended, clean-up included

It takes turns with a job of four stages (`--stages`), each behind a shuffle, windowed and with state; what each stage
after the second adds is printed. With `--beside` it is measured in both checkouts.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from common import EXAMPLE, PATIENCE_S, Claim, flights, middle, p95, say, scratch, show

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.errors import StorageUnavailable
from samza_azure.group.control import Control
from samza_azure.group.rows import REQUESTS
from samza_azure.host.status import control_of
from samza_azure.machine.clock import boot_time as now
from samza_azure.storage.connection import Account

HERE = Path(__file__).parents[1]
MEDIAN_GOAL_S, P95_GOAL_S, STAGE_GOAL_S = 3.5, 5.0, 0.8
ROWS = 20_000
RATE = 500
LOOK_S = 0.02
#: A processor is idle when it has used less than this share of a core for this many seconds.
IDLE_SHARE, IDLE_S = 0.4, 3.0
#: Rows per second that arrive before and during a drain under `Load.ARRIVING`, and for how long before it.
ARRIVING_RATE, ARRIVING_S = 4_000, 30.0
#: Of the example's job, and of the longer one.
STAGES, LONGER_STAGES = 2, 4
PHASES = ("command", "take-up", "freeze", "flush", "exit")


@dataclass(frozen=True, slots=True)
class Drained:
    """One drain: seconds of each phase, in the order of `PHASES` (none if it was not watched), and until the command
    had ended."""

    phases: tuple[float, ...]
    answered_s: float

    @property
    def seconds(self) -> float:
        """From the start of the command to the last exit: of a processor, or its own."""
        return max(sum(self.phases), self.answered_s)


class Load(Enum):
    """What the processor has done, and does, when the drain begins."""

    IDLE = "rows came for forty seconds, and all are read"
    COLD = "all rows came at once, and are read"
    ARRIVING = "rows have come for half a minute, and still come"


@dataclass(frozen=True, slots=True)
class Side:
    """The subjects that take turns: a checkout, and a job with this many stages."""

    root: Path
    stages: int = STAGES

    def __str__(self) -> str:
        more = "" if self.stages == STAGES else f", {self.stages} stages"
        return f"{self.root.name}{more}"


def measure(
    quick: bool,
    beside: Path | None = None,
    rounds: int | None = None,
    *,
    cold: bool = False,
    stages: int = LONGER_STAGES,
) -> list[Claim]:
    """Drain this checkout's fleets, in turns with another's if there is one, and with those of a longer job."""
    rounds = rounds or (2 if quick else 10)
    ours = Side(HERE)
    roots, lengths = [HERE, *([beside] if beside else [])], [STAGES, *([stages] if stages > STAGES else [])]
    found: dict[Side, list[Drained]] = {Side(root, length): [] for length in lengths for root in roots}
    with scratch() as directory:
        pq.write_table(flights(1).slice(0, ROWS), directory / "flights.parquet")
        for number in range(rounds + 1):
            for place, (side, drains) in enumerate(found.items()):
                load = Load.COLD if cold else Load.IDLE
                # The emulator collects its garbage every ten minutes, and answers nothing for seconds then.
                with Azurite() as emulator:
                    drained = drain(
                        side, directory / f"{number}-{place}", emulator, load, directory / "flights.parquet"
                    )
                if number:  # the first round compiles, and fills caches
                    drains.append(drained)
                shares = ", ".join(f"{name} {took:.2f}" for name, took in zip(PHASES, drained.phases, strict=True))
                say(f"{side}: {drained.seconds:.2f} s: {shares}; the command {drained.answered_s:.2f} s")
    made = [claim for side, drains in found.items() for claim in claims("" if side == ours else f"{side}: ", drains)]
    for root in roots if stages > STAGES else []:
        wholes = [middle([each.seconds for each in found[Side(root, length)]]) for length in lengths]
        adds = (wholes[1] - wholes[0]) / (stages - STAGES)
        whose = "" if root == HERE else f"{root.name}: "
        made.append(Claim(f"{whose}each further stage adds", f"{adds:.2f} s", "0.8 s", adds <= STAGE_GOAL_S))
    return made


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


def pipeline_of(stages: int) -> str:
    """The example, with stages added after its last one until it has this many."""
    pipeline = (EXAMPLE / "pipeline.py").read_text()
    if stages > STAGES:
        pipeline = pipeline.replace('alias("delay"))\n', 'alias("delay"))\n' + WITH_TIME)
    for number in range(STAGES + 1, stages + 1):
        pipeline = pipeline.replace('output="daily-delays")', f'output="delays-{number}", partition_by="carrier")')
        pipeline += LONGER.format(number=number, with_time=WITH_TIME)
    return pipeline


def streams_of(stages: int) -> str:
    """What the job file says of the streams between those stages."""
    streams = (f"delays-{number}" for number in range(STAGES + 1, stages + 1))
    return "".join(f'\n[streams.{stream}]\npartitions = 4\nevent_time = "ts"\n' for stream in streams)


WITH_TIME = '        .select(F.expr("window.end").alias("ts"), "carrier", "flights", "delay")\n'
#: A stage behind another that counts.
LONGER = '''

@app.stage("delays-{number}", output="daily-delays")
def daily_delays_{number}(rows: DataFrame) -> DataFrame:
    """Count once more."""
    return (
        rows.withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 day"), "carrier")
        .agg(F.sum("flights").alias("flights"), F.avg("delay").alias("delay"))
{with_time}    )
'''


def drain(side: Side, directory: Path, emulator: Azurite, load: Load, rows: Path, *, watched: bool = True) -> Drained:
    """One run of an application of its own, from its start to its end, fed from a file of flights.

    `watched`: look at the account for the phases, which takes a quarter of a core. Without it no phases are known.
    """
    directory.mkdir()
    name = f'name = "drain-{directory.name}"'
    job = (EXAMPLE / "job.toml").read_text().replace('name = "flights"', name)
    (directory / "job.toml").write_text(job + streams_of(side.stages))
    (directory / "pipeline.py").write_text(pipeline_of(side.stages))
    environment = {VARIABLE: emulator.connection_string, "PYTHONPATH": str(side.root)}
    fleet = Fleet(directory / "job.toml", directory / "logs", environment)
    producer: subprocess.Popen[bytes] | None = None
    try:
        fleet.start("p0")
        fleet.wait_until("all tasks run", all_running, PATIENCE_S)
        command = [sys.executable, "-m", "samza_azure"]
        produce = [*command, "produce", str(fleet.job), "flights", str(rows), "--key", "dest"]
        if load is not Load.COLD:
            produce += ["--rate", str(ARRIVING_RATE if load is Load.ARRIVING else RATE)]
        producer = subprocess.Popen(produce, env=fleet.environment, stderr=subprocess.DEVNULL)
        if load is Load.ARRIVING:
            with suppress(subprocess.TimeoutExpired):
                producer.wait(ARRIVING_S)
                raise SystemExit("The rows did not last until the drain.")
        else:
            if producer.wait() != 0:
                raise SystemExit(f"produce ended with {producer.returncode}.")
            fleet.wait_until("all is read", lambda shown: all_running(shown) and fleet.unread(shown) == 0, PATIENCE_S)
        if load is Load.IDLE:
            wait_until_idle(psutil.Process(fleet.processes["p0"].pid))
        begun = now()
        asked = subprocess.Popen(
            [*command, "drain", str(fleet.job), "--wait", "--timeout", f"{PATIENCE_S:.0f}"],
            env=fleet.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return asyncio.run(watch(fleet, asked, begun)) if watched else wait(fleet, asked, begun)
    finally:
        if producer is not None:
            producer.kill()
            producer.wait()
        fleet.stop()


def wait_until_idle(processor: psutil.Process) -> None:
    """Until a processor's processes have used little for some seconds: nothing is left to read in any stage."""
    deadline, last = now() + PATIENCE_S, used(processor)
    while now() < deadline:
        time.sleep(IDLE_S)  # what is measured is what was used meanwhile
        present = used(processor)
        if present - last < IDLE_SHARE * IDLE_S:
            return
        last = present
    raise SystemExit(f"The processor was not idle within {PATIENCE_S:.0f} s.")


def used(processor: psutil.Process) -> float:
    """CPU seconds of a processor's processes, but for those that end meanwhile."""
    seconds = 0.0
    for each in [processor, *processor.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            seconds += times.user + times.system
    return seconds


async def watch(fleet: Fleet, asked: "subprocess.Popen[bytes]", begun: float) -> Drained:
    """When each step was first seen."""
    account = Account.from_config(fleet.config.storage)
    table = account.rows()
    reached: dict[str, float] = {}
    answered, deadline = 0.0, now() + PATIENCE_S
    try:
        while fleet.alive() or not answered:
            with suppress(StorageUnavailable):  # one call without an answer must not throw all rounds away
                if not reached and await table.query(REQUESTS, timeout=5):
                    reached["command"] = now()
                control = await control_of(account)
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
    refuse_failure(fleet, asked)
    reached.setdefault("exit", now())
    times = [begun, *(reached[name] for name in PHASES)]
    return Drained(tuple(max(end - start, 0.0) for start, end in pairwise(times)), answered)


def wait(fleet: Fleet, asked: "subprocess.Popen[bytes]", begun: float) -> Drained:
    """Until the command and all processors have ended."""
    deadline = now() + PATIENCE_S
    while fleet.alive() or asked.poll() is None:
        if now() > deadline:
            raise SystemExit(f"Not drained within {PATIENCE_S:.0f} s.")
        time.sleep(LOOK_S)
    took = now() - begun
    refuse_failure(fleet, asked)
    return Drained((), took)


def refuse_failure(fleet: Fleet, asked: "subprocess.Popen[bytes]") -> None:
    """End the script if the command or a processor has failed."""
    if asked.wait() != 0 or set(fleet.exit_codes(1).values()) != {0}:
        raise SystemExit(f"The drain failed: {asked.returncode}, {fleet.exit_codes(1)}")


def has_taken(control: Control, step: str) -> bool:
    """Whether the drain has come so far; a processor of an older version tells by the same history."""
    return control.drain is not None and step in control.drain.history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds: to see that it works")
    parser.add_argument("--rounds", type=int, help="how many rounds; 10 without it")
    parser.add_argument("--cold", action="store_true", help="all rows at once, and drain when they are read")
    parser.add_argument("--stages", type=int, default=LONGER_STAGES, help="of the longer job; 2: none")
    parser.add_argument("--beside", type=Path, help="another checkout, to take turns with")
    chosen = parser.parse_args()
    started = time.monotonic()
    other = chosen.beside.absolute() if chosen.beside else None
    show(
        measure(chosen.quick, other, chosen.rounds, cold=chosen.cold, stages=chosen.stages), time.monotonic() - started
    )
