"""Which partition of a hub a row goes to, by Samza's three methods. Only the standard library is used.

Promised: it depends on the row, its number and its writer alone; and `EVENT_HASHING` sends a key where the service
sends events with this partition key.
"""

import struct
from functools import lru_cache

ROUND_ROBIN, EVENT_HASHING, KEY_AS_PARTITION = METHODS = ("ROUND_ROBIN", "EVENT_HASHING", "PARTITION_KEY_AS_PARTITION")
_WORD = 0xFFFFFFFF
_MIX = ((0, 2, 4), (1, 0, 6), (2, 1, 8), (0, 2, 16), (1, 0, 19), (2, 1, 4))
_FINAL = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


@lru_cache(1 << 16)
def of_key(key: str, partitions: int) -> int:
    """The partition of a key, as the service has it: Jenkins' lookup3 of its UTF-8, both words joined to one of 16 bits
    with a sign. The sign of the remainder is dropped, as in C.
    """
    return abs(_hash(key.encode(errors="replace"))) % partitions if key else 0


@lru_cache
def first_turn(writer: str) -> int:
    """What is added to the number of a row without a key for its partition: writers begin at different ones."""
    return abs(_hash(writer.encode()))


def _hash(data: bytes) -> int:
    words = [(0xDEADBEEF + len(data)) & _WORD] * 3
    padded = data + bytes(-len(data) % 12)
    for at in range(0, len(padded), 12):
        words = [(word + more) & _WORD for word, more in zip(words, struct.unpack_from("<3I", padded, at), strict=True)]
        if at + 12 < len(padded):
            for this, other, by in _MIX:
                third = 3 - this - other
                words[this] = ((words[this] - words[other]) & _WORD) ^ _rotated(words[other], by)
                words[other] = (words[other] + words[third]) & _WORD
        else:
            for this, other, by in _FINAL:
                words[this] = ((words[this] ^ words[other]) - _rotated(words[other], by)) & _WORD
    folded = (words[1] ^ words[2]) & 0xFFFF
    return folded - 0x10000 if folded & 0x8000 else folded


def _rotated(word: int, by: int) -> int:
    return ((word << by) | (word >> (32 - by))) & _WORD
