"""Silence is measured by reads, not by the clock."""

from samza_azure.group.age import Age, observed, young


def seen(*times: float, etag: str = "x", interval_s: float = 1.0) -> Age:
    age = None
    for now in times:
        age = observed(age, etag, now, interval_s)
    assert age is not None
    return age


def test_a_row_that_was_just_seen_has_no_age() -> None:
    assert seen(100.0) == Age("x", 0.0, 0, 100.0)


def test_each_read_that_shows_no_change_adds_the_time_since_the_one_before() -> None:
    assert seen(100.0, 101.0, 102.0, 103.0) == Age("x", 3.0, 3, 103.0)


def test_a_gap_without_reads_counts_two_intervals_at_most() -> None:
    assert seen(100.0, 160.0) == Age("x", 2.0, 1, 160.0)


def test_a_changed_row_has_no_age() -> None:
    assert observed(seen(100.0, 101.0, 102.0), "y", 103.0, 1.0) == Age("y", 0.0, 0, 103.0)


def test_an_absent_row_ages_too() -> None:
    assert seen(100.0, 101.0, etag="") == Age("", 1.0, 1, 101.0)


def test_silence_needs_the_time_and_three_reads() -> None:
    assert not seen(100.0, 102.0, 104.0).silent(4.0)
    assert seen(100.0, 102.0, 104.0, 106.0).silent(6.0)
    assert not seen(100.0, 102.0, 104.0, 106.0).silent(6.1)


def test_an_observer_that_was_paused_starts_anew() -> None:
    assert young(seen(100.0, 102.0, 104.0, 106.0), 200.0) == Age("x", 0.0, 0, 200.0)
