"""A container without Spark: it obeys the supervisor's commands and writes real logs by the production rules.

It has two stages. `clean` reads a source partition and passes each row on to the partition of its key. `daily` counts
rows per key and window of event time, and emits a window when all producers have passed it. So the output shows rows
that are late, duplicated or missing, and also a drain that loses or duplicates rows.

In some worlds a third stage, `audit`, reads the source partitions too, and passes their rows on unchanged. In some of
these worlds it has low-level tasks, which commit a batch in parts and emit one more row when they are drained; in
some of those, each of them asks for its shutdown at a certain message. Other code of the same application has one more
stage: `parsed` reads the source partitions, and `clean` reads its output.
"""

import asyncio
import json
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from samza_azure.errors import CorruptState, PermitExpired, StateLost, StorageUnavailable, Superseded
from samza_azure.logs.forget import kept, outdated
from samza_azure.logs.names import run_folder, stage_and_number, task_log, task_name
from samza_azure.logs.operations import Append, Create, Enumerate, Operation, Pause, Put, Read, Rule, rest_s
from samza_azure.logs.position import Position
from samza_azure.logs.reading import fetch_part, scan
from samza_azure.logs.record import INTERMEDIATE, SHUT_DOWN, Kind, Slice, Writer
from samza_azure.logs.repeating import repeating
from samza_azure.logs.task_log import LogLimits, TaskLog, append, follow, log_record, look, restored_files, take_over
from samza_azure.messages import (
    Command,
    Drain,
    DrainStep,
    Exit,
    HeldReplicas,
    KeepReplicas,
    Permit,
    Phase,
    Plan,
    ReleaseTask,
    ReplicaState,
    Report,
    StagePlan,
    StartTask,
    TaskError,
    TaskKind,
    TaskReport,
)
from samza_azure.storage.memory import SimulatedAccount
from samza_azure.stream_io.driver import drive, driven, perform
from simulator.ledger import Violation, demand
from simulator.loop import Process
from simulator.steps import Steps

T = TypeVar("T")

SOURCE, PARSED, BETWEEN, OUTPUT, AUDITED = "flights", "parsed-flights", "by-carrier", "daily-delays", "audited-flights"
#: The name of the stage that passes rows on, and its name in code that has renamed it.
CLEANERS = ("clean", "tidy")
#: A window of event time, in the rows' own unit; row j of a partition is at least j old.
WINDOW = 20
KEYS = 7
INFINITY = 1 << 60
#: A low-level task commits at most this many messages at once. The row of its `on_drain` has this number.
PART, FAREWELL = 15, -1
#: In some worlds a low-level task asks for its shutdown at one of so many messages.
LAST_MESSAGE = 60
#: The mean time between two reads of a replica.
REPLICA_S = 1.0
#: A source that pauses has new rows for this time, and then none for as long.
PAUSE_S = 12.0
CALL_S = 10.0
#: What the network calls the operations of the logs.
CALLS = {
    Append: "blobs.append",
    Create: "blobs.create",
    Put: "blobs.put",
    Read: "blobs.read",
    Enumerate: "blobs.list",
}
#: Small, so that logs roll often.
LIMITS = LogLimits(roll_bytes=12_000, roll_records=60, record_bytes=3_000)


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row of a source partition."""

    partition: int
    number: int

    @property
    def key(self) -> int:
        """The key by which it is counted."""
        return (self.number * 31 + self.partition * 17) % KEYS

    @property
    def time(self) -> int:
        """Its event time: rows come out of order, by less than a window."""
        return self.number + (self.number * 7919 + self.partition) % 5

    @property
    def window(self) -> int:
        """The window that it belongs to."""
        return self.time // WINDOW


@dataclass(slots=True)
class Habits:
    """How this world's containers behave."""

    plan: Plan
    rows_per_s: float = 2.0
    batch_s: float = 1.0  # between two checks for new rows
    commit_s: float = 0.0  # between two batches, as task.commit.ms
    work_s: float = 0.3  # at most, for one batch
    slow_batch: float = 0.0  # part of the batches that take twenty times as long
    start_s: float = 1.0
    release_s: float = 0.05
    slow_release: float = 0.0
    shutdown_s: float = 5.0
    poisoned: float = 0.0  # part of the batches in which user code fails
    bad: set[str] = field(default_factory=set)  # the processors on whose machines user code always fails
    forgets: bool = False  # old blobs of the logs between the stages are deleted
    pauses: bool = False  # at times the sources have no new rows, and their readers report that
    shuts_down: bool = False  # low-level tasks ask for their shutdown
    limits: LogLimits = LIMITS

    def cure(self) -> None:
        """Let user code work again."""
        self.poisoned = 0.0
        self.bad.clear()

    def available(self, instant: float, partition: int) -> int:
        """The number of rows that a source partition has by now."""
        if self.pauses:  # each partition at its own times
            times, within_s = divmod(instant + 7.0 * partition, 2 * PAUSE_S)
            instant = times * PAUSE_S + min(within_s, PAUSE_S)
        return int(instant * self.rows_per_s)


def plan_of(
    sources: int,
    counts: int,
    fingerprint: str,
    *,
    front: bool = False,
    audited: bool = False,
    handled: bool = False,
    renamed: bool = False,
    all_stateful: bool = False,
) -> Plan:
    """The pipeline of this world. Options: a stage before the first; a second reader of the source, which may have
    low-level tasks; another name for the first stage; state in that one, too."""
    kind = TaskKind.HANDLER if handled else TaskKind.QUERY
    kept = ("deduplicate",) if all_stateful else ()
    first = (StagePlan("parsed", (SOURCE,), PARSED, sources),) if front else ()
    stages = (
        *first,
        StagePlan(
            CLEANERS[renamed], (PARSED if front else SOURCE,), BETWEEN, sources, partition_by=("key",), stateful=kept
        ),
        StagePlan("daily", (BETWEEN,), OUTPUT, counts, stateful=("count",)),
        *((StagePlan("audit", (SOURCE,), AUDITED, sources, kind=kind),) if audited else ()),
    )
    return Plan(stages, {SOURCE: sources}, fingerprint)


class Container:
    """One container process. `say` carries a report to the supervisor."""

    def __init__(
        self,
        name: str,
        process: Process,
        account: SimulatedAccount,
        habits: Habits,
        dice: Random,
        clock: Callable[[], float],
        steps: Steps,
        *,
        say: Callable[[Report], None],
        note: Callable[[str], None],
    ) -> None:
        self.name, self.process, self.account, self.habits, self.dice = name, process, account, habits, dice
        self.clock, self.steps, self.say, self.note = clock, steps, say, note
        self.permit = 0.0
        self.drain = Drain(None)
        self.tasks: dict[str, TaskAttempt] = {}
        self.replicas: dict[str, Replica] = {}

    def obey(self, command: Command) -> None:
        """Obey a command of the supervisor."""
        match command:
            case Permit(until=until):
                self.permit = until
            case StartTask(task=task):
                self.tasks[task] = work = TaskAttempt(self, command, self.replicas.pop(task, None))
                work.query = self.process.spawn(work.run())
            case ReleaseTask(task=task, by=by):
                if task in self.tasks:
                    work, now = self.tasks[task], asyncio.get_running_loop().time()
                    work.released_at = now if work.released_at is None else work.released_at
                    work.patience_s = self.habits.shutdown_s
                    if by is not None:
                        work.patience_s = min(work.patience_s, max(by - self.clock(), 0.0))
                    work.news.set()
                    self.process.spawn(work.kill_late(work.patience_s))
            case KeepReplicas():
                self.keep(command)
            case Drain():
                self.drain = command
                for work in self.tasks.values():
                    work.news.set()
            case Exit():
                for work in self.tasks.values():
                    work.released_at = asyncio.get_running_loop().time()
                    work.news.set()

    def keep(self, command: KeepReplicas) -> None:
        """Keep these replicas, and no others."""
        wanted = {task: task_log(command.run_id, task) for task in command.tasks}
        for task in [task for task, each in self.replicas.items() if wanted.get(task) != each.log.prefix]:
            self.replicas.pop(task).stop()
        for task in [task for task in wanted if task not in self.replicas]:
            self.replicas[task] = replica = Replica(self, wanted[task], bytes.fromhex(command.group_id), task)
            replica.following = self.process.spawn(replica.follow())

    async def carry(self, operation: Operation) -> Any:
        """Perform one operation on this world's network."""
        account = self.account
        return await account.carry(CALLS[type(operation)], lambda: perform(operation, account.storage), CALL_S)

    def say_replicas(self) -> None:
        """Report the replicas that are ready."""
        ready = {task: ReplicaState(each.log.last_batch) for task, each in self.replicas.items() if each.log.writer}
        self.say(HeldReplicas(ready))

    def may_append(self) -> bool:
        """Whether the permit is valid; checked before each append."""
        return self.clock() < self.permit


class Replica:
    """What a restore needs of a task that another processor runs."""

    def __init__(self, container: Container, prefix: str, group_id: bytes, task: str) -> None:
        self.container = container
        self.following: asyncio.Task[None] | None = None
        self.log = TaskLog(prefix, group_id, task, Writer(0, 0))

    def stop(self) -> None:
        """Read it no further."""
        if self.following is not None:
            self.following.cancel()

    async def follow(self) -> None:
        """Read it on from time to time."""
        while True:
            try:
                await driven(follow(self.log), self.container.carry)
            except StorageUnavailable:
                pass
            except (CorruptState, StateLost):  # its part of the log was deleted
                self.container.steps.count("replica begun anew")
                self.log = TaskLog(self.log.prefix, self.log.group_id, self.log.task, Writer(0, 0))
            self.container.say_replicas()
            await asyncio.sleep(REPLICA_S * (0.5 + self.container.dice.random()))


class Released(Exception):
    """Raised when the gate is shut: the attempt ends."""


@dataclass(slots=True)
class TaskState:
    """The content of a task's checkpoint."""

    at: int = 0  # of the source
    step: int = 0  # 0 run, 1 flush, 2 final
    inputs: dict[str, list[int]] = field(default_factory=dict)
    frontiers: dict[str, int | None] = field(default_factory=dict)
    drained: list[str] = field(default_factory=list)
    windows: dict[str, list[int]] = field(default_factory=dict)  # "window|key" -> count, sum of row numbers
    watermark: int = -1
    late: int = 0
    to: int = 0  # the end of the batch that the low-level task has begun
    ends: bool = False  # it has asked for its shutdown

    def to_bytes(self) -> bytes:
        """The state as the log stores it."""
        return json.dumps([getattr(self, name) for name in self.__slots__]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "TaskState":
        """The state from its bytes in the log."""
        return cls(*json.loads(data))


class TaskAttempt:
    """One attempt at one task."""

    def __init__(self, container: Container, start: StartTask, replica: Replica | None = None) -> None:
        self.container, self.start, self.replica = container, start, replica
        self.task, self.number = start.task, stage_and_number(start.task)[1]
        self.query: asyncio.Task[None] | None = None
        self.news = asyncio.Event()  # set by each command of the supervisor
        self.released_at: float | None = None
        self.patience_s = container.habits.shutdown_s  # for its release
        self.phase = Phase.STARTING
        self.ends: dict[str, tuple[int, int]] | None = None
        self.frozen_for = ""  # the drain that `ends` is for
        self.appended_at: float | None = None
        self.log = TaskLog(
            task_log(start.run_id, start.task),
            bytes.fromhex(start.group_id),
            start.task,
            Writer(start.generation, start.attempt),
            limits=container.habits.limits,
        )
        self.rows: list[SourceRow] = []  # read, to be passed on with the next batch
        self.needs: dict[str, int] = {}  # the blobs of other logs in which the present batch begins
        self.announced = 0  # the last frontier that was appended without rows
        self.blob = 0  # the blob of the log that has the last record
        self.busy_until = 0.0  # a throttling service asks not to be called before
        self.state = TaskState(at=start.positions.get(f"{SOURCE}/{self.number}", (0, 0))[1])

    async def run(self) -> None:
        """Run the attempt, from the restore to the release."""
        habits, dice = self.container.habits, self.container.dice
        try:
            await asyncio.sleep(habits.start_s * (0.5 + dice.random()))
            await self.restore()
            if self.log.drained:
                self.report(Phase.DRAINED)
                return
            if self.number % 2:
                self.try_out()
            self.report(Phase.RUNNING)
            stage = self.container.habits.plan.stage_of(self.task)
            reads = self.handle if stage.kind is TaskKind.HANDLER else self.pass_on
            await (reads(stage) if SOURCE in stage.inputs else self.follow(stage))
            self.report(Phase.DRAINED)
        except Released:
            await self.release()
        except Superseded as error:
            self.container.note(f"{self.task} is superseded: {error}")
            self.report(Phase.SUPERSEDED)
        except PermitExpired:
            self.report(Phase.RESTART)
        except StateLost as error:
            self.container.note(f"{self.task}: {error}")
            self.report(Phase.FAILED, TaskError(str(error), ""))
        except CorruptState as error:
            raise Violation(f"S8: {self.task} found a log that cannot be: {error}") from error
        except RuntimeError as error:
            self.report(Phase.FAILED, TaskError(str(error), "Traceback of the simulated user code"))

    def report(self, phase: Phase, error: TaskError | None = None) -> None:
        """Report the whole state of the task."""
        self.phase = phase
        start = self.start
        self.container.say(
            TaskReport(
                self.task,
                start.generation,
                start.attempt,
                phase,
                batch=self.log.last_batch,
                late=self.state.late,
                ends=self.ends,
                frozen_for=self.frozen_for,
                read={partition: (blob, at) for partition, (blob, at) in self.log.read.items()} or None,
                error=error,
                appended_at=self.appended_at,
            )
        )

    def try_out(self) -> None:
        """Run user code, which fails on a bad machine: for some tasks also at the start, for all in each batch."""
        if self.container.name in self.container.habits.bad:
            raise RuntimeError("simulated disk is full")

    async def restore(self) -> None:
        """Take over the log, and restore the state from it."""
        meta = {INTERMEDIATE: True} if self.task.startswith(CLEANERS) else {}
        replica = None
        if self.replica is not None and self.replica.log.prefix == self.log.prefix:
            self.replica.stop()
            replica = self.replica.log
        await self.drive(take_over(self.log, first=self.start.first, meta=meta, replica=replica))
        if replica is not None and self.log.places is replica.places:
            self.container.steps.count("replica taken")
        if self.log.last_batch >= 0 and not self.log.drained:
            files = await self.drive(restored_files(self.log))
            self.state = TaskState.from_bytes(files[f"offsets/{self.log.last_batch}"])
            read = {each: tuple(place) for each, place in self.log.read.items()}
            demand(
                read == self.has_read(), f"S7: the log of {self.task} says that {read} is read, not {self.has_read()}"
            )

    def has_read(self) -> dict[str, Position]:
        """How far the source partition of this task is read."""
        return {f"{SOURCE}/{self.number}": (0, self.state.at)} if self.state.at else {}

    async def release(self) -> None:
        """Close the writer, and report `released` when nothing is unsettled, or when the time for that is over."""
        habits, dice, loop = self.container.habits, self.container.dice, asyncio.get_running_loop()
        slow = habits.shutdown_s if dice.random() < habits.slow_release else 0.0
        if slow:
            self.container.steps.meet("slow release", lasts=slow)
        await asyncio.sleep(habits.release_s * dice.random() + slow * dice.random())
        deadline = (self.released_at or 0.0) + self.patience_s
        while self.log.unsettled is not None and loop.time() < deadline:
            try:
                await self.drive(look(self.log))
            except StorageUnavailable:
                await asyncio.sleep(0.2)
            except (PermitExpired, Superseded, StateLost):
                break
        self.report(Phase.RELEASED)

    async def kill_late(self, patience_s: float) -> None:
        """Kill a query that has not released its task in time, which releases it."""
        await asyncio.sleep(patience_s)
        if self.query is not None and not self.query.done():
            self.query.cancel()
            self.report(Phase.RELEASED)

    async def gate(self) -> None:
        """Raise before a batch that may not begin: the task is released, or there is no permit."""
        if self.released_at is not None:
            raise Released
        if not self.container.may_append():
            raise PermitExpired("No permit.")

    async def idle(self, seconds: float) -> None:
        """Wait for this time, or until the next command of the supervisor."""
        self.news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.news.wait()
        except TimeoutError:
            pass

    async def stands(self, drain: Drain, partition: str) -> bool:
        """Whether a FREEZE stops the task, which it reports once per drain; it reports again if that is cancelled."""
        if drain.step is DrainStep.FREEZE:
            if self.frozen_for != drain.uuid:
                self.ends, self.frozen_for = {partition: (0, self.state.at)}, drain.uuid
                self.report(Phase.RUNNING)
            await self.idle(self.container.habits.batch_s)
        elif drain.step is None and self.ends is not None:
            self.ends, self.frozen_for = None, ""
            self.report(Phase.RUNNING)
        return drain.step is DrainStep.FREEZE

    async def pass_on(self, stage: StagePlan) -> None:
        """Pass on the rows of one source partition."""
        habits, partition = self.container.habits, f"{SOURCE}/{self.number}"
        while True:
            await self.gate()
            drain, state = self.container.drain, self.state
            if await self.stands(drain, partition):
                continue
            flush = drain.step is DrainStep.FLUSH
            now = habits.available(asyncio.get_running_loop().time(), self.number)
            to = min(drain.ends.get(partition, (0, 0))[1] if flush else now, state.at + 40)
            demand(to >= state.at, f"S12: {self.task} has read to {state.at}, the flush ends at {to}")
            rows = [SourceRow(self.number, number) for number in range(state.at, to)]
            if not rows and not flush:
                if habits.pauses and self.announced != state.at:
                    await self.tell_idle(state.at)
                await self.idle(habits.batch_s * (0.5 + self.container.dice.random()))
                continue
            state.at = to
            if not rows:
                state.step += 1
            await self.commit(self.slices(stage, rows), frontier=state.at, final=state.step == 2)
            if state.step == 2:
                return
            if habits.commit_s and not flush:
                await self.idle(habits.commit_s)

    async def handle(self, stage: StagePlan) -> None:
        """Pass on the messages of one source partition, as a low-level task does.

        A batch that has begun is finished before anything else, also by the next owner: only then does the task end
        because it has asked for that, or report its position, or that it is at its end. The rows of `on_drain` are part
        of the last record.
        """
        habits, partition = self.container.habits, f"{SOURCE}/{self.number}"
        while True:
            await self.gate()
            drain, state = self.container.drain, self.state
            if state.at < state.to:
                to = min(state.to, state.at + self.container.dice.randint(1, PART))
                messages = [SourceRow(self.number, number) for number in range(state.at, to)]
                state.at = to
                state.ends |= habits.shuts_down and any((each.number + 1) % LAST_MESSAGE == 0 for each in messages)
                await self.commit(self.slices(stage, messages), frontier=to, final=False)
                continue
            if state.ends:
                await self.say_farewell(stage, {SHUT_DOWN: True})
                return
            if await self.stands(drain, partition):
                continue
            flush = drain.step is DrainStep.FLUSH
            now = habits.available(asyncio.get_running_loop().time(), self.number)
            state.to = drain.ends.get(partition, (0, 0))[1] if flush else max(min(now, state.at + 40), state.at)
            demand(state.to >= state.at, f"S12: {self.task} has read to {state.at}, the flush ends at {state.to}")
            if flush and state.to == state.at:
                await self.say_farewell(stage)
                return
            if state.to == state.at:
                await self.idle(habits.batch_s * (0.5 + self.container.dice.random()))

    async def say_farewell(self, stage: StagePlan, meta: dict[str, bool] | None = None) -> None:
        """End the log with what `on_drain` emits."""
        self.container.steps.count("on_drain called")
        rows = self.slices(stage, [SourceRow(self.number, FAREWELL)])
        await self.commit(rows, frontier=self.state.at, final=True, meta=meta)

    async def tell_idle(self, frontier: int) -> None:
        """Append a frontier without rows: the source is idle, and later rows are not older than this."""
        self.announced = frontier
        await self.drive(append(self.log, lambda: log_record(self.log, Kind.FRONTIER, frontier_us=frontier, idle=True)))

    def slices(self, stage: StagePlan, rows: list[SourceRow]) -> list[Slice]:
        """The rows by destination: the partition of their key, or the one with the same number."""
        by_key: dict[int, list[list[int]]] = {}
        for row in rows:
            destination = row.key % self.tasks_of("daily") if stage.partition_by else self.number
            by_key.setdefault(destination, []).append([row.partition, row.number])
        return [Slice(to, json.dumps(part).encode(), len(part)) for to, part in sorted(by_key.items())]

    async def follow(self, stage: StagePlan) -> None:
        """Read one partition of the previous stage's output: pass its rows on, or count them and fire windows."""
        habits, counts = self.container.habits, stage.name == "daily"
        before = next(each for each in habits.plan.stages if each.output in stage.inputs)
        producers = [task_name(before.name, number) for number in (range(before.tasks) if counts else [self.number])]
        while True:
            await self.gate()
            state, news = self.state, 0
            self.rows = []
            run = run_folder(self.start.run_id)
            self.needs = {run + producer: blob for producer, (blob, _) in state.inputs.items() if blob > 0}
            for producer in producers:
                if producer not in state.drained and state.step == 0:
                    news += await self.read(producer, counts=counts)
            done = len(state.drained) == len(producers) and self.container.drain.step is DrainStep.FLUSH
            if not news and done:
                state.step += 1
            elif not news:
                hurry = 0.2 if self.container.drain.step is DrainStep.FLUSH else 1.0
                await self.idle(habits.batch_s * hurry * (0.5 + self.container.dice.random()))
                continue
            state.watermark = INFINITY if state.step == 2 else max(state.watermark, self.progress(producers))
            slices = [] if counts else self.slices(stage, self.rows)
            if counts and (fired := self.fire() if state.step == 2 or state.watermark < INFINITY - 1 else []):
                slices = [Slice(0, json.dumps(fired).encode(), len(fired))]
            await self.commit(slices, frontier=min(state.watermark, INFINITY), final=state.step == 2)
            if state.step == 2:
                return

    def progress(self, producers: list[str]) -> int:
        """The event time that all producers have passed. A silent producer is not idle, so it holds it back."""
        state = self.state
        frontiers = [INFINITY if each in state.drained else state.frontiers.get(each) for each in producers]
        known = [frontier for frontier in frontiers if frontier is not None]
        return min(*known, INFINITY - 1) if len(known) == len(frontiers) else -1

    async def read(self, producer: str, *, counts: bool) -> int:
        """Take the rows for this task from a producer's log. Return the number of records read."""
        state = self.state
        blob, position = state.inputs.get(producer, [0, 0])
        prefix = task_log(self.start.run_id, producer)
        try:
            found = await self.drive(
                scan(prefix, (blob, position), destinations=frozenset([self.number]), group_id=self.log.group_id)
            )
            parts = [await self.drive(fetch_part(part)) for part in found.parts]
        except StorageUnavailable:
            return 0
        for part in parts:
            for partition, number in json.loads(part):
                row = SourceRow(partition, number)
                if not counts:
                    self.rows.append(row)
                    continue
                if (row.window + 1) * WINDOW <= state.watermark:
                    state.late += 1
                slot = state.windows.setdefault(f"{row.window}|{row.key}", [0, 0])
                slot[0] += 1
                slot[1] += number
        state.inputs[producer] = list(found.end)
        if found.frontier_us is not None:
            state.frontiers[producer] = found.frontier_us
        if found.drained:
            state.drained.append(producer)
        return found.records

    def fire(self) -> list[list[int]]:
        """Remove and return the windows for which no more rows can come."""
        ready = [name for name in self.state.windows if (int(name.split("|")[0]) + 1) * WINDOW <= self.state.watermark]
        return [[*map(int, name.split("|")), *self.state.windows.pop(name)] for name in ready]

    async def commit(
        self, slices: list[Slice], *, frontier: int, final: bool, meta: dict[str, bool] | None = None
    ) -> None:
        """Compute one batch, then append it as one record."""
        container = self.container
        habits, dice = container.habits, container.dice
        slow = 20.0 if dice.random() < habits.slow_batch else 1.0
        if slow > 1.0:
            container.steps.meet("slow batch", lasts=habits.work_s * slow)
        await asyncio.sleep(habits.work_s * dice.random() * slow)
        if habits.poisoned and dice.random() < habits.poisoned:
            raise RuntimeError("simulated user code fails")
        self.try_out()
        batch = self.log.last_batch + 1
        files = {f"offsets/{batch}": self.state.to_bytes()}
        await self.drive(
            append(
                self.log,
                lambda: log_record(
                    self.log,
                    Kind.DRAINED if final else Kind.BATCH,
                    batch=batch,
                    frontier_us=frontier if frontier >= 0 else None,
                    idle=False,
                    slices=slices,
                    files=files,
                    meta=meta,
                    needs=self.needs if habits.forgets else None,
                    read=self.has_read(),
                ),
            )
        )
        self.appended_at = self.appended_at or asyncio.get_running_loop().time()
        if habits.forgets and self.log.end[0] > self.blob:
            self.blob = self.log.end[0]
            self.forget()
        if batch % 4 == 0:
            self.report(self.phase)

    def forget(self) -> None:
        """Delete the blobs of a log between stages that are no longer needed, now or later, whoever owns it then."""
        if not self.task.startswith(CLEANERS):
            return
        readers = [task_log(self.start.run_id, task_name("daily", number)) for number in range(self.tasks_of("daily"))]
        storage = self.container.account.storage
        for name in drive(outdated(kept(self.log), readers), storage):
            delay = self.container.dice.choice([0.0, self.container.dice.uniform(0, 60)])
            asyncio.get_running_loop().call_later(delay, storage.delete, name, context=Context())  # of no sender

    def tasks_of(self, stage: str) -> int:
        """The number of tasks of a stage."""
        return next(each.tasks for each in self.container.habits.plan.stages if each.name == stage)

    async def drive(self, rule: Rule[T]) -> T:
        """Run a rule of the log to its end on this world's network."""
        return await driven(repeating(rule, self.container.may_append), self._carry)

    async def _carry(self, operation: Operation) -> Any:
        if isinstance(operation, Pause):
            return await asyncio.sleep(operation.seconds)
        loop = asyncio.get_running_loop()
        demand(loop.time() >= self.busy_until, f"Cost: {self.task} calls a busy service sooner than that asks for")
        try:
            return await self.container.carry(operation)
        except StorageUnavailable as error:
            self.busy_until = loop.time() + rest_s(0.0, error)
            raise
