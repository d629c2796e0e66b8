"""The games of the simulator that a mutant is shown: pieces of a fleet by themselves, and fleets.

A game finds a mutant only if one of the invariants is broken that `docs/invariants.md` states. That the simulator
itself stumbles over a mutant says nothing about what users would notice, so it does not count.
"""

from dataclasses import dataclass
from random import Random

#: How many games there are of each kind: pieces are short, fleets are not.
PIECES, FLEETS = 6, 8
_KINDS = ("dense", "draw", "wide")


@dataclass(frozen=True, slots=True)
class Game:
    """A piece by its name, or a kind of fleet; and the seed."""

    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.seed}"

    @classmethod
    def of(cls, text: str) -> "Game":
        """As it was written."""
        kind, _, seed = text.rpartition("/")
        return cls(kind, int(seed))

    def play(self) -> str | None:
        """What an invariant says about it; None if none is broken."""
        from simulator import scenario
        from simulator.ledger import INVARIANTS, Violation
        from simulator.world import play
        from tests.sim.pieces.examine import CHECKS

        if self.kind in _KINDS:
            said = play(getattr(scenario, self.kind)(self.seed)).violation
        else:
            try:
                CHECKS[self.kind](Random(f"alone {self.kind} {self.seed}"))
                said = None
            except Violation as error:
                said = str(error)
        return said if said is not None and said.partition(":")[0] in INVARIANTS else None


def games(first: int) -> list[Game]:
    """What is played, from this seed on."""
    from tests.sim.pieces.examine import CHECKS

    pieces = [Game(name, first + number) for name in CHECKS for number in range(PIECES)]
    return pieces + [Game(kind, first + number) for number in range(FLEETS) for kind in _KINDS]
