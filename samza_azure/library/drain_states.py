"""Which partitions are drained, for a task that reads streams with drain messages in them. No account is needed."""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from samza_azure.errors import ConfigError
from samza_azure.foreign import parsed


@dataclass(frozen=True, slots=True)
class DrainMessage:
    """A message in a stream between two stages: this task writes nothing more in this run.

    Without a task, the message comes from the source, or from the partition that has a message of every producer, and
    holds for all producers.

    Example:
        text = DrainMessage("2026-11-28-a", task="clean-0").to_json()
        assert DrainMessage.from_json(text) == DrainMessage("2026-11-28-a", task="clean-0")
    """

    run_id: str
    task: str | None = None

    def to_json(self) -> str:
        """The message as JSON, with Samza's field names."""
        return json.dumps({"task-name": self.task, "run-id": self.run_id})

    @classmethod
    def from_json(cls, text: str | bytes) -> "DrainMessage":
        """Parse what `to_json` made.

        Raises:
            ValueError: the text is something else.
        """
        try:
            fields = parsed(text)
        except ValueError as error:
            raise ValueError(f"A drain message is a short JSON object: {error}") from error
        run_id, task = (fields.get("run-id"), fields.get("task-name")) if isinstance(fields, dict) else (None, None)
        if not isinstance(run_id, str) or not (task is None or isinstance(task, str)):
            raise ValueError('A drain message is {"task-name": text or null, "run-id": text}')
        return cls(run_id, task)


class DrainStates:
    """The partitions that are drained, for a task that reads streams with control messages in them.

    Use it for streams that many producers write to, such as Event Hubs. A stage of a Spark job needs no such messages:
    the logs of its producers end with a record that says DRAINED. Thread-safe.

    Example:
        states = DrainStates("2026-11-28-a", partitions={"orders": [0, 1]}, producers={"orders": 2})
        assert not states.update(DrainMessage("2026-11-28-a", task="clean-0"), "orders", 0)
        assert states.heard("orders", 0) == {"clean-0"}
        assert states.update(DrainMessage("2026-11-28-a", task="clean-1"), "orders", 0)
        states.end("orders", 1)  # it has ended without a message
        assert states.is_drained("orders", 0) and states.is_drained()
    """

    def __init__(self, run_id: str, partitions: Mapping[str, Iterable[int]], producers: Mapping[str, int]) -> None:
        """`partitions`: what the task reads, by stream. `producers`: how many tasks write a stream; 0: a source.

        Raises:
            ConfigError: a number of producers is below 0.
        """
        self.run_id = run_id
        self._producers = {stream: producers.get(stream, 0) for stream in partitions}
        self._heard: dict[tuple[str, int], set[str]] = {
            (stream, partition): set() for stream, numbers in partitions.items() for partition in numbers
        }
        self._done: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        if any(count < 0 for count in self._producers.values()):
            raise ConfigError(f"A stream has a number of producers below 0: {self._producers}.")

    def update(self, message: DrainMessage, stream: str, partition: int) -> bool:
        """Record a message. Return true once for each partition: for the message that drains it.

        If that message names a task, the producers send to this partition only: the caller then sends
        `DrainMessage(run_id)` to the stream's other partitions. Messages of another run are ignored.

        Raises:
            ConfigError: the task does not read this partition.
        """
        place = self._place(stream, partition)
        with self._lock:
            if message.run_id != self.run_id or place in self._done:
                return False
            if message.task is not None:
                heard = self._heard[place]
                heard.add(message.task)
                if not 0 < self._producers[stream] <= len(heard):
                    return False
            self._done.add(place)
            return True

    def end(self, stream: str, partition: int) -> None:
        """Mark a partition as drained without a message: it has ended, and none will follow.

        Raises:
            ConfigError: the task does not read this partition.
        """
        place = self._place(stream, partition)
        with self._lock:
            self._done.add(place)

    def is_drained(self, stream: str | None = None, partition: int | None = None) -> bool:
        """Whether a partition is drained, or all partitions of a stream, or all that are read.

        Raises:
            ConfigError: the task does not read this stream or partition.
        """
        if stream is not None and stream not in self._producers:
            raise ConfigError(f"This task does not read stream {stream!r}; it reads {sorted(self._producers)}.")
        if stream is not None and partition is not None:
            place = self._place(stream, partition)
            with self._lock:
                return place in self._done
        with self._lock:
            return all(place in self._done for place in self._heard if stream in (None, place[0]))

    def heard(self, stream: str, partition: int) -> frozenset[str]:
        """The producers whose message a partition has.

        Raises:
            ConfigError: the task does not read this partition.
        """
        place = self._place(stream, partition)
        with self._lock:
            return frozenset(self._heard[place])

    def _place(self, stream: str, partition: int) -> tuple[str, int]:
        if (stream, partition) not in self._heard:
            raise ConfigError(f"This task does not read {stream}/{partition}.")
        return stream, partition


__all__ = ["DrainMessage", "DrainStates"]
