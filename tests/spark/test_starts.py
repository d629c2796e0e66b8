"""How many queries of a container start at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from samza_azure.spark.query.starts import Starts, at_once


def test_the_first_query_starts_alone() -> None:
    starts = Starts(3)
    with starts.turn():
        assert turns(starts) == 0
    assert turns(starts) == 1


def test_queries_start_side_by_side_once_the_source_of_one_is_up() -> None:
    starts, met = Starts(3), threading.Barrier(3)

    def start() -> int:
        with starts.turn():
            return met.wait(60)

    with starts.turn():
        starts.succeeded()
        starts.succeeded()
        assert turns(starts) == 2
    with ThreadPoolExecutor(3) as pool:
        assert {each.result() for each in [pool.submit(start) for _ in range(3)]} == {0, 1, 2}


def test_a_start_that_fails_gives_its_turn_back() -> None:
    starts = Starts()
    with pytest.raises(ValueError, match="the stage's function"), starts.turn():
        raise ValueError("the stage's function")
    assert turns(starts) == 1


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 1), (3, 1), (4, 2), (16, 8)])
def test_half_of_the_cores_start_queries(cores: int, expected: int) -> None:
    assert at_once(cores) == expected


def turns(starts: Starts) -> int:
    """How many more queries could start now."""
    found = 0
    while starts._turns.acquire(blocking=False):
        found += 1
    if found:
        starts._turns.release(found)
    return found
