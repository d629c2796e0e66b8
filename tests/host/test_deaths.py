"""When the next container starts, and when the processor gives up."""

from samza_azure.host.deaths import FORGIVE_S, Deaths


def test_each_death_in_a_row_doubles_the_wait_up_to_half_a_minute() -> None:
    deaths, waits = Deaths(limit=10), []
    for _ in range(9):
        deaths = deaths.after(1.0)
        waits.append(deaths.back_off_s)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_processor_that_may_fail_without_end_waits_no_longer() -> None:
    assert Deaths(limit=1_000_000, in_a_row=2_000).back_off_s == 30.0


def test_a_container_that_lived_for_long_dies_for_the_first_time() -> None:
    assert Deaths(5, in_a_row=5).after(FORGIVE_S) == Deaths(5, in_a_row=6)
    assert Deaths(5, in_a_row=5).after(FORGIVE_S + 1) == Deaths(5, in_a_row=1)


def test_the_processor_gives_up_after_one_more_than_it_may() -> None:
    assert [Deaths(2, in_a_row=number).are_too_many for number in range(5)] == [False, False, False, True, True]
