"""Half-open intervals of time, and the granularities that divide it.

Time is an integer: microseconds since 1970-01-01 UTC. Calendar units follow the UTC calendar: a month has 28 to 31 days
and a week begins on Monday. There are no leap seconds, as in POSIX.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: The years that the calendar of Python's standard library has.
_LEAST_US = -62_135_596_800_000_000
_MOST_US = 253_402_300_800_000_000
_WEEK_US = 7 * 86_400_000_000
_MONDAY_US = -3 * 86_400_000_000  # 1969-12-29
#: The end of the last of these years, as `str` writes it. Python has no such moment.
_MOST = "10000-01-01"
_SHORT = re.compile(r"(\d{4})(?:-(\d{2}))?")


def microseconds(moment: datetime | date | str | int) -> int:
    """A moment as microseconds since 1970 UTC. A string is ISO 8601, a year or a month; without a zone it is UTC.

    Raise ValueError if it is not a moment.
    """
    if isinstance(moment, int):
        return moment
    if moment != moment:  # noqa: PLR0124  # pandas.NaT is a datetime that differs from itself
        raise ValueError(f"{moment} is no moment. Leave out what has no time.")
    if isinstance(moment, str):
        if moment == _MOST:
            return _MOST_US
        if short := _SHORT.fullmatch(moment):
            moment = datetime(int(short[1]), int(short[2] or 1), 1, tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(moment)
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)  # noqa: DTZ001 - the zone is set below
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """[start, end) in microseconds since 1970 UTC. It may be empty.

    Raises:
        ValueError: it ends before it begins.

    Example:
        january = Interval.of("2024-01", "2024-02")
        assert january == Interval.parse("2024-01-01/2024-02-01") and not january.is_empty
        weekend = Interval.of("2024-01-27", "2024-01-29")
        assert january.contains(weekend) and january.overlaps(weekend) and january.cut(weekend) == weekend
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(
                f"The interval ends at {_text(self.end)}, before it begins at {_text(self.start)}. Write START/END."
            )

    def __str__(self) -> str:
        return f"{_text(self.start)}/{_text(self.end)}"

    @classmethod
    def of(cls, start: datetime | date | str | int, end: datetime | date | str | int) -> "Interval":
        """The interval between two moments.

        Each is a datetime, a date, a text in ISO 8601 (also 2024, or 2024-01), or microseconds since 1970 UTC. Without
        a zone it is UTC.

        Raises:
            ValueError: one of them is not a moment, or the interval would end before it begins.
        """
        return cls(microseconds(start), microseconds(end))

    @classmethod
    def parse(cls, text: str) -> "Interval":
        """Parse START/END, each in ISO 8601.

        Raises:
            ValueError: the text is something else.
        """
        start, slash, end = text.partition("/")
        try:
            if slash:
                return cls.of(start, end)
        except ValueError as error:
            raise ValueError(f"{text!r} is not an interval: {error}") from error
        raise ValueError(f"{text!r} is not an interval. Write START/END, as in 2026-01-01/2026-02-01.")

    @property
    def is_empty(self) -> bool:
        """Whether it contains no moment."""
        return self.start == self.end

    def overlaps(self, other: "Interval") -> bool:
        """Whether some moment is in both."""
        return self.start < other.end and other.start < self.end and not self.is_empty and not other.is_empty

    def contains(self, other: "Interval") -> bool:
        """Whether each moment of the other interval is in this one."""
        return self.start <= other.start and other.end <= self.end

    def cut(self, other: "Interval") -> "Interval | None":
        """The intersection. None if it is empty."""
        if not self.overlaps(other):
            return None
        return Interval(max(self.start, other.start), min(self.end, other.end))


#: All of time.
ETERNITY = Interval(-(1 << 63), (1 << 63) - 1)
#: The time that granularities divide.
CALENDAR = Interval(_LEAST_US, _MOST_US)


class Granularity(StrEnum):
    """The length of a table's intervals.

    Example:
        noon = Interval.of("2024-01-31T12:00", "2024-01-31T12:01").start
        assert Granularity.MONTH.bucket(noon) == Interval.of("2024-01", "2024-02")
        assert len(list(Granularity.DAY.buckets(Interval.of("2024-01", "2024-02")))) == 31
        assert Granularity.MINUTE.finer() == (Granularity.MINUTE, Granularity.SECOND)
    """

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"

    def bucket(self, moment_us: int) -> Interval:
        """The interval of this granularity that contains a moment.

        Raises:
            ValueError: the moment lies outside the years 1 to 9999.
        """
        if not _LEAST_US <= moment_us < _MOST_US:
            raise ValueError(f"{moment_us} µs since 1970 lies outside the years 1 to 9999.")
        if length := _LENGTH_US.get(self):
            start = moment_us // length * length
            return Interval(start, start + length)
        if self is Granularity.WEEK:
            start = (moment_us - _MONDAY_US) // _WEEK_US * _WEEK_US + _MONDAY_US
            return Interval(start, min(start + _WEEK_US, _MOST_US))
        moment = _EPOCH + timedelta(microseconds=moment_us)
        months = _MONTHS[self]
        first = moment.year * 12 + (moment.month - 1) // months * months
        return Interval(_month(first), _month(first + months))

    def buckets(self, interval: Interval) -> Iterator[Interval]:
        """The intervals of this granularity that overlap an interval, in order.

        Raises:
            ValueError: the interval extends beyond the years 1 to 9999.
        """
        at = interval.start
        while at < interval.end:
            bucket = self.bucket(at)
            yield bucket
            at = bucket.end

    def finer(self) -> "tuple[Granularity, ...]":
        """This granularity and the finer ones, coarsest first. Weeks cross months, so they are included only if asked
        for."""
        every = tuple(Granularity)
        return tuple(one for one in reversed(every[: every.index(self) + 1]) if one is self or one is not self.WEEK)


_LENGTH_US = {
    Granularity.SECOND: 1_000_000,
    Granularity.MINUTE: 60_000_000,
    Granularity.HOUR: 3_600_000_000,
    Granularity.DAY: 86_400_000_000,
}
_MONTHS = {Granularity.MONTH: 1, Granularity.QUARTER: 3, Granularity.YEAR: 12}


def _month(number: int) -> int:
    """Where a month begins, counted from the month before year 0's January. The month after the last one is an end."""
    year, month = divmod(number, 12)
    return _MOST_US if year == 10_000 else microseconds(datetime(year, month + 1, 1, tzinfo=UTC))


def _text(moment_us: int) -> str:
    if moment_us == _MOST_US:
        return _MOST
    if not _LEAST_US <= moment_us < _MOST_US:
        return "-∞" if moment_us < 0 else "∞"
    text = (_EPOCH + timedelta(microseconds=moment_us)).isoformat().removesuffix("+00:00")
    return text.removesuffix("T00:00:00")
