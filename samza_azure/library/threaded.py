"""A job coordinator on its own thread with an event loop."""

import asyncio
import concurrent.futures.thread
import logging
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from samza_azure.coordinator import JobCoordinator, JobCoordinatorListener, JobModel
from samza_azure.errors import Ending, SamzaAzureError, StorageUnavailable, Verdict
from samza_azure.group.control import Control
from samza_azure.group.notice import PORT, WHY_LIMIT, Going, Notice
from samza_azure.group.tasks import assigned
from samza_azure.group.view import Doorbell, Settings, View
from samza_azure.host.bells import Bells
from samza_azure.host.last_day import Recorder
from samza_azure.host.processor import ContainerLost, ContainerSilent, Processor
from samza_azure.host.runs import RunLogs
from samza_azure.machine.clock import boot_time, wall_ms
from samza_azure.messages import Command, Report, TaskReport, Use
from samza_azure.metrics.observer import Observer
from samza_azure.storage.interface import ControlBlob, Rows

log = logging.getLogger(__name__)
T = TypeVar("T")
#: asyncio imports this when a thread first needs it, and the import registers hooks for forks. A fork under way in
#: another thread, such as the supervisor's, would then release a lock that it never took. So it is imported here.
FORK_HOOKS = concurrent.futures.thread


class HostContext:
    """The real clock, random numbers and ids."""

    def now(self) -> float:
        return boot_time()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def random(self) -> float:
        return random.random()

    def fresh_id(self) -> str:
        return uuid.uuid4().hex


class Stores:
    """The storage of a coordinator, opened and closed on its thread."""

    def __init__(self, blob: ControlBlob, table: Rows, runs: RunLogs, close: Callable[[], Any]) -> None:
        self.blob, self.table, self.runs, self.close = blob, table, runs, close


class ThreadedCoordinator(JobCoordinator):
    """Runs a `Processor` on a thread with an event loop, and calls the listener."""

    def __init__(self, settings: Settings, stores: Callable[[], Any], observer: Observer) -> None:
        self._settings, self._stores, self._observer = settings, stores, observer
        self._listener = JobCoordinatorListener()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._processor: Processor | None = None
        self._table: Rows | None = None
        self._early: list[Callable[[Processor], None]] = []
        self._reaching: asyncio.Task[Any] | None = None  # opens the storage, which may take minutes
        self._leaves = False
        self._lock = threading.Lock()
        self._model: JobModel | None = None
        self._notified: tuple[int, object] = (0, None)
        self._led = False
        self._mine: frozenset[str] = frozenset()
        self._turns = 0
        self.ending = None
        self.view: View | None = None

    @property
    def is_leader(self) -> bool:
        return self.view is not None and self.ending is None and self.view.is_leader(boot_time())

    @property
    def epoch(self) -> int:
        """The epoch of the present leadership, as far as this processor knows."""
        control = self.view.control if self.view is not None else None
        return control.epoch if isinstance(control, Control) else 0

    @property
    def job_model(self) -> JobModel | None:
        return self._model

    @property
    def turns(self) -> int:
        return self._turns

    def set_listener(self, listener: JobCoordinatorListener) -> None:
        self._listener = listener

    def ask(self, *, new_run: bool, wait_for_upgrade: bool, restarted: bool = False, only_holder: bool = False) -> None:
        self._settings = replace(
            self._settings,
            new_run=new_run,
            wait_for_upgrade=wait_for_upgrade,
            restarted=restarted,
            holds_directory=only_holder,
        )

    def listens(self, host: str, port: int) -> None:
        self._settings = replace(self._settings, doorbell=Doorbell(host, port, secrets.token_bytes(16)))

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="coordinator", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._leave("")

    def give_up(self, reason: str) -> None:
        self._leave(reason)

    def decommission(self, why: str, *, by: float | None = None, source: str = PORT) -> None:
        by_ms = round(wall_ms() + (by - boot_time()) * 1000) if by is not None else 0
        notice = Notice(why[:WHY_LIMIT], by, by_ms)
        self._post(lambda processor: processor.notice(source, notice))

    def recommission(self, source: str = PORT) -> None:
        self._post(lambda processor: processor.withdraw(source))

    @property
    def going(self) -> Going | None:
        return self.view.going if self.view is not None else None

    def _leave(self, gave_up: str) -> None:
        with self._lock:
            self._leaves, reaching = True, self._reaching
        self._post(lambda processor: processor.leave(gave_up))
        if reaching is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                reaching.get_loop().call_soon_threadsafe(reaching.cancel)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; false if it has not within `timeout` seconds."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return self.ending is not None

    def ask_storage(self, question: Callable[[Rows], Coroutine[Any, Any, T]], timeout: float) -> T:
        """Query the group's table over the coordinator's connections. Raise `StorageUnavailable` if there are none."""
        loop, table = self._loop, self._table
        if loop is None or table is None or loop.is_closed():
            raise StorageUnavailable("This processor is not in the group: start it, and wait until it has joined.")
        return asyncio.run_coroutine_threadsafe(question(table), loop).result(timeout)

    def report(self, *reports: Report) -> None:
        def hear(processor: Processor) -> None:
            for report in reports:
                processor.hear(report)
                if isinstance(report, TaskReport):
                    self._observer.reported(report)

        self._post(hear)

    def container_lost(self, reason: str) -> None:
        log.debug("The container ended: %s", reason)  # whoever runs it says so, with what follows
        self._observer.container_lost()
        self._post(lambda processor: processor.hear(ContainerLost()))

    def container_silent(self, seconds: float) -> None:
        self._post(lambda processor: processor.hear(ContainerSilent(seconds)))

    def container_uses(self, size: int) -> None:
        self.measured(Use(memory=size))

    def measured(self, use: Use) -> None:
        self._observer.container_uses(use)
        self._post(lambda processor: processor.hear(use))

    def rung(self) -> None:
        self._post(Processor.rung)

    def _post(self, act: Callable[[Processor], None]) -> None:
        with self._lock:
            if self._processor is None or self._loop is None:
                self._early.append(act)
                return
            processor, loop = self._processor, self._loop
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(act, processor)

    def _live(self) -> None:
        try:
            ending = asyncio.run(self._run())
        except SamzaAzureError as error:
            ending = Ending(error.exit_code, str(error))
        except Exception as error:
            log.exception("The coordinator failed")
            ending = Ending(Verdict.FAILED, f"The coordinator failed: {type(error).__name__}: {error}")
        self.ending = ending
        if self._led:
            self._led = False
            self._listener.on_leadership(False, self.epoch)
        if ending.code in (Verdict.DONE, Verdict.LEFT_OPEN):  # whoever asked it to leave reads `ending`
            self._listener.on_coordinator_stop()
        else:
            self._listener.on_coordinator_failure(ending.error())

    async def _run(self) -> Ending:
        counting = asyncio.get_running_loop().create_task(self._count())
        with self._lock:
            self._reaching = reaching = asyncio.get_running_loop().create_task(self._stores())
            if self._leaves:
                reaching.cancel()
        try:
            stores: Stores = await reaching
        except asyncio.CancelledError:
            return Ending(Verdict.DONE, "Left before it had joined.")
        finally:
            counting.cancel()
            with self._lock:
                self._reaching = None

        def gone(incarnation: str) -> bool:
            return processor.gone(incarnation)

        bells = Bells(gone) if self._settings.doorbell is not None else None
        try:
            processor = Processor(
                self._settings,
                stores.blob,
                stores.table,
                stores.runs,
                HostContext(),
                tell=self._command,
                watch=self._watch,
                called=self._observer.called,
                bells=bells,
            )
            self.view, self._table = processor.view, stores.table
            with self._lock:
                self._processor, self._loop = processor, asyncio.get_running_loop()
                early, self._early = self._early, []
            for act in early:
                act(processor)
            recorder = Recorder(processor.view, stores.table)
            recording = asyncio.get_running_loop().create_task(recorder.work())
            try:
                return await processor.run()
            finally:
                recording.cancel()
                await recorder.end(wall_ms())
        finally:
            if bells is not None:
                await bells.close()
            await stores.close()

    async def _count(self) -> None:
        """Count turns while the storage is opened, which may take minutes: the loop runs, though no processor yet."""
        while True:
            self._turns += 1
            await asyncio.sleep(1.0)

    def _command(self, command: Command) -> None:
        if (on_command := getattr(self._listener, "on_command", None)) is not None:  # `TaskHost`, or what wraps one
            on_command(command)

    def _watch(self, view: View) -> None:
        """Tell the listener of new versions and of the drain's steps, once each."""
        self._turns += 1
        self._observer.turned(view)
        if (leads := view.is_leader(boot_time())) != self._led:
            self._led = leads
            self._listener.on_leadership(self._led, self.epoch)
        value = view.control
        if not isinstance(value, Control):
            return
        # Compare `reached`, not `step`: the step stays FLUSH at DRAINED.
        latest = (value.version, value.drain and (value.drain.uuid, value.drain.reached))
        if latest == self._notified:
            return
        before, self._notified = self._notified, latest
        if value.version != before[0]:
            mine = frozenset(assigned(view))
            if self._mine - mine:
                self._listener.on_job_model_expired()
            self._mine = mine
            self._model = job_model(value)
            self._listener.on_new_job_model(view.me, self._model)
        if value.drain is not None and latest[1] != before[1]:
            self._listener.on_drain(value.drain)


def job_model(value: Control) -> JobModel:
    """The assignment of a control blob, by processor."""
    shares: dict[str, list[str]] = {member.processor: [] for member in value.members}
    for task, assignment in value.tasks.items():
        if assignment.owner is not None:
            shares.setdefault(assignment.owner.processor, []).append(task)
    return JobModel(value.version, value.epoch, value.run_id, {name: tuple(tasks) for name, tasks in shares.items()})
