"""The handler of a low-level task: made, called and watched, in a thread of its own with an event loop.

Promised: calls begin in the order of the messages; never more are in flight than allowed, and none when a method of
`HandlerCalls` returns. A call that takes too long, or raises, fails the task; the error names task and message. Python
cannot end a call that hangs: it is abandoned, and what it sends later is refused.
"""

import asyncio
import copy
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from samza_azure.application import Envelope, Handler, check_methods
from samza_azure.errors import PermitExpired, SamzaAzureError
from samza_azure.machine import boot_time
from samza_azure.spark.task.sent_rows import NotHeld, table_of

log = logging.getLogger(__name__)

#: How often a running call is checked for its time limit, and for the release of its task.
LOOK_S = 0.05
#: The most seconds that a handler's `close` may take.
CLOSE_S = 5.0
#: The most bytes of a handler's own state, which is written in full whenever it has changed.
STATE_BYTES_MAX = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits in seconds. None is no limit."""

    process_s: float | None
    drain_s: float | None


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in flight."""

    what: str  # "process of message … of …"
    since: float
    limit_s: float | None


class _Collector:
    """The `Collector` of one call."""

    def __init__(self, columns: Sequence[str], what: str) -> None:
        self._columns, self.what = columns, what
        self.rows: list[dict[str, Any]] = []
        self.is_open = True

    def send(self, row: Mapping[str, Any], /) -> None:
        if not self.is_open:
            raise SamzaAzureError(
                f"A row was sent after {self.what} had ended. Send it before process returns; if something still runs "
                "then, write async def process and await it."
            )
        if not self._columns:
            raise SamzaAzureError(
                "A row was sent, and this task has no stream to put it into. Name one as the output of @app.task, "
                "and its schema in the job file."
            )
        if not isinstance(row, Mapping):
            raise SamzaAzureError(f"{row!r:.80} is no row. Send a mapping from columns to values, such as a dict.")
        if row.keys() != set(self._columns):
            raise SamzaAzureError(
                f"The row has the columns {', '.join(row) or 'none'}, and the stream has "
                f"{', '.join(self._columns)}. Send a value for each, None where there is none."
            )
        self.rows.append(copy.deepcopy(dict(row)))  # converted at the commit; a list in it may change until then


class HandlerCalls:
    """All calls of one handler. Its methods are for the task's thread, and return when their calls have ended."""

    def __init__(
        self, task: str, factory: Callable[[], Handler], schema: pa.Schema, at_once: int, limits: TimeLimits
    ) -> None:
        self._task, self._factory, self._schema = task, factory, schema
        self._at_once, self._limits = at_once, limits
        self._handler: Any = None
        self._put_out: list[_Collector] = []
        self._numbers = itertools.count()
        self._in_flight: dict[int, _Call] = {}
        self._given_up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.rows = self.size = 0  # of what was sent but not taken: number and approximate bytes

    def begin(self, state: bytes | None) -> None:
        """Make the handler. `state` is the last result of its `snapshot`."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._live, args=[self._loop], name=f"{self._task}-handler", daemon=True).start()
        self._wait(self._begin(state))

    def process(self, envelopes: Iterable[Envelope], is_enough: Callable[[], bool]) -> int:
        """Process messages in order, until none is left or `is_enough` is true. Return how many."""
        return self._wait(self._process(envelopes, is_enough))

    def on_drain(self) -> None:
        """Call `on_drain`, the last call before `close`."""
        if hasattr(self._handler, "on_drain"):
            self._wait(self._on_drain())

    def snapshot(self) -> bytes | None:
        """The handler's own state; None if it has none."""
        return self._wait(self._snapshot()) if hasattr(self._handler, "snapshot") else None

    def take(self) -> pa.Table:
        """Take the rows that were sent since the last call of this method, in the order in which their calls ended."""
        calls, self._put_out, self.rows, self.size = self._put_out, [], 0, 0
        try:
            return table_of([row for call in calls for row in call.rows], self._schema)
        except NotHeld as error:
            senders = [call.what for call in calls for _ in call.rows]
            raise SamzaAzureError(f"{self._task}: {senders[error.row]} has sent {error}") from error

    def give_up(self) -> None:
        """Stop waiting for calls. From any thread."""
        self._given_up.set()

    def close(self) -> None:
        """Close the handler, or abandon it when its time is up."""
        self._given_up.set()
        if self._loop is None:
            return
        if self._handler is not None and hasattr(self._handler, "close"):
            ending = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            wait_for([ending], CLOSE_S)
            if not ending.done():
                log.warning("%s: close of its handler has not returned in %g s", self._task, CLOSE_S)
            elif (error := ending.exception()) is not None:
                log.warning("%s", error)
        self._handler, self._put_out = None, []
        self._loop.call_soon_threadsafe(self._loop.stop)

    # In the task's thread.

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        future: Future[T] = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            while not wait_for([future], LOOK_S).done:
                self._check_time()
                if self._given_up.is_set():
                    raise PermitExpired(f"The task {self._task} is released, so the call of its handler is abandoned.")
        except SamzaAzureError:
            self._given_up.set()  # no call begins after this
            future.cancel()
            raise
        return future.result()

    def _check_time(self) -> None:
        now = boot_time()
        for call in list(self._in_flight.values()):
            if call.limit_s is not None and now - call.since > call.limit_s:
                key = "task.callback.drain.timeout.ms" if call.what == ON_DRAIN else "task.callback.timeout.ms"
                raise SamzaAzureError(
                    f"{self._task}: {call.what} has not ended within {call.limit_s * 1000:g} ms. Make it faster, or "
                    f"{key} longer."
                )

    # In the handler's thread.

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for each in left:
            each.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    async def _begin(self, state: bytes | None) -> None:
        with self._named("making its handler"):
            handler = self._factory()
        check_methods(handler, self._task, self._at_once)
        if state is not None:
            if not hasattr(handler, "restore"):
                raise SamzaAzureError(
                    f"{self._task}: the log has a state of this handler, which has no restore and would go on without "
                    "it. Write def restore(self, state) and def snapshot(self), or drain the run first, with the code "
                    "that had them."
                )
            with self._named("restore of its handler"):
                await _called(handler.restore, state)
        self._handler = handler

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Turn an error of the user's code into a failure that names task and call.

        This includes SystemExit, which would end the event loop and leave the waiting thread without an answer. A
        cancellation is a failure unless it is our own.
        """
        try:
            yield
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise SamzaAzureError(f"{self._task}: {what} failed: {type(error).__name__}: {error}") from error

    async def _close(self) -> None:
        with self._named("close of its handler"):
            await _called(self._handler.close)

    async def _process(self, envelopes: Iterable[Envelope], is_enough: Callable[[], bool]) -> int:
        running: set[asyncio.Task[None]] = set()
        begun = 0
        try:
            for envelope in envelopes:
                begun += 1
                if self._at_once == 1:
                    await self._one(envelope)
                else:
                    running.add(asyncio.create_task(self._one(envelope)))
                    if len(running) >= self._at_once:
                        running = await _some(running)
                if self._given_up.is_set() or is_enough():
                    break
            while running:
                running = await _some(running)
        finally:
            for each in running:
                each.cancel()
        return begun

    async def _one(self, envelope: Envelope) -> None:
        what = f"process of message {envelope.offset} of {envelope.stream}/{envelope.partition}"
        await self._watched(what, self._limits.process_s, self._handler.process, envelope)

    async def _on_drain(self) -> None:
        await self._watched(ON_DRAIN, self._limits.drain_s, self._handler.on_drain)

    async def _watched(self, what: str, limit_s: float | None, function: Callable[..., Any], *given: Envelope) -> None:
        """Run one call, which is in flight meanwhile. Only the rows of a call that succeeds are kept."""
        collector, number = _Collector(self._schema.names, what), next(self._numbers)
        self._in_flight[number] = _Call(what, boot_time(), limit_s)
        try:
            with self._named(what):
                await _called(function, *given, collector)
        finally:
            collector.is_open = False
            del self._in_flight[number]
        if collector.rows:
            self._put_out.append(collector)
            self.rows += len(collector.rows)
            self.size += size_of(collector.rows)

    async def _snapshot(self) -> bytes:
        with self._named("snapshot of its handler"):
            state = self._handler.snapshot()
        if not isinstance(state, bytes) or len(state) > STATE_BYTES_MAX:
            found = f"{len(state)} bytes" if isinstance(state, bytes) else f"a {type(state).__name__}"
            raise SamzaAzureError(
                f"{self._task}: snapshot of its handler returned {found}. Return bytes, {STATE_BYTES_MAX} at most: "
                "they are written with each commit. What is larger belongs in a stage with state, or a store."
            )
        return state


#: The name of a call that is not for a message.
ON_DRAIN = "on_drain"
#: The memory of any value without its content.
VALUE_BYTES = 50


def size_of(value: object) -> int:
    """Estimate the memory of a value of a row, in bytes."""
    match value:
        case str() | bytes() | bytearray():
            return VALUE_BYTES + len(value)
        case Mapping():
            return VALUE_BYTES + sum(map(size_of, value.values()))  # most keys are columns, whose names all rows share
        case list() | tuple():
            return VALUE_BYTES + sum(map(size_of, value))
    return VALUE_BYTES


async def _called(function: Callable[..., Any], *arguments: object) -> None:
    answer = function(*arguments)
    if inspect.isawaitable(answer):
        await answer


async def _some(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until a call has ended, and return those that still run. Raise its error, if it has one."""
    ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for each in ended:
        each.result()
    return running
