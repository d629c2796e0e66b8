"""The conformance cases of the core (`tests/segments/test_publish_cases.py`) on storage: the same tests, by name.

What only the core has is left out, by name.
"""

import pytest

from samza_azure.segments import Granularity, Interval
from tests.segments import test_publish_cases as cases
from tests.storage.conftest import Stores
from tests.storage.stored import Stored

#: Cases of the core that storage does not have, and why.
NOT_HERE = {
    "test_s1": "the cover check is one function, which storage calls",
    "test_s2": "the same",
    "test_s4": "the same",
    "test_s5": "half of it: storage locks each number, never a whole interval, for an append",
    "test_s7": "sequences of ids: an appender of storage holds its numbers by its lock",
    "test_s10": "rollup: storage has no query granularity",
    "test_c15": "single segments are not dropped; test_segments.py has numbers after a collection",
    "test_a_number_is_not_used_again_after_all_is_gone": "the same",
    "test_a_compaction_under_a_replace_carries_nothing": "a compaction in storage is a task of its own",
}

globals().update(
    {name: case for name, case in vars(cases).items() if name.startswith("test_") and name not in NOT_HERE}
)


@pytest.fixture
def table(segment_stores: Stores) -> cases.Make:
    """Makes a table with these tasks. A test makes one."""
    return lambda *tasks: cases.with_tasks(Stored(segment_stores()), *tasks)


@pytest.fixture
def both(segment_stores: Stores) -> cases.Table:
    return cases.with_tasks(Stored(segment_stores()), "R", "P")


def test_c10(both: cases.Both) -> None:
    cases.test_c10(both, committed=False)


def test_c10_committed(both: cases.Both) -> None:
    """A published number is no longer locked, so a day of the month may be replaced; the other days stay."""
    both.appends(both.allocates(cases.MONTH, Granularity.MONTH))
    held = both.replacing(cases.DAY)
    both.commit(held, cases.DAY)
    shown = [
        (entry.interval, [one.file and one.file.name for one in entry.segments]) for entry in both.timeline.lookup()
    ]
    rest = Interval(cases.DAY.end, cases.MONTH.end)
    assert shown == [(cases.DAY, [f"R {cases.DAY}"]), (rest, ["P 0"])]


def test_each_case_that_is_excepted_exists() -> None:
    assert NOT_HERE.keys() <= vars(cases).keys()
