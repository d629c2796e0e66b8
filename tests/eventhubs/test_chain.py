"""From hub to job to hub to job each event is once, whatever happens to the tasks of both (`chain`)."""

import pytest

from tests.eventhubs.chain import play


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_each_event_is_once_behind_two_jobs(seed: int) -> None:
    print(dict(play(seed, 300)))
