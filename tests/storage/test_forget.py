"""Old blobs of logs between stages are deleted, and none that a reader may still ask for."""

import json
from dataclasses import dataclass, field
from random import Random

import pytest

from samza_azure.errors import Superseded
from samza_azure.logs.names import blob_name, large_prefix
from samza_azure.logs.operations import Rule
from samza_azure.logs.position import Position
from samza_azure.logs.record import INTERMEDIATE, Kind, Slice, Writer
from samza_azure.logs.task_log import LogLimits, TaskLog, append, log_record
from samza_azure.logs.task_log import take_over as take_over_rule
from samza_azure.outcomes import Missing
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.driver import perform
from samza_azure.stream_io.log import LogReader, LogWriter, Restored, take_over
from tests.storage.conftest import AnyAccount

GROUP = b"the group's id.."
#: A few batches fill a blob, and large batches and states go to blobs of their own.
LIMITS = LogLimits(roll_records=6, record_bytes=600)
#: Large states stay in their records.
WIDE = LogLimits(roll_records=6)
FROM, TO = "runs/r/clean-0", "runs/r/count-0"


def own(
    blobs: Blobs, prefix: str, generation: int, *, first: bool | None = None, limits: LogLimits = LIMITS
) -> tuple[LogWriter, dict[str, bytes]]:
    log, restored = _own(blobs, prefix, generation, first=first, limits=limits)
    return log, dict(restored.files)


def own_lazily(blobs: Blobs, prefix: str, generation: int) -> Restored:
    """Take over, and read the files later."""
    return _own(blobs, prefix, generation, first=None, limits=WIDE)[1]


def _own(
    blobs: Blobs, prefix: str, generation: int, *, first: bool | None, limits: LogLimits
) -> tuple[LogWriter, Restored]:
    return take_over(
        blobs,
        prefix,
        group_id=GROUP,
        task=prefix.rpartition("/")[2],
        writer=Writer(generation, 1),
        first=generation == 1 if first is None else first,
        may_append=lambda: True,
        meta={INTERMEDIATE: True},
        limits=limits,
    )


def blobs_of(account: AnyAccount, prefix: str) -> list[str]:
    return [name for name, _ in account.blobs().list(f"{prefix}/")]


def write(log: LogWriter, rows: bytes = b"row") -> None:
    batch = log.last_batch + 1
    log.append(batch, slices=[Slice(0, rows, 1)], files={f"offsets/{batch}": b"state"})


def test_a_blob_goes_when_a_snapshot_has_replaced_it_and_all_readers_are_done_with_it(account: AnyAccount) -> None:
    blobs = account.blobs()
    log, _ = own(blobs, FROM, 1)
    one, other = own(blobs, TO, 1)[0], own(blobs, "runs/r/count-1", 1)[0]
    readers = [TO, "runs/r/count-1"]
    while log.position[0] < 3:
        write(log, bytes(700))
    names = [blob_name(FROM, index) for index in range(4)]
    assert log.forget(readers) == 0  # neither has said anything

    one.append(0, needs={FROM: 3})
    other.append(0, needs={FROM: 2})
    write(other)  # repeats it
    assert log.forget(readers) > 2
    assert blobs_of(account, FROM) == names[2:]
    assert {name.split("/")[4] for name in blobs_of(account, large_prefix(FROM))} == {"00000002", "00000003"}
    assert log.forget(readers) == 0

    other.append(2, needs={FROM: 9})  # more than there is: the snapshot is needed all the same
    one.append(1, needs={FROM: 9})
    log.forget(readers)
    assert blobs_of(account, FROM) == names[3:]
    again, files = own(blobs, FROM, 2)
    assert (again.last_batch, files) == (
        log.last_batch,
        {f"offsets/{log.last_batch + back}": b"state" for back in (-1, 0)},
    )


def test_a_blob_with_a_file_of_the_checkpoint_is_kept(account: AnyAccount) -> None:
    """A later snapshot only refers to it. It goes when a later state has replaced the file."""
    blobs = account.blobs()
    log, _ = own(blobs, FROM, 1, limits=WIDE)
    reader, _ = own(blobs, TO, 1)
    delta = bytes(range(256)) * 100
    log.append(0, files={"offsets/0": b"", "state/0/0/1.delta": delta})
    while log.position[0] < 3:
        write(log)
    reader.append(0, needs={FROM: 3})

    assert log.forget([TO]) == 0
    again, files = own(blobs, FROM, 2, limits=WIDE)
    assert files["state/0/0/1.delta"] == delta
    assert sum(size for _, size in blobs.list(f"{FROM}/")) < 2 * len(delta)

    again.append(again.last_batch + 1, files={f"state/0/0/{again.last_batch + 2}.snapshot": b"all"})
    assert again.forget([TO]) == 3
    assert "state/0/0/1.delta" not in own(blobs, FROM, 3, limits=WIDE)[1]


def test_a_restore_overtaken_by_a_later_owner_is_superseded(account: AnyAccount) -> None:
    """It comes to read a file that is gone."""
    blobs = account.blobs()
    log, _ = own(blobs, FROM, 1, limits=WIDE)
    reader, _ = own(blobs, TO, 1)
    log.append(0, files={"state/0/0/1.delta": bytes(30_000)})
    slow = own_lazily(blobs, FROM, 2)
    last, _ = own(blobs, FROM, 3, limits=WIDE)
    last.append(1, files={"state/0/0/2.snapshot": b"all"})
    while last.position[0] < 2:
        write(last)
    reader.append(0, needs={FROM: 3})
    assert last.forget([TO]) > 0

    with pytest.raises(Superseded, match="went on"):
        dict(slow.files)


def test_the_needs_of_a_reader_of_another_group_are_ignored(account: AnyAccount) -> None:
    blobs = account.blobs()
    log, _ = own(blobs, FROM, 1)
    while log.position[0] < 2:
        write(log)
    stranger, _ = take_over(
        blobs, TO, group_id=bytes(16), task="count-0", writer=Writer(1, 1), first=True, may_append=lambda: True, meta={}
    )
    stranger.append(0, needs={FROM: 2})
    assert log.forget([TO]) == 0


#: What an owner finds, and how many calls it makes until its first batch is appended.
CALLS = {"nothing": 6, "an empty blob": 6, "some batches": 4}


def sleeper(log: TaskLog, first: bool) -> Rule[Position]:
    """An owner that begins, and writes one batch."""
    yield from take_over_rule(log, first=first, meta={INTERMEDIATE: True})
    return (yield from append(log, lambda: log_record(log, Kind.BATCH, batch=log.last_batch + 1)))


def go_on(rule: Rule[Position], answer: object, blobs: Blobs) -> None:
    """To the end."""
    while True:
        answer = perform(rule.send(answer), blobs)


@pytest.mark.parametrize(
    ("written", "steps"),
    [(written, step) for written, all_ in CALLS.items() for step in range(all_)],
)
def test_an_owner_that_slept_while_its_blob_was_deleted_is_superseded_and_changes_nothing(
    written: str, steps: int
) -> None:
    """Between any two of its calls."""
    blobs = MemoryAccount().blobs()
    if written == "an empty blob":
        blobs.create(blob_name(FROM, 0))
    elif written == "some batches":
        before, _ = own(blobs, FROM, 1)
        for _ in range(3):
            write(before)
    log = TaskLog(FROM, GROUP, "clean-0", Writer(2, 1), LIMITS)
    rule, answer = sleeper(log, first=written != "some batches"), None
    for _ in range(steps):
        answer = perform(rule.send(answer), blobs)

    other, _ = own(blobs, FROM, 3, first=written != "some batches")
    while other.position[0] < 3:
        write(other)
    own(blobs, TO, 1)[0].append(0, needs={FROM: 3})
    assert other.forget([TO]) >= 1

    with pytest.raises(Superseded):
        go_on(rule, answer, blobs)
    again, _ = own(blobs, FROM, 4)
    assert again.last_batch == other.last_batch


@dataclass
class ForgottenLog:
    """Two tasks that write, two that read both and remember all that they have read; each has owners one by one."""

    dice: Random
    account: MemoryAccount = field(default_factory=MemoryAccount)
    generation: dict[str, int] = field(default_factory=dict)
    owners: dict[str, list[LogWriter]] = field(default_factory=dict)  # the last one is the owner
    state: dict[str, dict[str, Position]] = field(default_factory=dict)  # of a reader: where it stands
    began: dict[str, dict[str, Position]] = field(default_factory=dict)  # where its last batch began
    read: dict[str, list[int]] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    forgotten: int = 0

    sources = ("runs/r/clean-0", "runs/r/clean-1")
    readers = ("runs/r/count-0", "runs/r/count-1")

    def take_over(self, prefix: str) -> None:
        """A new owner. What it knows is what the log says."""
        self.generation[prefix] = self.generation.get(prefix, 0) + 1
        log, files = own(self.account.blobs(), prefix, self.generation[prefix])
        self.owners.setdefault(prefix, []).append(log)
        last = json.loads(files.get(f"offsets/{log.last_batch}", b"[0, {}, []]"))
        if prefix in self.sources:
            assert last[0] == self.written.get(prefix, 0)
        else:
            assert last[2] == self.read.get(prefix, [])
            self.state[prefix] = {source: (blob, place) for source, (blob, place) in last[1].items()}

    def write(self, prefix: str) -> None:
        log, number = self.owners[prefix][-1], self.written.get(prefix, 0)
        batch = log.last_batch + 1
        rows = json.dumps([self.sources.index(prefix), number]).encode() + b" " * self.dice.choice([0, 0, 900])
        files = {f"offsets/{batch}": json.dumps([number + 1, {}, []]).encode(), "state/kept": bytes(700)}
        log.append(batch, slices=[Slice(0, rows, 1)], files=files)
        self.written[prefix] = number + 1

    def count(self, prefix: str) -> None:
        """Read on in one of the logs, or in both; then say so in one record."""
        log, began = self.owners[prefix][-1], dict(self.state[prefix])
        batch, rows = log.last_batch + 1, list(self.read.get(prefix, []))
        for source in self.dice.sample(self.sources, self.dice.choice([1, 2])):
            reader = LogReader(self.account.blobs(), source, group_id=GROUP)
            found = reader.scan(self.state[prefix].get(source, (0, 0)), max_bytes=self.dice.choice([1, 5_000]))
            rows += [1000 * of + number for of, number in map(json.loads, reader.fetch(found.parts))]
            self.state[prefix][source] = found.end
        files = {f"offsets/{batch}": json.dumps([0, self.state[prefix], rows]).encode()}
        log.append(batch, files=files, needs=self.needs(began, self.state[prefix]))
        self.began[prefix], self.read[prefix] = began, rows

    def needs(self, began: dict[str, Position], ended: dict[str, Position]) -> dict[str, int]:
        """What a batch says that began here and ended there."""
        return {source: blob for source, (blob, _) in began.items() if blob > 0}

    def forget(self, prefix: str) -> None:
        """An owner deletes, or a former owner that wakes up late."""
        self.forgotten += self.dice.choice(self.owners[prefix]).forget(self.readers)

    def check(self) -> None:
        """Whatever a restore or a replay reads is there."""
        for prefix, began in self.began.items():
            for source in self.sources:
                blob = began.get(source, (0, 0))[0]
                assert not isinstance(self.account.blobs().read(blob_name(source, blob), 0), Missing), (prefix, source)

    def step(self) -> None:
        kind = self.dice.random()
        if kind < 0.45:
            self.write(self.dice.choice(self.sources))
        elif kind < 0.75:
            self.count(self.dice.choice(self.readers))
        elif kind < 0.9:
            self.forget(self.dice.choice(self.sources))
        elif kind < 0.97:
            self.take_over(self.dice.choice([*self.sources, *self.readers]))
        else:
            with pytest.raises(Superseded):
                self.stale(self.dice.choice(self.sources))
        self.check()

    def stale(self, prefix: str) -> None:
        """A former owner tries to write; there may be none yet."""
        if len(self.owners[prefix]) == 1:
            self.take_over(prefix)
        log = self.owners[prefix][0]
        log.append(log.last_batch + 1)


class Hasty(ForgottenLog):
    """Readers say that they are done with what their last batch has read; a replay reads it once more."""

    def needs(self, began: dict[str, Position], ended: dict[str, Position]) -> dict[str, int]:
        return {source: blob for source, (blob, _) in ended.items()}


def live(log: ForgottenLog) -> ForgottenLog:
    """Four hundred steps, of one kind and another."""
    for prefix in (*log.sources, *log.readers):
        log.take_over(prefix)
    for _ in range(400):
        log.step()
    return log


def test_readers_that_say_too_early_that_they_are_done_are_seen() -> None:
    with pytest.raises(AssertionError, match="runs/r/clean-"):
        live(Hasty(Random(0)))


@pytest.mark.parametrize("number", range(5))
def test_readers_miss_nothing_and_owners_restore_whenever_blobs_are_deleted(number: int) -> None:
    seed = Random().randrange(1 << 31)
    print(f"ForgottenLog(Random({seed}))")
    log = live(ForgottenLog(Random(seed)))
    for prefix in log.readers:
        while sum(log.written.values()) > len(log.read[prefix]):
            log.count(prefix)
            log.check()
        assert sorted(log.read[prefix]) == [
            1000 * of + number for of, source in enumerate(log.sources) for number in range(log.written[source])
        ]
    assert log.forgotten > 20
