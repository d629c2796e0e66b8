"""Which partition of a hub the service sends a key to. Only the standard library is used."""

import struct

_WORD = 0xFFFFFFFF
_MIX = ((0, 2, 4), (1, 0, 6), (2, 1, 8), (0, 2, 16), (1, 0, 19), (2, 1, 4))
_FINAL = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


def of_key(key: str, partitions: int) -> int:
    """The partition of a key: Jenkins' lookup3 of its UTF-8, both words joined to one of 16 bits with a sign. The sign
    of the remainder is dropped, as in C.
    """
    return abs(_lookup3(key.encode(errors="replace"))) % partitions if key else 0


def _lookup3(data: bytes) -> int:
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
