"""How far behind its sources a run is, by what its status says and what the logs hold."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from samza_azure.commands.backlog import (
    Behind,
    TaskBehind,
    behind,
    behind_of_tasks,
    behind_outside,
    by_stream,
    ends_of,
    rows_before,
    unread,
)
from samza_azure.group.control import Assignment, Control, Owner, RunPhase
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.host.status import document
from samza_azure.logs.position import Ends
from samza_azure.logs.record import Writer
from samza_azure.logs.source_log import LogLimits
from samza_azure.messages import Phase, Progress, TaskReport
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.stream_io.log import LogReader, take_over
from samza_azure.stream_io.source_stream import SourceWriter


@pytest.fixture
def blobs() -> Blobs:
    """Ten rows in two partitions of orders, flushed two at a time."""
    account = MemoryAccount()
    writer = SourceWriter(account.blobs(), account.hints(), "orders", 2, flush_rows=2)
    writer.write(pa.table({"v": range(10)}))
    writer.close()
    return account.blobs()


def status(phase: str, *read: tuple[int, int]) -> dict[str, object]:
    read_to = {f"orders/{n}": list(each) for n, each in enumerate(read)}
    return {"phase": phase, "read": read_to, "positions": {}, "unheard": {}, "tasks": []}


def test_all_rows_are_behind_a_run_that_has_read_none(blobs: Blobs) -> None:
    found = behind(blobs, status("RUNNING", (0, 0), (0, 0)))
    assert by_stream(found)["orders"].rows == 10
    assert by_stream(found)["orders"].size == sum(size for _, size in blobs.list("streams/orders/"))
    assert unread(found) == "10 rows of orders"


def test_rows_that_are_read_are_not_behind(blobs: Blobs) -> None:
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


NO_READ = TaskReport("t-0", 1, 1, Phase.RUNNING, batch=7)


@pytest.mark.parametrize(
    ("first", "report", "is_known"),
    [
        (True, None, True),  # it has no log
        (False, replace(NO_READ, batch=-1), True),  # its log has no batch
        (False, replace(NO_READ, read={"orders/0": (0, 0)}), True),
        (False, None, False),  # its owner has left, or has not begun it
        (False, replace(NO_READ, phase=Phase.STARTING, batch=-1), False),  # it may restore thousands
        (False, NO_READ, False),  # its row is so large that it leaves out positions
    ],
)
def test_the_backlog_of_a_partition_is_unknown_until_its_reader_reports_a_position(
    blobs: Blobs, first: bool, report: TaskReport | None, is_known: bool
) -> None:
    """After each start a run was behind by all rows since it began, until its tasks had restored their logs."""
    tasks = {"t-0": Assignment(Owner("p1", "i1", 1), first=first)}
    readers = {"t": ("orders",)}
    control = Control("g", run_id="1-a", phase=RunPhase.RUNNING, sources={"orders": 1}, tasks=tasks, readers=readers)
    reports = {} if report is None else {"t-0": report}
    shown = document("shop", control, [ProcessorRow("p1", "i1", state=ProcessorState.ACTIVE, tasks=reports)])
    assert shown["unheard"] == ({} if is_known else {"t-0": ["orders/0"]})
    assert list(behind(blobs, shown)) == (["orders/0"] if is_known else [])


@pytest.mark.parametrize("is_said", [True, False])
def test_a_stopped_run_is_behind_from_where_its_logs_say(blobs: Blobs, *, is_said: bool) -> None:
    """A task that is closed reports nothing. Records of an earlier release do not say where the task stood."""
    end = LogReader(blobs, "streams/orders/0").scan((0, 0), 1).end
    tasks = {f"t-{number}": Assignment(None, first=False) for number in (0, 1)}
    control = Control(
        "g", run_id="1-a", phase=RunPhase.RUNNING, sources={"orders": 2}, tasks=tasks, readers={"t": ("orders",)}
    )
    for number, name in enumerate(tasks):
        writer, _ = take_over(
            blobs,
            f"runs/1-a/{name}",
            group_id=bytes(16),
            task=name,
            writer=Writer(1, 1),
            first=True,
            may_append=lambda: True,
            meta={"stream": "out"},
        )
        if number == 0:
            writer.append(0, read={"orders/0": end} if is_said else None)
            writer.append_frontier(5)
    shown = document("shop", control, [])
    found = behind(blobs, shown)
    all_rows = by_stream(behind(blobs, status("RUNNING", (0, 0), (0, 0))))["orders"].rows
    if is_said:
        assert shown["unheard"] == {} and shown["read"] == {"orders/0": list(end), "orders/1": [0, 0]}
        assert by_stream(found)["orders"].rows == all_rows - 2
        assert behind_of_tasks(blobs, shown, found)["t-0"].rows == found["orders/0"].rows
    else:
        assert (list(shown["unheard"]), list(found)) == (["t-0"], ["orders/1"])


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


def report(task: str, read: Ends | None = None, progress: Progress | None = None) -> TaskReport:
    return TaskReport(task, 1, 1, Phase.RUNNING, batch=1, read=read, progress=progress)


def fleet(*reports: TaskReport) -> dict[str, Any]:
    """The status of a run whose tasks report this."""
    tasks = {each.task: Assignment(Owner("p1", "i1", 1), first=False) for each in reports}
    control = Control("g", run_id="1-a", phase=RunPhase.RUNNING, sources={"orders": 2}, tasks=tasks)
    row = ProcessorRow("p1", "i1", state=ProcessorState.ACTIVE, tasks={each.task: each for each in reports})
    return document("shop", control, [row])


def test_each_task_is_behind_from_where_it_stands_itself(blobs: Blobs) -> None:
    """Of a stream that two stages read only the slower one's rows were known."""
    ends = {f"orders/{number}": LogReader(blobs, f"streams/orders/{number}").scan((0, 0)).end for number in (0, 1)}
    read = Progress(rows=10, size=1_000)
    shown = fleet(report("fast-0", ends, read), report("slow-0", dict.fromkeys(ends, (0, 0)), read), report("new-0"))
    found = behind(blobs, shown)
    assert unread(found) == "10 rows of orders"
    size = sum(size for _, size in blobs.list("streams/orders/"))
    assert behind_of_tasks(blobs, shown, found) == {
        "fast-0": TaskBehind(0, is_all=True, is_estimate=False, size=0),
        "slow-0": TaskBehind(10, is_all=True, is_estimate=False, size=size),
    }


def test_what_is_left_outside_is_what_its_tasks_say(blobs: Blobs) -> None:
    left = Progress(
        behind={"orders": 350},
        behind_sources={"orders/0": 300, "orders/1": 50},
        lag_rows={"orders/0": 6, "orders/1": 1, "forged/0": 9},
        lag_s={"orders/0": 2.5},
    )
    shown = fleet(report("orders-source-0", {}, left))
    assert behind_outside(shown) == {
        "orders/0": Behind(6, is_all=True, size=300, lag_s=2.5),
        "orders/1": Behind(1, is_all=True, size=50),
    }
    assert behind_of_tasks(blobs, shown, {}) == {
        "orders-source-0": TaskBehind(7, is_all=True, is_estimate=False, size=350)
    }


def test_rows_of_other_stages_are_estimated_from_their_bytes(blobs: Blobs) -> None:
    """By the mean size of those that the task has read; before that only the bytes are known."""
    end = {"orders/0": LogReader(blobs, "streams/orders/0").scan((0, 0)).end}
    read = Progress(rows=10, size=1_000, behind={"cleaned": 250})
    shown = fleet(
        report("daily-0", None, read),
        report("both-0", end, replace(read, behind={"cleaned": 250, "orders": 7_777})),
        report("fresh-0", None, Progress(behind={"cleaned": 250})),
        report("done-0", None, Progress(behind={"cleaned": 0})),
    )
    assert behind_of_tasks(blobs, shown, behind(blobs, shown)) == {
        "daily-0": TaskBehind(2, is_all=True, is_estimate=True, size=250),
        "both-0": TaskBehind(2, is_all=True, is_estimate=True, size=250),
        "fresh-0": TaskBehind(None, is_all=True, is_estimate=True, size=250),
        "done-0": TaskBehind(0, is_all=True, is_estimate=False, size=0),
    }


def test_a_source_is_read_as_fast_as_by_its_slowest_reader(blobs: Blobs) -> None:
    reads, stands = Progress(pace=30.0, behind={"orders": 5}), {"orders/0": (0, 0)}
    fast, slow = report("fast-0", stands, reads), report("slow-0", stands, replace(reads, pace=4.5))
    assert [each.pace for each in behind(blobs, fleet(fast, slow)).values()] == [4.5, None]
    joins = report("join-0", stands, replace(reads, behind={"orders": 5, "payments": 5}))
    assert behind(blobs, fleet(fast, joins))["orders/0"].pace is None, "it counts the rows of both"
    two = report("two-0", {**stands, "orders/1": (0, 0)}, reads)
    assert behind(blobs, fleet(two))["orders/1"].pace is None


def test_a_source_has_the_event_time_of_its_last_record_and_the_age_of_its_last_append() -> None:
    clock = [1_000.0]
    account = MemoryAccount(MemoryStorage(clock=lambda: clock[0]))
    at = datetime(2026, 1, 31, 5, tzinfo=UTC)
    writer = SourceWriter(account.blobs(), account.hints(), "orders", 2, event_time="at", frontier_lag_s=2.0)
    writer.write(pa.table({"at": pa.array([at], pa.timestamp("us", "UTC"))}))
    writer.close()
    clock[0] += 7
    found = behind(account.blobs(), status("RUNNING", (0, 0), (0, 0), (0, 0)))
    reached = (round(at.timestamp() * 1000) - 2_000, 7.0)
    assert [(each.event_ms, each.appended_s) for each in found.values()] == [reached, reached, (None, None)]
