"""Which partition of a topic Kafka's own clients send a key to. Only the standard library is used."""

import struct

_WORD, _BY, _SEED = 0xFFFFFFFF, 0x5BD1E995, 0x9747B28C


def of_key(key: str, partitions: int) -> int:
    """The partition of a key: murmur2 of its UTF-8, as the producers of Java have it, without the sign."""
    return (_murmur2(key.encode(errors="replace")) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    found, whole = _SEED ^ len(data), len(data) - len(data) % 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = word * _BY & _WORD
        mixed = (mixed ^ mixed >> 24) * _BY & _WORD
        found = (found * _BY & _WORD) ^ mixed
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _BY & _WORD
    found = (found ^ found >> 13) * _BY & _WORD
    return found ^ found >> 15
