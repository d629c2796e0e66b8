"""Each optional argument of `samza_azure.tables` at another value than its default, by its effect.

The arguments are found by inspection, so a new one without a case fails here. A wrapper that drops an argument on its
way to a well-tested core is noticed by nothing else.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from samza_azure import tables
from samza_azure.errors import ConfigError, CorruptState
from samza_azure.segments import ETERNITY, Advance, Blocked, LostRace, Published, Timeline
from samza_azure.tables import Granularity, Interval, LockOwner, LockTask
from samza_azure.tables.store.segments import SegmentStore
from tests.arguments import holds, ignore, optional_arguments
from tests.storage.conftest import Stores

#: What is decided here is the same on Azurite.
pytestmark = pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])
FIRST, SECOND = Interval.of("2024-01-01", "2024-01-02"), Interval.of("2024-01-02", "2024-01-03")
WRITER = LockTask("w", "w", 5, LockOwner("w", "1"))

#: Arguments that need Spark, with the call in tests/spark/test_tables.py that has each of them.
WITH_SPARK = {
    "open(at)": 'tables.open(config.storage, "frames", at=',
    "TableSnapshot.spark(interval)": "snapshot.spark(spark, second, [",
    "TableSnapshot.spark(columns)": 'snapshot.spark(spark, second, ["number"]',
    "TableSnapshot.spark(filter)": '["number"], [("number", ">", 5)])',
    "TableSnapshot.spark(skip_damaged)": "snapshot.spark(spark, skip_damaged=True)",
}


@pytest.fixture
def store(segment_stores: Stores) -> SegmentStore:
    """Two days of two rows each, in a file for each row."""
    store = segment_stores()
    tables.create(store, SCHEMA, time="at")
    appender = tables.Appender(store, WRITER)
    for number in range(4):
        row = pa.table([[START + timedelta(days=number % 2)], [number]], schema=SCHEMA)
        assert isinstance(appender.append(row), Published)
    appender.close()
    return store


def numbers(found: pa.Table) -> list[int]:
    return sorted(found["number"].to_pylist())


def damaged(store: SegmentStore) -> tables.TableSnapshot:
    """The file of row 0 is damaged."""
    (part, *_) = tables.snapshot_of(store).files(FIRST, [("number", "=", 0)])
    store.blobs.delete(part.file.name)
    store.upload(part.file.name, b"PAR1 no more" * 10)
    return tables.snapshot_of(store)


def merged(store: SegmentStore, **how: Any) -> int:
    return sum(one.outputs for one in tables.compact(store, WRITER, **how))


def _read(method: str, store: SegmentStore, *, damage: bool = False, **how: Any) -> Any:
    return getattr(damaged(store) if damage else tables.snapshot_of(store), method)(**how)


def _is_skipped(method: str, store: SegmentStore) -> bool:
    with pytest.raises(CorruptState):
        _read(method, store, damage=True)
    return len(_read(method, store, skip_damaged=True)) == 3


def _is_refused(store: SegmentStore) -> bool:
    with pytest.raises(ConfigError):
        tables.create(store, SCHEMA, time="at", granularity=Granularity.HOUR)
    return True


def _has_numbers(store: SegmentStore) -> bool:
    appender = tables.Appender(store, WRITER, numbers=3)
    appender.append(pa.table([[START], [9]], schema=SCHEMA))
    (lock,) = store.state().box.locks.values()
    return lock.partitions is not None and len(lock.partitions) == 2


def _moves(method: str, store: SegmentStore) -> bool:
    appender, row = tables.Appender(store, WRITER), pa.table([[START], [9]], schema=SCHEMA)

    def append(advance: Advance) -> object:
        if method == "append":
            return appender.append(row, advance)
        found = appender.place([(FIRST, row)], 1)
        assert not isinstance(found, LostRace)
        return appender.append_parts(found[0], advance)

    assert isinstance(append(Advance("s", None, 1)), Published)
    return store.position("s") == 1 and isinstance(append(Advance("s", None, 2)), LostRace)


def _earlier(store: SegmentStore) -> bool:
    before = tables.snapshot_of(store).sequence
    assert not isinstance(store.drop(LockTask("d", "d", 9, LockOwner("d")), ETERNITY), Blocked | LostRace)
    return numbers(tables.snapshot_of(store, at=before).to_arrow()) == [0, 1, 2, 3]


def _outputs(store: SegmentStore) -> int:
    return tables.rewrite(store, WRITER, FIRST, Granularity.MONTH, target_bytes=1).outputs


#: Each says by the argument's effect whether it had one; with the default it would be False.
CASES: dict[str, Callable[[SegmentStore], object]] = {
    "compact(interval)": lambda store: merged(store, interval=FIRST) == 1,
    "compact(target_bytes)": lambda store: merged(store, target_bytes=1) == 0,
    "compact(groups)": lambda store: merged(store, groups=tables.plan(store)[:1]) == 1,
    "compact(goes_on)": lambda store: merged(store, goes_on=lambda: False) == 0,
    "create(granularity)": _is_refused,
    "plan(interval)": lambda store: len(tables.plan(store, SECOND)) == 1,
    "plan(target_bytes)": lambda store: tables.plan(store, target_bytes=1) == [],
    "plan(timeline)": lambda store: tables.plan(store, timeline=Timeline()) == [],
    "rewrite(target_bytes)": lambda store: _outputs(store) > 1,
    "snapshot_of(at)": _earlier,
    "Appender()(numbers)": _has_numbers,
    "Appender.append(advance)": lambda store: _moves("append", store),
    "Appender.append_parts(advance)": lambda store: _moves("append_parts", store),
    "TableSnapshot.files(interval)": lambda store: len(_read("files", store, interval=FIRST)) == 2,
    "TableSnapshot.files(filter)": lambda store: len(_read("files", store, filter=[("number", ">", 2)])) == 1,
    **{
        f"TableSnapshot.{method}({name})": case
        for method in ("to_arrow", "to_pandas")
        for name, case in {
            "interval": lambda store, method=method: len(_read(method, store, interval=SECOND)) == 2,
            "columns": lambda store, method=method: _read(method, store, columns=["number"]).shape == (4, 1),
            "filter": lambda store, method=method: len(_read(method, store, filter=[("number", "<", 1)])) == 1,
            "skip_damaged": lambda store, method=method: _is_skipped(method, store),
        }.items()
    },
}


@pytest.mark.parametrize("argument", sorted(CASES))
def test_an_optional_argument_has_its_effect(store: SegmentStore, argument: str) -> None:
    assert CASES[argument](store)


@pytest.mark.parametrize("argument", sorted(CASES))
def test_a_case_fails_if_its_argument_is_ignored(
    store: SegmentStore, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore(argument, tables, monkeypatch)
    assert not holds(CASES[argument], store)


def test_each_optional_argument_has_a_case(segment_stores: Stores) -> None:
    assert optional_arguments(tables) == CASES.keys() | WITH_SPARK.keys()
    with_spark = Path(__file__).parents[1].joinpath("spark", "test_tables.py").read_text()
    assert [argument for argument, call in WITH_SPARK.items() if call not in with_spark] == []
