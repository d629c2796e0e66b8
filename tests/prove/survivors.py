"""What a review changed without anything noticing, shown to the general simulator, which knows none of it.

python tests/prove/survivors.py [--from SEED] [--seconds 60] [--jobs 2] [--only NAME …]

Each mistake of `SURVIVORS` is made alone, with every other fence in place, and plays scenarios that only a seed
determines: dense fleets, fleets of every style, wide fleets, in turn. It is killed by the first in which an invariant
is broken, if none is broken in the same scenario without the mistake. After `--seconds` of processor time the pieces
that a fleet is made of are tried by themselves (`tests/sim/pieces`). A mistake that survives both must be in HIDDEN,
which names what hides it; else the program ends with 1. The named mutants of `tests/sim/mutants.py` show the same
mistakes in small fleets that are chosen for them, in seconds, as a part of `make test`.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from simulator.ledger import Violation
from simulator.scenario import Scenario, dense, draw, wide
from simulator.world import play
from tests.sim import mistakes_of_others as others
from tests.sim import mistakes_of_the_review as review
from tests.sim.mutants import Mistake
from tests.sim.pieces.examine import examine

#: As the review named them, in its order.
SURVIVORS: dict[str, Mistake] = {
    "released reported while the loser works": review.released_while_it_works,
    "the gainer waits forever": review.the_gainer_waits_for_ever,
    "FLUSH takes the last reported end": review.flush_takes_the_last_end,
    "the drain believes any generation": review.drain_believes_any_generation,
    "draining moves tasks by choice": review.draining_moves_tasks,
    "dead only after 3 timeouts": others.dead_after_three_timeouts,
    "tasks start without a permit": review.starts_without_a_permit,
    "`after` never filled": others.predecessors_are_forgotten,
    "churn never rises": review.churn_never_rises,
    "no successors named": review.no_successors_are_named,
    "`first` never cleared": review.first_is_never_cleared,
    "ages survive the observer's pause": review.ages_survive_a_pause,
    "ages survive its outage": review.ages_survive_an_outage,
    "clean-up before the others have left": review.cleans_up_at_once,
    "append compares no bytes": review.append_compares_no_bytes,
    "stop keeps the freeze": review.a_stop_keeps_the_freeze,
    "leader suspected 3 times late": others.a_leader_is_suspected_late,
    "lease believed 30 s too long": review.the_lease_is_believed_too_long,
    "no look for a later blob": review.no_look_for_a_later_blob,
}
#: What no simulation notices: the fence that hides it, and the test that shows it without that fence.
HIDDEN = {
    "lease believed 30 s too long": "each write names the lease and the ETag; without both S1 notices "
    "(`no deadline of the lease` in tests/sim/mutants.py)"
}
#: Pieces are tried for this part of the time that fleets get.
PIECES = 1 / 3


def scenario(seed: int) -> Scenario:
    """What a seed determines: of four fleets two are dense, one is of any style, and one is wide."""
    return [dense, draw, dense, wide][seed % 4](seed)


def fleet(mistake: Mistake | None, seed: int) -> str | None:
    """The invariant that is broken in this fleet, if one is."""
    with pytest.MonkeyPatch.context() as patch:
        if mistake is not None:
            mistake(patch)
        return play(scenario(seed)).violation


def piece(mistake: Mistake | None, seed: int) -> str | None:
    """The same, of the pieces by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        if mistake is not None:
            mistake(patch)
        try:
            examine(seed)
        except Violation as error:
            return str(error)
    return None


def hunt(name: str, first: int, seconds: float) -> str:
    """How the mistake was seen, or that it was not."""
    begun, alarms, said = time.process_time(), 0, ""
    for kind, play_one, until in (("fleet", fleet, seconds), ("piece", piece, seconds * (1 + PIECES))):
        for played, seed in enumerate(count(first), 1):
            found = play_one(SURVIVORS[name], seed)
            spent = time.process_time() - begun
            if found is not None and play_one(None, seed) is None:
                return f"{found.partition(':')[0]:10} {kind} {played:4}, {spent:5.1f} s, seed {seed}"
            alarms += found is not None
            if spent > until:
                break
        said += f"{played} {kind}s, "
    return f"survives   {said}{alarms} false alarms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="first", type=int, default=None, help="the first seed; a fresh one without it")
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time, for each at most")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(SURVIVORS))
    asked = parser.parse_args()
    first = asked.first if asked.first is not None else Random().randrange(1 << 31)
    print(f"seeds from {first}", flush=True)
    alive = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        hunted = pool.map(partial(hunt, first=first, seconds=asked.seconds), asked.only)
        for name, said in zip(asked.only, hunted, strict=True):
            print(f"{name:40} {said}", flush=True)
            if said.startswith("survives"):
                alive.append(name)
                print(f"{'':40} {HIDDEN.get(name, 'and nothing hides it')}")
    print(f"{len(asked.only) - len(alive)} of {len(asked.only)} killed")
    return 1 if set(alive) - set(HIDDEN) else 0


if __name__ == "__main__":
    sys.exit(main())
