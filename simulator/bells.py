"""Doorbells of a simulated fleet: when a process ends, who is connected to it hears so, soon, late, twice or never.

Strangers may forge them: an end that is none, or as many ends and rings as they like.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from samza_azure.group.rows import Bell
from simulator.life import Life

#: The shares of bells that are lost, late and doubled.
LOST, LATE, DOUBLED = 0.15, 0.15, 0.15
#: How long a bell takes, in seconds, and one that is late.
SOON_S, LATE_S = (0.001, 0.06), (0.5, 20.0)
#: So many bells come from a hostile stranger at once.
HOSTILE = 50


class SimulatedBells:
    """The connections of one life. Each is there as soon as it is wanted."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        self.held: Mapping[str, Bell] = {}
        self._ring = ring

    def hold(self, wanted: Mapping[str, Bell]) -> None:
        self.held = wanted

    def ring(self) -> None:
        for incarnation in self.held:
            self._ring(incarnation)


class Network:
    """What goes over these connections."""

    def __init__(self, seed: int, lives: Mapping[str, Life], seen: Counter[str], note: Callable[[str], None]) -> None:
        self._dice, self._lives, self._seen, self._note = Random(f"bells {seed}"), lives, seen, note
        self._of: dict[str, SimulatedBells] = {}

    def of(self, name: str) -> SimulatedBells:
        """The connections of the next life of this name."""
        self._of[name] = SimulatedBells(self.ring)
        return self._of[name]

    def ended(self, life: Life) -> None:
        """The process of this life has ended: its port is closed."""
        incarnation = life.processor.view.incarnation
        for other in self._alive():
            if other is not life and incarnation in self._of[other.name].held:
                self._send(other, "end", incarnation)

    def ring(self, incarnation: str) -> None:
        """A processor has rung at this one."""
        for other in self._alive():
            if other.processor.view.incarnation == incarnation:
                self._send(other, "ring", "")

    def lie(self) -> int:
        """A connection to a live process is closed and refused. Return how many hear of it: its successors may all."""
        dice = self._dice
        pairs = [
            (other, incarnation)
            for other in self._alive()
            for incarnation in self._of[other.name].held
            if any(each.processor.view.incarnation == incarnation for each in self._alive())
        ]
        if not pairs:
            return 0
        _, incarnation = dice.choice(pairs)
        hearers = [other for other, of in pairs if of == incarnation]
        told = hearers if dice.random() < 0.5 else [dice.choice(hearers)]
        for other in told:
            self._seen["bell, false"] += 1
            self._note(f"{other.name} hears that the live {incarnation[:8]} has ended")
            other.hear_end(incarnation)
        return len(told)

    def attack(self) -> int:
        """Somebody forges bells at one processor: rings, and the end of everybody."""
        dice, alive = self._dice, self._alive()
        if not alive:
            return 0
        victim = dice.choice(alive)
        lives = [each.processor.view.incarnation for each in self._lives.values()]
        self._note(f"hostile bells at {victim.name}")
        for _ in range(HOSTILE):
            self._seen["bell, hostile"] += 1
            if dice.random() < 0.5:
                victim.hear_ring()
            else:
                victim.hear_end(dice.choice(lives))
        return len(lives)

    def _send(self, to: Life, what: str, incarnation: str) -> None:
        dice, seen = self._dice, self._seen
        luck = dice.random()
        if luck < LOST:
            seen["bell, lost"] += 1
            return
        is_late = luck < LOST + LATE
        seen["bell, late" if is_late else "bell, in time"] += 1
        for _ in range(2 if dice.random() < DOUBLED else 1):
            delay = dice.uniform(*(LATE_S if is_late else SOON_S))
            if what == "end":
                to.supervisor.at(delay, lambda: to.hear_end(incarnation))
            else:
                to.supervisor.at(delay, to.hear_ring)

    def _alive(self) -> list[Life]:
        return [life for life in self._lives.values() if life.supervisor.alive]


__all__ = ["Network", "SimulatedBells"]
