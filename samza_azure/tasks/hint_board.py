"""Which logs have grown: read from the hint rows, passed on to the sources on this machine and to other processors.

Hints are never needed for correctness; late, lost or old ones only cost time. So a failed query is repeated later. A
hint that could not be published is published again, unless the log has a later one: a log that a drain ends has none.
One table query serves all tasks of the container. Tasks in the same container learn of each other's appends at once.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from samza_azure.errors import SamzaAzureError
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.logs.operations import rest_s
from samza_azure.logs.position import Position
from samza_azure.storage.interface import NamedRows, Value
from samza_azure.storage.limits import is_drain_hint
from samza_azure.stream_io.log import hint_position, hint_values
from samza_azure.streams.pace import HINTS_BUSY_S, HINTS_IDLE_S
from samza_azure.tasks.gate_files import write_json

log = logging.getLogger(__name__)

#: How many reads of the hints without news make a board idle.
QUIET_POLLS = 25


class HintBoard:
    """The known lengths of logs, in a file that sources read."""

    def __init__(self, hints: NamedRows, path: Path, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `drain_asked` is set."""
        self._hints = hints
        self._changed = changed
        self._path = path
        self._lock = threading.Lock()
        self._rate_limit = LogRateLimit()
        self._known: dict[str, Position] = {}
        self._to_publish: dict[str, Mapping[str, Value]] = {}
        self._publish_now = threading.Event()
        self._written = ""
        self._drains_asked: set[str] = set()
        self.drain_asked = threading.Event()  # a hint of a requested drain has arrived
        self.wanted = False  # whether any task here listens
        self._write()

    def start(self) -> None:
        """Poll and publish hints until the process ends."""
        threading.Thread(target=self._listen, name="hints-listen", daemon=True).start()
        threading.Thread(target=self._tell, name="hints-tell", daemon=True).start()

    def appended(self, prefix: str, end: Position, frontier_us: int | None, drained: bool) -> None:
        """Record that a local task has appended. Local readers learn of it now, remote ones soon."""
        with self._lock:
            self._to_publish[prefix] = hint_values(end, frontier_us, drained)
            self._learn({prefix: end})
        self._publish_now.set()

    def end_of(self, prefix: str) -> Position | None:
        """The end of this log according to the latest hint."""
        with self._lock:
            return self._known.get(prefix)

    def _learn(self, found: Mapping[str, Position]) -> bool:
        news = {prefix: end for prefix, end in found.items() if end > self._known.get(prefix, (-1, -1))}
        self._known.update(news)
        if news:
            self._write()
        return bool(news)

    def _write(self) -> None:
        text = json.dumps(self._known)
        if text != self._written:
            write_json(self._path, self._known)
            self._written = text

    def poll(self) -> bool:
        """Read all hints. Return whether there is news: a log has grown, or a drain is asked for."""
        rows = self._hints.poll()
        drains = {name for name in rows if is_drain_hint(name)}
        is_asked = not drains <= self._drains_asked
        if is_asked:
            self._drains_asked = drains
            self.drain_asked.set()
            self._changed()
        with self._lock:
            ends = {prefix: hint_position(values) for prefix, values in rows.items()}
            return self._learn({prefix: end for prefix, end in ends.items() if end is not None}) or is_asked

    def _listen(self) -> None:
        quiet, asked_s = 0, 0.0
        wait = threading.Event()
        while True:
            wait.wait(max(HINTS_BUSY_S if quiet < QUIET_POLLS else HINTS_IDLE_S, asked_s))
            if not self.wanted:
                continue
            try:
                quiet, asked_s = 0 if self.poll() else quiet + 1, 0.0
            except SamzaAzureError as error:
                if self._rate_limit.is_due("read"):
                    log.info("Hints could not be read: %s", error)
                quiet, asked_s = QUIET_POLLS, rest_s(0.0, error)

    def _tell(self) -> None:
        again_s, again = 0.0, threading.Event()
        while True:
            self._publish_now.wait()
            self._publish_now.clear()
            if again_s:
                again.wait(again_s)
                again_s = 0.0
            with self._lock:
                waiting, self._to_publish = self._to_publish, {}
            for prefix, values in waiting.items():
                try:
                    self._hints.publish(prefix, values)
                except SamzaAzureError as error:
                    if self._rate_limit.is_due("publish"):
                        log.info("The hint of %s could not be published: %s", prefix, error)
                    again_s = rest_s(HINTS_IDLE_S, error)
                    with self._lock:
                        self._to_publish.setdefault(prefix, values)
                    self._publish_now.set()
