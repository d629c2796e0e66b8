"""What `python -m simulator` does: print the history of one seed, or a summary of many seeds."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from samza_azure.group.timing import Timing
from simulator.world import FailOver, Result, draw, play

#: The faults that end a process.
KILLS = ("crash", "crash, other id", "container dies")
#: Without a number of hours the seed determines the length: some minutes of the fleet's time.
HOUR_S = 3600.0


@dataclass(slots=True)
class Tally:
    """The results of many seeds."""

    seeds: int = 0
    hours: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    alone: int = 0  # deaths without other faults


def simulate(
    say: Callable[[str], None], *, seed: int | None = None, processors: int | None = None, hours: float | None = None
) -> bool:
    """Play one seed, a fresh one if none is given, and print what happened. True: nothing was violated."""
    if seed is None:
        seed = Random().randrange(1 << 32)
    scenario = draw(seed, processors=processors, fault_s=hours * HOUR_S if hours else None)
    say(f"seed {seed}: {scenario.processors} processors, {scenario.sources} + {scenario.counts} tasks,")
    say(f"profile {scenario.profile}, faults: {', '.join(scenario.faults) or 'none but the network'}")
    result = play(scenario)
    for line in result.history:
        say(line)
    for name, count in sorted(result.seen.items()):
        say(f"{count:9}  {name}")
    say(verdict(result, command(seed, processors, hours)))
    return result.violation is None


def simulate_job(
    say: Callable[[str], None],
    job: str,
    profile: str,
    timing: Timing,
    *,
    processors: int,
    seeds: Iterable[int],
    hours: float | None = None,
) -> bool:
    """Simulate a job's own fleet, and print what a planner wants to know. Return True if nothing was violated."""
    tally, worst = Tally(), dict[str, FailOver]()
    for seed in seeds:
        drawn = draw(seed, processors=processors, fault_s=hours * HOUR_S if hours else None)
        result = play(replace(drawn, profile=profile, timing=timing))
        options = f" --hours {hours:g}" if hours else ""
        replay = f"python -m simulator {shlex.quote(job)} --seed {seed} --seeds 1 --processors {processors}{options}"
        tally.seeds, tally.hours = tally.seeds + 1, tally.hours + result.seconds / HOUR_S
        tally.seen.update(result.seen)
        if result.violation is not None:
            say(verdict(result, replay))
            return False
        lost = result.fail_over
        tally.alone += lost is not None
        took = f"; {lost.of} died: {lost.seconds:.1f} s" if lost is not None else ""
        say(f"seed {seed}: {result.seconds / 60:.0f} minutes, {drawn.style}{took}")
        if lost is not None and (lost.of not in worst or lost.seconds > worst[lost.of].seconds):
            worst[lost.of] = lost
    for line in summary(tally, worst, processors, timing):
        say(line)
    return True


def summary(tally: Tally, worst: Mapping[str, FailOver], processors: int, timing: Timing) -> list[str]:
    """The results of a job's histories, all of them without a violation."""
    faults = {name.removeprefix("fault "): count for name, count in tally.seen.items() if name.startswith("fault ")}
    kills = sum(count for name, count in faults.items() if name in KILLS)
    seen = [f"{each.seconds:.1f} s of {each.of} (at most {each.bound:.1f} s)" for each in worst.values()]
    dead = f"heartbeat {timing.heartbeat_s:g} s, dead after {timing.heartbeat_timeout_s:g} s"
    return [
        f"{tally.seeds} histories, {60 * tally.hours:.0f} minutes of a fleet of {processors}; {dead}.",
        f"worst fail-over seen  {', '.join(seen) or 'no processor died alone'}",
        f"kills                 {kills + tally.alone}, beside {sum(faults.values()) - kills} other faults",
        f"rows checked          {tally.seen['rows checked']:,}: lost 0, doubled 0",
    ]


def play_all(seeds: Iterable[int], say: Callable[[str], None], until: Callable[[], bool]) -> Tally:
    """Play seeds until the time is over. Print each violation at once, with the command that replays it."""
    tally = Tally()
    for seed in seeds:
        if until():
            break
        result = play(draw(seed))
        tally.seeds += 1
        tally.hours += result.seconds / HOUR_S
        tally.seen.update(result.seen)
        if result.violation is not None:
            tally.failed[seed] = result.violation
            say(verdict(result, command(seed)))
    return tally


def command(seed: int, processors: int | None = None, hours: float | None = None) -> str:
    """The command that replays a seed."""
    options = f"{f' --processors {processors}' if processors else ''}{f' --hours {hours:g}' if hours else ''}"
    return f"python -m simulator --seed {seed}{options}"


def verdict(result: Result, replay: str) -> str:
    """The result in one or two lines."""
    if result.violation is None:
        return f"Nothing was violated in {result.seconds / 60:.0f} simulated minutes."
    return f"{result.violation}\n    replay: {replay}"
