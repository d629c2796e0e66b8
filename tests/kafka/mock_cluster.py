"""librdkafka's own mock cluster: a broker in this process that fails as it is told to. confluent-kafka does not show it
to Python, so it is called in its library.
"""

import ctypes
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_int16, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Self

import confluent_kafka

#: Requests that may be refused, by their numbers in the protocol.
FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR = 1, 2, 3, 10


def library() -> ctypes.CDLL:
    [found] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    return ctypes.CDLL(str(found))


class MockCluster:
    """Brokers with some topics, whose partitions they lead in turn. A context manager."""

    def __init__(self, topics: Mapping[str, int], brokers: int = 1) -> None:
        self._library, self._topics, self._count = library(), topics, brokers

    def __enter__(self) -> Self:
        error = ctypes.create_string_buffer(512)
        settings = self._call("conf_new", c_void_p)
        self._client = self._call("new", c_void_p, (c_int, 0), (c_void_p, settings), (c_char_p, error), (c_size_t, 512))
        assert self._client, error.value
        self._cluster = self._call("mock_cluster_new", c_void_p, (c_void_p, self._client), (c_int, self._count))
        self.brokers: str = self._mock("cluster_bootstraps", c_char_p).decode()
        self._mock("set_controller_id", None, (c_int32, 1))  # for the questions of an AdminClient
        for topic, partitions in self._topics.items():
            self.create(topic, partitions)
        return self

    def __exit__(self, *_: object) -> None:
        self._mock("cluster_destroy", None)
        self._call("destroy", None, (c_void_p, self._client))

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        assert self._mock("topic_create", c_int, (c_char_p, topic.encode()), (c_int, partitions), (c_int, 1)) == 0
        for each in range(partitions):
            place = (c_char_p, topic.encode()), (c_int32, each), (c_int32, 1 + each % self._count)
            assert self._mock("partition_set_leader", c_int, *place) == 0

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        assert self._mock("topic_delete", c_int, (c_char_p, topic.encode())) == 0

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages before an offset."""
        code = self._mock(
            "partition_delete_records", c_int, (c_char_p, topic.encode()), (c_int32, partition), (c_int64, before)
        )
        assert code == 0

    def refuse(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind with errors, by their numbers in the protocol."""
        numbers = (c_int * len(errors))(*errors)
        self._mock("push_request_errors_array", None, (c_int16, request), (c_size_t, len(errors)), (c_void_p, numbers))

    def forget(self, request: int) -> None:
        """Refuse no more requests of a kind."""
        self._mock("clear_request_errors", None, (c_int16, request))

    def mistreat(self, topic: str, error: int) -> None:
        """Answer everything about a topic with an error; 0: no more."""
        self._mock("topic_set_error", None, (c_char_p, topic.encode()), (c_int, error))

    def stop(self, broker: int = 1) -> None:
        """Have a broker end all connections, and take none."""
        assert self._mock("broker_set_down", c_int, (c_int32, broker)) == 0

    def hang(self, broker: int, ms: int) -> None:
        """Have a broker answer so late."""
        assert self._mock("broker_set_rtt", c_int, (c_int32, broker), (c_int, ms)) == 0

    def start(self, broker: int = 1) -> None:
        """Take connections again."""
        assert self._mock("broker_set_up", c_int, (c_int32, broker)) == 0

    def _mock(self, name: str, result: Any, *arguments: tuple[Any, Any]) -> Any:
        return self._call(f"mock_{name}", result, (c_void_p, self._cluster), *arguments)

    def _call(self, name: str, result: Any, *arguments: tuple[Any, Any]) -> Any:
        function = getattr(self._library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, [kind for kind, _ in arguments]
        return function(*(value for _, value in arguments))
