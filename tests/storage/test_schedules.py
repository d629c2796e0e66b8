"""A table's actors in many orders of their calls; in all orders, where that is possible.

`tests/prove/schedules.py` plays far more. A failure prints the schedule that shows it.
"""

from collections.abc import Callable, Sequence

import pytest

from samza_azure.segments import Segment, SequenceNumber
from samza_azure.storage.transactions import MemoryTransactions, Write
from samza_azure.tables.store import publishing, reading
from tests.storage import test_segments_mutants as mutants
from tests.storage.schedule_plays import LONG, SHORT
from tests.storage.schedules import Explored, Play, Violation, draw, explore
from tests.storage.test_segments_mutants import Patch
from tests.storage.test_table_users import revoked_locks_do, what_was_read_is_carried_too

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


@pytest.mark.parametrize("listed", [0, 1, 2])
def test_marks_that_say_little_of_the_locks(monkeypatch: Patch, listed: int) -> None:
    """As if very many locks were held."""
    monkeypatch.setattr(reading, "LISTED_MAX", listed)
    for play in ("drops", "pins", "readers of garbage", "garbage that comes"):
        assert draw(PLAYS[play], listed)


def copies_that_are_not_written(patch: Patch) -> None:
    """A reader that had the table open goes on without the publish."""
    true = MemoryTransactions.transact

    def transact(rows: MemoryTransactions, writes: Sequence[Write]) -> object:
        kept = [write for write in writes if not write.key.startswith("change.")]
        answer = true(rows, kept)
        return answer if not isinstance(answer, list) else [*answer, *[""] * (len(writes) - len(kept))]

    patch.setattr(MemoryTransactions, "transact", transact)


def copies_wait_for_nobody(patch: Patch) -> None:
    """A copy for a REPLACE counts before the REPLACE does, for a reader that had the table open."""
    patch.setattr(reading, "_counted_by_their_own", lambda snapshot: [])
    true = SequenceNumber.includes

    def includes(sequence: SequenceNumber, segment: Segment) -> bool:
        return sequence.has(*segment.published[0]) if segment.published else true(sequence, segment)

    patch.setattr(SequenceNumber, "includes", includes)


def inputs_need_not_be_there(patch: Patch) -> None:
    """A compaction is published although another one has taken its inputs' place."""
    patch.setattr(publishing, "_gone", lambda table, inputs: None)
    mutants.a_lock_without_an_etag(patch)


def a_copy_that_was_taken_back_counts(patch: Patch) -> None:
    patch.setattr(reading, "_is_there", lambda table, segment: True)


@pytest.mark.parametrize(
    ("mistake", "play", "seed"),
    [
        (mutants.staged_rows_count, "hours", 0),
        (mutants.a_lock_without_an_etag, "readers, garbage and a REPLACE", 1),
        (mutants.a_head_without_an_etag, "two REPLACEs", 1),
        (mutants.numbers_are_given_twice, "two appends", 0),
        (mutants.nothing_is_carried, "a REPLACE", 0),
        (mutants.an_old_place_is_good_enough, "a life that is ended twice", 0),
        (what_was_read_is_carried_too, "a REPLACE", 0),
        (copies_that_are_not_written, "compactions", 0),
        (copies_wait_for_nobody, "a REPLACE", 1),
        (inputs_need_not_be_there, "a REPLACE that is revoked", 3),
        (a_copy_that_was_taken_back_counts, "a zombie", 3),
        (revoked_locks_do, "ends of drops", 1),
    ],
)
def test_a_fence_that_is_missing_is_missed(mistake: Callable[[pytest.MonkeyPatch], None], play: str, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        with pytest.raises(Violation, match=f"seed {seed}"):
            draw(PLAYS[play], seed)
