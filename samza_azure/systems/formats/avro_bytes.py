"""Where a datum of Avro ends, and that its bytes are those that the specification allows.

fastavro is lenient: it takes a number of more than 64 bits for what its last ones say, any byte but 0 for true, the
place -1 of a union for its last type, and of a key that is twice in a map the last value. Each would be a wrong row. So
each datum is walked over before fastavro reads it, which takes about 4 µs for eight fields.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

#: From the bytes and where a value begins to where it ends, perhaps behind their end. It raises ValueError for bytes
#: that no writer may have written, and IndexError if they end early.
Ends: TypeAlias = Callable[[bytes, int], int]


def of_null(_body: bytes, at: int) -> int:
    """It takes no bytes."""
    return at


def of_boolean(body: bytes, at: int) -> int:
    """A byte: 0 or 1."""
    if body[at] > 1:
        raise ValueError(f"a boolean is {body[at]}")
    return at + 1


def of_int(body: bytes, at: int) -> int:
    """At most 32 bits."""
    return _of_number(body, at, 4, 0x0F)


def of_long(body: bytes, at: int) -> int:
    """At most 64 bits."""
    return at + 1 if body[at] < 0x80 else _of_number(body, at, 9, 0x01)


def _of_number(body: bytes, at: int, full: int, most: int) -> int:
    """Some bytes of seven bits, and at most one more."""
    for each in range(at, at + full):
        if body[each] < 0x80:
            return each + 1
    if body[at + full] > most:
        raise ValueError(f"a number has more than {32 if full == 4 else 64} bits")
    return at + full + 1


def of_bytes(body: bytes, at: int) -> int:
    """Their number, and they. Of a string, fastavro sees whether it is UTF-8."""
    if (size := body[at]) < 0x80 and not size & 1:
        return at + 1 + (size >> 1)
    return _sized(body, at)[1]


def of_fixed(size: int) -> Ends:
    """So many bytes."""
    return lambda _body, at: at + size


def of_enum(symbols: int) -> Ends:
    """The place of one of its symbols."""

    def ends(body: bytes, at: int) -> int:
        number, at = _number(body, at)
        if not 0 <= number < symbols:
            raise ValueError(f"an enum of {symbols} symbols is number {number}")
        return at

    return ends


def of_union(branches: Sequence[Ends]) -> Ends:
    """The place of one of its types, and a value of it."""

    def ends(body: bytes, at: int) -> int:
        number, at = _number(body, at)
        if not 0 <= number < len(branches):
            raise ValueError(f"a union of {len(branches)} types is of number {number}")
        return branches[number](body, at)

    return ends


def of_record(fields: Sequence[Ends]) -> Ends:
    """One after the other."""

    def ends(body: bytes, at: int) -> int:
        for each in fields:
            at = each(body, at)
        return at

    return ends


def of_array(items: Ends) -> Ends:
    """Blocks of items, each of which takes a byte or more."""

    def ends(body: bytes, at: int) -> int:
        count, at, end = _block(body, at)
        while count:
            for _ in range(count):
                at = items(body, at)
            count, at, end = _block(body, at, end)
        return at

    return ends


def of_map(values: Ends) -> Ends:
    """Blocks of keys and values. No key may be there twice, since readers differ in which value they take."""

    def ends(body: bytes, at: int) -> int:
        (count, at, end), keys = _block(body, at), set[bytes]()
        while count:
            for _ in range(count):
                begin, end_of_key = _sized(body, at)
                if (key := body[begin:end_of_key]) in keys:
                    raise ValueError(f"a map has the key {key.decode(errors='replace')!r:.80} twice")
                keys.add(key)
                at = values(body, end_of_key)
            count, at, end = _block(body, at, end)
        return at

    return ends


def _sized(body: bytes, at: int) -> tuple[int, int]:
    """Where bytes behind their number begin and end."""
    size, at = _number(body, at)
    if size < 0:
        raise ValueError(f"something has {size} bytes")
    return at, at + size


def _block(body: bytes, at: int, end: int | None = None) -> tuple[int, int, int | None]:
    """How many items a block has, where they begin, and where they end if it says so. `end` is where the last one
    should have ended.
    """
    if end not in (None, at):
        raise ValueError("a block has other bytes than it says")
    count, at = _number(body, at)
    end = None
    if count < 0:
        size, at = _number(body, at)
        count, end = -count, at + size
    if count > len(body) - at:
        raise IndexError
    return count, at, end


def _number(body: bytes, at: int) -> tuple[int, int]:
    """A whole number in zigzags, and where it ends."""
    if (found := body[at]) < 0x80:
        at += 1
    else:
        end = of_long(body, at)
        found = sum((each & 0x7F) << 7 * shift for shift, each in enumerate(body[at:end]))
        at = end
    return (found >> 1) ^ -(found & 1), at
