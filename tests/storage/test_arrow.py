"""Rows as bytes and back, split by destination, with the range of their event times."""

import datetime as dt
import io
import struct
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from samza_azure.errors import ConfigError, CorruptState
from samza_azure.logs.reading import Part
from samza_azure.logs.record import Reference
from samza_azure.stream_io import arrow
from samza_azure.stream_io.arrow import decode, encode, event_time_range, rows_of, slices
from samza_azure.stream_io.arrow_size import unfolded_bytes

NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
NOON_US = 1_357_041_600_000_000
SECOND_US = 1_000_000


def table(seconds: list[int | None], destinations: list[int]) -> pa.Table:
    times = [None if each is None else NOON + dt.timedelta(seconds=each) for each in seconds]
    return pa.table(
        {
            "to": pa.array(destinations, pa.int32()),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "value": seconds,
        }
    )


def test_rows_come_back_as_they_were() -> None:
    rows = pa.table({"a": [1, None, 3], "b": ["x", "", None], "c": [[1.5], [], None]})
    assert pa.Table.from_batches(decode(encode(rows))) == rows


def test_rows_in_many_chunks_come_back_in_order() -> None:
    rows = pa.concat_tables([pa.table({"a": [number, number + 1]}) for number in range(50)])
    assert pa.Table.from_batches(decode(encode(rows)))["a"].to_pylist() == rows["a"].to_pylist()


def test_no_rows_have_a_schema() -> None:
    rows = pa.table({"a": pa.array([], pa.date32())})
    assert pa.ipc.open_stream(encode(rows)).schema == rows.schema


def test_each_destination_gets_its_rows_in_order_without_the_destination_column() -> None:
    parts = slices(table([5, 1, 4, 2, 3], [2, 0, 2, 0, 2]), destinations="to", event_time="ts")
    assert [(part.destination, part.rows) for part in parts] == [(0, 2), (2, 3)]
    assert [(part.least_us, part.greatest_us) for part in parts] == [
        (NOON_US + 1 * SECOND_US, NOON_US + 2 * SECOND_US),
        (NOON_US + 3 * SECOND_US, NOON_US + 5 * SECOND_US),
    ]
    found = [pa.Table.from_batches(decode(part.data)) for part in parts if isinstance(part.data, bytes)]
    assert [rows["value"].to_pylist() for rows in found] == [[1, 2], [5, 4, 3]]
    assert found[0].column_names == ["ts", "value"]


def test_without_destinations_all_rows_go_to_0() -> None:
    (part,) = slices(table([1, 2], [5, 6]), destinations=None)
    assert (part.destination, part.rows, part.least_us) == (0, 2, None)


def test_no_rows_make_no_slice() -> None:
    assert slices(table([], []), destinations="to") == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array([NOON, None], pa.timestamp("us", "UTC")),
        pa.array([NOON, None], pa.timestamp("s", "Asia/Tokyo")),
        pa.array([NOON, None], pa.timestamp("ns", "UTC")),
        pa.array([NOON.replace(tzinfo=None), None], pa.timestamp("ms")),
    ],
    ids=str,
)
def test_event_times_of_any_unit_are_microseconds(column: pa.Array) -> None:
    assert event_time_range(pa.table({"ts": column}), "ts") == (NOON_US, NOON_US)


def test_a_date_is_its_first_instant() -> None:
    midnight_us = NOON_US - 12 * 3600 * SECOND_US
    assert event_time_range(pa.table({"d": [dt.date(2013, 1, 1)]}), "d") == (midnight_us, midnight_us)


def test_a_window_is_its_last_instant() -> None:
    window = pa.array([{"start": NOON, "end": NOON + dt.timedelta(seconds=1)}])
    assert event_time_range(pa.table({"w": window}), "w") == (NOON_US + SECOND_US - 1,) * 2


def test_without_any_event_time_there_is_no_range() -> None:
    assert event_time_range(table([None, None], [0, 0]), "ts") == (None, None)


def test_a_text_is_no_event_time() -> None:
    with pytest.raises(ConfigError, match="'c' is string; it must be a timestamp, date or window"):
        event_time_range(pa.table({"c": ["2013-01-01"]}), "c")


def test_an_event_time_that_the_rows_do_not_have() -> None:
    with pytest.raises(ConfigError, match=r"There is no event-time column 'nope'\. Columns are a, b\."):
        event_time_range(pa.table({"a": [1], "b": [2]}), "nope")


def unchecked(rows: pa.Table) -> bytes:
    """As any program writes them."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def test_offsets_that_lead_elsewhere_are_not_followed() -> None:
    """Arrow follows them, out of its memory."""
    data = unchecked(pa.table({"s": ["abc", "def"]}))
    offsets = struct.pack("<3i", 0, 3, 6)
    assert data.count(offsets) == 1
    for wrong in ((0, 3, 1 << 30), (0, -5, 6), (3, 0, 6)):
        with pytest.raises(ValueError, match="no rows in Arrow's format"):
            list(decode(data.replace(offsets, struct.pack("<3i", *wrong))))


def test_a_buffer_that_says_it_is_huge_is_not_allocated() -> None:
    data = encode(pa.table({"z": pa.array([0] * 10_000, pa.int64())}))
    said = struct.pack("<q", 80_000)
    assert data.count(said) == 1
    with pytest.raises(ValueError, match="the rows unpack to more than"):
        list(decode(data.replace(said, struct.pack("<q", 1 << 45))))


@pytest.mark.parametrize(
    "column",
    [
        pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 50_000])),
        pa.RunEndEncodedArray.from_arrays(pa.array([20_000], pa.int32()), pa.array(["x" * 50_000])),
        pa.ListViewArray.from_arrays(
            pa.array([0] * 20_000, pa.int32()),
            pa.array([10_000] * 20_000, pa.int32()),
            pa.array([1] * 10_000, pa.int64()),
        ),
    ],
    ids=lambda column: type(column).__name__,
)
def test_few_bytes_that_unfold_to_many_are_refused(column: pa.Array) -> None:
    with pytest.raises(ValueError, match="the rows take more than"):
        list(decode(unchecked(pa.table({"c": column}))))


def test_texts_with_any_bytes_are_read_as_spark_writes_them() -> None:
    rows = pa.table({"s": pa.array([[b"\xff", None]], pa.list_(pa.binary())).view(pa.list_(pa.string()))})
    (batch,) = decode(encode(rows))
    assert pa.Table.from_batches([batch]).equals(rows)


def test_no_more_is_written_than_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "UNPACKED_MAX", 100)
    with pytest.raises(ConfigError, match=r"20 rows of 160 bytes .* 100 are possible"):
        encode(pa.table({"n": list(range(20))}))


def test_rows_are_as_many_as_their_record_says() -> None:
    """A handler would wait for the others forever."""
    part = Part((0, 7), 0, 3, None, None, Reference("streams/s/0/00000000", 99, 1, 0), None)
    with pytest.raises(CorruptState, match=r"there are 1, and its record says 3 .blob streams/s/0/00000000, .*99"):
        list(rows_of(part, encode(pa.table({"n": [1]}))))


EDGE = 2_000
LISTS = (1, 0, 3)
BY_KIND: dict[str, Callable[[int], pa.Array]] = {
    "long": lambda count: pa.array(range(count), pa.int64()),
    "byte": lambda count: pa.array([1] * count, pa.int8()),
    "boolean": lambda count: pa.array([number % 3 == 0 for number in range(count)]),
    "null": pa.nulls,
    "no value": lambda count: pa.nulls(count, pa.float64()),
    "decimal": lambda count: pa.array([None, *range(count)][:count], pa.decimal128(38, 2)),
    "string": lambda count: pa.array(["x" * (number % 7) for number in range(count)]),
    "large string": lambda count: pa.array(["x" * (number % 7) for number in range(count)], pa.large_string()),
    "string view": lambda count: pa.array(["x" * (number % 30) for number in range(count)], pa.string_view()),
    "binary": lambda count: pa.array([None if number % 5 else b"abc" for number in range(count)]),
    "dictionary": lambda count: pa.array(["abc" * (number % 4) for number in range(count)]).dictionary_encode(),
    "runs": lambda count: pc.run_end_encode(pa.array([number // 9 for number in range(count)])),
    "struct": lambda count: pa.array([{"a": number, "b": True} if number % 2 else None for number in range(count)]),
    "list of doubles": lambda count: pa.array([[0.5] * LISTS[number % 3] for number in range(count)]),
    "list of booleans": lambda count: pa.array([[True] * LISTS[number % 3] for number in range(count)]),
    "large list": lambda count: pa.array(
        [[1] * LISTS[number % 3] for number in range(count)], pa.large_list(pa.int64())
    ),
    "list of lists": lambda count: pa.array([[[1], None, [2, 3]] if number % 2 else [] for number in range(count)]),
    "list of fixed size": lambda count: pa.array([[1, 2]] * count, pa.list_(pa.int64(), 2)),
    "list view": lambda count: pa.array([[1] * LISTS[number % 3] for number in range(count)], pa.list_view(pa.int64())),
    "map": lambda count: pa.array(
        [[("k", 1)] * LISTS[number % 3] for number in range(count)], pa.map_(pa.string(), pa.int64())
    ),
    "list of structs": lambda count: pa.array([[{"a": "x", "b": None}] * LISTS[number % 3] for number in range(count)]),
}


def test_a_text_that_many_rows_share_counts_for_each_of_them() -> None:
    """A view is 16 bytes, wherever it points: so few bytes could unpack to much memory."""
    texts = pa.array([None, "x" * 100, "y", "z" * 50], pa.string_view())
    assert [unfolded_bytes(texts), unfolded_bytes(texts.slice(2)), unfolded_bytes(texts.slice(1, 1))] == [151, 51, 100]


@pytest.mark.parametrize("cut", [0, 5], ids=["whole", "cut"])
@pytest.mark.parametrize("kind", BY_KIND)
def test_what_is_written_at_the_bound_can_be_read(kind: str, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each type: `decode` takes the most rows that `encode` takes, also if they are a slice of others."""
    monkeypatch.setattr(arrow, "UNPACKED_MAX", EDGE)
    monkeypatch.setattr(arrow, "_BATCH_ROWS", 64)

    def column(count: int) -> pa.Array:
        return BY_KIND[kind](count + 2 * cut).slice(cut, count)

    def written(count: int) -> bytes | None:
        with suppress(ConfigError):
            return encode(pa.table({"c": column(count)}))
        return None

    most = bisect_left(range(EDGE + 1), True, key=lambda count: written(count) is None) - 1
    assert most > 0
    for count in {max(most - less, 0) for less in (0, 1, 2, 7, 8, 9, 63, 64, 65)}:
        if (data := written(count)) is not None:
            found = [value for batch in decode(data) for value in batch["c"].to_pylist()]
            assert found == column(count).to_pylist()
