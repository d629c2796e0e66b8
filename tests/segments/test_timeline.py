"""Whatever comes in whatever order: what a timeline shows is what the rule says of the segments that are present."""

from hypothesis import given, settings
from hypothesis import strategies as st

from samza_azure.segments import Partitions, Segment, Timeline
from tests.segments import encodings, histories
from tests.segments.script import CHUNK, shown

numbers = st.sets(st.integers(0, 40))


def choosing(data: st.DataObject) -> histories.Choose:
    """Decisions that hypothesis draws and shrinks."""
    return lambda below: data.draw(st.integers(0, below - 1))


@given(st.data())
def test_a_whole_history_shows_its_own_end(data: st.DataObject) -> None:
    made = histories.history(choosing(data))
    timeline = Timeline(histories.shuffled(made.segments, choosing(data)))
    histories.check(timeline)
    (entry,) = timeline.lookup()
    assert frozenset(one.covers for one in entry.segments) == made.cut


@settings(max_examples=40)
@given(st.data())
def test_any_order_of_arrival(data: st.DataObject) -> None:
    """I18: and at each step as the rule says."""
    choose = choosing(data)
    made = histories.across(choose)
    timeline = Timeline()
    for segment in histories.shuffled(made, choose):
        histories.add(timeline, segment)
    assert shown(timeline) == shown(Timeline(made))


@settings(max_examples=40)
@given(st.data())
def test_any_order_of_removal(data: st.DataObject) -> None:
    choose = choosing(data)
    made = histories.across(choose)
    timeline = Timeline(made)
    for segment in histories.shuffled(made, choose):
        histories.remove(timeline, segment)
    assert (len(timeline), timeline.lookup(), list(timeline.chunks)) == (0, [], [])


@given(st.data())
def test_any_subset(data: st.DataObject) -> None:
    choose = choosing(data)
    histories.check(Timeline(one for one in histories.across(choose) if choose(2)))


@settings(max_examples=30)
@given(st.data())
def test_adding_and_removing_in_turn(data: st.DataObject) -> None:
    choose = choosing(data)
    made = histories.across(choose)
    timeline = Timeline()
    for _ in range(30):
        segment = made[choose(len(made))]
        if segment in timeline:
            histories.remove(timeline, segment)
        else:
            histories.add(timeline, segment)


@settings(max_examples=40)
@given(st.data())
def test_a_segment_of_no_legal_history_changes_nothing(data: st.DataObject) -> None:
    """It crosses a cover, comes with another group, or has the number of another one."""
    choose = choosing(data)
    made = histories.history(choose).segments
    timeline = Timeline(one for one in made if choose(4))
    for _ in range(4):
        covers = Partitions(1 + choose(9) for _ in range(1 + choose(4)))
        number, generation = choose(12), 1 + choose(3)
        group = Partitions.of(number, number + choose(3))
        if covers == Partitions.of(number):
            continue  # only a root covers itself
        odd = Segment("d", CHUNK, 0, number, covers, generation, group)
        before = shown(timeline), set(timeline), timeline.fully_overshadowed()
        try:
            added = timeline.add(odd)
        except ValueError:
            assert (shown(timeline), set(timeline), timeline.fully_overshadowed()) == before
        else:
            histories.check(timeline)
            if added:
                timeline.remove(odd)
            assert (shown(timeline), set(timeline)) == before[:2]
        histories.check(timeline)


@given(st.data())
def test_sets_ranges_and_the_rule_show_the_same(data: st.DataObject) -> None:
    """I22: after each publish of a history that ranges can say, whatever garbage has gone by then."""
    encodings.check(choosing(data))


@given(numbers, numbers)
def test_partitions_are_sets(one: set[int], two: set[int]) -> None:
    left, right = Partitions(one), Partitions(two)
    assert (set(left | right), set(left & right), set(left - right)) == (one | two, one & two, one - two)
    assert (left <= right, left < right, left == right) == (one <= two, one < two, one == two)
    assert left.isdisjoint(right) == one.isdisjoint(two)
    assert (len(left), list(left)) == (len(one), sorted(one))
    assert all((number in left) == (number in one) for number in range(42))
    assert Partitions.parse(str(left)) == left
    assert hash(Partitions(sorted(one))) == hash(left)
