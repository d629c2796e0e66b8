"""Many seeds, for as long as it is given: python tests/prove/simulation.py [--from SEED] [--seconds S] [--jobs N].

Plays busy fleets, five processors of the default profile to which everything happens all the time; with --every-style
also storms and mild trouble, of all profiles and sizes. Every second fleet is steered: its faults wait for the steps of
the protocol that they have met least often so far. Before each fleet the pieces that it is made of are tried by
themselves (`tests/sim/pieces`). Prints what was exercised, beside the bars, and how often each
fault has met each step of the protocol. Ends with 1 if anything was violated, with the command that replays each seed;
and, after a run of full length, if a bar was missed. A shorter one only says how far it came.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parents[2]))

from samza_azure.sim.scenario import FAULTS, draw
from samza_azure.sim.simulate import HOUR_S, Tally, command, verdict
from samza_azure.sim.steps import ENOUGH, IMPOSSIBLE, missing, pairs, table
from samza_azure.sim.world import play
from tests.sim.pieces.examine import examine

#: A run of full length takes less than six minutes.
FULL_S = 340.0
#: Every second seed is steered to so many pairs of a fault and a step that have met least often so far.
RARE = 24
Rare: TypeAlias = tuple[tuple[str, str], ...]
#: What a run of full length must have exercised, and what it is called in the counts.
BARS = {
    "take-over": ("take-overs of the leadership", 10_000),
    "task moved": ("hand-overs of a task", 30_000),
    "phase DRAINED": ("drains to their end", 2_000),
    "log with live readers rolled": ("rollings of a log with live readers", 1_000),
    # Rare: some tens of seeds have one.
    "blob forgotten": ("blobs that no reader needs deleted", 150),
    "control write refused": ("writes of the control blob refused, for whatever reason", 20),
    "phase FAILED": ("runs that failed", 5),
}


def seeds(first: int, step: int, every_style: bool) -> Iterator[int]:
    """Those from the first on, each `step`-th, that are of the right style."""
    return (seed for seed in count(first, step) if every_style or draw(seed).style == "busy")


def job(first: int, step: int, seconds: float, every_style: bool) -> Tally:
    end, tally = time.monotonic() + seconds, Tally()
    for number, seed in enumerate(seeds(first, step, every_style)):
        if time.monotonic() > end:
            break
        examine(seed)
        rare = rarest(tally.seen) if number % 2 else ()
        result = play(replace(draw(seed), rare=rare))
        tally.seeds += 1
        tally.hours += result.seconds / HOUR_S
        tally.seen.update(result.seen)
        if result.violation is not None:
            tally.failed[seed] = result.violation
            print(verdict(result, replay(seed, rare)), flush=True)
    return tally


def rarest(seen: Mapping[str, int]) -> Rare:
    """The pairs of a fault that can be done to the fleet and a step that have met least often."""
    met: Counter[tuple[str, str]] = Counter()
    for pair, times in pairs(seen).items():
        fault, _, step = pair.partition(" / ")
        fault = fault.partition(" of ")[0]
        if fault in FAULTS:
            met[fault, step] += times
    return tuple(pair for pair, _ in sorted(met.items(), key=lambda each: each[1])[:RARE])


def replay(seed: int, rare: Rare) -> str:
    """What plays a seed again."""
    if not rare:
        return command(seed)
    return f"tests/prove/simulation.py --from {seed} --rare '{';'.join(map('/'.join, rare))}'"


def exercised(seen: Mapping[str, int], name: str) -> int:
    """How often; of what is counted by reasons, for all of them."""
    return sum(times for each, times in seen.items() if each == name or each.startswith(f"{name} "))


def missed(seen: Mapping[str, int]) -> list[str]:
    """Says how far each bar and the rarest pairs are reached; what is missed."""
    print(*table(seen), sep="\n")
    for pair, reason in IMPOSSIBLE.items():
        print(f"impossible: {pair}: {reason}")
    rarest = sorted(pairs(seen).items(), key=lambda pair: pair[1])[:5]
    print(f"the rarest of {len(pairs(seen))} pairs:", ", ".join(f"{pair}: {times}" for pair, times in rarest))
    print(f"{'exercised':40} {'times':>9} {'bar':>9}")
    for name, (title, bar) in BARS.items():
        print(f"{title:40} {exercised(seen, name):9,} {bar:9,}")
    print(f"{'the rarest pair of a fault and a step':40} {rarest[0][1]:9,} {ENOUGH:9,}")
    few = {title: times for name, (title, bar) in BARS.items() if (times := exercised(seen, name)) < bar}
    return [f"{title}: {times}" for title, times in few.items()] + [
        f"{fault} has met too seldom ({ENOUGH} is enough): {', '.join(steps)}" for fault, steps in missing(seen).items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=None, help="the first seed; fresh ones without it")
    parser.add_argument("--seconds", type=float, default=FULL_S)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rare", help="replays the one seed whose rare pairs these are")
    parser.add_argument("--every-style", action="store_true", help="storms and mild trouble, too; no bars")
    asked = parser.parse_args()
    if asked.rare is not None:
        rare = tuple((fault, step) for fault, _, step in (each.partition("/") for each in asked.rare.split(";")))
        result = play(replace(draw(asked.first), rare=rare))
        print(*result.history, verdict(result, replay(asked.first, rare)), sep="\n")
        return 1 if result.violation else 0
    first = asked.first if asked.first is not None else Random().randrange(1 << 31)
    print(f"seeds from {first}, {asked.seconds:.0f} s, {asked.jobs} jobs", flush=True)
    with ProcessPoolExecutor(asked.jobs) as pool:
        jobs = [
            pool.submit(job, first + number, asked.jobs, asked.seconds, asked.every_style)
            for number in range(asked.jobs)
        ]
        tallies = [each.result() for each in jobs]
    seen = sum((tally.seen for tally in tallies), Counter())
    for name, times in sorted(seen.items()):
        if not name.startswith("met "):
            print(f"{times:9}  {name}")
    low = missed(seen)
    failed = {seed: text for tally in tallies for seed, text in tally.failed.items()}
    played, hours = sum(tally.seeds for tally in tallies), sum(tally.hours for tally in tallies)
    print(f"{played} seeds, {hours:.1f} simulated hours of a fleet, {len(failed)} violations")
    is_full = asked.seconds >= FULL_S and not asked.every_style
    if low:
        print(f"{'missed' if is_full else 'not reached yet'}:", *low, sep="\n  ")
    return 1 if failed or (is_full and low) else 0


if __name__ == "__main__":
    sys.exit(main())
