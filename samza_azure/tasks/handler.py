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
import math
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa

from samza_azure.application import Envelope, Handler, check_methods, takes_coordinator
from samza_azure.errors import PermitExpired, SamzaAzureError
from samza_azure.machine.clock import boot_time, wall_ms
from samza_azure.stream_io.values.sent import NotHeld, table_of
from samza_azure.tasks.wishes import Wishes

log = logging.getLogger(__name__)

#: How often a running call is checked for its time limit, and for the release of its task.
LOOK_S = 0.05
#: The most seconds that a handler's `close` may take.
CLOSE_S = 5.0
#: The most bytes of a handler's own state, and of its timers: each is written in full whenever it has changed.
STATE_BYTES_MAX = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits in seconds. None is no limit."""

    process_s: float | None
    drain_s: float | None


@dataclass(slots=True)
class _Call:
    """A call in flight."""

    what: str  # "process of message … of …"
    since: float
    limit_s: float | None


class _Named:
    """A context that turns an error of the user's code into a failure that names task and call.

    This includes SystemExit, which would end the event loop and leave the waiting thread without an answer. A
    cancellation is a failure unless it is our own.
    """

    __slots__ = ("_task", "_what")

    def __init__(self, task: str, what: str) -> None:
        self._task, self._what = task, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or not isinstance(error, (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)):
            return
        task = asyncio.current_task()
        if not (isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()):
            raise SamzaAzureError(f"{self._task}: {self._what} failed: {type(error).__name__}: {error}") from error


class _Collector:
    """The `Collector` of one call."""

    def __init__(self, columns: Mapping[str, None], what: str) -> None:
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
        if row.keys() != self._columns.keys():
            raise SamzaAzureError(
                f"The row has the columns {', '.join(row) or 'none'}, and the stream has "
                f"{', '.join(self._columns)}. Send a value for each, None where there is none."
            )
        # Converted at the commit; a list in it may change until then.
        self.rows.append({name: v if type(v) in FIXED else copy.deepcopy(v) for name, v in dict(row).items()})


class _Coordinator:
    """The `TaskCoordinator` of one call."""

    def __init__(self, wishes: Wishes, has_on_timer: bool, collector: _Collector) -> None:
        self._wishes, self._has_on_timer, self._collector = wishes, has_on_timer, collector

    def commit(self) -> None:
        self._take("commit").commit = True

    def shutdown(self) -> None:
        self._take("shutdown").shutdown = True

    def set_timer(self, key: str, at: datetime | timedelta) -> None:
        wishes = self._take("set_timer")
        if not isinstance(key, str):
            raise SamzaAzureError(f"The key of a timer is {key!r:.80}. Use a text.")
        if not self._has_on_timer:
            raise SamzaAzureError(
                f"The timer {key!r:.80} was set, and nothing is called when it is due. Write def on_timer(self, key, "
                "collector):"
            )
        match at:
            case timedelta():
                wishes.set(key, wall_ms() + math.ceil(at / MILLISECOND))
            case datetime() if at == at:  # noqa: PLR0124  # pandas.NaT is a datetime that differs from itself
                since_1970 = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - EPOCH
                wishes.set(key, math.ceil(since_1970 / MILLISECOND))
            case _:
                raise SamzaAzureError(
                    f"The timer {key!r:.80} is set for {at!r:.80}. Use a datetime or a timedelta. Where there is no "
                    "time, set no timer."
                )

    def delete_timer(self, key: str) -> None:
        self._take("delete_timer").delete(key)

    def _take(self, method: str) -> Wishes:
        if not self._collector.is_open:
            raise SamzaAzureError(
                f"{method} was called after {self._collector.what} had ended. Call it before that; if something still "
                "runs then, write async def and await it."
            )
        return self._wishes


class HandlerCalls:
    """All calls of one handler. Its methods are for the task's thread, and return when their calls have ended."""

    def __init__(
        self,
        task: str,
        factory: Callable[[], Handler],
        schema: pa.Schema,
        at_once: int,
        limits: TimeLimits,
    ) -> None:
        """`schema` says what no row may lack."""
        self._task, self._factory, self._schema = task, factory, schema
        self._columns = dict.fromkeys(schema.names)  # in their order
        self._at_once, self._limits = at_once, limits
        self._handler: Any = None
        self._coordinated: frozenset[str] = frozenset()  # its methods that take a coordinator
        self._put_out: list[_Collector] = []
        self._numbers = itertools.count()
        self._in_flight: dict[int, _Call] = {}
        self._wishes = Wishes()
        self._given_up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.rows = self.size = 0  # of what was sent but not taken: number and approximate bytes

    def begin(self, state: bytes | None, wishes: bytes = b"") -> None:
        """Make the handler. `state` is the last result of its `snapshot`, `wishes` that of our `wishes`."""
        self._wishes = Wishes(wishes)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._live, args=[self._loop], name=f"{self._task}-handler", daemon=True).start()
        self._wait(self._begin(state))

    def with_timers(self, envelopes: Iterable[Envelope]) -> Iterator[Envelope | str]:
        """The messages, and before each of them the keys of the timers that are due then, for `process`."""
        for envelope in envelopes:
            if len(self._wishes):
                yield from self._wishes.due(wall_ms())
            yield envelope
        yield from self._wishes.due(wall_ms())

    def process(self, causes: Iterable[Envelope | str], is_enough: Callable[[], bool]) -> int:
        """Make a call for each message and each key of a timer, until none is left or `is_enough` is true. Return how
        many messages there were.
        """
        return self._wait(self._process(iter(causes), is_enough))

    def end(self) -> None:
        """Fire all timers, then call `on_drain`: the last calls before `close`. Timers set meanwhile do not fire."""
        self.process(self._wishes.all(), lambda: False)
        if hasattr(self._handler, "on_drain"):
            self._wait(self._on_drain())

    @property
    def is_due(self) -> bool:
        """Whether a timer is to fire."""
        return self._wishes.is_due(wall_ms())

    @property
    def asks_commit(self) -> bool:
        """Whether a call since the last `take` has asked for a commit."""
        return self._wishes.commit

    @property
    def asks_shutdown(self) -> bool:
        """Whether a call has asked for the end of the task."""
        return self._wishes.shutdown

    def wishes(self) -> bytes:
        """What the next owner has to know of timers and shutdown."""
        stored = self._wishes.to_bytes()
        if len(stored) > STATE_BYTES_MAX:
            raise SamzaAzureError(
                f"{self._task}: its {len(self._wishes)} timers take {len(stored)} bytes, and {STATE_BYTES_MAX} are "
                "possible: they are written with each commit. Set fewer, such as one for all keys of an hour, or use "
                "shorter keys."
            )
        return stored

    def snapshot(self) -> bytes | None:
        """The handler's own state; None if it has none."""
        return self._wait(self._snapshot()) if hasattr(self._handler, "snapshot") else None

    def take(self) -> pa.Table:
        """Take the rows that were sent since the last call of this method, in the order in which their calls ended."""
        calls, self._put_out, self.rows, self.size = self._put_out, [], 0, 0
        self._wishes.commit = False
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
        with _Named(self._task, "making its handler"):
            handler = self._factory()
        check_methods(handler, self._task, self._at_once)
        if state is not None:
            if not hasattr(handler, "restore"):
                raise SamzaAzureError(
                    f"{self._task}: the log has a state of this handler, which has no restore and would go on without "
                    "it. Write def restore(self, state) and def snapshot(self), or drain the run first, with the code "
                    "that had them."
                )
            with _Named(self._task, "restore of its handler"):
                await _called(handler.restore, state)
        if len(self._wishes) and not hasattr(handler, "on_timer"):
            raise SamzaAzureError(
                f"{self._task}: the log has {len(self._wishes)} timers of this handler, which has no on_timer. Write "
                "def on_timer(self, key, collector), or drain the run first, with the code that had it."
            )
        self._handler = handler
        # Asked once: a look at a signature costs more than all the rest of a call.
        found = {name: getattr(handler, name, None) for name in (PROCESS, ON_TIMER, ON_DRAIN)}
        self._coordinated = frozenset(name for name, method in found.items() if method and takes_coordinator(method))

    async def _close(self) -> None:
        with _Named(self._task, "close of its handler"):
            await _called(self._handler.close)

    async def _process(self, causes: Iterator[Envelope | str], is_enough: Callable[[], bool]) -> int:
        running: set[asyncio.Task[None]] = set()
        messages = 0
        try:
            for cause in causes:
                messages += isinstance(cause, Envelope)
                if self._at_once == 1:
                    await self._one(cause)
                else:
                    running.add(asyncio.create_task(self._one(cause)))
                    if len(running) >= self._at_once:
                        running = await _some(running)
                if self._given_up.is_set() or is_enough():
                    break
            while running:
                running = await _some(running)
        finally:
            for each in running:
                each.cancel()
        return messages

    async def _one(self, cause: Envelope | str) -> None:
        if isinstance(cause, Envelope):
            what, method = f"process of message {cause.offset} of {cause.stream}/{cause.partition}", PROCESS
        else:
            what, method = f"on_timer of {cause!r:.80}", ON_TIMER
        await self._watched(what, self._limits.process_s, method, cause)

    async def _on_drain(self) -> None:
        await self._watched(ON_DRAIN, self._limits.drain_s, ON_DRAIN)

    async def _watched(self, what: str, limit_s: float | None, method: str, *given: object) -> None:
        """Run one call, which is in flight meanwhile. Only the rows of a call that succeeds are kept."""
        collector, number = _Collector(self._columns, what), next(self._numbers)
        more = {}
        if method in self._coordinated:
            more["coordinator"] = _Coordinator(self._wishes, hasattr(self._handler, "on_timer"), collector)
        self._in_flight[number] = _Call(what, boot_time(), limit_s)
        try:
            with _Named(self._task, what):
                await _called(getattr(self._handler, method), *given, collector, **more)
        finally:
            collector.is_open = False
            del self._in_flight[number]
        if collector.rows:
            self._put_out.append(collector)
            self.rows += len(collector.rows)
            self.size += size_of(collector.rows)

    async def _snapshot(self) -> bytes:
        with _Named(self._task, "snapshot of its handler"):
            state = self._handler.snapshot()
        if not isinstance(state, bytes) or len(state) > STATE_BYTES_MAX:
            found = f"{len(state)} bytes" if isinstance(state, bytes) else f"a {type(state).__name__}"
            raise SamzaAzureError(
                f"{self._task}: snapshot of its handler returned {found}. Return bytes, {STATE_BYTES_MAX} at most: "
                "they are written with each commit. What is larger belongs in a stage with state, or a store."
            )
        return state


#: The methods of a handler that may send rows; the last is also how its call is named, which is for no message.
PROCESS, ON_TIMER, ON_DRAIN = "process", "on_timer", "on_drain"
MILLISECOND, EPOCH = timedelta(milliseconds=1), datetime(1970, 1, 1, tzinfo=UTC)
#: Types whose values cannot change, and those of them that have a length.
SIZED = frozenset({str, bytes})
FIXED = SIZED | {type(None), bool, int, float, Decimal, date, datetime, timedelta}
#: The memory of any value without its content.
VALUE_BYTES = 50


def size_of(value: object) -> int:
    """Estimate the memory of a value of a row, in bytes."""
    if type(value) in FIXED:  # the usual case, known at a glance
        return VALUE_BYTES + (len(value) if type(value) in SIZED else 0)  # type: ignore[arg-type]
    match value:
        case str() | bytes() | bytearray():
            return VALUE_BYTES + len(value)
        case Mapping():
            return VALUE_BYTES + sum(map(size_of, value.values()))  # most keys are columns, whose names all rows share
        case list() | tuple():
            return VALUE_BYTES + sum(map(size_of, value))
    return VALUE_BYTES


async def _called(function: Callable[..., Any], *arguments: object, **more: object) -> None:
    answer = function(*arguments, **more)
    if answer is not None and inspect.isawaitable(answer):
        await answer


async def _some(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until a call has ended, and return those that still run. Raise its error, if it has one."""
    ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for each in ended:
        each.result()
    return running
