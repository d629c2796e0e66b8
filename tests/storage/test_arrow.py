"""Rows as bytes and back, split by destination, with the range of their event times."""

import datetime as dt

import pyarrow as pa
import pytest

from samza_azure.errors import ConfigError
from samza_azure.storage.arrow import decode, encode, event_time_range, slices

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
