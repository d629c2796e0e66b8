"""Fleets with doorbells, of which some are lost, late, doubled, false or hostile: all invariants hold as ever."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from samza_azure.group import bells, learn
from samza_azure.group.view import Leadership
from simulator.scenario import belled
from simulator.world import Result, World, play

#: What has to happen in the seeds below, and at least how often.
FLOORS = {
    "bell, lost": 20,
    "bell, late": 20,
    "bell, false": 15,
    "bell, hostile": 500,
    "take-over after a bell": 10,
    "marked dead by a bell": 8,
}


def played(seed: int) -> Result:
    result = play(belled(seed))
    assert result.violation is None, "\n".join(result.history)
    return result


def test_a_fleet_with_bells() -> None:
    seen = played(3).seen
    assert all(seen[what] for what in FLOORS), f"it shows too little: {seen}"


@pytest.mark.long
def test_fleets_with_bells() -> None:
    seen = sum((played(seed).seen for seed in range(13) if seed != 3), Counter[str]())
    assert all(seen[what] >= floor for what, floor in FLOORS.items()), seen


@pytest.mark.long
def test_fresh_fleets_with_bells_find_nothing() -> None:
    first = Random().randrange(1 << 31)
    print(f"fresh seeds of simulator.scenario.belled from {first}")
    for seed in range(first, first + 10):
        played(seed)


class Calm(World):
    """A fleet to which nothing happens. It counts the calls of five minutes."""

    made = 0

    async def _play(self) -> None:
        for number in range(self.scenario.processors):
            self.start(f"p{number}")
        await self._wait(60.0)
        before = self.ledger.cost.calls
        await self._wait(300.0)
        self.made = self.ledger.cost.calls - before


@pytest.mark.parametrize("profile", ["eco", pytest.param("default", marks=pytest.mark.long)])
def test_bells_cost_a_calm_fleet_no_calls(profile: str) -> None:
    made = {}
    for has_bells in (True, False):
        world = Calm(replace(belled(0), profile=profile, processors=5, lost=0.0, clocks=False, bells=has_bells))
        assert world.play().violation is None
        made[has_bells] = world.made
    assert 100 < made[True] <= 1.01 * made[False], made


def marked_at_once(patch: pytest.MonkeyPatch) -> None:
    """A member is marked dead because of the bell alone."""
    patch.setattr(bells, "member_gone", lambda view, row, age: row.incarnation in view.others.gone)


def said_at_once(patch: pytest.MonkeyPatch) -> None:
    """Who takes over because of a bell says at once that it leads."""
    shown = learn._shown

    def _shown(view: Any, leading: Leadership, action: Any, etag: str, sent_at: float, now: float) -> None:
        shown(view, leading, action, etag, sent_at, now)
        if view.others.gone:
            leading.free_from = min(leading.free_from, now)

    patch.setattr(learn, "_shown", _shown)


@pytest.mark.long
@pytest.mark.parametrize(("mistake", "killed_by"), [(marked_at_once, "S10"), (said_at_once, "Leader")])
def test_a_mistake_with_bells_breaks_an_invariant(
    mistake: Any, killed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    found = (play(belled(seed)).violation or "" for seed in range(40) if seed % 3 < 2)
    assert any(violation.startswith(killed_by) for violation in found)
