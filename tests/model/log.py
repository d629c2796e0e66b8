"""Writers race for one task's log: every order of their operations, with lost, late and doubled appends.

What runs is production's: `take_over`, `append` and `look` of `logs/task_log.py`, on the bytes that they write. Only
the scheduler is hand-made. A writer's next operation depends on nothing but its log object and the answers it has had,
so that is its state. The storage is `storage/memory.py`, which the contract tests compare with Azurite.

A writer takes the log over, appends its batches, and may be asked to release it; then it says "released" once
`look` finds nothing unsettled, as containers do. Crash and pause: it never goes on, or goes on late.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from samza_azure.errors import CorruptState, StateLost, Superseded
from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import Append, Create, Operation, Pause, Put, Rule, Sent
from samza_azure.logs.record import Header, Kind, Writer, decode_header
from samza_azure.logs.task_log import LogLimits, TaskLog, append, log_record, look, take_over
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.stream_io.driver import perform
from tests.model.checker import Shelf, Violation

PREFIX = "runs/r/clean-0"
GROUP = b"the group's id.."


class Reckless(Writer):
    """A writer without order: no other one is at or above it, as far as it knows."""

    __slots__ = ()

    def __le__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return hash((self.generation, self.attempt))


class Anywhere(MemoryStorage):
    """A storage on which appends carry no position."""

    def append(self, name: str, data: bytes, position: int) -> int | Refused | Missing:
        blob = self._blobs.get(name)
        return super().append(name, data, len(blob.data) if blob else position)


class Life(NamedTuple):
    """One writer: its log object when the present rule began, and all that this rule was answered."""

    number: int
    log: int
    answers: tuple[Any, ...] = ()
    appended: int = -1  # batches; -1: the log is not taken over yet
    leaving: bool = False
    end: str = ""  # how it ended


class State(NamedTuple):
    """A state."""

    blobs: tuple[tuple[str, bytes], ...]
    lives: tuple[Life, ...]
    late: tuple[Append, ...]  # sent, not answered, and still to land
    faults: int  # how many may still happen


@dataclass(eq=False)
class LogRace:
    """`batches[i]` is how many batches writer i wants to append."""

    writers: Sequence[Writer]
    batches: Sequence[int]
    faults: int = 1
    limits: LogLimits = field(default_factory=LogLimits)
    releases: bool = False  # may they be asked to release it?
    in_order: bool = True  # fence: the order of writers
    at_position: bool = True  # fence: the position of appends
    settled: bool = True  # fence: "released" waits until nothing is unsettled

    def __post_init__(self) -> None:
        self.logs: Shelf[TaskLog] = Shelf()
        self.perform = cache(self._perform)
        self.asked: dict[Life, Operation] = {}
        self.who = [f"writer {writer}" for writer in self.writers]
        self.told = cache(self._told)
        self.judge = cache(self._judge)

    def begin(self) -> State:
        lives = []
        for number, writer in enumerate(self.writers):
            owner = writer if self.in_order else Reckless(writer.generation, writer.attempt)
            lives.append(Life(number, self.logs.put(TaskLog(PREFIX, GROUP, "clean-0", owner, self.limits))))
        return State((), tuple(lives), (), self.faults)

    def steps(self, state: State) -> Iterator[tuple[str, State | Violation]]:
        for life in state.lives:
            if not life.end:
                yield from self.life_steps(state, life)
        for place, request in enumerate(state.late):
            rest = state._replace(late=state.late[:place] + state.late[place + 1 :])
            sender = _header(request.data).writer
            yield f"a late append of writer {sender} lands: {_kinds(request.data)}", self.land(rest, request)

    def rest(self, state: State) -> Violation | None:
        """In the end the highest writer has got through, unless it released the task."""
        highest = max(state.lives, key=lambda life: self.writers[life.number])
        if highest.end not in ("done", "released"):
            return Violation("L1", f"the highest writer, {self.writers[highest.number]}, ended {highest.end}")
        return None

    def life_steps(self, state: State, life: Life) -> Iterator[tuple[str, State | Violation]]:
        """What one writer can do."""
        who, operation = self.who[life.number], self.asks(life)
        if self.releases and not life.leaving and life.appended >= 0:
            yield f"{who} is told to let go", self.put(state, self.let_go(life))
        if not isinstance(operation, Append):
            answer, blobs = self.perform(state.blobs, operation)
            yield f"{who}: {_say(operation)}", self.learn(state._replace(blobs=blobs), life, answer)
            return
        says = f"{who} appends {_kinds(operation.data)} at {operation.position}"
        answer, blobs = self.perform(state.blobs, operation)
        landed = self.land(state, operation)
        if isinstance(landed, Violation):
            yield says, landed
            return
        lands = "" if answer is Sent.DONE else ": refused"
        yield f"{says}{lands}", self.learn(landed, life, answer)
        if not state.faults:
            return
        less = state.faults - 1
        waiting = state._replace(faults=less, late=(*state.late, operation))
        yield f"{says}: it arrives, its answer is lost", self.learn(landed._replace(faults=less), life, Sent.UNKNOWN)
        yield f"{says}: no answer, it is still on its way", self.learn(waiting, life, Sent.UNKNOWN)
        yield f"{says}: it is not sent", self.learn(state._replace(faults=less), life, Sent.NOT)
        if answer is Sent.DONE:
            twice = landed._replace(faults=less, late=(*state.late, operation))
            yield f"{says}: it arrives, and will arrive again", self.learn(twice, life, answer)

    def land(self, state: State, request: Append) -> State | Violation:
        """The append takes effect, or is refused."""
        _, blobs = self.perform(state.blobs, request)
        if blobs == state.blobs:
            return state
        writer = _header(request.data).writer
        for life in state.lives:
            if life.end == "released" and self.writers[life.number] == writer:
                return Violation("released", f"a record of writer {writer} lands after it said that it was released")
        return self.judge(blobs) or state._replace(blobs=blobs)

    def learn(self, state: State, life: Life, answer: Any) -> State | Violation:
        """The writer's rule goes on with this answer."""
        after = self.told(life, answer)
        if isinstance(after, Violation):
            return after
        if after.appended > life.appended >= 0:
            wrong = self.acknowledged(state, after)
            if wrong is not None:
                return wrong
        return self.put(state, after)

    def put(self, state: State, life: Life) -> State:
        """The state with this life in it."""
        lives = state.lives
        lives = (*lives[: life.number], life, *lives[life.number + 1 :])
        return State(state.blobs, lives, state.late, state.faults)  # four times as fast as _replace

    def acknowledged(self, state: State, life: Life) -> Violation | None:
        """A batch that was reported as appended is there, once."""
        writer, batch = self.writers[life.number], self.logs.look(life.log).last_batch
        there = [(header.writer, header.batch) for header in _batches(state.blobs)].count((writer, batch))
        if there != 1:
            return Violation(
                "S2", f"writer {writer} was told that batch {batch} is appended; it is there {there} times"
            )
        return None

    def let_go(self, life: Life) -> Life:
        """The gate is shut: the rule is dropped where it is."""
        log = self.replay(life)[0]
        if not self.settled:
            return Life(life.number, self.logs.put(log), (), life.appended, True, "released")
        return self.settle(Life(life.number, self.logs.put(log), (), life.appended, True))

    # Production's rules, run from the beginning of the present one. The same question has the same answer.

    def replay(self, life: Life) -> tuple[TaskLog, Rule[Any], Operation]:
        """The rule under way, where it stands, and what it asks."""
        log = self.logs.get(life.log)
        rule = self.rule(log, life)
        operation = next(rule)
        for answer in life.answers:
            operation = rule.send(answer)
        return log, rule, operation

    def rule(self, log: TaskLog, life: Life) -> Rule[Any]:
        """What the writer does now."""
        if life.leaving:
            return look(log)
        if life.appended < 0:
            return take_over(log, first=True, meta={})
        batch = log.last_batch + 1
        files = {f"offsets/{batch}": str(batch).encode()}
        return append(log, lambda: log_record(log, Kind.BATCH, batch=batch, files=files))

    def asks(self, life: Life) -> Operation:
        """The question, known since the answer to the one before it, unless the rule is at its beginning."""
        operation = self.asked.get(life)
        if operation is None:
            operation = self.asked[life] = self.replay(life)[2]
        return operation

    def _told(self, life: Life, answer: Any) -> Life | Violation:
        log, rule, _ = self.replay(life)
        try:
            operation = rule.send(answer)
            while isinstance(operation, Pause):  # waiting is something that only the clock sees
                life, answer = life._replace(answers=(*life.answers, answer)), None
                operation = rule.send(None)
        except StopIteration as stop:
            return self.next_rule(log, life, stop.value)
        except Superseded:
            return Life(life.number, 0, (), life.appended, life.leaving, "superseded")
        except (CorruptState, StateLost) as error:
            return Violation("S8", f"writer {self.writers[life.number]} finds a log that cannot be: {error}")
        after = life._replace(answers=(*life.answers, answer))
        self.asked[after] = operation
        return after

    def next_rule(self, log: TaskLog, life: Life, value: Any) -> Life:
        """A rule has ended; the writer goes on."""
        if life.leaving:
            settled = bool(value)
            return self.settle(Life(life.number, self.logs.put(log), (), life.appended, True), settled)
        appended = life.appended + 1
        if appended == self.batches[life.number]:
            return Life(life.number, self.logs.put(log), (), appended, False, "done")
        return Life(life.number, self.logs.put(log), (), appended)

    def settle(self, life: Life, settled: bool = False) -> Life:
        """Released, if nothing is unsettled."""
        if settled or self.logs.look(life.log).unsettled is None:
            return Life(life.number, 0, (), life.appended, True, "released")
        return life

    def _perform(self, blobs: tuple[tuple[str, bytes], ...], operation: Operation) -> tuple[Any, Any]:
        storage = MemoryStorage() if self.at_position else Anywhere()
        for name, data in blobs:
            storage.create(name)
            if data:
                storage.append(name, data, 0)
        answer = perform(operation, MemoryAccount(storage).blobs())
        answer = tuple(answer) if isinstance(answer, list) else answer
        if isinstance(operation, Append | Create | Put):
            blobs = tuple((name, bytes(blob.data)) for name, blob in sorted(storage._blobs.items()))
        return answer, blobs

    def _judge(self, blobs: tuple[tuple[str, bytes], ...]) -> Violation | None:
        """S2, judged from the bytes alone: writers only rise, each with one run of records; batch ids strictly rise."""
        writer, batch = Writer(-1, 0), -1
        for header in _headers(blobs):
            if header.writer < writer:
                return Violation("S2", f"{header.kind.name} of writer {header.writer} after writer {writer}")
            if header.kind is not Kind.EPOCH and header.writer != writer:
                return Violation("S2", f"{header.kind.name} of writer {header.writer} without its EPOCH")
            if header.kind is Kind.BATCH and header.batch != batch + 1:
                return Violation("S2", f"batch {header.batch} of writer {header.writer} after batch {batch}")
            writer, batch = header.writer, max(batch, header.batch)
        return None


@cache
def _header(data: bytes) -> Header:
    return decode_header(data, blob="", position=0)


def _headers(blobs: tuple[tuple[str, bytes], ...]) -> Iterator[Header]:
    contents = dict(blobs)
    for index in range(len(contents)):
        data = contents[blob_name(PREFIX, index)]
        while data:
            header = _header(data)
            yield header
            data = data[header.length :]


def _batches(blobs: tuple[tuple[str, bytes], ...]) -> Iterator[Header]:
    return (header for header in _headers(blobs) if header.kind is Kind.BATCH)


@cache
def _kinds(data: bytes) -> str:
    """The records of one append, in words."""
    names = []
    while data:
        header = _header(data)
        names.append(f"{header.kind.name} {header.batch}" if header.kind is Kind.BATCH else header.kind.name)
        data = data[header.length :]
    return " and ".join(names)


def _say(operation: Operation) -> str:
    match operation:
        case Create():
            return "creates the blob unless it is there"
        case _:
            return type(operation).__name__.lower() + "s the log"
