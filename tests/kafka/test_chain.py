"""From topic to job to topic to job each message is once, whatever happens to the tasks of both (`chain`)."""

import pytest

from .chain import play


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("in_transactions", [True, False])
def test_each_message_is_once_behind_two_jobs(seed: int, in_transactions: bool) -> None:
    print(dict(play(seed, 300, in_transactions=in_transactions)))
