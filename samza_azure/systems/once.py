"""A reader's memory of who has sent which number to a partition, by which what comes again is dropped.

Promised: of the events of a writer each is new once, in the order of their numbers. That is enough, since a writer
sends again only from some number on, and always in the same order. Only the standard library is used.
"""

import json
from collections.abc import Mapping
from typing import Any

from samza_azure.errors import ConfigError
from samza_azure.foreign import parsed

#: The properties of an event that say who sent it, and as which number.
WRITER, NUMBER = "samza-writer", "samza-number"
#: So many writers are kept. If there are more, those that have sent nothing for the longest time are forgotten.
WRITERS = 1_000
#: No samza_azure job has longer ids of writers (in characters of ASCII), and none counts further.
LONGEST, MOST = 200, 2**63 - 1


class EventHubsOnce:
    """Which events of one partition of a hub are new, and which come again; or messages of one of a topic of Kafka.

    A job that sends to a hub sends each event at least once, with the id of its writer and a number. Keep `bytes(once)`
    together with the position of the partition, in one transaction: then each event counts once.

    Example:
        once = EventHubsOnce(stored)
        for event in events:
            if once.is_new(event.properties):
                handle(event)
        store(bytes(once), event.offset)
    """

    def __init__(self, state: bytes = b"") -> None:
        """`state` is what `bytes` returned; empty at the beginning of the partition.

        Raises:
            ConfigError: the state is none.
        """
        self._last: dict[str, int] = _read(state) if state else {}

    def __bytes__(self) -> bytes:
        return json.dumps(self._last, separators=(",", ":")).encode() if self._last else b""

    def is_new(self, properties: Mapping[Any, Any] | None) -> bool:
        """Whether an event with these properties, or a message with `dict(headers)`, has not come before. True of all
        that no samza_azure job has sent.
        """
        found = properties or {}
        return self.is_next(
            found.get(WRITER, found.get(WRITER.encode())), found.get(NUMBER, found.get(NUMBER.encode()))
        )

    def is_next(self, writer: Any, number: Any) -> bool:
        """The same, for the values of the two properties, the number also as text.

        Example:
            once = EventHubsOnce()
            assert once.is_next("writer", 0) and once.is_next("writer", "1") and not once.is_next("writer", 0)
        """
        if isinstance(writer, bytes):
            writer = writer.decode(errors="replace")
        try:
            at = int(number)
        except (TypeError, ValueError, OverflowError):
            return True
        if not _is_ours(writer, at):
            return True
        last = self._last.pop(writer, -1)
        self._last[writer] = max(at, last)  # behind all others
        if len(self._last) > WRITERS:
            del self._last[next(iter(self._last))]
        return at > last


def _is_ours(writer: Any, number: int) -> bool:
    """Whether a samza_azure job can have sent it. What others send would fill the state, or look like a repetition."""
    return isinstance(writer, str) and writer.isascii() and len(writer) <= LONGEST and 0 <= number <= MOST


def _read(state: bytes) -> dict[str, int]:
    try:
        last = parsed(state)
    except ValueError as error:
        raise ConfigError(f"This is no state of EventHubsOnce: {error}") from error
    if isinstance(last, dict) and all(type(number) is int for number in last.values()):
        return {writer: number for writer, number in last.items() if _is_ours(writer, number)}
    raise ConfigError("This is no state of EventHubsOnce: numbers by writer are expected.")
