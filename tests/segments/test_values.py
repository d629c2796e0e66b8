"""Intervals, granularities, segments and sequence numbers, each by itself."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_azure.segments import Granularity, Interval, Partitions, Publish, Segment, SequenceNumber
from samza_azure.segments.interval import microseconds

DAY = Interval.of("2024-01-01", "2024-01-02")
moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
sequences = st.builds(SequenceNumber, st.integers(0, 5), st.dictionaries(st.integers(1, 5), st.integers(0, 3)))


@given(moments, st.sampled_from(Granularity))
def test_a_bucket_holds_its_moment_and_begins_where_the_calendar_says(
    moment: datetime, granularity: Granularity
) -> None:
    at = microseconds(moment)
    bucket = granularity.bucket(at)
    assert bucket.start <= at < bucket.end
    assert granularity.bucket(bucket.start) == granularity.bucket(bucket.end - 1) == bucket
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    expected = {
        Granularity.SECOND: moment.replace(microsecond=0),
        Granularity.MINUTE: moment.replace(second=0, microsecond=0),
        Granularity.HOUR: moment.replace(minute=0, second=0, microsecond=0),
        Granularity.DAY: midnight,
        Granularity.MONTH: midnight.replace(day=1),
        Granularity.QUARTER: midnight.replace(day=1, month=(moment.month - 1) // 3 * 3 + 1),
        Granularity.YEAR: midnight.replace(day=1, month=1),
        Granularity.WEEK: None if moment.year == 1 else midnight - timedelta(days=moment.weekday()),
    }[granularity]
    assert expected is None or bucket.start == microseconds(expected)


def test_months_are_as_long_as_they_are() -> None:
    february = Granularity.MONTH.bucket(microseconds("2024-02-11"))
    assert str(february) == "2024-02-01/2024-03-01"
    year = Granularity.YEAR.bucket(february.start)
    assert [str(quarter) for quarter in Granularity.QUARTER.buckets(year)][1:3] == [
        "2024-04-01/2024-07-01",
        "2024-07-01/2024-10-01",
    ]
    assert len(list(Granularity.DAY.buckets(year))) == 366
    assert len(list(Granularity.DAY.buckets(Granularity.MONTH.bucket(microseconds("1900-02-28"))))) == 28
    assert str(Granularity.WEEK.bucket(microseconds("2026-01-01"))) == "2025-12-29/2026-01-05"
    before = Granularity.SECOND.bucket(microseconds("1969-12-31T23:59:59.5"))
    assert str(before) == "1969-12-31T23:59:59/1970-01-01"
    assert list(Granularity.DAY.buckets(Interval(year.start, year.start))) == []
    assert str(Granularity.YEAR.bucket(microseconds("9999-05-05"))) == "9999-01-01/10000-01-01"
    assert Interval.parse("9999-01-01/10000-01-01") == Granularity.YEAR.bucket(microseconds("9999-05-05"))
    assert Granularity.WEEK.bucket(microseconds("9999-12-31")).end == microseconds("10000-01-01")
    assert [one.value for one in Granularity.MONTH.finer()] == ["month", "day", "hour", "minute", "second"]
    assert [one.value for one in Granularity.WEEK.finer()][:2] == ["week", "day"]
    with pytest.raises(ValueError, match="outside the years"):
        Granularity.DAY.bucket(1 << 62)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2024-02-01/2024-01-01", "before it begins at 2024-02-01"),
        ("2024-02-01", "Write START/END"),
        ("soon/later", "is not an interval"),
    ],
)
def test_texts_that_are_no_interval(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Interval.parse(text)


def test_moments_are_utc_unless_they_say_otherwise() -> None:
    assert Interval.parse("2024-01-01/2024-01-02") == DAY
    assert Interval.parse("2024-01-01T01:00+01:00/2024-01-02T00:00Z") == DAY
    assert Interval.of(date(2024, 1, 1), datetime(2024, 1, 2, tzinfo=UTC)) == DAY
    assert Interval.of("2024", "2024-02") == Interval.of("2024-01-01", "2024-02-01")


def test_intervals_are_half_open() -> None:
    after = Interval.of("2024-01-02", "2024-01-03")
    empty = Interval(DAY.start, DAY.start)
    assert not DAY.overlaps(after) and not DAY.overlaps(empty) and DAY.contains(empty)
    assert DAY.cut(after) is None
    assert DAY.cut(Interval(DAY.end - 5, after.end)) == Interval(DAY.end - 5, DAY.end)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"interval": Interval(5, 5)}, "cannot be empty"),
        ({"group": Partitions.of(1)}, "not in its own group"),
        ({"covers": Partitions.of(1)}, "only a root"),
        ({"generation": 1}, "only a root"),
        ({"covers": Partitions()}, "only a root"),
        ({"covers": Partitions(), "generation": 1}, "covers nothing"),
    ],
)
def test_segments_that_no_publish_makes(fields: dict[str, object], message: str) -> None:
    good = {"datasource": "d", "interval": DAY, "version": 1, "partition": 0}
    with pytest.raises(ValueError, match=message):
        Segment(**({**good, "covers": Partitions.of(0), "generation": 0, "group": Partitions.of(0)} | fields))  # type: ignore[arg-type]


def test_a_segment_is_known_by_its_name() -> None:
    one = Segment.root("d", DAY, 1, 0)
    assert one == Segment.root("d", DAY, 1, 0, group=Partitions.of(0, 1))
    assert one != Segment.root("e", DAY, 1, 0)
    assert str(one) == "d 2024-01-01/2024-01-02 version 1 partition 0"
    assert one.covers is Segment.root("d", DAY, 2, 0).covers, "small sets are one object"


@given(sequences)
def test_a_sequence_number_is_written_and_read(sequence: SequenceNumber) -> None:
    assert SequenceNumber.parse(str(sequence)) == sequence
    assert sequence <= SequenceNumber.parse(str(sequence))


@given(st.lists(st.tuples(st.sampled_from(["grant", "publish", "release"]), st.integers(0, 9))), st.integers(0, 4))
def test_the_sequence_of_the_oldest_locks_follows_the_history(acts: list[tuple[str, int]], listed: int) -> None:
    """No later than the point itself, and of two points the later one is not earlier; else garbage goes too early."""
    points = [SequenceNumber()]
    for act, chosen in acts:
        granted, counts = points[-1].granted, dict(points[-1].counts)
        held = sorted(counts)[chosen % len(counts)] if counts else 0
        if act == "grant":
            granted += 1
            counts[granted] = 0
        elif act == "publish" and held:
            counts[held] += 1
        elif held:
            del counts[held]
        points.append(SequenceNumber(granted, counts))
    said = [point.of_oldest(listed) for point in points]
    assert all(short <= point and len(short.counts) <= listed for short, point in zip(said, points, strict=True))
    assert all(one <= other for one, other in pairwise(said))
    assert all(point.of_oldest(len(point.counts)) == point for point in points)


@given(sequences, sequences, st.lists(st.builds(Publish, st.integers(1, 5), st.integers(1, 3)), max_size=2))
def test_a_later_sequence_number_includes_what_an_earlier_one_does(
    one: SequenceNumber, two: SequenceNumber, published: list[Publish]
) -> None:
    segment = Segment.root("d", DAY, 1, 0, published=tuple(published))
    if one <= two and one.includes(segment):
        assert two.includes(segment)


def test_texts_that_are_no_sequence_number() -> None:
    with pytest.raises(ValueError, match="is not a sequence number"):
        SequenceNumber.parse("seventeen")
