"""Tables of rows: appended, read back, compacted meanwhile; on memory and on Azurite."""

import threading
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from samza_azure import tables
from samza_azure.errors import ConfigError, CorruptState
from samza_azure.segments import (
    Advance,
    Granted,
    Granularity,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Published,
)
from samza_azure.storage.transactions import Act, MemoryTransactions, Write
from samza_azure.tables import compaction, files
from samza_azure.tables.store.segments import SegmentStore
from samza_azure.tables.write import by_bucket
from tests.storage.conftest import Stores

START = datetime(2024, 1, 1, tzinfo=UTC)
NAIVE = START.replace(tzinfo=None)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64()), ("name", pa.string())])
JANUARY = Interval.of("2024-01-01", "2024-02-01")
FIRST = Interval.of("2024-01-01", "2024-01-02")


@pytest.fixture
def stores(segment_stores: Stores) -> Stores:
    """Makes clients of one table, which is by day."""
    tables.create(segment_stores(), SCHEMA, time="at", granularity=Granularity.DAY)
    return segment_stores


@pytest.fixture
def store(stores: Stores) -> SegmentStore:
    return stores()


def task(name: str, priority: int = 0) -> LockTask:
    return LockTask(name, name, priority, LockOwner(name, "1"))


def made(first: int, count: int, *, every: timedelta = timedelta(hours=7)) -> pa.Table:
    """Rows `every` 7 hours from the first one on, the latest first: the writer of a file sorts them."""
    numbers = list(range(first, first + count))[::-1]
    columns = [[START + number * every for number in numbers], numbers, [f"name {number % 5}" for number in numbers]]
    return pa.table(columns, schema=SCHEMA)


def appended(store: SegmentStore, *parts: pa.Table, name: str = "a") -> None:
    appender = tables.Appender(store, task(name))
    for part in parts:
        assert isinstance(appender.append(part), Published)
    appender.close()


def numbers(store: SegmentStore, *how: object, **more: object) -> list[int]:
    found = tables.snapshot_of(store).to_arrow(*how, **more)  # type: ignore[arg-type]
    return sorted(found["number"].to_pylist())


def test_rows_come_back(store: SegmentStore) -> None:
    appended(store, made(0, 20), made(20, 10))
    snapshot = tables.snapshot_of(store)
    assert snapshot.to_arrow().sort_by("number") == made(0, 30).sort_by("number")
    assert numbers(store, FIRST) == [0, 1, 2, 3]
    assert snapshot.to_arrow(FIRST, ["name"]).schema.names == ["name"]
    assert sorted(snapshot.to_pandas(FIRST)["number"]) == [0, 1, 2, 3]
    half = Interval.of("2024-01-01T06:00", "2024-01-01T15:00")
    assert numbers(store, half) == [1, 2], "rows, not only files, are cut"


def test_files_that_cannot_have_a_row_are_not_read(store: SegmentStore) -> None:
    appended(store, made(0, 20))
    snapshot = tables.snapshot_of(store)
    everything = snapshot.files()
    assert len(everything) == 6
    assert [part.file.statistics["number"]["least"] for part in snapshot.files(filter=[("number", ">", 15)])] == [
        14,
        18,
    ]
    assert numbers(store, filter=[("number", ">", 15), ("name", "=", "name 2")]) == [17]
    for part in everything[:4]:
        store.blobs.delete(part.file.name)
    assert numbers(store, filter=[("number", ">", 15)]) == [16, 17, 18, 19], "the others need not be there"


def test_compaction_changes_no_row(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "BATCH_ROWS", 3)
    appended(store, *(made(part * 10, 10, every=timedelta(minutes=10)) for part in (2, 0, 3, 1)))
    before = tables.snapshot_of(store)
    done = tables.compact(store, task("compact"), JANUARY)
    assert [(one.inputs, one.outputs) for one in done] == [(4, 1)]
    after = tables.snapshot_of(store)
    (part,) = after.files()
    assert after.to_arrow() == before.to_arrow().sort_by("at"), "one file, in the order of time"
    assert part.file.rows == 40
    assert tables.snapshot_of(store, at=before.sequence).to_arrow() == before.to_arrow()
    assert tables.compact(store, task("compact"), JANUARY) == [], "nothing is left to do"
    assert store.state().box.locks == {}


def test_compaction_into_several_files(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "BATCH_ROWS", 10)
    appended(store, *(made(part * 40, 40, every=timedelta(minutes=5)) for part in range(4)))
    done = tables.compact(store, task("compact"), JANUARY, target_bytes=2_000)
    assert done[0].outputs > 1
    assert numbers(store) == list(range(160))


def test_compacting_an_interval_that_another_task_has_locked_is_an_error(stores: Stores) -> None:
    one, other = stores(), stores()
    appended(one, made(0, 2), made(2, 2))
    inputs = one.snapshot().timeline.visible()
    request = LockRequest("x", one.name, FIRST, LockType.EXCLUSIVE, inputs[0].covers, inputs[0].version)
    one.acquire(task("x"), request)
    (done,) = tables.compact(other, task("compact"), JANUARY)
    assert "another task holds a lock" in done.refused


def test_an_append_where_another_task_has_locked_is_lost_and_can_be_sent_again(stores: Stores) -> None:
    store, other = stores(), stores()
    answer = other.acquire(task("x", 99), LockRequest("x", other.name, JANUARY, LockType.EXCLUSIVE))
    assert isinstance(answer, Granted)
    appender = tables.Appender(store, task("sink"))
    assert isinstance(appender.append(made(0, 2), Advance("s", None, 2)), LostRace)
    other.release_all("x")
    assert isinstance(appender.append(made(0, 2), Advance("s", None, 2)), Published)
    assert numbers(store) == [0, 1]


def test_a_column_is_added(store: SegmentStore) -> None:
    appended(store, made(0, 3))
    wider = made(3, 3).append_column("more", pa.array(["x"] * 3))
    before = store.snapshot().sequence
    appended(store, wider, made(6, 1))
    earlier = tables.snapshot_of(store, at=before).to_arrow()
    assert (len(earlier), earlier["more"].null_count) == (3, 3), "its rows are those of then, its columns those of now"
    found = tables.snapshot_of(store).to_arrow().sort_by("number")
    assert found["more"].to_pylist() == [None] * 3 + ["x"] * 3 + [None]
    tables.compact(store, task("compact"), JANUARY)
    assert tables.snapshot_of(store).to_arrow().sort_by("number") == found


def test_a_changed_type_is_refused(store: SegmentStore) -> None:
    rows = made(0, 3)
    changed = rows.set_column(1, "number", pa.array(["0", "1", "2"]))
    with pytest.raises(ConfigError, match="Cast it to int64"):
        appended(store, changed)
    assert numbers(store) == []


def test_a_damaged_file_is_named(store: SegmentStore) -> None:
    appended(store, made(0, 8))
    first, second, _ = tables.snapshot_of(store).files()
    store.blobs.delete(first.file.name)
    store.blobs.delete(second.file.name)
    store.blobs.put(second.file.name, b"PAR1 no more")
    with pytest.raises(CorruptState, match=first.file.name):
        numbers(store)
    with pytest.raises(CorruptState, match=r"is damaged.*" + second.file.name):
        numbers(store, second.interval)
    assert numbers(store, skip_damaged=True) == [7]
    done = tables.compact(store, task("compact"), JANUARY)
    assert done == []


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_flipped_bit_is_no_other_value(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of all flipped bits were read as other rows: only what could not be unpacked was damaged. Others were errors
    of Arrow's own."""
    appended(store, made(0, 3, every=timedelta(hours=1)), made(3, 3, every=timedelta(hours=1)))
    part, _ = tables.snapshot_of(store).files()
    data = store.blobs.read(part.file.name, 0).data  # type: ignore[union-attr]
    for bit in range(0, 8 * len(data), 97):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        store.blobs.delete(part.file.name)
        store.blobs.put(part.file.name, bytes(changed))
        with pytest.raises(CorruptState, match=part.file.name):
            numbers(store)
    (done,) = tables.compact(store, task("compact"), JANUARY)
    assert "is damaged" in done.refused
    # A larger file is not read as a whole when it is merged. Its pages have checksums, too.
    monkeypatch.setattr(files, "_READ_AHEAD", 256)
    page = data.index(b"\x28\xb5\x2f\xfd") + 12  # behind the head of a page that zstd has packed
    store.blobs.delete(part.file.name)
    store.blobs.put(part.file.name, data[:page] + bytes([data[page] ^ 1]) + data[page + 1 :])
    (done,) = tables.compact(store, task("compact"), JANUARY)
    assert "is damaged" in done.refused
    assert numbers(store, skip_damaged=True) == [3, 4, 5]


def test_a_refused_append_leaves_nothing_and_can_be_sent_again(stores: Stores) -> None:
    store, other = stores(), stores()
    appender = tables.Appender(store, task("sink"))
    assert isinstance(appender.append(made(0, 2), Advance("s", None, 2)), Published)
    other.end(LockOwner("sink", "1"))
    successor = tables.Appender(other, LockTask("sink 2", "sink", 0, LockOwner("sink", "2")))
    assert isinstance(successor.append(made(2, 2), Advance("s", 2, 4)), Published)
    assert isinstance(appender.append(made(2, 2), Advance("s", 2, 4)), LostRace)
    assert isinstance(successor.append(made(2, 2), Advance("s", 2, 4)), LostRace)
    assert numbers(store) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pa.table({"number": [1]}), "no column 'at'"),
        (pa.table({"at": pa.array([None], pa.timestamp("us", "UTC"))}), "1 rows have no 'at'"),
        (pa.table({"at": pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))}), "outside the years 1 to 9"),
        (pa.table({"at": pa.array([-62_135_596_800_000_001], pa.timestamp("us", "UTC"))}), "leave them out"),
    ],
)
def test_rows_without_a_time(store: SegmentStore, rows: pa.Table, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        appended(store, rows)
    assert numbers(store) == []


@pytest.mark.parametrize(
    "column",
    [pa.array([1 << 60], pa.timestamp("s", "UTC")), pa.array([(1 << 31) - 1], pa.int32()).cast(pa.date32())],
    ids=["seconds", "days"],
)
def test_moments_that_microseconds_do_not_reach(column: pa.Array) -> None:
    with pytest.raises(ConfigError, match="too far from 1970 to be counted in microseconds"):
        list(by_bucket(pa.table({"at": column}), "at", Granularity.DAY))


def test_bad_names_and_tables_that_are_divided_otherwise(stores: Stores) -> None:
    store = stores()
    with pytest.raises(ConfigError, match="was created by day of 'at', and month of 'at' is asked for now"):
        tables.create(store, SCHEMA, time="at", granularity=Granularity.MONTH)
    with pytest.raises(ConfigError, match="must be a timestamp"):
        tables.create(store, SCHEMA, time="number", granularity=Granularity.DAY)
    with pytest.raises(ConfigError, match="The table 'No Such/Name' cannot be used"):
        tables.store_of(None, "No Such/Name")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no column 'nothing'"):
        tables.snapshot_of(store).to_arrow(columns=["nothing"])
    dates = pa.schema([("at", pa.date32())])
    with pytest.raises(ConfigError, match=r"is a date, .* cannot divide a table by hour\. Take day or coarser"):
        tables.create(stores(), dates, time="at", granularity=Granularity.HOUR)


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)  # the service is not asked for the refusal
def test_rows_of_too_many_days_at_once(store: SegmentStore) -> None:
    with pytest.raises(ConfigError, match="coarser granularity"):
        appended(store, made(0, 99, every=timedelta(days=1)))


def test_two_append_while_one_compacts(stores: Stores) -> None:
    """A reader sees each row once, and all that were published before it looked."""
    published: Counter[int] = Counter()
    errors: list[BaseException] = []
    guard = threading.Lock()

    def append(name: str, first: int) -> None:
        try:
            appender = tables.Appender(stores(), task(name), numbers=4)
            for part in range(6):
                rows = made(first + part * 5, 5)
                assert isinstance(appender.append(rows, Advance(name, part or None, part + 1)), Published)
                with guard:
                    published.update(rows["number"].to_pylist())
            appender.close()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            errors.append(error)

    threads = [threading.Thread(target=append, args=(f"a{number}", number * 100)) for number in range(2)]
    for thread in threads:
        thread.start()
    store, compactions = stores(), 0
    while any(thread.is_alive() for thread in threads) or not compactions:
        with guard:
            known = Counter(published)
        found = Counter(numbers(store))
        assert not known - found
        assert max(found.values(), default=1) == 1
        compactions += sum(one.outputs for one in tables.compact(store, task("compact"), JANUARY))
    assert errors == []
    assert Counter(numbers(store)) == published
    assert sum(published.values()) == 60


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_rows_where_a_part_of_an_interval_was_dropped(segment_stores: Stores) -> None:
    """The month below shows only what is left of it: a row of the other part has to go where it is seen."""
    store = segment_stores()
    tables.create(store, SCHEMA, time="at", granularity=Granularity.MONTH)
    days = [START + timedelta(days=day) for day in range(31)]
    rows = pa.table([days, [*range(31)], ["x"] * 31], schema=SCHEMA)
    appender = tables.Appender(store, task("a", 50))
    appender.append(rows)
    appender.close()
    middle = Interval.of("2024-01-10", "2024-01-20")
    assert isinstance(segment_stores().drop(task("d"), middle), Published)
    assert tables.snapshot_of(store).to_arrow().num_rows == 21
    answer = appender.append(rows)
    assert isinstance(answer, Published)
    assert tables.snapshot_of(store).to_arrow().num_rows == 21 + 31
    assert tables.snapshot_of(store).to_arrow(middle).num_rows == 10
    with pytest.raises(ConfigError, match="2024-01-10/2024-01-20 was appended to, dropped or rewritten since"):
        store.restore(middle)
    appender.close()
    assert not tables.rewrite(store, task("c"), middle, Granularity.DAY).refused
    assert tables.snapshot_of(store).to_arrow().num_rows == 52


def of_one_column(segment_stores: Stores, kind: pa.DataType, values: list[object]) -> SegmentStore:
    """A table whose column `x` has these values; all at one moment."""
    schema = pa.schema([("at", pa.timestamp("us")), ("x", kind)])
    tables.create(store := segment_stores(), schema, time="at")
    moment = pa.array([NAIVE] * len(values), pa.timestamp("us"))
    assert isinstance(tables.Appender(store, task("a")).append(pa.table([moment, values], schema=schema)), Published)
    return store


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "value", "operator", "than"),
    [
        (pa.timestamp("us"), NAIVE, "<=", date(2024, 1, 1)),
        (pa.timestamp("us"), NAIVE, "=", date(2024, 1, 1)),
        (pa.timestamp("us", "UTC"), START, "=", date(2024, 1, 1)),
        (pa.timestamp("us", "UTC"), START, "=", START.astimezone(timezone(timedelta(hours=5)))),
        (pa.date32(), date(2024, 1, 1), "=", NAIVE),
        (pa.timestamp("ns"), 1_704_067_200_000_000_500, ">", NAIVE),
        (pa.float32(), 0.1, ">", 0.1),
        (pa.string(), "é", ">", "z"),
    ],
)
def test_a_file_that_may_have_a_row_is_read(
    segment_stores: Stores, kind: pa.DataType, value: object, operator: str, than: object
) -> None:
    """A day and its first moment are equal for pyarrow, and their texts are not."""
    store = of_one_column(segment_stores, kind, [value])
    assert tables.snapshot_of(store).to_arrow(filter=[("x", operator, than)]).num_rows == 1


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_filter_of_another_type_is_an_error_whether_or_not_a_file_is_read(segment_stores: Stores) -> None:
    store = of_one_column(segment_stores, pa.timestamp("us"), [NAIVE])
    with pytest.raises(pa.ArrowNotImplementedError, match="no kernel"):
        tables.snapshot_of(store).to_arrow(filter=[("x", "<", "2024-01-01")])


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_texts_that_are_too_long_for_statistics(segment_stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet keeps none of the group of rows that has one; those of the other groups are not the file's."""
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 2)
    store = of_one_column(segment_stores, pa.string(), ["a", "b", "z" * 5_000, "c", None, None])
    assert tables.snapshot_of(store).to_arrow(filter=[("x", ">", "y")]).num_rows == 1
    other = of_one_column(lambda: store_like(store), pa.string(), ["a", "b", None, None])
    (part,) = tables.snapshot_of(other).files()
    assert part.file.statistics["x"] == {"nulls": 2, "least": "a", "most": "b"}, "nulls take nothing away"


def store_like(store: SegmentStore) -> SegmentStore:
    """Another table on the same account."""
    return SegmentStore(MemoryTransactions(), store.blobs, "other")


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_moments_that_python_cannot_say(segment_stores: Stores) -> None:
    store = of_one_column(segment_stores, pa.timestamp("us"), [2**60])
    assert tables.snapshot_of(store).to_arrow().num_rows == 1


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("moment", [-1, -999, -1_000, -86_400_000_000_001, 1, 1_999])
def test_nanoseconds_lie_in_the_microsecond_before(segment_stores: Stores, moment: int) -> None:
    schema = pa.schema([("at", pa.timestamp("ns"))])
    tables.create(store := segment_stores(), schema, time="at")
    tables.Appender(store, task("a")).append(pa.table([pa.array([moment], pa.timestamp("ns"))], schema=schema))
    at = moment // 1_000
    assert tables.snapshot_of(store).to_arrow(Interval(at, at + 1)).num_rows == 1


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_nulls_in_a_column_that_had_none(segment_stores: Stores) -> None:
    """A later run may not promise what the run that created the table did. Compaction failed forever."""
    strict = pa.schema([pa.field("at", pa.timestamp("us")), pa.field("x", pa.int64(), nullable=False)])
    tables.create(store := segment_stores(), strict, time="at")
    loose = pa.schema([field.with_nullable(True) for field in strict])
    for part in (pa.table([[NAIVE], [1]], schema=strict), pa.table([[NAIVE], [None]], schema=loose)):
        appended(store, part)
    appended(store, pa.table([[NAIVE]], schema=strict.remove(1)))
    assert [(one.inputs, one.outputs) for one in tables.compact(store, task("c"))] == [(3, 1)]
    assert sorted(tables.snapshot_of(store).to_arrow()["x"].to_pylist(), key=str) == [1, None, None]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_two_columns_of_one_name(segment_stores: Stores) -> None:
    """They were published, and the table could no longer be read."""
    rows = pa.table([[START], [1], [2]], names=["at", "number", "number"])
    with pytest.raises(ConfigError, match=r"Two columns .* have the name 'number'"):
        tables.create(segment_stores(), rows.schema, time="at")
    tables.create(store := segment_stores(), SCHEMA, time="at")
    with pytest.raises(ConfigError, match=r"Two columns .* have the name 'number'"):
        tables.Appender(store, task("a")).append(rows)
    assert numbers(store) == []


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_more_columns_than_a_row_has_statistics_of(segment_stores: Stores) -> None:
    """The append was refused with a ValueError, since a column of the segment's row was too long."""
    wide = pa.schema([*((f"column_{number}", pa.string()) for number in range(300)), SCHEMA.field("at")])
    tables.create(store := segment_stores(), wide, time="at")
    appended(store, pa.table([*[["x" * 60]] * 300, [START]], schema=wide))
    (part,) = tables.snapshot_of(store).files()
    assert files.span(part.file, "at") is not None, "the time is what files are chosen by"
    assert tables.snapshot_of(store).to_arrow(columns=["column_299"])["column_299"].to_pylist() == ["x" * 60]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_more_columns_than_a_head_has_room_for(segment_stores: Stores) -> None:
    wide = pa.schema([*((f"column_{number}", pa.string()) for number in range(1000)), SCHEMA.field("at")])
    with pytest.raises(ConfigError, match="1001 columns of the table do not fit into its head"):
        tables.create(segment_stores(), wide, time="at")


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_column_of_nulls_alone_has_no_type_yet(store: SegmentStore) -> None:
    """Python's `[None]` was a column of type null forever, and refused where the table has texts."""
    at = pa.array([START], SCHEMA.field("at").type)
    nothing = pa.array([None])
    appended(store, pa.table({"at": at, "name": nothing, "note": nothing}))
    appended(store, pa.table({"at": at, "name": ["x"], "note": ["y"]}))
    assert sorted(tables.snapshot_of(store).to_arrow()["note"].to_pylist(), key=str) == [None, "y"]
    with pytest.raises(ConfigError, match=r"'note' of .* has no type but null"):
        tables.create(store, pa.schema([SCHEMA.field("at"), ("note", pa.null())]), time="at")


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_position_is_compared_as_it_is_stored(store: SegmentStore) -> None:
    """A tuple comes back as a list, and every publish after the first one was refused."""
    appender = tables.Appender(store, task("a"))
    for first in range(3):
        position = Advance("s", (0, first) if first else None, (0, first + 1))
        assert isinstance(appender.append(made(first, 1), position), Published)
    assert store.move("s", (0, 3), (0, 4)) and store.position("s") == [0, 4]


def test_rows_without_a_column_are_counted(store: SegmentStore) -> None:
    """`columns=[]` gave a table of no rows, whatever there was."""
    snapshot = tables.snapshot_of(store)
    assert snapshot.to_arrow(columns=[]).shape == (0, 0)
    appended(store, made(0, 5))
    snapshot = tables.snapshot_of(store)
    assert snapshot.to_arrow(columns=[]).shape == (5, 0)
    assert snapshot.to_arrow(FIRST, [], [("number", ">", 1)]).shape == (2, 0), "by a column that is not wanted"
    assert len(snapshot.to_pandas(columns=[])) == 5
    assert snapshot.to_arrow(FIRST, ["number", "number"]).shape == (4, 2)


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_views_are_texts_and_bytes(segment_stores: Stores) -> None:
    """Polars hands them out. Arrow cannot sort them, and said so in its own words."""
    at = pa.array([START], SCHEMA.field("at").type)
    rows = pa.table({"at": at, "name": pa.array(["x"], pa.string_view()), "raw": pa.array([b"y"], pa.binary_view())})
    tables.create(segment_stores(), rows.schema, time="at")
    store = segment_stores()
    appended(store, rows, made(1, 1))
    found = tables.snapshot_of(store).to_arrow()
    assert found.schema.types[1:3] == [pa.string(), pa.binary()]
    assert sorted(found["name"].to_pylist()) == ["name 1", "x"]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("type", [pa.month_day_nano_interval(), pa.list_(pa.string_view()), pa.struct([])], ids=str)
def test_a_type_that_no_file_can_hold(store: SegmentStore, type: pa.DataType) -> None:  # noqa: A002
    rows = pa.table({"at": pa.array([START], SCHEMA.field("at").type), "odd": pa.nulls(1, type)})
    with pytest.raises(ConfigError, match=r"'odd' .* cannot be sorted into files\. Cast it"):
        appended(store, rows)
    with pytest.raises(ConfigError, match="'odd'"):
        tables.create(store, rows.schema, time="at")
    assert tables.snapshot_of(store).schema == SCHEMA


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_refused_append_adds_no_column(store: SegmentStore) -> None:
    """The table had the columns of rows that were refused since their times are wrong, or too many."""
    at = SCHEMA.field("at").type
    for moments in [[None], [START + timedelta(days=number) for number in range(99)]]:
        rows = pa.table({"at": pa.array(moments, at), "more": ["x"] * len(moments)})
        with pytest.raises(ConfigError):
            appended(store, rows)
        assert tables.snapshot_of(store).schema == SCHEMA


def test_a_row_that_names_a_blob_of_others_has_it_neither_read_nor_deleted(stores: Stores) -> None:
    """Whoever may write rows need not be allowed to write or delete blobs."""
    store, theirs = stores(), "streams/s/0/00000000"
    store.blobs.put(theirs, b"theirs")
    appended(store, made(0, 1))
    (row,) = store.rows.query("segment.", "segment~")
    store.rows.transact([Write(Act.MERGE, row.key, {"file": theirs})])
    with pytest.raises(CorruptState, match=f"names a blob that is no file of a table .blob {theirs}"):
        numbers(stores())
    fresh = stores()
    fresh.drop(task("drop"), JANUARY)
    assert sum(fresh.collect(day * 86_400_000_000, 1).segments for day in range(3)) == 2, "the segment and the drop"
    assert theirs in [name for name, _ in store.blobs.list("streams/s/0/")]
    store.blobs.delete(theirs)
