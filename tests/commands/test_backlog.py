"""How far behind its sources a run is, by what its status says and what the logs hold."""

import pyarrow as pa
import pytest

from samza_azure.commands.backlog import behind, by_stream, ends_of, rows_before, unread
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.host.status import document
from samza_azure.logs.source_log import LogLimits
from samza_azure.storage.interface import Blobs
from samza_azure.storage.log import LogReader
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.source_stream import SourceWriter


@pytest.fixture
def blobs() -> Blobs:
    """Ten rows in two partitions of orders, flushed two at a time."""
    account = MemoryAccount()
    writer = SourceWriter(account.blobs(), account.hints(), "orders", 2, flush_rows=2)
    writer.write(pa.table({"v": range(10)}))
    writer.close()
    return account.blobs()


def status(phase: str, *read: tuple[int, int]) -> dict[str, object]:
    return {"phase": phase, "read": {f"orders/{n}": list(each) for n, each in enumerate(read)}, "positions": {}}


def test_all_rows_are_behind_a_run_that_has_read_none(blobs: Blobs) -> None:
    found = behind(blobs, status("RUNNING", (0, 0), (0, 0)))
    assert by_stream(found)["orders"].rows == 10
    assert by_stream(found)["orders"].size == sum(size for _, size in blobs.list("streams/orders/"))
    assert unread(found) == "10 rows of orders"


def test_what_is_read_is_not_behind(blobs: Blobs) -> None:
    ends = [LogReader(blobs, f"streams/orders/{number}").scan((0, 0)).end for number in (0, 1)]
    found = behind(blobs, status("RUNNING", ends[0], (0, 0)))
    assert (found["orders/0"].rows, found["orders/0"].size) == (0, 0)
    assert found["orders/1"].rows == by_stream(found)["orders"].rows > 0
    assert unread(behind(blobs, status("RUNNING", *ends))) == ""


def test_backlog_of_a_drained_run_counts_from_its_final_positions(blobs: Blobs) -> None:
    end = LogReader(blobs, "streams/orders/0").scan((0, 0)).end
    shown = {**status("DRAINED", (0, 0), (0, 0)), "positions": {"orders/0": list(end)}}
    assert behind(blobs, shown)["orders/0"].rows == 0
    assert behind(blobs, shown)["orders/1"].rows > 0


def test_before_its_first_batch_a_run_is_behind_from_where_it_began(blobs: Blobs) -> None:
    """It was shown to be behind by all rows of earlier runs, too."""
    ends = {f"orders/{number}": LogReader(blobs, f"streams/orders/{number}").scan((0, 0)).end for number in (0, 1)}
    control = Control("g", run_id="2-b", phase=RunPhase.RUNNING, past=("1-a",), sources={"orders": 2}, positions=ends)
    shown = document("shop", control, [ProcessorRow("p1", "i1", state=ProcessorState.ACTIVE)])
    assert shown["read"] == {partition: list(end) for partition, end in ends.items()}
    assert unread(behind(blobs, shown)) == ""


def test_rows_that_retention_has_left_are_behind_a_run_that_has_read_none() -> None:
    account = MemoryAccount()
    writer = SourceWriter(account.blobs(), account.hints(), "orders", 1, flush_rows=2)
    writer._logs[0].limits = LogLimits(roll_records=2)
    writer.write(pa.table({"v": range(10)}))
    writer.close()
    account.blobs().delete("streams/orders/0/00000000")
    found = behind(account.blobs(), status("RUNNING", (0, 0)))["orders/0"]
    assert 0 < found.rows < 10 and found.is_all


def test_backlog_is_empty_while_no_task_reports_its_position(blobs: Blobs) -> None:
    assert behind(blobs, status("STOPPED", (0, 0), (0, 0))) == {}


def test_a_run_has_caught_up_when_it_has_read_the_rows_that_were_there(blobs: Blobs) -> None:
    ends = ends_of(blobs, ["orders/0", "orders/1", "orders/2"])
    assert ends.keys() == {"orders/0", "orders/1"}
    assert rows_before(blobs, status("RUNNING", (0, 0), (0, 0)), ends) == 10
    read = []
    for partition in ends:  # behind the last row stands an idle mark, which no batch reads
        reader, at = LogReader(blobs, f"streams/{partition}"), (0, 0)
        while (found := reader.scan(at, 1)).rows:
            at = found.end
        read.append(at)
    assert rows_before(blobs, status("RUNNING", *read), ends) == 0
