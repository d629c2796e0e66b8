"""Which blobs are past what a stream keeps: few cases by hand, all of them by drawing."""

from hypothesis import given
from hypothesis import strategies as some

from samza_azure.logs.retention import Keeps, Listed, LogBlob, past, pieces


def piece(index: int, size: int = 10, age_s: float = 0.0, log: str = "streams/s/0") -> LogBlob:
    return LogBlob(log, index, size, age_s, (f"{log}/{index:08d}",))


ALL = {"streams/s/0": 99}


def indexes(found: list[LogBlob]) -> list[int]:
    return [each.index for each in found]


def test_retention_by_size_deletes_only_blobs_wholly_past_the_limit() -> None:
    log = [piece(0), piece(1), piece(2), piece(3, 5)]
    assert indexes(past(log, ALL, Keeps(bytes=15))) == [0, 1]  # the rest is 15
    assert indexes(past(log, ALL, Keeps(bytes=16))) == [0]
    assert indexes(past(log, ALL, Keeps(bytes=1_000))) == []


def test_retention_by_age_deletes_only_blobs_last_written_before_the_limit() -> None:
    log = [piece(0, age_s=90), piece(1, age_s=61), piece(2, age_s=60), piece(3)]
    assert indexes(past(log, ALL, Keeps(seconds=60))) == [0, 1]


def test_each_limit_counts_alone_and_without_one_all_is_kept() -> None:
    log = [piece(0, age_s=90), piece(1, age_s=1), piece(2)]
    assert indexes(past(log, ALL, Keeps(seconds=60, bytes=1_000))) == [0]
    assert indexes(past(log, ALL, Keeps(seconds=1_000, bytes=20))) == [0]
    assert past(log, ALL, Keeps()) == []


def test_blobs_that_a_reader_has_not_read_and_newer_ones_are_kept() -> None:
    log = [piece(0, age_s=90), piece(1, age_s=90), piece(2, age_s=90)]
    assert indexes(past(log, {"streams/s/0": 1}, Keeps(seconds=60))) == [0]
    assert past(log, {"streams/s/0": 0}, Keeps(seconds=60)) == []
    assert past(log, {}, Keeps(seconds=60)) == [], "of a log of which nothing is known"


def test_a_blob_goes_with_its_large_ones_and_before_them() -> None:
    listed = [
        Listed("runs/r/out-0/00000001", 5, 10.0, 10.0),
        Listed("runs/r/large/out-0/00000000/0-rows", 100, 30.0, 30.0),
        Listed("runs/r/out-0/00000000", 5, 20.0, 20.0),
        Listed("runs/r/out-01/00000000", 7, 20.0, 20.0),
    ]
    assert pieces("runs/r/out-0", listed) == [
        LogBlob("runs/r/out-0", 0, 105, 20.0, ("runs/r/out-0/00000000", "runs/r/large/out-0/00000000/0-rows")),
        LogBlob("runs/r/out-0", 1, 5, 10.0, ("runs/r/out-0/00000001",)),
    ]


@given(
    sizes=some.lists(some.integers(0, 50), min_size=1, max_size=12),
    read=some.integers(0, 12),
    limit=some.integers(0, 200),
)
def test_retention_deletes_the_oldest_blobs_of_any_log_and_keeps_less_than_the_limit_and_one_blob(
    sizes: list[int], read: int, limit: int
) -> None:
    log = [piece(index, size) for index, size in enumerate(sizes)]
    last = len(log) - 1
    found = past(log, {"streams/s/0": min(read, last)}, Keeps(bytes=limit))
    assert found == log[: len(found)]
    assert len(found) <= min(read, last)
    left = sum(sizes[len(found) :])
    assert not found or left >= limit, "what is within the limit is kept"
    if read >= last:  # all is read
        closed = sizes[len(found)] if len(found) < last else 0
        assert left - sizes[last] < limit + closed or left == sizes[last]


def test_a_log_of_which_nothing_is_needed_goes_whole() -> None:
    log = [piece(0, age_s=90), piece(1, age_s=61)]
    assert past(log, ALL, Keeps(seconds=60)) == log
    assert past([], ALL, Keeps(bytes=0)) == []
