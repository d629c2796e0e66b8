"""References to Java objects that end when Python drops them. Only this file uses how py4j makes them.

py4j stores each method that was looked up in its object, and each method refers to the object. Such a cycle lasts until
Python's cyclic collector finds it, and until then Java cannot free the object, nor all that it refers to: with the plan
of a batch that is megabytes. A JVM that runs out of heap cannot make Python collect.
Promised: after `install`, a Java object is released as soon as Python drops the last reference to it.
Not promised: the same for lists, sets and iterators, which hold little. No batch uses any.

Python tells Java of each object that it drops, in a thread that competes with the one that goes on. What drops tens of
thousands, as an analysis does, tells Java of all together.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.java_collections import JavaMap
from py4j.java_gateway import JavaMember, JavaObject, get_method, is_magic_member
from py4j.protocol import (
    MAP_TYPE,
    MEMORY_COMMAND_NAME,
    MEMORY_DEL_SUBCOMMAND_NAME,
    REFERENCE_TYPE,
    Py4JError,
    register_output_converter,
)


class JavaReference(JavaObject):  # type: ignore[misc]  # py4j has no types
    """A Java object. A method object is created each time that it is looked up."""

    def __getattr__(self, name: str) -> Any:
        if is_magic_member(name):
            raise AttributeError(name)
        return JavaMember(name, self, self._target_id, self._gateway_client)


class JavaDictionary(JavaReference, JavaMap):  # type: ignore[misc]
    """A Java map."""

    def __init__(self, target_id: str, client: Any) -> None:
        super().__init__(target_id, client)
        del self._get  # a method object, which refers to this object

    def __getitem__(self, key: Any) -> Any:
        return get_method(self, "get")(key)


def install() -> None:
    """Make all references that Java returns from now on instances of these classes. Call it before there are any."""
    register_output_converter(REFERENCE_TYPE, JavaReference)
    register_output_converter(MAP_TYPE, JavaDictionary)


#: How many releases are sent before their answers are read.
TOGETHER = 1_000
_LOCK = threading.Lock()


@contextmanager
def released_together(client: Any) -> Iterator[None]:
    """Release what is dropped in this block, in any thread, when it ends. `client` is py4j's."""
    with _LOCK:
        waiting = vars(client).setdefault("waiting", deque())
        client.waits = vars(client).get("waits", 0) + 1
        client.garbage_collect_object = lambda target_id, enqueue=True: waiting.append(target_id)
    try:
        yield
    finally:
        with _LOCK:
            client.waits -= 1
            if not client.waits:
                del client.garbage_collect_object
        with suppress(OSError, Py4JError):  # Java has ended
            _release(client, waiting)


def _release(client: Any, waiting: deque[str]) -> None:
    connection = client._get_connection()
    try:
        while some := [waiting.popleft() for _ in range(min(len(waiting), TOGETHER))]:
            commands = [f"{MEMORY_COMMAND_NAME}{MEMORY_DEL_SUBCOMMAND_NAME}{each}\ne\n" for each in some]
            connection.socket.sendall("".join(commands).encode())
            for _ in some:
                connection.stream.readline()
    finally:
        client._give_back_connection(connection)
