"""What a task without a query reads: each row once, and what the logs say of event time."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from samza_azure.errors import StorageUnavailable
from samza_azure.logs.record import Kind, Writer
from samza_azure.storage.memory import Link, MemoryAccount
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.intake import Intake
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.streams.offset import INFINITY_US, ProducerPosition, ProducerState, least_us

PREFIX = "runs/r1/count-0"


class Faulty(Link):
    """Loses one of the reads of a blob."""

    def __init__(self) -> None:
        self.reads, self.loses = 0, -1

    def call(self, operation: str, effect: Callable[[], object]) -> object:  # type: ignore[override]
        self.reads += 1
        if self.reads == self.loses:
            raise StorageUnavailable("lost on the way")
        return effect()


def log_of(account: MemoryAccount) -> LogWriter:
    writer, _ = take_over(
        account.blobs(), PREFIX, group_id=bytes(16), task="count-0", writer=Writer(1, 1), first=True,
        may_append=lambda: True, meta={"stream": "out"},
    )  # fmt: skip
    return writer


def rows(*numbers: int) -> pa.Table:
    return pa.table({"number": list(numbers)})


def intake_of(account: MemoryAccount) -> Intake:
    intake = Intake([LogReader(account.blobs(), PREFIX)], rows=1_000, size=1 << 20, widened=lambda found: found)
    intake.begin({})
    return intake


def test_a_read_that_fails_between_two_slices_is_repeated_as_a_whole() -> None:
    """The rows of the first slice were kept, and were read once more."""
    account = MemoryAccount(link=(link := Faulty()))
    writer = log_of(account)
    writer.append(0, slices=[each for n in (1, 2) for each in writer.set_aside(0, [one_slice(0, rows(n))])])
    link.reads = 0
    intake_of(account).read(PREFIX)
    assert link.reads > 2
    for lost in range(1, link.reads + 1):
        link.reads, link.loses = 0, lost
        intake = intake_of(account)
        with pytest.raises(StorageUnavailable):
            intake.read(PREFIX)
        intake.read(PREFIX)
        taken = intake.take()
        assert taken is not None and taken["number"].to_pylist() == [1, 2], f"read {lost} was lost"


def test_the_intake_knows_the_event_time_of_the_rows_it_has_read() -> None:
    account = MemoryAccount()
    writer, intake = log_of(account), intake_of(account)

    def read() -> tuple[int | None, ProducerState]:
        intake.read(PREFIX)
        place = intake.positions[PREFIX]
        assert place == ProducerPosition(writer.position, place.frontier_us, place.state)
        return least_us([place]), place.state

    assert read() == (None, ProducerState.ACTIVE)
    writer.append(0, slices=[one_slice(0, rows(1))], frontier_us=5)
    assert read() == (5, ProducerState.ACTIVE)
    assert intake.read_bytes > 0
    writer.append_frontier(None, idle=True)
    assert read() == (5, ProducerState.IDLE)
    writer.append(1, slices=[one_slice(0, rows(2))], frontier_us=7)
    assert read() == (7, ProducerState.ACTIVE)
    assert read() == (7, ProducerState.ACTIVE), "nothing was new"
    writer.append(2, kind=Kind.DRAINED)
    assert read() == (INFINITY_US, ProducerState.DRAINED)
