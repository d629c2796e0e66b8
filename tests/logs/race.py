"""A storage on which writers take turns, operation by operation, as a test decides.

A choice decides which writer acts next and what becomes of an append: it arrives, its answer is lost, it is lost
itself, or it arrives later. Each run is a list of choices, so all short ones can be tried: `Explorer`.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from samza_azure.errors import Superseded
from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import Append, Rule, Sent, Span
from samza_azure.logs.position import Position
from samza_azure.logs.record import Kind, Record, Reference, Slice, Writer, decode
from samza_azure.logs.task_log import LogLimits, TaskLog, append, log_record, take_over
from samza_azure.outcomes import Missing
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.driver import perform

PREFIX = "runs/r/clean-0"
GROUP = b"the group's id.."


@dataclass(slots=True)
class Owner:
    """One writer: takes the log over, then appends batches from where it stands."""

    writer: Writer
    batches: int
    log: TaskLog
    acknowledged: list[int] = field(default_factory=list)
    is_superseded: bool = False
    is_done: bool = False

    def life(self, first: bool) -> Rule[None]:
        """From the take-over to the last batch, or until a higher writer is found."""
        try:
            yield from take_over(self.log, first=first, meta={"by": str(self.writer)})
            for _ in range(self.batches):
                batch = self.log.last_batch + 1
                yield from append(self.log, lambda batch=batch: batch_record(self.log, batch))
                self.acknowledged.append(batch)
        except Superseded:
            self.is_superseded = True
        self.is_done = True


def batch_record(log: TaskLog, batch: int) -> Record:
    """A batch that names its writer, with an offset, a delta and, now and then, a snapshot."""
    by = f"{batch} by {log.owner}".encode()
    files = {f"offsets/{batch}": by, f"state/0/0/{batch + 1}.delta": by}
    if batch % 3 == 2:
        files[f"state/0/0/{batch}.snapshot"] = by
    return log_record(log, Kind.BATCH, batch=batch, frontier_us=batch, slices=(Slice(0, by, 1),), files=files)


def owner(writer: Writer, batches: int, limits: LogLimits | None = None) -> Owner:
    """A writer that has not begun."""
    return Owner(writer, batches, TaskLog(PREFIX, GROUP, "clean-0", writer, limits or LogLimits()))


@dataclass(slots=True)
class Race:
    """Several owners of one log, and appends that are still on their way."""

    owners: list[Owner]
    choose: "Dice"
    faults: int  # how many may still happen
    watch: Callable[[Blobs], None] = lambda _: None  # called before each step
    blobs: Blobs = field(default_factory=lambda: MemoryAccount().blobs())
    delayed: list[Append] = field(default_factory=list)

    def run(self) -> None:
        """Until every owner has ended."""
        lives = {number: each.life(first=True) for number, each in enumerate(self.owners)}
        asked: dict[int, Any] = {number: next(life) for number, life in lives.items()}
        told = dict.fromkeys(lives, 0)  # all answers that an owner has had: what it will do depends on nothing else
        while asked:
            self.watch(self.blobs)
            ready = list(asked)
            state = (self.faults, *told.values(), *self.delayed, *self.contents())
            choice = self.choose(len(ready) + len(self.delayed), state)
            if choice >= len(ready):
                perform(self.delayed.pop(choice - len(ready)), self.blobs)
                continue
            number = ready[choice]
            answer = self.answer(asked[number])
            told[number] = hash((told[number], repr(answer)))
            try:
                asked[number] = lives[number].send(answer)
            except StopIteration:
                del asked[number]

    def contents(self) -> list[Hashable]:
        """All that is stored."""
        return [(name, self.blobs.read(name, 0)) for name, _ in self.blobs.list("")]

    def answer(self, operation: Any) -> Any:
        """What the storage says, or does not."""
        if not isinstance(operation, Append) or self.faults == 0:
            return perform(operation, self.blobs)
        fault = self.choose(4)
        self.faults -= fault > 0
        match fault:
            case 0:
                return perform(operation, self.blobs)
            case 1:
                perform(operation, self.blobs)  # it arrives, its answer does not
            case 2:
                self.delayed.append(operation)  # it arrives later, or never
        return Sent.UNKNOWN if fault < 3 else Sent.NOT


class Dice(Protocol):
    """Makes the choices. `state` is all that the rest of the run depends on."""

    def __call__(self, count: int, state: Hashable = None) -> int:
        """A number below `count`."""


def dice(seed: int) -> Dice:
    """Decides at random."""
    chance = random.Random(seed)
    return lambda count, state=None: chance.randrange(count)


class Explorer:
    """Decides so that, run after run, every choice is made once in every state."""

    def __init__(self) -> None:
        self._path: list[int] = []  # repeated at the beginning of the next run
        self._taken: list[tuple[int, int]] = []  # what was chosen, of how many
        self._seen: set[Hashable] = set()

    def __call__(self, count: int, state: Hashable = None) -> int:
        place = len(self._taken)
        if state is not None and place >= len(self._path):
            if state in self._seen:
                raise Known
            self._seen.add(state)
        self._taken.append((self._path[place] if place < len(self._path) else 0, count))
        return self._taken[-1][0]

    def explore(self, run: Callable[[Dice], None]) -> int:
        """Calls `run` until there is nothing new; how many runs came to an end."""
        ended = 0
        while True:
            self._taken = []
            with suppress(Known):
                run(self)
                ended += 1
            while self._taken and self._taken[-1][0] + 1 == self._taken[-1][1]:
                self._taken.pop()
            if not self._taken:
                return ended
            self._path = [chosen for chosen, _ in self._taken]
            self._path[-1] += 1


class Known(Exception):
    """From here on everything was tried before, in another run."""


def stored(blobs: Blobs, prefix: str = PREFIX) -> list[tuple[Position, Record]]:
    """Every record of the log, read without any rule: one blob after the other, byte after byte."""
    found = []
    index = 0
    while not isinstance(chunk := blobs.read(blob_name(prefix, index), 0), Missing):
        position = 0
        while position < len(chunk.data):
            record = decode(chunk.data[position:], blob=str(index), position=position)
            found.append(((index, position), record))
            position += int.from_bytes(chunk.data[position + 12 : position + 20], "little")
        index += 1
    return found


def check(owners: Sequence[Owner], blobs: Blobs) -> None:
    """S2, and that each reported append is there."""
    records = [record for _, record in stored(blobs)]
    writers = [record.writer for record in records]
    batches = [record.batch for record in records if record.kind in (Kind.BATCH, Kind.DRAINED)]

    assert writers == sorted(writers), "writers only rise, and each has one run of records"
    assert batches == sorted(set(batches)), "batch ids strictly rise"
    for each in owners:
        mine = [record.batch for record in records if record.kind is Kind.BATCH and record.writer == each.writer]
        extra = mine[len(each.acknowledged) :]
        assert mine[: len(each.acknowledged)] == each.acknowledged, "what was acknowledged is there, in order, once"
        assert len(extra) <= each.is_superseded or not each.is_done, "and at most the one whose answer was lost"


def referred(blobs: Blobs, reference: Reference) -> bytes:
    """Bytes in a blob of their own."""
    chunk = blobs.read(reference.blob, reference.offset, reference.length)
    assert isinstance(chunk, Span)
    return chunk.data


def expected_files(blobs: Blobs) -> dict[str, bytes]:
    """The files that a restart needs, derived from the batches alone, by a second and simpler rule than the
    log's own."""
    records = [record for _, record in stored(blobs) if record.kind is Kind.BATCH]
    files: dict[str, bytes] = {}
    for record in records:
        for path, content in record.files.items():
            files[path] = content if isinstance(content, bytes) else referred(blobs, content)
    last = records[-1].batch if records else -1
    snapshots = [batch for batch in range(last + 1) if batch % 3 == 2]
    since = snapshots[-1] if snapshots else 0
    wanted = {f"offsets/{last - 1}", f"offsets/{last}", f"state/0/0/{since}.snapshot"}
    wanted |= {f"state/0/0/{version}.delta" for version in range(since + 1, last + 2)}
    return {path: content for path, content in files.items() if path in wanted}
