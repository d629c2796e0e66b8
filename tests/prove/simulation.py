"""Many seeds, for as long as it is given: python tests/prove/simulation.py [--from SEED] [--seconds S] [--jobs N]
[--branches].

Plays dense fleets, three to five processors of the default profile to which everything happens all the time
(`simulator/scenario.py:dense`). Every fourth fleet is a *wide* one: of any style, 1 to 12 processors, any profile,
often with wrong clocks, with faults that last, a service that throttles, and sources that pause
(`simulator/scenario.py:wide`). Of sixteen, one has processors that are told that they will go and then die (`noticed`),
and one keeps replicas (`replicated`). With --every-style storms and mild trouble of the usual sizes are played, too.
Before each fleet the pieces that it is made of are tried by themselves (`tests/sim/pieces`).

Every second dense or wide fleet is steered: its faults wait for the steps of the protocol that they have met least
often so far. A steered wide one has the scenario of a fleet that met a branch of the pure packages which few have met,
with dice of its own.

Prints what was exercised, beside the bars, how often each fault has met each step of the protocol, and which branches
(`tests/mutation/branches.py`) few fleets have met (or, with --branches, how many have met each). That a branch was met
does not say that anybody would notice if it were wrong; `drawn_mutants.py` does. Ends with 1 if anything was violated,
with the command that replays each seed; and, after a run of full length, if a bar was missed. A shorter one only says
how far it came.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.mutation.branches import BRANCHES, Branch

# isort: split
# What follows imports the packages whose branches are counted.

from simulator.scenario import FAULTS, Scenario, dense, draw, noticed, replicated, wide
from simulator.simulate import HOUR_S, Tally, verdict
from simulator.steps import ENOUGH, IMPOSSIBLE, missing, pairs, table
from simulator.world import play
from tests.sim.pieces.examine import examine

#: A run of full length takes less than seven minutes.
FULL_S = 400.0
#: The kinds of sixteen fleets in a row.
KINDS = (
    *("dense", "dense", "noticed", "wide"),
    *("dense", "dense", "dense", "wide"),
    *("dense", "dense", "replicated", "wide"),
    *("dense", "dense", "dense", "wide"),
)
#: A branch that fewer wide fleets have met is rare.
FEW = 3
#: So many of the branches that the fewest fleets have met are printed.
FEWEST = 10
#: Every second seed is steered to this many pairs of a fault and a step, those that have met least often so far.
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
    "control write refused LeaseLost": ("those under a lease that had run out", 1),
    "late take-over refused": ("take-over writes that landed too late", 5),
    "late take-over accepted": ("those that landed after they were given up", 3),
    "phase FAILED": ("runs that failed", 25),
    "failed run is resumed, and drains on": ("runs that failed while they drained, and were resumed", 15),
    "barrier TIMEOUT": ("versions that somebody did not adopt in time", 5),
    "outage access": ("calls that were refused for want of a right", 100),
    "outage throttled": ("calls that were throttled", 100),
    "idle record": ("records of a source without new rows", 100),
    "wide fleet": ("wide fleets", 40),
    "noticed fleet": ("fleets whose processors are told that they will go", 10),
    "replicated fleet": ("fleets that keep replicas", 10),
    "replica taken": ("take-overs from a replica", 50),
    # What is judged seldom could be judged never.
    "judged Bound after": ("deaths in calm whose bound was judged", 40),
    "judged Bound after a container was lost": ("containers lost in calm", 10),
    "judged Bound of": ("vacancies whose bound was judged under faults", 10),
    "judged Bound of the leadership": ("those of the leadership", 1),
    "judged Cost in calm": ("calm times whose calls were counted", 40),
    "judged Idle in calm": ("processors that came back in calm and had too few tasks", 20),
    "judged Leader": ("turns of a processor that says it leads", 100_000),
    "judged Least moves": ("versions whose moves were judged", 2_500),
    "judged Notice": ("deaths in calm whose notice was judged", 1),
    "judged Warm": ("moves that had to wait for a replica", 5),
    "judged Owned": ("versions whose owners were judged", 4_000),
    "judged Vandal": ("calm times in which strangers wrote into the table", 40),
    "judged Overlap": ("starts while the former owner knows the task", 20),
    "judged Patience": ("tasks that waited for their former owners", 1_500),
    "judged interruption": ("tasks that waited to be started again after an interruption", 10),
}


def seeds(first: int, step: int, every_style: bool) -> Iterator[int]:
    """Those from the first on, each `step`-th, that are of the right style."""
    return (seed for seed in count(first, step) if every_style or draw(seed).style == "busy")


@dataclass(slots=True)
class Met:
    """By how many fleets each branch was met."""

    fleets: list[int] = field(default_factory=lambda: [0] * len(BRANCHES.names))
    wide: list[list[int]] = field(default_factory=lambda: [[] for _ in BRANCHES.names])  # seeds of their scenarios

    def add_fleet(self, of: int | None) -> None:
        """What one fleet has met; a wide one has the scenario of this seed."""
        for number, times in enumerate(BRANCHES.take()):
            self.fleets[number] += times > 0
            if times and of is not None and len(self.wide[number]) < FEW:
                self.wide[number].append(of)

    def scenario(self, seed: int) -> int:
        """The seed of a scenario that met what few have met."""
        dice, rare = Random(f"steering {seed}"), [known for known in self.wide if 0 < len(known) < FEW]
        return dice.choice(dice.choice(rare)) if rare else seed

    def join(self, other: "Met") -> None:
        """With what another process has met."""
        self.fleets = [a + b for a, b in zip(self.fleets, other.fleets, strict=True)]


def job(first: int, step: int, seconds: float, every_style: bool) -> tuple[Tally, Met]:
    end, tally, met = time.monotonic() + seconds, Tally(), Met()
    for number, seed in enumerate(seeds(first, step, every_style)):
        if time.monotonic() > end:
            break
        examine(seed)
        BRANCHES.take()  # what the pieces have met
        kind = KINDS[number % len(KINDS)]
        is_steered = kind in ("dense", "wide") and (number + number // 4) % 2 == 1
        of = seed if kind == "wide" else None
        if is_steered and of is not None:
            of = met.scenario(seed)
        rare = rarest(tally.seen) if is_steered else ()
        result = play(drawn(seed, kind, of, rare))
        met.add_fleet(of)
        tally.seeds += 1
        tally.hours += result.seconds / HOUR_S
        tally.seen.update(result.seen)
        tally.seen.update({f"{kind} fleet": 1, f"fleet of style {result.scenario.style}": 1})
        if result.violation is not None:
            tally.failed[seed] = result.violation
            print(verdict(result, replay(seed, kind, of, rare)), flush=True)
    return tally, met


def drawn(seed: int, kind: str, of: int | None, rare: Rare) -> Scenario:
    """What is played with the dice of this seed: its own scenario, dense if it is busy; a wide one, that of `of`; or
    one of another kind.
    """
    if kind in OTHERS:
        return OTHERS[kind](seed)
    own = dense(seed) if draw(seed).style == "busy" else draw(seed)
    return replace(own if of is None else replace(wide(of), seed=seed), rare=rare)


#: Kinds of fleets that are drawn by themselves and not steered.
OTHERS = {"noticed": noticed, "replicated": replicated}


def rarest(seen: Mapping[str, int]) -> Rare:
    """The pairs of a fault that can be done to the fleet and a step that have met least often."""
    met: Counter[tuple[str, str]] = Counter()
    for pair, times in pairs(seen).items():
        fault, _, step = pair.partition(" / ")
        fault = fault.partition(" of ")[0]
        if fault in FAULTS:
            met[fault, step] += times
    return tuple(pair for pair, _ in sorted(met.items(), key=lambda each: each[1])[:RARE])


def replay(seed: int, kind: str, of: int | None, rare: Rare) -> str:
    """What plays a seed again."""
    if kind in OTHERS:
        return f"tests/prove/simulation.py --from {seed} --kind {kind}"
    wide, steered = f" --wide {of}" if of is not None else "", ";".join(map("/".join, rare))
    return f"tests/prove/simulation.py --from {seed}{wide} --rare '{steered}'"


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


def show_branches(met: Met, *, every: bool) -> None:
    """Print the branches that the fewest fleets have met, or every branch."""
    fleets = dict[Branch, int]()  # what the same line does twice counts together
    for number, branch in enumerate(BRANCHES.names):
        fleets[branch] = fleets.get(branch, 0) + met.fleets[number]
    print(f"a fleet has met {sum(times > 0 for times in fleets.values())} of {len(fleets)} branches")
    known = sorted((times, str(branch)) for branch, times in fleets.items() if times or every)
    title = "met by so many fleets:" if every else "met by the fewest fleets:"
    print(title, *(f"{times} {branch}" for times, branch in (known if every else known[:FEWEST])), sep="\n  ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=None, help="the first seed; fresh ones without it")
    parser.add_argument("--seconds", type=float, default=FULL_S)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rare", help="replays the one seed whose rare pairs these are; may be empty")
    parser.add_argument("--wide", type=int, help="the seed of the wide scenario that is replayed")
    parser.add_argument("--kind", choices=[*OTHERS], help="the kind of the one fleet that is replayed")
    parser.add_argument("--branches", action="store_true", help="print how many fleets have met each branch")
    parser.add_argument("--every-style", action="store_true", help="storms and mild trouble, too; no bars")
    asked = parser.parse_args()
    if asked.rare is not None or asked.kind is not None:
        pairs = (each.partition("/") for each in (asked.rare or "").split(";") if each)
        rare = tuple((fault, step) for fault, _, step in pairs)
        kind = asked.kind or ("dense" if asked.wide is None else "wide")
        result = play(drawn(asked.first, kind, asked.wide, rare))
        print(*result.history, verdict(result, replay(asked.first, kind, asked.wide, rare)), sep="\n")
        return 1 if result.violation else 0
    first = asked.first if asked.first is not None else Random().randrange(1 << 31)
    print(f"seeds from {first}, {asked.seconds:.0f} s, {asked.jobs} jobs", flush=True)
    with ProcessPoolExecutor(asked.jobs) as pool:
        jobs = [
            pool.submit(job, first + number, asked.jobs, asked.seconds, asked.every_style)
            for number in range(asked.jobs)
        ]
        tallies, met = [], Met()
        for each in jobs:
            tally, branches = each.result()
            tallies.append(tally)
            met.join(branches)
    seen = sum((tally.seen for tally in tallies), Counter())
    for name, times in sorted(seen.items()):
        if not name.startswith("met "):
            print(f"{times:9}  {name}")
    show_branches(met, every=asked.branches)
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
