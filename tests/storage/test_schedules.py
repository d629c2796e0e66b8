"""A table's actors in many orders of their calls; in all orders, where that is possible.

`tests/prove/schedules.py` plays far more. A failure prints the schedule that shows it.
"""

from collections.abc import Callable

import pytest

from tests.storage import test_segments_mutants as mutants
from tests.storage.schedule_plays import LONG, SHORT
from tests.storage.schedules import Explored, Play, Violation, draw, explore

PLAYS = {play.name: play for play in LONG}


@pytest.mark.parametrize("play", LONG[::3], ids=lambda play: play.name)
def test_a_drawn_order(play: Play) -> None:
    assert draw(play, 1, faults=1)


def test_some_orders_of_each_short_play() -> None:
    for play in SHORT[:4]:
        assert explore(play, faults=1, limit=4).states > 30


@pytest.mark.long
@pytest.mark.parametrize("play", SHORT[::5], ids=lambda play: play.name)
def test_every_order_with_few_changes(play: Play) -> None:
    found = explore(play, limit=1_000)
    assert found.changes is None or found.changes >= 2


def test_a_schedule_can_be_played_again() -> None:
    play = PLAYS["a large zombie"]
    assert draw(play, 5) == draw(play, 5)
    found = explore(SHORT[0], limit=3)
    assert found == explore(SHORT[0], limit=3)
    assert found == Explored(3, found.states, changes=1)


@pytest.mark.parametrize(
    ("mistake", "play", "seed"),
    [
        (mutants.staged_rows_count, "hours", 0),
        (mutants.a_lock_without_an_etag, "readers, garbage and a REPLACE", 1),
        (mutants.a_head_without_an_etag, "two REPLACEs", 1),
        (mutants.numbers_are_given_twice, "two appends", 0),
        (mutants.nothing_is_carried, "a REPLACE", 0),
        (mutants.an_old_place_is_good_enough, "a life that is ended twice", 0),
    ],
)
def test_a_fence_that_is_missing_is_missed(mistake: Callable[[pytest.MonkeyPatch], None], play: str, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        with pytest.raises(Violation, match=f"seed {seed}"):
            draw(PLAYS[play], seed)
