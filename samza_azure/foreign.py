"""Read bytes that came from the account, which may say anything: whoever may write there may write anything.

Promised: anything but a result is a `ValueError`, and no more is unpacked than was allowed. The caller says in its own
error which blob or row holds the bytes.
"""

import json
import re
import zlib
from itertools import accumulate
from typing import Any, TypeVar

T = TypeVar("T")

#: The `wbits` of gzip.
GZIP = 16 + zlib.MAX_WBITS
_TEXT, _BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL), re.compile(rb"[][{}]")


def parsed(text: str | bytes, *, is_passed_on: bool = False) -> Any:
    """The value of a JSON text. Raise ValueError for any other, and for one that is nested too deeply.

    If the text is passed on to another parser, also for an object with two values of one name: parsers disagree there.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique if is_passed_on else None)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object of the JSON has two values of one name")
    return found


def without_texts(data: bytes) -> bytes:
    """JSON without its texts; without the rest as well if one has no end."""
    return _TEXT.sub(b"", data)


def depth(data: bytes) -> int:
    """How deep objects and arrays lie inside each other in what may be JSON. Some parsers end the process at some
    depth.
    """
    steps = (1 if each in b"{[" else -1 for each in _BRACKET.findall(without_texts(data)))
    return max(accumulate(steps), default=0)


def exactly(kind: type[T], value: Any) -> T:
    """The value, if it is of this very type: a bool is no number here. Raise TypeError for any other."""
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} is expected, not {value!r:.80}")
    return value


def unpacked(data: bytes | memoryview, most: int, wbits: int = zlib.MAX_WBITS) -> bytes:
    """What zlib has packed, at most `most` bytes; for gzip, `wbits` is GZIP. Raise ValueError for anything else.

    One stream without anything after it, as `zlib.compress` writes it.
    """
    unpacking = zlib.decompressobj(wbits)
    try:
        content = unpacking.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked ({error})") from None
    if len(content) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError("it is cut short, or followed by something else")
    return content
