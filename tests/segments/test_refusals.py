"""What no conformance case asks for: refused publishes, covers that cross, and the branches that are seldom taken."""

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samza_azure.segments
from samza_azure.segments import (
    Interval,
    Partitions,
    Publish,
    Segment,
    SequenceNumber,
    Timeline,
)
from samza_azure.segments.interval import microseconds
from samza_azure.segments.publishing import check_outputs
from tests.segments import histories, rule
from tests.segments.script import shown

DAY = Interval.of("2024-01-01", "2024-01-02")
NEXT_DAY = Interval.of("2024-01-02", "2024-01-03")


def root(partition: int, interval: Interval = DAY, version: int = 0) -> Segment:
    return Segment.root("d", interval, version, partition)


def merged(numbers: Sequence[int], covers: Partitions, generation: int = 1) -> list[Segment]:
    """A group that replaces what these roots cover."""
    group = Partitions(numbers)
    return [Segment("d", DAY, 0, number, covers, generation, group) for number in numbers]


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


def test_partitions_are_numbered_from_zero_and_survive_pickling() -> None:
    with pytest.raises(ValueError, match="-1 is not a partition"):
        Partitions.of(-1)
    assert pickle.loads(pickle.dumps(Partitions.of(1, 5))) == Partitions.of(1, 5)


def test_no_time_is_no_moment() -> None:
    """It was a number that is none, which fails far from here."""
    with pytest.raises(ValueError, match=r"^NaT is no moment\. Leave out what has no time\.$"):
        microseconds(pd.NaT)


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
