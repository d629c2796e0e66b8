"""Stories of replicas: what a take-over needs is there already, and what is wrong with it is noticed."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from samza_azure.errors import SamzaAzureError, StateLost
from samza_azure.logs.operations import Span
from samza_azure.logs.record import Slice, Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.messages import HeldReplicas, KeepReplicas
from samza_azure.outcomes import Missing
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io import stored as stored_module
from samza_azure.stream_io.log import LogWriter, Restored, take_over
from samza_azure.stream_io.stored import Replica
from samza_azure.tasks.checkpoint import lay_out
from samza_azure.tasks.hint_board import HintBoard
from samza_azure.tasks.replicas import Replicas

PREFIX, GROUP, TASK = "runs/r/count-0", b"the group's id..", "count-0"
OLD, NEW = Writer(3, 1), Writer(5, 1)
SNAPSHOT = "state/0/0/2.snapshot"
LARGE = bytes(range(256)) * 400


@dataclass(slots=True)
class Counted:
    """A storage that counts the bytes that are read."""

    blobs: Blobs
    read_bytes: int = 0
    names: list[str] = field(default_factory=list)

    def read(self, name: str, start: int, length: int | None = None) -> Span | Missing:
        found = self.blobs.read(name, start, length)
        if isinstance(found, Span):
            self.read_bytes += len(found.data)
            self.names.append(name)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blobs, name)


def own(
    blobs: Any, writer: Writer, *, first: bool = False, replica: Replica | None = None, limits: LogLimits | None = None
) -> tuple[LogWriter, Restored]:
    return take_over(
        blobs,
        PREFIX,
        group_id=GROUP,
        task=TASK,
        writer=writer,
        first=first,
        may_append=lambda: True,
        meta={},
        limits=limits,
        wait=lambda pause: None,
        replica=replica,
    )


def offsets(batch: int) -> bytes:
    """The content of offsets/N."""
    return b'v1\n{"batchWatermarkMs":%d}' % batch


def batch(writer: LogWriter, number: int, *, snapshot: bytes | None = None) -> None:
    """One batch with many rows, a delta, and perhaps a snapshot of the version before."""
    files = {f"offsets/{number}": offsets(number), f"state/0/0/{number + 1}.delta": b"delta %d" % number}
    if snapshot is not None:
        files[f"state/0/0/{number}.snapshot"] = snapshot
    writer.append(number, slices=(Slice(0, b"row" * 1_000, 1),), files=files)


def replica_of(blobs: Any, folder: Path) -> Replica:
    return Replica(blobs, PREFIX, group_id=GROUP, task=TASK, folder=folder)


def laid_out(restored: Restored, directory: Path) -> dict[str, bytes]:
    """The files of a checkpoint as a task lays them out."""
    lay_out(directory, restored.files, restored.last_batch, restored.watermark_us)
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def blobs() -> Blobs:
    return MemoryAccount().blobs()


def written(blobs: Any, *, limits: LogLimits | None = None) -> LogWriter:
    """Owns a log of three batches, the last of them with a snapshot."""
    writer, _ = own(blobs, OLD, first=True, limits=limits)
    batch(writer, 0)
    batch(writer, 1)
    batch(writer, 2, snapshot=LARGE)
    return writer


def test_a_take_over_with_a_replica_reads_the_end_of_the_log_alone(account: Any, tmp_path: Path) -> None:
    blobs = account.blobs()
    writer = written(blobs)
    replica = replica_of(blobs, tmp_path / "replica")
    replica.read_on(lambda: True)
    assert replica.is_complete
    assert replica.log.last_batch == 2
    assert replica.copies.size == len(LARGE)
    batch(writer, 3)
    fresh = laid_out(own(blobs, Writer(4, 1))[1], tmp_path / "fresh")
    counted = Counted(blobs)
    restored = own(counted, NEW, replica=replica)[1]
    assert laid_out(restored, tmp_path / "warm") == fresh
    assert fresh[SNAPSHOT] == LARGE
    assert restored.last_batch == 3
    assert restored.records == 2  # the batch and the EPOCH that were appended since
    assert {name for name in counted.names if name.startswith(f"{PREFIX}/")} == set(counted.names), "no file was read"


def test_a_replica_keeps_what_a_restore_needs_and_no_more(blobs: Blobs, tmp_path: Path) -> None:
    """Otherwise the disk would fill."""
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(roll_records=7))
    replica = replica_of(blobs, tmp_path)
    for number in range(60):
        batch(writer, number, snapshot=LARGE + b"%d" % number if number % 3 == 2 else None)
        replica.read_on(lambda: True)
        assert len(list(tmp_path.iterdir())) <= 1
        assert len(replica.log.files) <= 8
    assert writer.position[0] > 5
    assert replica.log.end == writer.position
    assert own(blobs, NEW, replica=replica)[1].records == 0


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _altered(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize("damage", [_cut, _altered, Path.unlink], ids=["cut", "altered", "gone"])
def test_a_damaged_copy_is_read_again_from_the_log(
    blobs: Blobs, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    written(blobs)
    replica = replica_of(blobs, tmp_path / "replica")
    replica.read_on(lambda: True)
    (copy,) = (tmp_path / "replica").iterdir()
    damage(copy)
    assert laid_out(own(blobs, NEW, replica=replica)[1], tmp_path / "warm")[SNAPSHOT] == LARGE


def test_a_copy_that_was_not_completed_does_not_count(blobs: Blobs, tmp_path: Path) -> None:
    written(blobs)
    replica = replica_of(blobs, tmp_path / "replica")
    replica.read_on(lambda: False)
    assert not replica.is_complete
    assert laid_out(own(blobs, NEW, replica=replica)[1], tmp_path / "warm")[SNAPSHOT] == LARGE


def test_a_replica_of_which_the_log_was_cut_off_is_not_believed(blobs: Blobs, tmp_path: Path) -> None:
    """It slept while the log rolled, and the owner deleted the blobs in between: its own blob looks like the end."""
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(roll_records=4))
    batch(writer, 0)
    replica = replica_of(blobs, tmp_path / "replica")
    replica.read_on(lambda: True)
    while writer.position[0] < 3:
        batch(writer, writer.last_batch + 1, snapshot=LARGE if writer.last_batch == 3 else None)
    names = [name for name, _ in blobs.list(f"{PREFIX}/")]
    for name in names[:-1]:
        blobs.delete(name)
    with pytest.raises(StateLost):
        replica.read_on(lambda: True)
    restored = own(blobs, NEW, replica=replica)[1]
    assert restored.last_batch == writer.last_batch
    assert laid_out(restored, tmp_path / "warm") == laid_out(own(blobs, Writer(9, 1))[1], tmp_path / "fresh")


def test_a_replica_at_the_end_of_a_blob_finds_later_ones(blobs: Blobs, tmp_path: Path) -> None:
    """The next blob was deleted as well, so there is nothing where the replica would read on."""
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(roll_records=3))
    replica = replica_of(blobs, tmp_path / "replica")
    batch(writer, 0)
    batch(writer, 1)
    batch(writer, 2)
    replica.read_on(lambda: True)
    assert replica.log.end[0] == 1
    first, _ = replica.log.end
    while writer.position[0] < first + 3:
        batch(writer, writer.last_batch + 1)
    for index in range(first + 1):
        blobs.delete(f"{PREFIX}/{index:08d}")
    replica.log.end = first, 0  # as if it had read no further than to the end of the blob before
    with_replica = own(blobs, NEW, replica=replica)[1]
    assert with_replica.last_batch == writer.last_batch


def test_a_log_of_another_group_is_refused(blobs: Blobs, tmp_path: Path) -> None:
    writer, _ = own(blobs, OLD, first=True)
    batch(writer, 0)
    replica = Replica(blobs, PREFIX, group_id=b"another group...", task=TASK, folder=tmp_path)
    with pytest.raises(SamzaAzureError, match="belongs to another group"):
        replica.read_on(lambda: True)


def test_a_replica_of_a_log_that_is_not_there_waits(blobs: Blobs, tmp_path: Path) -> None:
    replica = replica_of(blobs, tmp_path)
    replica.read_on(lambda: True)
    assert not replica.is_complete
    writer, restored = own(blobs, OLD, first=True, replica=replica)
    assert (restored.last_batch, restored.records) == (-1, 0)
    batch(writer, 0)
    replica.read_on(lambda: True)
    assert replica.is_complete


def test_a_former_owner_adds_nothing_to_what_a_replica_has(blobs: Blobs, tmp_path: Path) -> None:
    """Its blob of a batch that was refused is beside the log; no record refers to it."""
    writer, _ = own(blobs, OLD, first=True)
    batch(writer, 0)
    replica = replica_of(blobs, tmp_path / "replica")
    replica.read_on(lambda: True)
    next_writer, _ = own(blobs, NEW)
    with pytest.raises(SamzaAzureError):
        batch(writer, 1, snapshot=LARGE)
    batch(next_writer, 1, snapshot=LARGE[::-1])
    replica.read_on(lambda: True)
    warm = laid_out(own(blobs, Writer(6, 1), replica=replica)[1], tmp_path / "warm")
    assert warm["state/0/0/1.snapshot"] == LARGE[::-1]


def test_a_log_that_is_followed_anew_does_not_cost_the_copies(blobs: Blobs, tmp_path: Path) -> None:
    """Its owner deletes old blobs after each roll. A replica that began from nothing each time would never be ready
    where the state takes longer to copy than the log to roll.
    """
    writer = written(blobs, limits=LogLimits(roll_records=6))
    counted = Counted(blobs)
    replica = replica_of(counted, tmp_path / "replica")
    replica.read_on(lambda: True)
    while writer.position[0] < 2:
        batch(writer, writer.last_batch + 1)
    for name, _ in list(blobs.list(f"{PREFIX}/"))[:-1]:
        blobs.delete(name)
    with pytest.raises(StateLost):
        replica.read_on(lambda: True)
    replica.begin_anew()
    assert not replica.is_complete
    counted.names.clear()
    replica.read_on(lambda: True)
    assert replica.is_complete
    assert {name for name in counted.names if not name.startswith(f"{PREFIX}/")} == set(), "the snapshot is here"
    assert laid_out(own(blobs, NEW, replica=replica)[1], tmp_path / "warm")[SNAPSHOT] == LARGE


def test_a_replica_leaves_room_on_the_disk_for_the_tasks(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(blobs)
    counted = Counted(blobs)
    replica = replica_of(counted, tmp_path / "replica")
    monkeypatch.setattr(stored_module, "LEFT_BYTES", 1 << 60)
    with pytest.raises(OSError, match="102400 are missing here"):
        replica.read_on(lambda: True)
    assert not replica.is_complete
    assert counted.names == [f"{PREFIX}/00000000"], "and nothing is read in vain"


class Broken(Counted):
    """A storage of which one log cannot be understood."""

    def read(self, name: str, start: int, length: int | None = None) -> Span | Missing:
        if "count-1" in name:
            raise RuntimeError("nobody has foreseen this")
        return super().read(name, start, length)


def test_a_replica_that_fails_keeps_none_of_the_others_from_being_read(tmp_path: Path) -> None:
    account = MemoryAccount()
    blobs = account.blobs()
    batch(own(blobs, OLD, first=True)[0], 0)
    blobs.create("runs/r/count-1/00000000")
    told: SimpleQueue[HeldReplicas] = SimpleQueue()
    replicas, hints = Replicas(), HintBoard(account.hints(), tmp_path / "hints")
    keeps = KeepReplicas("r", GROUP.hex(), ("count-1", TASK))
    replicas.keep(keeps, Broken(blobs), hints, tmp_path, told.put)
    assert told.get(timeout=30).replicas.keys() == {TASK}
    replicas.keep(KeepReplicas(), blobs, hints, tmp_path, told.put)
    assert told.get(timeout=30).replicas == {}


def test_a_replica_of_a_start_that_never_began_makes_room_for_the_next(tmp_path: Path) -> None:
    account = MemoryAccount()
    blobs = account.blobs()
    writer, _ = own(blobs, OLD, first=True)
    batch(writer, 0)
    batch(writer, 1, snapshot=LARGE)
    told: SimpleQueue[HeldReplicas] = SimpleQueue()
    replicas, hints = Replicas(), HintBoard(account.hints(), tmp_path / "hints")
    for _ in range(2):
        replicas.keep(KeepReplicas("r", GROUP.hex(), (TASK,)), blobs, hints, tmp_path, told.put)
        while not told.get(timeout=30).replicas:
            pass
        replicas.reserve(TASK)
        while told.get(timeout=30).replicas:
            pass
    for thread in threading.enumerate():
        if thread.name.startswith("drop-"):
            thread.join(30)
    assert len(list((tmp_path / "replicas").iterdir())) == 1
    with replicas.taken(TASK, PREFIX) as replica:
        assert replica is not None
        assert replica.copies.size == len(LARGE)
    assert list((tmp_path / "replicas").iterdir()) == []


def test_a_replica_that_is_reserved_at_once_is_told_no_longer(tmp_path: Path) -> None:
    """Reserved between the report of it and the next wait, it was told forever: the thread waited for a command."""
    account = MemoryAccount()
    writer, _ = own(account.blobs(), OLD, first=True)
    batch(writer, 0)
    told: SimpleQueue[HeldReplicas] = SimpleQueue()
    replicas, hints = Replicas(), HintBoard(account.hints(), tmp_path / "hints")

    def tell(held: HeldReplicas) -> None:
        replicas.reserve(TASK)
        told.put(held)

    replicas.keep(KeepReplicas("r", GROUP.hex(), (TASK,)), account.blobs(), hints, tmp_path, tell)
    assert [list(told.get(timeout=30).replicas) for _ in range(2)] == [[TASK], []]


def test_a_group_id_that_makes_no_sense_does_not_end_the_container(tmp_path: Path) -> None:
    """It comes from the control blob. `keep` runs in the thread that obeys all commands."""
    account, replicas = MemoryAccount(), Replicas()
    hints = HintBoard(account.hints(), tmp_path / "hints")
    replicas.keep(KeepReplicas("r", "no hex", (TASK,)), account.blobs(), hints, tmp_path, print)
    assert not replicas.any
