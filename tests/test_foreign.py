"""Bytes that may say anything become a value, or a ValueError."""

import gzip
import tracemalloc
import zlib

import pytest

from samza_azure.foreign import GZIP, parsed, unpacked


def test_what_was_packed_comes_back() -> None:
    assert unpacked(zlib.compress(b"text"), 4) == b"text"
    assert unpacked(gzip.compress(b"text"), 4, GZIP) == b"text"
    assert parsed('{"a": [1]}', is_passed_on=True) == {"a": [1]}


@pytest.mark.parametrize("data", [b"", b"x", zlib.compress(b"text")[:-1], zlib.compress(b"text") + b"x"])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        unpacked(data, 100)


def test_no_more_is_unpacked_than_is_allowed() -> None:
    data = zlib.compress(bytes(50 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError, match="it unpacks to more than 1000 bytes"):
        unpacked(data, 1000)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "x", "", b"\xff"])
def test_a_text_that_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting value|decode byte"):
        parsed(text)


def test_a_text_that_another_parser_reads_differently_is_not_passed_on() -> None:
    assert parsed('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="two values of one name"):
        parsed('[{"a": 1, "a": 2}]', is_passed_on=True)
