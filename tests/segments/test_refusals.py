"""What no conformance case asks for: refused publishes, covers that cross, and the branches that are seldom taken."""

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samza_azure.segments
from samza_azure.segments import (
    Advance,
    Granted,
    Granularity,
    Interval,
    LockRequest,
    LockTask,
    Partitions,
    Publish,
    Published,
    Segment,
    SegmentId,
    SequenceNumber,
    Timeline,
)
from samza_azure.segments.interval import microseconds
from samza_azure.segments.publishing import check_outputs
from tests.segments import histories, rule
from tests.segments.memory_table import MemoryLocks, MemoryTable
from tests.segments.script import shown

DAY = Interval.of("2024-01-01", "2024-01-02")
NEXT_DAY = Interval.of("2024-01-02", "2024-01-03")


def root(partition: int, interval: Interval = DAY, version: int = 0) -> Segment:
    return Segment.root("d", interval, version, partition)


def merged(numbers: Sequence[int], covers: Partitions, generation: int = 1) -> list[Segment]:
    """A group that replaces what these roots cover."""
    group = Partitions(numbers)
    return [Segment("d", DAY, 0, number, covers, generation, group) for number in numbers]


def appending() -> tuple[MemoryTable, SegmentId]:
    """A table, and an id that the task `append` has allocated."""
    table = MemoryTable("d")
    table.add(LockTask("append", "append"))
    name = table.allocate("append", "s", DAY.start, Granularity.DAY)
    assert isinstance(name, SegmentId)
    return table, name


def test_a_sequence_cannot_ask_again_for_another_interval() -> None:
    table, name = appending()
    assert table.allocate("append", "s", DAY.start, Granularity.DAY) == name
    with pytest.raises(ValueError, match="now asks for another interval"):
        table.allocate("append", "s", NEXT_DAY.start, Granularity.DAY)


def test_a_publish_is_there_whole_or_not_at_all() -> None:
    table, first = appending()
    second = table.allocate("append", "s", DAY.start, Granularity.DAY, previous=first)
    assert isinstance(second, SegmentId)
    made = [Segment.root("d", *name) for name in (first, second)]
    table.publish("append", made[:1])
    with pytest.raises(ValueError, match="is there already, and others of this publish are not"):
        table.publish("append", made)


def test_a_position_may_move_without_segments() -> None:
    table, _ = appending()
    assert table.publish("append", [], advance=Advance("s", None, 7)) == Published(())
    assert table.positions == {"s": 7}


ROOTS = [root(0), root(1)]
BOTH = Partitions.of(0, 1)
HALVES = merged([2, 3], BOTH)


@pytest.mark.parametrize(
    ("outputs", "inputs", "message"),
    [
        ([root(0), root(0)], [], "published twice at once"),
        ([HALVES[0], replace(HALVES[1], generation=2)], ROOTS, "differ in what they cover or in their generation"),
        (merged([4], BOTH, 2), [*ROOTS, *HALVES], "carry the same rows"),
        (merged([4], BOTH, 2), HALVES[:1], "without the rest of its group"),
    ],
)
def test_outputs_that_do_not_carry_the_rows_of_their_inputs_once(
    outputs: Sequence[Segment], inputs: Sequence[Segment], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_outputs(outputs, inputs)


def test_a_cover_may_not_share_some_roots_with_another() -> None:
    timeline = Timeline(merged([10], Partitions.of(2, 5)))
    with pytest.raises(ValueError, match="share roots"):
        timeline.add(merged([11], Partitions.of(1, 2, 3))[0])
    assert len(timeline) == 1
    (chunk,) = timeline.chunks
    assert repr(chunk) == f"Chunk({DAY} version 0, 1 segments)"


def test_a_root_is_overshadowed_by_what_is_shown_below_half_a_group() -> None:
    """Roots 0 and 1 are merged. Of the group that is to cover root 2 as well, one of two segments is present."""
    wider = merged([4, 5], Partitions.of(0, 1, 2), generation=2)
    timeline = Timeline([*ROOTS, *merged([3], BOTH), root(2), wider[0]])
    (chunk,) = timeline.chunks
    assert rule.is_overshadowed(timeline, root(0))
    assert not rule.is_overshadowed(timeline, root(2))
    chunk.remove(2)
    assert list(chunk.visible()) == wider[:1], "nothing complete has root 2"
    assert set(chunk.overshadowed()) == {*ROOTS, *merged([3], BOTH)}


def test_a_segment_shadows_earlier_ones_that_it_covers() -> None:
    one = merged([3], BOTH)[0]
    assert rule.shadows(one, root(0))
    assert not rule.shadows(root(0), one)
    assert rule.shadows(root(0, version=1), one)
    assert not rule.shadows(one, root(0, NEXT_DAY))


@given(st.data())
def test_a_timeline_with_added_segments_shows_what_one_of_all_of_them_does(data: st.DataObject) -> None:
    made = histories.across(lambda below: data.draw(st.integers(0, below - 1)))
    number = data.draw(st.integers(0, len(made)))
    before = Timeline(made[:number])
    then = shown(before)
    assert shown(before.with_added(made[number:])) == shown(Timeline(made))
    assert shown(before) == then


def test_nothing_is_visible_in_an_empty_interval_and_half_a_group_only_on_request() -> None:
    timeline = Timeline(HALVES[:1])
    assert timeline.lookup() == []
    (entry,) = timeline.lookup(incomplete=True)
    assert list(entry.segments) == HALVES[:1]
    assert timeline.lookup(Interval(DAY.start, DAY.start), incomplete=True) == []


def test_an_earlier_sequence_number_shows_what_had_been_published_then() -> None:
    first, second = (replace(root(each), published=(Publish(1, 1 + each),)) for each in (0, 1))
    timeline = Timeline([first, second])
    assert timeline.at(SequenceNumber(1, {1: 1})).visible() == [first]
    assert timeline.at(SequenceNumber(1, {1: 2})).visible() == [first, second]


def test_the_later_of_two_stored_locks_that_conflict_fails_its_group() -> None:
    tasks = [LockTask(name, name) for name in ("one", "two")]
    stored = []
    for number, task in enumerate(tasks):
        box = MemoryLocks(granted=number, is_synced=True)
        box.add(task)
        answer = box.acquire(LockRequest(task.id, "d", DAY))
        assert isinstance(answer, Granted)
        stored.append(answer.lock)
    box = MemoryLocks()
    assert box.sync(stored, tasks) == {"two"}
    assert list(box.locks) == [1]
    box.release("one", 1)
    box.release("one", 1)
    assert box.locks == {}


def test_partitions_are_numbered_from_zero_and_survive_pickling() -> None:
    with pytest.raises(ValueError, match="-1 is not a partition"):
        Partitions.of(-1)
    assert pickle.loads(pickle.dumps(Partitions.of(1, 5))) == Partitions.of(1, 5)


def test_a_moment_may_be_given_in_microseconds_and_lie_outside_the_calendar() -> None:
    assert microseconds(7) == 7
    assert str(Interval(-(1 << 62), 1 << 62)) == "-∞/∞"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = samza_azure.segments.Nothing


def test_two_generations_of_one_cover_carry_the_same_rows() -> None:
    """Both as inputs would double the rows."""
    covers = Partitions.between(0, 2)
    (older,), (newer,), made = merged([2], covers), merged([3], covers, 2), merged([4], covers, 3)
    check_outputs(made, [newer])
    with pytest.raises(ValueError, match="carry the same rows"):
        check_outputs(made, [older, newer])
