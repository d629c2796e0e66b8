"""What the fleet is made of, each piece by itself, for fresh seeds."""

from random import Random

import pytest

from simulator.ledger import Violation

from .pieces import examine as pieces


def test_fresh_seeds_find_nothing() -> None:
    first = Random().randrange(1 << 32)
    for seed in range(first, first + 12):
        print(f"seed {seed}")
        pieces.examine(seed)


def test_a_piece_that_goes_wrong_is_named_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbles(dice: Random) -> None:
        raise KeyError("p1")

    monkeypatch.setitem(pieces.CHECKS, "rows", stumbles)
    with pytest.raises(Violation, match=r"Form: rows alone, seed 7: KeyError: 'p1'"):
        pieces.examine(7)
