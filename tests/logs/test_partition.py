"""Which partition a key belongs to. The numbers are pinned: rows already written must stay findable."""

import datetime as dt
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_azure.logs.partition import canonical, key_bytes, partition_of

keys = st.none() | st.text() | st.integers() | st.booleans() | st.binary() | st.dates()


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("Zürich", b"Z\xc3\xbcrich"),
        ("", b""),
        (-7, b"-7"),
        (9_223_372_036_854_775_807, b"9223372036854775807"),
        (True, b"true"),
        (False, b"false"),
        (dt.date(2013, 1, 31), b"2013-01-31"),
        (dt.date(7, 1, 1), b"0007-01-01"),
        (b"\x00\xff", b"\x00\xff"),
    ],
)
def test_canonical_bytes(value: str | int | bool | bytes | dt.date, data: bytes) -> None:
    assert canonical(value) == data


def test_a_partition_is_the_checksum_modulo_the_number_of_partitions() -> None:
    assert zlib.crc32(b"UA") == 2_278_476_520
    assert [partition_of(("UA",), n) for n in (1, 2, 3, 4)] == [0, 0, 1, 0]


def test_a_null_key_goes_to_partition_0() -> None:
    assert partition_of((None,), 7) == 0


def test_several_columns_are_joined_without_ambiguity() -> None:
    assert key_bytes(("ab", 12, None)) == b"2:ab2:12~"
    assert key_bytes(("a", "b")) != key_bytes(("ab", ""))
    assert key_bytes((None, "")) != key_bytes(("", None))


@given(st.lists(keys, min_size=2, max_size=2), st.lists(keys, min_size=2, max_size=2))
def test_different_keys_of_two_columns_have_different_bytes(one: list, other: list) -> None:
    texts = [[None if value is None else canonical(value) for value in key] for key in (one, other)]
    assert (key_bytes(one) == key_bytes(other)) == (texts[0] == texts[1])


@given(st.lists(keys, min_size=1, max_size=3), st.integers(1, 1000))
def test_every_key_has_a_partition(key: list, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


@pytest.mark.parametrize("value", [1.5, dt.datetime(2013, 1, 1, tzinfo=dt.UTC)])
def test_other_types_decide_no_partition(value: object) -> None:
    with pytest.raises(TypeError, match="cannot decide a partition"):
        canonical(value)  # type: ignore[arg-type]
