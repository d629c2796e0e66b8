"""Which seed meets which place of the pure packages: recorded once per state of the code, and steered by coverage.

Half of the games are plain: `draw(seed)`. The other half take the scenario of a game that met a place which few have
met, and play it with other random numbers. So a place that is rare in one scenario is looked for in one where it is
less rare, without naming that scenario.
"""

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.mutation.places import ROOT, files, mark

if TYPE_CHECKING:
    from samza_azure.sim.scenario import Scenario

#: A place that fewer games have met is rare.
FEW = 3
#: The scenario of a game without a fleet: what the fleet is made of, each piece by itself. So many of these are played,
#: which are a part of each seed.
ALONE, ALONE_GAMES = -1, 100


@dataclass(frozen=True, slots=True)
class Game:
    """The scenario of one seed, played with the dice of another."""

    scenario: int
    dice: int

    def __str__(self) -> str:
        return f"{self.scenario}:{self.dice}"

    @classmethod
    def of(cls, text: str) -> "Game":
        """As it was written."""
        scenario, _, dice = text.partition(":")
        return cls(int(scenario), int(dice))

    def drawn(self) -> "Scenario":
        """What is played."""
        from samza_azure.sim.scenario import draw

        return replace(draw(self.scenario), seed=self.dice)

    def violation(self) -> str | None:
        """Play it: what is violated, if anything is."""
        from samza_azure.sim.ledger import Violation
        from samza_azure.sim.world import play
        from tests.sim.pieces.examine import examine

        if self.scenario != ALONE:
            return play(self.drawn()).violation
        try:
            examine(self.dice)
        except Violation as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class Record:
    """What each game met, and how many seconds of processor time it took with all places marked."""

    seconds: Mapping[Game, float]
    met: Mapping[str, Mapping[Game, int]]  # place -> how often in which game

    def best(self, place: str) -> list[Game]:
        """The games that meet a place, those first that do so most often for their time."""
        games = self.met.get(place, {})
        return sorted(games, key=lambda game: -(min(games[game], 50) ** 0.5) / self.seconds[game])


def record(first: int, seconds: float) -> dict[str, dict[str, object]]:
    """Play for `seconds`, in this process, which must not have imported the packages yet. Game -> its outcome."""
    met = mark()
    dice, end = Random(f"steering {first}"), time.process_time() + seconds
    found: dict[str, dict[str, object]] = {}
    known: dict[str, list[Game]] = defaultdict(list)
    for game in _games(first, dice, known):
        if time.process_time() > end:
            return found
        met.clear()
        begun = time.process_time()
        violation = game.violation()
        took = time.process_time() - begun
        assert violation is None, f"the code as it is breaks an invariant in game {game}: {violation}"
        found[str(game)] = {"seconds": took, "met": {place: times for place, times in met.items() if times}}
        for place, times in met.items():
            if times and game.scenario != ALONE:
                known[place].append(game)
    raise AssertionError


def _games(first: int, dice: Random, known: Mapping[str, list[Game]]) -> Iterator[Game]:
    for number in range(ALONE_GAMES):
        yield Game(ALONE, first + number)
    for number in range(1 << 30):
        rare = [place for place, games in known.items() if len(games) < FEW] if number % 2 else []
        if rare:
            yield Game(dice.choice(known[dice.choice(sorted(rare))]).scenario, first + number)
        else:
            yield Game(first + number, first + number)


def joined(parts: list[dict[str, dict[str, object]]]) -> Record:
    """What several processes have recorded."""
    seconds: dict[Game, float] = {}
    met: dict[str, Counter[Game]] = defaultdict(Counter)
    for name, each in (pair for part in parts for pair in part.items()):
        game = Game.of(name)
        seconds[game] = each["seconds"]  # type: ignore[assignment]
        for place, times in each["met"].items():  # type: ignore[attr-defined]
            met[place][game] = times
    return Record(seconds, met)


def kept(first: int, seconds: float) -> Path:
    """Where the record of this state of the code stands."""
    state = hashlib.sha256(f"{first} {seconds}".encode())
    pieces = sorted((ROOT / "tests/sim/pieces").rglob("*.py"))
    for path in [*files(), *sorted((ROOT / "samza_azure/sim").glob("*.py")), *pieces]:
        state.update(path.read_bytes())
    return ROOT / "build" / f"met-{state.hexdigest()[:16]}.json"


def load(path: Path) -> Record:
    """A record that was kept."""
    return joined([json.loads(path.read_text())])
