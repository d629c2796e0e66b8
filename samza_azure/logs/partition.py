"""The partition of a key: pmod(crc32(canonical bytes), n), the same here and in a Spark plan.

Canonical bytes of one value:

    string              UTF-8
    integer, any width  decimal text: -7
    boolean             true or false
    date                ISO text: 2013-01-31
    binary              the bytes themselves

A null key goes to partition 0. Several columns are joined unambiguously: each value as its length in bytes, a colon and
the bytes; null as ~. In Spark: concat(octet_length(b), ':', b) with b the column cast to string, and
coalesce(…, '~'). Python's own `hash` differs between processes and must not be used.
"""

import datetime as dt
import zlib
from collections.abc import Sequence
from typing import TypeAlias

Key: TypeAlias = str | int | bool | bytes | dt.date | None


def partition_of(key: Sequence[Key], partitions: int) -> int:
    """The partition of a key, which has one value per key column."""
    data = key_bytes(key)
    return 0 if data is None else zlib.crc32(data) % partitions


def key_bytes(key: Sequence[Key]) -> bytes | None:
    """The bytes to hash. None: the key is one column, and null."""
    if len(key) == 1:
        return None if key[0] is None else canonical(key[0])
    return b"".join(_framed(value) for value in key)


def canonical(value: str | int | bool | bytes | dt.date) -> bytes:
    """One value's bytes. Raise TypeError for a type that cannot be a key."""
    match value:
        case str():
            return value.encode()
        case bool():  # before int, since bool is a subclass
            return b"true" if value else b"false"
        case int():
            return b"%d" % value
        case bytes():
            return value
        case dt.date() if not isinstance(value, dt.datetime):
            return value.isoformat().encode()
    raise TypeError(
        f"A {type(value).__name__} cannot decide a partition. Use a string, integer, boolean, date or binary column."
    )


def _framed(value: Key) -> bytes:
    if value is None:
        return b"~"
    data = canonical(value)
    return b"%d:%b" % (len(data), data)
