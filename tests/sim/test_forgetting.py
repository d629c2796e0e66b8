"""Old blobs are deleted while the run goes on, and nothing that a restore, a replay or a reader may ask for: S9."""

from dataclasses import replace
from random import Random

import pytest

from samza_azure.logs import forget
from simulator.world import World, draw


@pytest.mark.parametrize("seed", [31, pytest.param(112, marks=pytest.mark.long)])
def test_blobs_are_deleted_and_no_row_is_lost(seed: int) -> None:
    result = World(replace(draw(seed), forgets=True)).play()
    assert result.violation is None
    assert result.seen["blob forgotten"] > 20
    assert result.seen["rows checked"] > 0


def test_followers_learn_that_wrong_suspicions_are_forgotten() -> None:
    """A follower that had read of one waited twice as long for the next leader, long after the leader forgot it."""
    result = World(replace(draw(1027705687, fault_s=60.0), forgets=True)).play()
    assert result.violation is None


@pytest.mark.long  # fresh seeds of the whole fleet forget, too
def test_a_fresh_seed_finds_nothing() -> None:
    seed = Random().randrange(1 << 31)
    result = World(replace(draw(seed, fault_s=60.0), forgets=True)).play()
    assert result.violation is None, f"World(replace(draw({seed}, fault_s=60.0), forgets=True)).play()"


def test_an_owner_that_asks_no_reader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = forget.outdated
    monkeypatch.setattr("simulator.container.outdated", lambda own, readers: honest(own, []))
    result = World(replace(draw(31), forgets=True)).play()
    assert result.violation is not None
    assert result.violation.startswith("S9: ")
