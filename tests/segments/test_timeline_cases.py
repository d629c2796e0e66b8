"""The conformance cases of the timeline, across intervals (V) and inside one chunk (G), each by its name."""

import itertools

import pytest

from samza_azure.segments import Interval, Timeline
from tests.segments import rule
from tests.segments.script import agrees, play, segment, shown

ACROSS = {
    "V1": "+ [1,10)1:1 [10,20)1:2 [5,15)2:3 \n ? [1,20) = [1,5)1:1 [5,15)2:3 [15,20)1:2",
    "V2": "+ [5,15)2:3 [1,10)1:1 [10,20)1:2 \n ? [1,20) = [1,5)1:1 [5,15)2:3 [15,20)1:2",
    "V3": "+ [1,10)2:3 [5,15)1:1 \n ? [1,20) = [1,10)2:3 [10,15)1:1",
    "V4": "+ [1,20)1:2 [5,15)2:3 \n ? [1,20) = [1,5)1:2 [5,15)2:3 [15,20)1:2",
    "V4, other order": "+ [5,15)2:3 [1,20)1:2 \n ? [1,20) = [1,5)1:2 [5,15)2:3 [15,20)1:2",
    "V7": """+ [1,7)1:1 [7,15)1:2 [15,20)1:3 [10,13)2:4
        ? [1,20) = [1,7)1:1 [7,10)1:2 [10,13)2:4 [13,15)1:2 [15,20)1:3""",
    "V8": "+ [1,20)1:1 [1,10)2:2 [10,20)2:3 \n ? [1,1) = \n ? [10,10) = \n ? [11,11) = \n ? [20,20) =",
    "V9": "+ [1,10)1:1 \n + [5,15)1:3 ERR",
    "V10": """+ [1,10)1:1 \n + [1,10)2:2 \n + [1,10)2:3 again \n + [1,10)1:4 again
        ? [1,10) = [1,10)2:2""",
    "V11": "+ [1,5)1:1 [3,4)2:2 [4,5)3:3 [5,6)4:4 \n ? eternity = [1,3)1:1 [3,4)2:2 [4,5)3:3 [5,6)4:4",
    "V12": "+ [3,6)1:1 [9,12)1:2 [2,8)2:3 [10,16)2:4 [1,20)3:5 \n garbage = 1 2 3 4",
    "V14": "+ [1,9)1:1 [3,6)2:2 [6,9)2:3 \n garbage =",
    "V15": "+ [1,9)1:1 [1,9)9:2 [1,9)2:3 \n + [1,9)9:4 again \n garbage = 1 3",
    "V16": "+ [1,20)1:1 [10,15)2:2 \n - [10,15)2:2 \n ? [1,20) = [1,20)1:1",
    "V17": "+ [1,20)1:1 [10,15)2:2 [15,20)2:3 \n - [15,20)2:3 \n ? [1,20) = [1,10)1:1 [10,15)2:2 [15,20)1:1",
    "V18": "+ [1,20)1:1 [10,15)2:2 \n - [10,15)2:2 \n + [1,20)1:1 again \n ? [1,20) = [1,20)1:1",
    "V19": """+ [1,2)1:1 [2,3)2:2 [3,4)3:3 [4,5)4:4 \n - [4,5)4:4
        ? [1,10) = [1,2)1:1 [2,3)2:2 [3,4)3:3""",
    "V24": """+ [5,6)5:a \n + [5,7)6:b@1/3 \n ? [5,7) = [5,6)5:a \n garbage =
        + [5,7)6:c@2/3 \n ? [5,7) = [5,6)5:a \n garbage =
        + [5,7)6:d@3/3 \n ? [5,7) = [5,7)6:b,c,d \n garbage = a""",
    "V25": """+ [5,6)5:a [5,7)6:b@1/3 [5,7)6:c@2/3 [5,7)6:d@3/3 \n - [5,7)6:c@2/3
        ? [5,7) = [5,6)5:a \n garbage =""",
    "V27": """+ [1,20)1:1 \n - [1,5)1:1 null \n - [1,20)2:1 null \n - [1,20)1:1#7 null
        ? [1,20) = [1,20)1:1""",
    "V31": "+ [1,2)1:1 [2,3)1:2 [3,4)1:3 [1,4)2:4 \n ? [2,3) = [2,3)2:4",
    "V32": "+ [1,2)1:1#1 [1,2)1:2#100000 [1,2)1:3#2147483647 \n ? [1,2) = [1,2)1:1,2,3",
}

INSIDE = {
    "G1": "+ r0 \n V = r0 | ok \n + r0 again \n + r1 \n V = r0 r1 | ok",
    "G2": """+ m1[10,12)1/3 m1[10,12)2/3 \n V = m1[10,12)1/3 m1[10,12)2/3 | not ok
        + m1[10,12)3/3 \n V = m1[10,12)1/3 m1[10,12)2/3 m1[10,12)3/3 | ok \n + m1[10,12)4/3 ERR""",
    "G3": "- r0 null \n + r0 \n - r1 null \n - m1[0,2)1/1 null \n V = r0",
    "G4": """+ m1[0,3)1/2 m1[0,3)2/2 r1 \n V = m1[0,3)1/2 m1[0,3)2/2 | O = r1 | S = | ok""",
    "G4, half": "+ m1[0,3)1/2 r1 \n V = m1[0,3)1/2 | O = r1 | S = | not ok",
    "G5": """+ r0 r1 r2 m1[0,3)1/2 \n V = r0 r1 r2 | S = m1[0,3)1/2 | O = | ok
        + m1[0,3)2/2 \n V = m1[0,3)1/2 m1[0,3)2/2 | S = | O = r0 r1 r2 | ok""",
    "G6": """+ m1[0,3)1/2 m2[0,3)1/3 \n V = m2[0,3)1/3 | O = m1[0,3)1/2
        + m2[0,3)2/3 \n V = m2[0,3)1/3 m2[0,3)2/3 | O = m1[0,3)1/2 | not ok""",
    "G8": """+ r0 r1 r2 m1[0,3)1/3 m1[0,3)2/3 \n V = r0 r1 r2 | S = m1[0,3)1/3 m1[0,3)2/3
        - m1[0,3)1/3 \n V = r0 r1 r2 | S = m1[0,3)2/3""",
    "G10": """+ m1[0,2)1/3 m1[0,2)2/3 \n V = m1[0,2)1/3 m1[0,2)2/3
        + r0 \n V = m1[0,2)1/3 m1[0,2)2/3 | O = r0 \n + r1 \n V = r0 r1 | S = m1[0,2)1/3 m1[0,2)2/3 | O =""",
    "G11": "+ m1[0,2)1/2 m1[0,2)2/2 r0 r1 \n V = m1[0,2)1/2 m1[0,2)2/2 | O = r0 r1 | S =",
    "G12": """+ r1 m1[0,2)1/2 \n V = m1[0,2)1/2 | O = r1 \n + m1[0,2)2/2 \n V = m1[0,2)1/2 m1[0,2)2/2 | O = r1 | ok
        - m1[0,2)1/2 \n V = m1[0,2)2/2 | O = r1 | not ok \n - m1[0,2)2/2 \n V = r1 | O = | ok""",
    "G13": """+ r0 r1 m1[0,2)1/2 m1[0,2)2/2 \n - m1[0,2)1/2 \n V = r0 r1 | S = m1[0,2)2/2 | O =""",
    "G16": """+ m1[0,2)1/3 m1[0,2)2/3 m2[0,2)1/2 m2[0,2)2/2 m3[0,2)1/3 m3[0,2)2/3
        + m4[0,2)1/3 m4[0,2)2/3 m5[0,2)1/3 m5[0,2)2/3
        V = m2[0,2)1/2 m2[0,2)2/2 | O = m1[0,2)1/3 m1[0,2)2/3
        S = m3[0,2)1/3 m3[0,2)2/3 m4[0,2)1/3 m4[0,2)2/3 m5[0,2)1/3 m5[0,2)2/3
        - m2[0,2)1/2 \n V = m5[0,2)1/3 m5[0,2)2/3 | S =
        O = m1[0,2)1/3 m1[0,2)2/3 m2[0,2)2/2 m3[0,2)1/3 m3[0,2)2/3 m4[0,2)1/3 m4[0,2)2/3""",
    "G18": """+ r0 r1 r2 r3 r4 m1[1,3)1/2 m1[1,3)2/2 \n V = r0 r3 r4 m1[1,3)1/2 m1[1,3)2/2 | O = r1 r2
        - r1 \n - m1[1,3)1/2 \n V = r0 r3 r4 m1[1,3)2/2 | O = r2""",
    "G19": """+ r0 r1 r2 r3 r4 m1[1,3)1/2 m1[1,3)2/2 \n - m1[1,3)1/2
        V = r0 r1 r2 r3 r4 | S = m1[1,3)2/2 | O =""",
    "G20": """+ r0 m1[0,1)1/3 m2[0,1)1/2 \n V = r0 | S = m1[0,1)1/3 m2[0,1)1/2
        - r0 \n V = m2[0,1)1/2 | O = m1[0,1)1/3 | S =""",
    "G21": """+ m5[10,20)1/3 m5[10,20)2/3 m4[10,20)1/3 m4[10,20)2/3 m3[10,20)1/3 m3[10,20)2/3
        V = m5[10,20)1/3 m5[10,20)2/3 | O = m4[10,20)1/3 m4[10,20)2/3 m3[10,20)1/3 m3[10,20)2/3 | S =
        - m5[10,20)1/3
        V = m5[10,20)2/3 | O = m4[10,20)1/3 m4[10,20)2/3 m3[10,20)1/3 m3[10,20)2/3 | S =
        - m5[10,20)2/3 \n V = m4[10,20)1/3 m4[10,20)2/3 | O = m3[10,20)1/3 m3[10,20)2/3 | S =""",
    "G23": """+ m1[0,1)1/2 m1[0,1)2/2 \n V = m1[0,1)1/2 m1[0,1)2/2 | ok
        + m2[0,1)1/2 m3[0,1)1/2 m3[0,1)2/2 \n V = m3[0,1)1/2 m3[0,1)2/2
        garbage = m1[0,1)1/2 m1[0,1)2/2 m2[0,1)1/2""",
    "G24": """+ r0 r1 r2 m1[0,3)1/2 m1[0,3)2/2 \n garbage = r0 r1 r2
        + m2[0,3)1/2 m2[0,3)2/2 \n garbage = r0 r1 r2 m1[0,3)1/2 m1[0,3)2/2""",
    "G25": """+ r0 r1 r2 m1[0,3)1/2 m1[0,3)2/2 v1.r0 v1.r1
        garbage = r0 r1 r2 m1[0,3)1/2 m1[0,3)2/2""",
    "G27": """+ r0 r1 r2 m1[0,3)1/2 m1[0,3)2/2 v1.r0 v1.r1 v1.m1[0,2)1/2 v1.m1[0,2)2/2
        V = v1.m1[0,2)1/2 v1.m1[0,2)2/2 \n - v1.m1[0,2)1/2 \n V = v1.r0 v1.r1 | ok
        ? [1,2) = [1,2)1:v1.r0,v1.r1""",
    "G28": "+ r0 m1[0,1)1/1 \n + r0 again \n V = m1[0,1)1/1 | O = r0 \n garbage = r0",
    "G29": """+ m10[5,10)1/1 \n hidden = r5 r6 r7 r8 r9 m5[5,6)1/1 m5[7,8)1/1 m5[8,10)1/1
        shown = r4 r11 m12[5,10)1/1 m12[4,15)1/1""",
    "G32": "+ m1[0,2)1/1 m2[0,2)1/1 \n + m2[0,2)1/1#7 ERR",
    "G35": "+ r0 r1 m1[0,2)1/1 m2[0,2)1/1 \n - m2[0,2)1/1 \n V = m1[0,2)1/1 | ok",
    "G37": """+ m1[0,1)1/2 m2[0,1)1/2 r0 m1[0,1)2/2
        V = m1[0,1)1/2 m1[0,1)2/2 | S = m2[0,1)1/2 | O = r0""",
    "G39": "+ r0@3 r1@3 r2@3 m1[1,3)1/1 \n V = r0@3 m1[1,3)1/1 | ok",
}

#: Of the same kind, which the reference does not list.
MORE = {
    "a small part of the first, the second over the rest": """+ [1,10)1:1 [5,15)2:3 [1,4)3:4
        ? [1,20) = [1,4)3:4 [4,5)1:1 [5,15)2:3""",
    "what is removed uncovers, below a third": """+ [1,20)1:1 [5,15)2:2 [8,10)3:3 \n - [5,15)2:2
        ? [1,20) = [1,8)1:1 [8,10)3:3 [10,20)1:1""",
    "half a core set, nothing below": """+ [1,2)1:a@1/2 \n ? [1,2) = \n + [1,2)1:b@2/2 \n ? [1,2) = [1,2)1:a,b
        - [1,2)1:b@2/2 \n ? [1,2) =""",
    "of two halves the newer is kept": """+ [1,2)1:a [1,2)2:b@1/2 [1,2)3:c@1/2 \n ? [1,2) = [1,2)1:a \n garbage = b
        + [1,2)2:d@2/2 \n ? [1,2) = [1,2)2:b,d \n garbage = a""",
    "edges of a lookup": """+ [1,10)1:a \n ? [3,4) = [3,4)1:a \n ? [0,2) = [1,2)1:a \n ? [9,12) = [9,10)1:a
        ? [10,12) = \n ? [0,1) =""",
    "a part in two": """+ [5,7)5:a [5,6)6:b@1/2 \n ? eternity = [5,7)5:a \n + [5,6)6:c@2/2
        ? eternity = [5,6)6:b,c [6,7)5:a \n garbage =""",
    "hidden by two together, not over a gap": """+ [1,3)1:a [3,5)1:b [7,9)2:c \n hidden = [1,3)0:x [1,5)0:y [2,4)0:z
        shown = [1,3)1:q#4 [1,6)0:r [0,2)0:s [5,7)0:t [1,3)2:w [1,9)0:u""",
    "nested groups fall back one by one": """+ r0 r1 r2 r3 m1[0,2)1/1 m1[2,4)1/1 m2[0,4)1/2 m2[0,4)2/2
        V = m2[0,4)1/2 m2[0,4)2/2 \n - m2[0,4)1/2 \n V = m1[0,2)1/1 m1[2,4)1/1 | S = m2[0,4)2/2
        - m1[0,2)1/1 \n V = r0 r1 m1[2,4)1/1 \n - r0 \n V = m2[0,4)2/2 | not ok""",
    "appends between compactions": """+ r0 r1 m1[0,2)1/1 r2 r3 m2[0,4)1/1 r4 \n V = m2[0,4)1/1 r4
        - m2[0,4)1/1 \n V = m1[0,2)1/1 r2 r3 r4""",
    "covers that cross": "+ m1[0,2)1/1 \n + m1[1,3)1/1 ERR",
    "generations come in any order": """+ m3[0,4)1/1 m1[0,2)1/1 m2[0,2)1/1 m1[2,4)1/1 \n V = m3[0,4)1/1
        - m3[0,4)1/1 \n V = m2[0,2)1/1 m1[2,4)1/1""",
    "a core set of which a compaction has a part": """+ r0@3 r1@3 m1[0,2)1/1 \n V = m1[0,2)1/1 | not ok
        + r2@3 \n V = m1[0,2)1/1 r2@3 | ok \n - r2@3 \n V = m1[0,2)1/1 | not ok""",
}


@pytest.mark.parametrize("name", MORE)
def test_further_cases(name: str) -> None:
    play(MORE[name])


@pytest.mark.parametrize("name", ACROSS)
def test_across_intervals(name: str) -> None:
    play(ACROSS[name])


@pytest.mark.parametrize("name", INSIDE)
def test_inside_a_chunk(name: str) -> None:
    play(INSIDE[name])


@pytest.mark.parametrize("order", [*itertools.permutations(["[1,10)1:1", "[5,20)2:2", "[3,6)3:3"])])
def test_v5(order: tuple[str, ...]) -> None:
    play(f"+ {' '.join(order)} \n ? [1,20) = [1,3)1:1 [3,6)3:3 [6,20)2:2")


@pytest.mark.parametrize("order", [*itertools.islice(itertools.permutations(range(10)), 0, None, 90_001)])
def test_g7(order: tuple[int, ...]) -> None:
    timeline = Timeline(segment(f"r{root}") for root in range(10))
    present = set(range(10))
    for root in order:
        timeline.remove(segment(f"r{root}"))
        present.remove(root)
        agrees(timeline)
        assert {one.partition for one in timeline.visible()} == present
    assert len(timeline) == 0
    assert timeline.lookup() == []


def test_g30() -> None:
    """A copy has what is hidden, too, of all generations."""
    timeline = Timeline(map(segment, ["r0", "r1", "m1[0,2)1/1", "m2[0,2)1/1", "m3[0,2)1/2"]))
    copy = timeline.copy()
    assert set(copy) == set(timeline)
    assert shown(copy) == shown(timeline)
    assert [str(one.generation) for one in Timeline(timeline.visible())] == ["2"]
    copy.remove(segment("m2[0,2)1/1"))
    assert shown(copy) != shown(timeline)


def test_covers_may_have_gaps() -> None:
    """Every set of roots is legal, also those that lie in each other's gaps."""
    from dataclasses import replace

    from samza_azure.segments import Partitions

    timeline = Timeline(segment(f"r{root}") for root in range(6))
    even = replace(segment("m1[0,6)1/1"), covers=Partitions.of(0, 2, 4))
    odd = replace(segment("m1[1,6)1/1"), covers=Partitions.of(1, 3, 5))
    for one in (even, odd, segment("m2[0,6)1/1")):
        timeline.add(one)
        agrees(timeline)
    assert [one.generation for one in timeline.visible()] == [2]
    timeline.remove(segment("m2[0,6)1/1"))
    agrees(timeline)
    assert set(timeline.visible()) == {even, odd}
    with pytest.raises(ValueError, match="share roots"):
        timeline.add(segment("m3[0,2)1/1"))
    agrees(timeline)


def test_a_lookup_before_all_segments_is_empty() -> None:
    timeline = Timeline([segment("[5,6)1:a")])
    assert timeline.lookup(Interval.of("2010-01-01", "2010-02-01")) == []
    assert not rule.is_overshadowed(timeline, segment("[1,2)0:b"))
