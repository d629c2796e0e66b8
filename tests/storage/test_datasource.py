"""Tables under faults, from seeds; and what is noticed if a fence is missing."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from samza_azure.segments import Segment, SequenceNumber, TableLock
from samza_azure.storage import segment_publishing as publishing
from samza_azure.storage import segment_reading as reading
from samza_azure.storage.segments import SegmentTable
from samza_azure.storage.transactions import MemoryTransactions, Write
from tests.storage.datasource import DatasourceHistory, Violation
from tests.storage.test_segments_mutants import (
    a_lock_without_an_etag,
    nothing_is_carried,
    numbers_are_given_twice,
    staged_rows_count,
)

Patch = pytest.MonkeyPatch
STEPS = 800
SEEDS_OF_GARBAGE = (4, 8, 14, 22, 29)
SEEDS_OF_DROPS = (3, 5, 7, 10, 19)


@pytest.mark.parametrize("seed", range(6))
def test_each_row_is_there_once_after_each_write(seed: int) -> None:
    history = DatasourceHistory(seed)
    history.run(STEPS)
    assert history.published
    assert history.lives > 5


def test_replaces_read_rows_and_carry_rows() -> None:
    """What no history does is shown by none."""
    histories = [DatasourceHistory(seed) for seed in range(6)]
    for history in histories:
        history.run(STEPS)
    assert any(history.replaced for history in histories)
    assert any(history.carried for history in histories)


def test_a_drop_hides_all_rows_and_its_end_gives_all_back() -> None:
    histories = [DatasourceHistory(seed, drops=True) for seed in SEEDS_OF_DROPS]
    for history in histories:
        history.run(STEPS)
    assert any(history.restored for history in histories)
    assert any(history.swept for history in histories), "no drop is deleted with all that it had hidden"


def test_a_seed_is_one_history() -> None:
    first, second = DatasourceHistory(7), DatasourceHistory(7)
    first.run(200)
    second.run(200)
    assert (first.accepted, first.published) == (second.accepted, second.published)


@pytest.mark.parametrize("listed", [0, 1, 2])
def test_marks_that_say_little_of_the_locks(monkeypatch: pytest.MonkeyPatch, listed: int) -> None:
    """As if very many locks were held. What was shown earlier is shown again, as a whole, until it is refused."""
    monkeypatch.setattr(reading, "LISTED_MAX", listed)
    histories = [DatasourceHistory(seed) for seed in SEEDS_OF_GARBAGE]
    for history in histories:
        history.run(STEPS)
    assert sum(history.collected for history in histories) > 3
    assert any(0 < history.is_collected < history.looks for history in histories)


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
    a_lock_without_an_etag(patch)


def a_copy_that_was_taken_back_counts(patch: Patch) -> None:
    patch.setattr(reading, "_is_there", lambda table, segment: True)


def what_was_read_is_carried_too(patch: Patch) -> None:
    true = publishing._carried

    def carried(
        table: SegmentTable, lead: TableLock, made: Sequence[Segment], inputs: Sequence[Segment]
    ) -> list[Segment]:
        return true(table, replace(lead, read=SequenceNumber()), made, ())

    patch.setattr(publishing, "_carried", carried)


MUTANTS: list[tuple[Callable[[Patch], None], int, str]] = [
    (staged_rows_count, 1, "snapshot"),
    (nothing_is_carried, 1, "I24"),
    (what_was_read_is_carried_too, 1, "I24"),
    (numbers_are_given_twice, 0, "generation"),
    (copies_that_are_not_written, 0, "I23"),
    (copies_wait_for_nobody, 3, "I23"),
    (inputs_need_not_be_there, 18, "I23"),
    (a_copy_that_was_taken_back_counts, 56, "I23"),
]


@pytest.mark.parametrize(("mistake", "seed", "invariant"), MUTANTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_fence_that_is_missing_is_missed(mistake: Callable[[Patch], None], seed: int, invariant: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        with pytest.raises((Violation, ValueError), match=invariant):
            DatasourceHistory(seed).run(STEPS)
