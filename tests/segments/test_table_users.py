"""I1 to I24 while several append, compact, replace, preempt each other and die: see `table_users`."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.segments.table_users import TableUsers


@settings(max_examples=60)
@given(st.data())
def test_the_invariants_hold(data: st.DataObject) -> None:
    users = TableUsers(lambda below: data.draw(st.integers(0, below - 1)))
    for _ in range(25):
        users.step()


@pytest.mark.parametrize("seed", range(60))
def test_the_invariants_hold_in_long_histories(seed: int) -> None:
    users = TableUsers(Random(seed).randrange)
    for _ in range(100):
        users.step()
    assert users.table.box.granted


def test_histories_are_not_idle() -> None:
    """What no history does is shown by none."""
    seen: set[str] = set()
    for seed in range(40):
        users = TableUsers(Random(seed).randrange)
        for _ in range(100):
            users.step()
            seen |= {f"{lock.type} lock" for lock in users.table.box.locks.values()}
            seen |= {"revoked" for lock in users.table.box.locks.values() if lock.revoked}
            seen |= {f"generation {one.generation}" for one in users.table.timeline.visible()}
            files = [one.file for one in users.table.timeline]
            seen |= {"copy" for file in files if files.count(file) > 1}
            seen |= {"versions" for entry in users.table.timeline.lookup() if entry.version}
    expected = {"append lock", "exclusive lock", "replace lock", "revoked", "copy", "versions"}
    assert expected | {f"generation {generation}" for generation in range(3)} <= seen
