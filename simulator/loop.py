"""Simulated time, which passes only when nothing else is left to do, and processes that can be frozen and killed.

An hour of a fleet takes seconds, and the same seed gives the same history. The code under test runs on an ordinary
asyncio loop. Nothing here may use threads. Waiting for something that cannot happen raises `Deadlock`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any


class Deadlock(Exception):
    """Raised when all tasks wait and nothing can wake them."""


class Callback:
    """A call that the loop makes later. An `asyncio.Handle` costs three times as much; a fleet's hour has millions."""

    __slots__ = ("arguments", "context", "function", "is_cancelled")

    def __init__(self, function: Any, arguments: tuple[Any, ...], context: Context) -> None:
        self.function, self.arguments, self.context = function, arguments, context
        self.is_cancelled = False

    def cancel(self) -> None:
        """Make the loop skip it."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether the loop skips it."""
        return self.is_cancelled


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a number. Callbacks due at the same instant run in the order of their scheduling."""

    def __init__(self) -> None:
        super().__init__()
        self.instant = 0.0
        self._soon: deque[Callback] = deque()
        self._later: list[tuple[float, int, Callback]] = []
        self._asked = 0
        self.set_task_factory(_task)

    def time(self) -> float:
        return self.instant

    def call_soon(  # type: ignore[override]  # no caller here needs more than a `Callback`
        self, callback: Any, *arguments: Any, context: Context | None = None
    ) -> Callback:
        soon = Callback(callback, arguments, context if context is not None else copy_context())
        self._soon.append(soon)
        return soon

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *arguments: Any, context: Context | None = None
    ) -> Callback:
        later = Callback(callback, arguments, context if context is not None else copy_context())
        self._asked += 1
        heappush(self._later, (when, self._asked, later))
        return later

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *arguments: Any, context: Context | None = None
    ) -> Callback:
        return self.call_at(self.instant + delay, callback, *arguments, context=context)

    def _run_once(self) -> None:
        """Run all callbacks that are due. If there are none, move the time to the next one."""
        soon, later = self._soon, self._later
        while later and (later[0][0] <= self.instant or not soon):
            when, _, timer = heappop(later)
            if not timer.is_cancelled:
                self.instant = max(self.instant, when)
                soon.append(timer)
        if not soon:
            raise Deadlock("Everybody waits, and nobody will ever be woken.")
        for _ in range(len(soon)):
            due = soon.popleft()
            if due.is_cancelled:
                continue
            try:
                due.context.run(due.function, *due.arguments)
            except Exception as error:  # noqa: BLE001 -- as an ordinary loop does
                self.call_exception_handler({"message": f"Exception in {due.function!r}", "exception": error})

    def _process_events(self, events: list[Any]) -> None:
        """Do nothing: there is no I/O."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread has to wake the loop."""


class Process:
    """Tasks that can be frozen, thawed and killed together at any instant."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self._waiting: list[asyncio.Future[None]] = []  # futures that the thaw resolves
        self._tasks: dict[asyncio.Task[Any], Coroutine[Any, Any, Any]] = {}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine as part of this process. The tasks that it starts belong to the process, too."""
        token = _PROCESS.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _PROCESS.reset(token)

    def own(self, task: "asyncio.Task[Any]", work: Any) -> None:
        """Note a task of this process, and the work that it does."""
        self._tasks[task] = work
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task).close()  # the work of a task that is cancelled before its first step has not begun
        if not task.cancelled() and (error := task.exception()) is not None:
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"message": f"{self.name} broke", "exception": error})

    def freeze(self, seconds: float) -> None:
        """Freeze the process for this time. Calls that it has sent arrive; their answers wait."""
        if self.alive and not self.frozen:
            self.frozen = True
            asyncio.get_running_loop().call_later(seconds, self.thaw)

    def thaw(self) -> None:
        """Continue after a freeze."""
        self.frozen = False
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def until_thawed(self) -> "asyncio.Future[None]":
        """A future that is done when the process continues. Each waiter has its own, since waiting can be cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def kill(self) -> None:
        """End at this instant, without a word."""
        self.alive = False
        self.thaw()
        for task in list(self._tasks):
            task.cancel()

    def at(self, delay: float, what: Callable[[], None]) -> None:
        """Call a function later, if the process is still alive then."""
        asyncio.get_running_loop().call_later(delay, lambda: what() if self.alive else None)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current() -> Process | None:
    """The process whose task is running."""
    return _PROCESS.get()


class _Steps:
    """Passes on the steps of a coroutine, holds them while its process is frozen, and ends with it."""

    def __init__(self, work: Coroutine[Any, Any, Any], process: Process) -> None:
        self._work, self._process = work, process

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            while self._process.frozen:
                try:
                    yield from self._process.until_thawed()
                except asyncio.CancelledError as error:  # a timeout during the freeze takes effect after it
                    thrown = error
            if not self._process.alive:
                self._work.close()
                raise asyncio.CancelledError
            try:
                waits_for = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as stop:
                return stop.value
            thrown = None
            try:
                yield waits_for
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:  # noqa: BLE001 -- it is passed on
                thrown = error


async def _follow(work: Coroutine[Any, Any, Any], process: Process) -> Any:
    return await _Steps(work, process)


def _task(loop: asyncio.AbstractEventLoop, work: Any, **arguments: Any) -> "asyncio.Task[Any]":
    process = current()
    if process is None:
        return asyncio.Task(work, loop=loop, **arguments)
    task = asyncio.Task(_follow(work, process), loop=loop, **arguments)
    process.own(task, work)
    return task
