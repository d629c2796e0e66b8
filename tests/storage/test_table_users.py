"""I1 to I24 of the users of the core (`tests/segments/table_users.py`) on storage: the same acts, the same checks.

Garbage is deleted by `collect`, and the storage keeps the locks, so that each act may be another client's.
"""

from random import Random
from typing import Any

import pytest

from samza_azure.storage import segment_publishing
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.segments import SegmentStore
from samza_azure.storage.transactions import MemoryTransactions
from tests.segments.table_users import TableUsers
from tests.storage.conftest import Stores
from tests.storage.stored import Stored

GRACE_US = 3


class StoredTableUsers(TableUsers):
    """Users whose table is in storage."""

    def __init__(self, random: Random, stores: Stores) -> None:
        self.stores, self.acts = stores, 0
        super().__init__(random.randrange, Stored(stores()))

    @property
    def stored(self) -> Stored:
        assert isinstance(self.table, Stored)
        return self.table

    def step(self) -> None:
        self.acts += 1
        super().step()

    def collect(self) -> None:
        """Garbage goes, if it is as old as the grace."""
        before = self.visible()
        self.stored.store.collect(self.acts, GRACE_US)
        assert self.visible() == before, "I20: collecting garbage changes what is shown"

    def sync(self) -> None:
        """Another client goes on, which knows nothing."""
        locks = dict(self.stored.box.locks)
        self.stored.store = self.stores()
        assert self.stored.box.locks == locks, "I6: other locks after a restart"


def played(stores: Stores, seed: int, acts: int) -> StoredTableUsers:
    users = StoredTableUsers(Random(seed), stores)
    for _ in range(acts):
        users.step()
    return users


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("seed", range(40))
def test_the_invariants_hold(segment_stores: Stores, seed: int) -> None:
    assert played(segment_stores, seed, 100).table.box.granted


@pytest.mark.parametrize("segment_stores", ["azurite"], indirect=True)
def test_the_invariants_hold_on_azurite(segment_stores: Stores) -> None:
    assert played(segment_stores, 1, 40).rows


#: What a table must do, and the invariants of which one is broken where it does not.
WITHOUT: dict[str, tuple[str, Any, str]] = {
    "appends are carried": ("_copies", lambda *_: [], "I16|I24"),
    "a repeated publish is found": ("_settled", lambda *_: None, "I12|is there already|covered|replaced"),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_mistake_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, wrong, seen = WITHOUT[name]
    monkeypatch.setattr(segment_publishing, function, wrong)

    def all_play() -> None:
        for seed in range(40):
            account, rows = MemoryAccount(), MemoryTransactions()
            played(lambda: SegmentStore(rows, account.blobs(), "t", wait=lambda pause: None), seed, 100)  # noqa: B023

    with pytest.raises((AssertionError, ValueError), match=seen):
        all_play()
