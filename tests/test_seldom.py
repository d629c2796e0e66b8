"""Which lines of the log are due."""

from samza_azure.seldom import EVERY_S, Seldom


def test_a_line_is_due_once_a_minute_by_its_name() -> None:
    now = 5.0
    seldom = Seldom(lambda: now)
    assert [seldom.is_due("a"), seldom.is_due("a"), seldom.is_due("b")] == [True, False, True]
    now += EVERY_S - 1
    assert not seldom.is_due("a")
    now += 1
    assert [seldom.is_due("a"), seldom.is_due("a")] == [True, False]


def test_names_of_the_past_are_forgotten() -> None:
    now = 5.0
    seldom = Seldom(lambda: now)
    for number in range(100):
        seldom.is_due(str(number))
    now += EVERY_S
    seldom.is_due("a")
    assert len(seldom._until) == 1
