"""`samza-azure simulate`: one seed, told; or as many seeds as are asked for."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from samza_azure.sim.world import Result, draw, play

#: Without a number of hours a simulation is as long as its seed says, some minutes of the fleet's time.
HOUR_S = 3600.0


@dataclass(slots=True)
class Tally:
    """What came of many seeds."""

    seeds: int = 0
    hours: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)


def simulate(
    say: Callable[[str], None], *, seed: int | None = None, processors: int | None = None, hours: float | None = None
) -> bool:
    """Play one seed, a fresh one if none is given, and tell what happened. True: nothing was violated."""
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


def play_all(seeds: Iterable[int], say: Callable[[str], None], until: Callable[[], bool]) -> Tally:
    """Play seeds until it is time to stop. Each violation is told at once, with the command that replays it."""
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
    """What replays a seed."""
    options = f"{f' --processors {processors}' if processors else ''}{f' --hours {hours:g}' if hours else ''}"
    return f"samza-azure simulate --seed {seed}{options}"


def verdict(result: Result, replay: str) -> str:
    """One or two lines: what came of it."""
    if result.violation is None:
        return f"Nothing was violated in {result.seconds / 60:.0f} simulated minutes."
    return f"{result.violation}\n    replay: {replay}"
