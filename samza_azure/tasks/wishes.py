"""The timers of a handler, and its wish to end: what its calls have asked for, and every commit writes down.

A timer has a key and a time by the wall clock, in milliseconds since 1970. Setting a key again moves its timer.
"""

import heapq
import json
import math
from collections.abc import Iterator
from typing import Any

from samza_azure.foreign import exactly, parsed

#: So many timers that were moved or deleted are kept at least, until their time comes.
SPARE = 64


class Wishes:
    """What the calls of one handler have asked for."""

    def __init__(self, stored: bytes = b"") -> None:
        """`stored`: what `to_bytes` returned. Raise ValueError, KeyError or TypeError for anything else."""
        self._at: dict[str, tuple[int, int]] = {}  # by key: time, and number of this setting
        self._queue: list[tuple[int, int, str]] = []  # the same, with timers that were moved or deleted since
        self._settings = 0
        self.commit = self.shutdown = False
        if stored:
            found = exactly(dict, parsed(stored))
            self.shutdown = exactly(bool, found["shutdown"])
            for key, at in exactly(dict, found["timers"]).items():
                self.set(key, exactly(int, at))

    def __len__(self) -> int:
        return len(self._at)

    def to_bytes(self) -> bytes:
        """What a commit writes down; empty if nothing was asked for."""
        if not (self._at or self.shutdown):
            return b""
        timers: dict[str, Any] = {key: at for at, _, key in self._in_order()}
        return json.dumps({"timers": timers, "shutdown": self.shutdown}).encode()

    def set(self, key: str, at_ms: int) -> None:
        """Set a timer, or move it."""
        self._settings += 1
        self._at[key] = at_ms, self._settings
        heapq.heappush(self._queue, (at_ms, self._settings, key))
        if len(self._queue) > 2 * len(self._at) + SPARE:  # a timer that is moved with each message, for example
            self._queue = self._in_order()

    def delete(self, key: str) -> None:
        """Delete a timer, if there is one of this key."""
        self._at.pop(key, None)

    def is_due(self, now_ms: int) -> bool:
        """Whether a timer is to fire."""
        while self._queue and not self._is_set(self._queue[0]):
            heapq.heappop(self._queue)
        return bool(self._queue) and self._queue[0][0] <= now_ms

    def due(self, now_ms: int) -> Iterator[str]:
        """Take out the timers that are to fire, one by one, the earliest first. One that is set meanwhile waits for the
        next call, or a handler that sets one at once, again and again, would get no message, and no other timer."""
        if self.is_due(now_ms):
            for entry in self._in_order(now_ms):
                if self._is_set(entry):
                    del self._at[entry[2]]
                    yield entry[2]

    def all(self) -> Iterator[str]:
        """Take out the timers of all keys that have one now, one by one, the earliest first, also of those that are
        moved meanwhile; but not of those that are deleted."""
        for *_, key in self._in_order():
            if self._at.pop(key, None) is not None:
                yield key

    def _in_order(self, until_ms: float = math.inf) -> list[tuple[int, int, str]]:
        return sorted((at, number, key) for key, (at, number) in self._at.items() if at <= until_ms)

    def _is_set(self, entry: tuple[int, int, str]) -> bool:
        at, number, key = entry
        return self._at.get(key) == (at, number)
