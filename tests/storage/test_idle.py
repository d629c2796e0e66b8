"""Silence is never idleness: a producer that reported to be idle counts as idle only while nothing was written at its
position."""

import pyarrow as pa

from samza_azure.logs.names import source_log
from samza_azure.logs.position import Position
from samza_azure.logs.record import Writer
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.stream_io.source_stream import SourceWriter

GROUP = bytes(16)


def a_source(account: MemoryAccount, rows: int) -> Position:
    """So many rows into a source partition, and where its log ends then."""
    producer = SourceWriter(account.blobs(), account.hints(), "flights", 1)
    producer.write(pa.table({"delay": list(range(rows))}))
    producer.close()
    return LogReader(account.blobs(), source_log("flights/0")).scan((0, 0)).end


def a_task(blobs: Blobs, task: str, writer: Writer, *, first: bool = True) -> LogWriter:
    log, _ = take_over(
        blobs, f"runs/r/{task}", group_id=GROUP, task=task, writer=writer, first=first, may_append=lambda: True, meta={}
    )
    return log


def test_a_log_is_unchanged_until_something_is_written() -> None:
    account = MemoryAccount()
    reader = LogReader(account.blobs(), source_log("flights/0"))
    assert reader.is_unchanged((0, 0))
    end = a_source(account, 3)
    assert reader.is_unchanged(end)
    assert not reader.is_unchanged((0, 0))
    a_source(account, 1)
    assert not reader.is_unchanged(end)


def test_an_idle_task_is_doubted_as_soon_as_its_source_goes_on() -> None:
    account = MemoryAccount()
    stood = a_source(account, 3)
    task = a_task(account.blobs(), "clean-0", Writer(1, 1))
    idle_at = task.append_frontier(None, idle=True, stood_at={source_log("flights/0"): stood})
    reader = LogReader(account.blobs(), "runs/r/clean-0")
    assert reader.is_unchanged(idle_at)
    a_source(account, 1)
    assert not reader.is_unchanged(idle_at)


def test_the_doubt_goes_through_all_stages() -> None:
    account = MemoryAccount()
    stood = a_source(account, 3)
    first, second = a_task(account.blobs(), "clean-0", Writer(1, 1)), a_task(account.blobs(), "count-0", Writer(1, 1))
    first_idle = first.append_frontier(None, idle=True, stood_at={source_log("flights/0"): stood})
    second_idle = second.append_frontier(None, idle=True, stood_at={"runs/r/clean-0": first_idle})
    reader = LogReader(account.blobs(), "runs/r/count-0")
    assert reader.is_unchanged(second_idle)
    a_source(account, 1)
    assert not reader.is_unchanged(second_idle)


def test_a_new_owner_takes_the_word_of_the_old_one_back() -> None:
    account = MemoryAccount()
    stood = a_source(account, 3)
    old = a_task(account.blobs(), "clean-0", Writer(1, 1))
    idle_at = old.append_frontier(None, idle=True, stood_at={source_log("flights/0"): stood})
    a_task(account.blobs(), "clean-0", Writer(2, 1), first=False)
    assert not LogReader(account.blobs(), "runs/r/clean-0").is_unchanged(idle_at)
