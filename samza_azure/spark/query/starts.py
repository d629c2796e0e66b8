"""How many queries of a container start at the same time.

Promised: the first query of a container starts alone, since it loads the classes and starts the processes that the next
ones use. After it at most `at_once` queries start at a time: each runs Python processes of its own until its source is
up. Only one thread at a time uses the session's settings: all queries share them, and each copies them when it starts.

Not promised: an order.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Starts:
    """The turns of the queries of one session."""

    def __init__(self, at_once: int = 1) -> None:
        self.session = threading.Lock()  # from the first change of a setting until the query has copied it
        self._turns = threading.Semaphore(1)
        self._more = at_once - 1
        self._lock = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until another query may start. The body ends when its source is up."""
        with self._turns:
            yield

    def succeeded(self) -> None:
        """Let queries start in parallel, since the source of one is up."""
        with self._lock:
            more, self._more = self._more, 0
        if more:
            self._turns.release(more)


def at_once(cores: int) -> int:
    """How many queries start in parallel. Half of the cores are left to the tasks that run."""
    return max(1, cores // 2)
