"""Low-level tasks: handlers get their messages in order, a drain waits for them, and what they emit is there once.

The names of Samza's own tests (TestRunLoop, TestDrain of the low-level API) stand at those that are theirs in meaning.
"""

import asyncio
import itertools
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession

from samza_azure import Application, Collector, Envelope, TaskCoordinator
from samza_azure.errors import ConfigError, PipelineRefused, SamzaAzureError, StorageUnavailable
from samza_azure.logs.position import Position
from samza_azure.logs.record import Kind
from samza_azure.messages import Phase
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.stream_io.arrow import decode
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.values.sent import NotHeld, table_of
from samza_azure.tasks import records
from samza_azure.tasks.handler import HandlerCalls, TimeLimits
from samza_azure.tasks.handler_task import BATCH_BYTES, HandlerTask
from samza_azure.tasks.wishes import Wishes

from .task_driver import PATIENCE_S, Fleet, config_of

STREAMS = """
[streams.numbers]
partitions = 2
schema = "n int, at string"
[streams.others]
partitions = 2
schema = "n int, at string"
[streams.seen]
schema = "what string, n int"
"""
MakeFleet = Callable[[Application, str], Fleet]


class Said:
    """What the handlers of one test have seen, in order; handlers are made by tasks, so they share it."""

    def __init__(self) -> None:
        self.messages: list[Envelope] = []
        self.drains = 0
        self.in_flight = self.most_in_flight = 0
        self.in_flight_at_drain: int | None = None
        self.closed = 0

    def numbers(self, partition: int | None = None) -> list[int]:
        return [each.row["n"] for each in self.messages if partition in (None, each.partition)]


def plain(said: Said, *inputs: str, **options: Any) -> Application:
    """A handler that passes on what it gets, and says good-bye."""
    application = Application()

    @application.task(*(inputs or ("numbers",)), output="seen", **options)
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            said.messages.append(envelope)
            collector.send({"what": f"{envelope.stream}/{envelope.partition}", "n": envelope.row["n"]})

        def on_drain(self, collector: Collector) -> None:
            said.drains += 1
            collector.send({"what": "drained", "n": len(said.messages)})

        def close(self) -> None:
            said.closed += 1

    return application


def put(run: Fleet, stream: str, *numbers: int, partition: int | None = None, at: str = "x") -> None:
    """A record with these numbers, into one partition or into both in turn."""
    writer = run.writer(stream, 2, flush_rows=10_000, event_time=None)
    if partition is not None:
        writer._next_partition = partition
    writer.write(pa.table({"n": pa.array(numbers, pa.int32()), "at": [at] * len(numbers)}))
    writer.flush()


def rows(run: Fleet, stream: str) -> list[dict[str, Any]]:
    with suppress(ConfigError):  # it has none yet
        return run.rows(stream)
    return []


def seen(run: Fleet) -> Counter[tuple[str, int]]:
    return Counter((row["what"], row["n"]) for row in rows(run, "seen"))


def last_kind(run: Fleet, task: str) -> Kind:
    """Of the last record in a task's log."""
    last = LogReader(run.account.blobs(), f"runs/{run.run_id}/{task}").tail()
    assert last is not None
    return last.header.kind


@pytest.mark.parametrize("tasks", [2, 1])
def test_each_message_is_processed_once_in_order_and_on_drain_is_called_once(fleet: MakeFleet, tasks: int) -> None:
    """testDrainForTasksWithSingleSSP, testDrainForTasksWithMultipleSSP, testDrainCommitBehavior, testDrain (low)."""
    said = Said()
    run = fleet(plain(said, tasks=tasks), STREAMS)
    names = [f"Watch-{number}" for number in range(tasks)]
    for first in (0, 100, 200):
        put(run, "numbers", *range(first, first + 50), partition=0)
        put(run, "numbers", *range(first + 50, first + 100), partition=1)
    put(run, "numbers", 1000, 1001, partition=0)
    run.start(*names)
    run.until(lambda: len(said.messages) == 302)
    assert said.numbers(0) == sorted(said.numbers(0)) and said.numbers(1) == sorted(said.numbers(1))
    assert len({(each.partition, each.offset) for each in said.messages}) == 302

    run.drain()

    assert said.drains == tasks
    assert sum(seen(run).values()) == 302 + tasks
    assert seen(run)["drained", 302] == tasks, "every message came before it"
    assert {last_kind(run, name) for name in names} == {Kind.DRAINED}
    run.until(lambda: said.closed == tasks)


def test_drain_on_container_start(fleet: MakeFleet) -> None:
    """testDrainOnContainerStart: a drain that is there before the task. It reads nothing, and on_drain is called."""
    said = Said()
    run = fleet(plain(said), STREAMS)
    put(run, "numbers", 1, 2, 3, partition=0)
    ends = {"numbers/0": (0, 0), "numbers/1": (0, 0)}
    run.flush(ends)
    run.start("Watch-0", "Watch-1")
    run.until(run.is_drained)
    assert (said.messages, said.drains) == ([], 2)
    assert seen(run) == {("drained", 0): 2}


def test_messages_of_the_sources_last_read_are_processed_and_none_after_them(fleet: MakeFleet) -> None:
    """The next run begins where this one has read: no message is missing and none comes twice."""
    said = Said()
    run = fleet(plain(said), STREAMS)
    put(run, "numbers", *range(10), partition=0)
    run.start("Watch-0", "Watch-1")
    run.until(lambda: len(said.messages) == 10)
    ends = run.freeze()
    put(run, "numbers", 100, 101, partition=0)
    run.flush(ends)
    run.until(run.is_drained)
    assert said.numbers() == list(range(10))
    reader = LogReader(run.account.blobs(), "streams/numbers/0")
    left = reader.scan(ends["numbers/0"])
    assert left.rows == 2


class Slow:
    """Opened by the test."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    async def opened(self) -> None:
        await asyncio.to_thread(self.gate.wait, PATIENCE_S)


def concurrent(said: Said, slow: Slow, most: int) -> Application:
    application = Application()

    @application.task("numbers", output="seen", max_concurrency=most)
    class Watch:
        async def process(self, envelope: Envelope, collector: Collector) -> None:
            said.messages.append(envelope)
            said.in_flight += 1
            said.most_in_flight = max(said.most_in_flight, said.in_flight)
            await slow.opened()
            said.in_flight -= 1
            collector.send({"what": "done", "n": envelope.row["n"]})

        async def on_drain(self, collector: Collector) -> None:
            said.in_flight_at_drain = said.in_flight
            said.drains += 1

    return application


def test_drain_waits_for_in_flight_messages(fleet: MakeFleet) -> None:
    """testDrainWaitsForInFlightMessages: the drain is asked for while calls are open; on_drain comes behind them."""
    said, slow = Said(), Slow()
    run = fleet(concurrent(said, slow, 4), STREAMS)
    put(run, "numbers", *range(10), partition=0)
    run.start("Watch-0", "Watch-1")
    run.until(lambda: said.in_flight == 4)
    assert said.numbers() == [0, 1, 2, 3], "begun in order, and no more than allowed"
    ends: dict[str, Any] = {}
    asking = threading.Thread(target=lambda: ends.update(run.freeze()))
    asking.start()
    run.until(lambda: run.tasks["Watch-1"].report.frozen_for == "drain-1")
    assert (said.drains, run.tasks["Watch-0"].report.frozen_for) == (0, "")
    slow.gate.set()
    asking.join(PATIENCE_S)
    run.flush(ends)
    run.until(run.is_drained)
    assert (said.most_in_flight, said.in_flight_at_drain, said.drains) == (4, 0, 2)
    assert seen(run) == {("done", number): 1 for number in range(10)}


def test_an_input_that_has_ended_and_one_that_the_drain_ends(fleet: MakeFleet) -> None:
    """End of stream mixed with drain: one input's producers are drained long before the other one's end is known."""
    said = Said()
    application = plain(said, "numbers", "copied")

    @application.stage("others", output="copied")
    def copy(rows: DataFrame) -> DataFrame:
        return rows

    run = fleet(application, STREAMS)
    put(run, "others", 1, 2, partition=0)
    put(run, "numbers", 3, partition=1)
    run.start("Watch-0", "Watch-1", "copy-0", "copy-1")
    run.until(lambda: len(said.messages) == 3)
    ends = run.freeze()
    run.flush({**ends})
    run.until(
        lambda: all(run.tasks[f"copy-{n}"].report.phase is Phase.DRAINED for n in (0, 1)), but=["Watch-0", "Watch-1"]
    )
    run.until(run.is_drained)
    assert said.drains == 2
    assert {each.stream for each in said.messages} == {"numbers", "copied"}
    assert sum(seen(run).values()) == 3 + 2


def test_a_task_that_moves_in_the_middle_of_a_batch_goes_on_behind_what_is_done(fleet: MakeFleet) -> None:
    """Positions are within a record, too: a task that is released repeats nothing whose rows are committed."""
    said, slow = Said(), Slow()
    application = Application()

    @application.task("numbers", output="seen")
    class Watch:
        def __init__(self) -> None:
            self.total = 0

        async def process(self, envelope: Envelope, collector: Collector) -> None:
            if envelope.row["n"] == 7:
                said.in_flight = 1
                await slow.opened()
            self.total += envelope.row["n"]
            said.messages.append(envelope)
            collector.send({"what": "at", "n": envelope.row["n"]})

        def on_drain(self, collector: Collector) -> None:
            collector.send({"what": "total", "n": self.total})

        def snapshot(self) -> bytes:
            return str(self.total).encode()

        def restore(self, state: bytes) -> None:
            self.total = int(state)

    run = fleet(application, STREAMS)
    put(run, "numbers", *range(20), partition=0)
    run.start("Watch-0", "Watch-1")
    run.until(lambda: said.in_flight == 1)
    releasing = threading.Thread(target=run.release, args=["Watch-0"])
    releasing.start()
    run.until(lambda: run.tasks["Watch-0"]._releasing)
    slow.gate.set()
    releasing.join(PATIENCE_S)
    assert said.numbers() == list(range(8)), "the one in flight was finished, and none was begun"
    run.start("Watch-0", first=False)
    run.drain()
    assert said.numbers() == list(range(20))
    assert seen(run) == {**{("at", number): 1 for number in range(20)}, ("total", 190): 1, ("total", 0): 1}


def test_a_handler_without_restore_does_not_go_on_from_nothing(fleet: MakeFleet) -> None:
    """New code that has lost the methods of its state fails, and changes nothing; the old code goes on."""

    class Forgets:
        def __init__(self) -> None:
            self.total = 0

        def process(self, envelope: Envelope, collector: Collector) -> None:
            self.total += envelope.row["n"]
            collector.send({"what": "total", "n": self.total})

    class Keeps(Forgets):
        def snapshot(self) -> bytes:
            return str(self.total).encode()

        def restore(self, state: bytes) -> None:
            self.total = int(state)

    application, code = Application(), [Keeps]

    @application.task("numbers", output="seen")
    def watch() -> Forgets:
        return code[-1]()

    run = fleet(application, STREAMS)
    put(run, "numbers", 1, 2, partition=0)
    run.start("watch-0")
    run.until(lambda: len(rows(run, "seen")) == 2)
    run.release("watch-0")
    put(run, "numbers", 3, partition=0)
    code.append(Forgets)
    run.start("watch-0", first=False)
    assert failure_of(run, "watch-0") == (
        "watch-0: the log has a state of this handler, which has no restore and would go on without it. Write "
        "def restore(self, state) and def snapshot(self), or drain the run first, with the code that had them."
    )
    code.append(Keeps)
    run.start("watch-0", first=False)
    run.until(lambda: len(rows(run, "seen")) == 3)
    assert seen(run) == {("total", 1): 1, ("total", 3): 1, ("total", 6): 1}


def batches(run: Fleet, task: str) -> list[int]:
    """How many rows each record of a task's log has, of those that have any."""
    reader, found, at = LogReader(run.account.blobs(), f"runs/{run.run_id}/{task}"), Counter[Position](), (0, 0)
    while not (scan := reader.scan(at, 32 << 20)).at_end or scan.parts:
        for part in scan.parts:
            found[part.position] += part.rows
        at = scan.end
    return [rows for _, rows in sorted(found.items())]


LONG = "\n[task]\ncommit.ms = 2000\n"


def test_a_batch_reads_no_more_bytes_than_it_may(fleet: MakeFleet) -> None:
    """They are in memory before the first of them is processed."""
    said = Said()
    run = fleet(plain(said), STREAMS + LONG)
    dice, mebibyte = random.Random(1), 1 << 20
    for number in range(6):
        put(run, "numbers", number, partition=0, at=dice.randbytes(mebibyte // 2).hex())  # it packs to half
    run.start("Watch-0", "Watch-1")
    run.until(lambda: len(said.messages) == 6)
    run.drain()
    *most, last = batches(run, "Watch-0")
    assert (sum(most), last) == (6, 1)  # and that of on_drain
    assert max(most) <= BATCH_BYTES // (mebibyte // 2)


def test_the_output_of_a_batch_is_committed_before_it_is_too_large(fleet: MakeFleet) -> None:
    """Few messages can emit more than fits into memory."""
    application = Application()

    @application.task("numbers", output="seen")
    class Blow:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            for _ in range(4):
                collector.send({"what": "x" * (1 << 20), "n": envelope.row["n"]})

    run = fleet(application, STREAMS + LONG)
    put(run, "numbers", *range(10), partition=0)
    run.start("Blow-0", "Blow-1")
    run.until_all_is_read("numbers")
    assert batches(run, "Blow-0") == [8] * 5
    run.drain()


def test_a_death_between_on_drain_and_its_record_leaves_no_row(fleet: MakeFleet) -> None:
    """The last record is not written; the next owner calls on_drain again, and its row is there once."""
    said = Said()
    run = fleet(plain(said), STREAMS)
    put(run, "numbers", 1, 2, partition=0)
    run.start("Watch-0", "Watch-1")
    run.until(lambda: len(said.messages) == 2)
    ends = run.freeze()
    first = run.tasks["Watch-0"]
    assert first._writer is not None
    append = first._writer.append

    def dies(batch: int, **fields: Any) -> Any:
        if fields.get("kind") is Kind.DRAINED:
            first._writer.close()  # type: ignore[union-attr]  # as a process that is gone: nothing of it comes later
            raise StorageUnavailable("It is gone.")
        return append(batch, **fields)

    first._writer.append = dies  # type: ignore[method-assign]
    run.flush(ends)
    run.until(lambda: said.drains == 2 and run.tasks["Watch-1"].report.phase is Phase.DRAINED)
    run.start("Watch-0", first=False)
    first._batches.closed.set()  # type: ignore[union-attr]
    run.until(run.is_drained)
    assert said.drains == 3
    assert seen(run) == {("numbers/0", 1): 1, ("numbers/0", 2): 1, ("drained", 2): 2}


# Timers, commits and ends that a handler asks for.


def with_timers(said: Said, after: Callable[[int], datetime | timedelta], **options: Any) -> Application:
    """Each message n sets the timer n, which emits its number, and so does the drain, for all that are left."""
    application = Application()

    @application.task("numbers", output="seen", **options)
    class Watch:
        def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
            said.messages.append(envelope)
            coordinator.set_timer(str(envelope.row["n"]), after(envelope.row["n"]))
            collector.send({"what": "set", "n": envelope.row["n"]})

        def on_timer(self, key: str, collector: Collector) -> None:
            collector.send({"what": "fired", "n": int(key)})

        def on_drain(self, collector: Collector) -> None:
            said.drains += 1

    return application


def last_rows(run: Fleet, task: str) -> list[tuple[str, int]]:
    """The rows of the last record of a task's log."""
    reader, last = LogReader(run.account.blobs(), f"runs/{run.run_id}/{task}"), list[Any]()
    at = (0, 0)
    while not (scan := reader.scan(at)).at_end or scan.parts:
        last, at = scan.parts or last, scan.end
    position = last[-1].position
    batches = [batch for part in last if part.position == position for batch in decode(*reader.fetch([part]))]
    return [(row["what"], row["n"]) for batch in batches for row in batch.to_pylist()]


def test_a_timer_fires_when_it_is_due_and_a_drain_fires_the_others_in_its_last_record(fleet: MakeFleet) -> None:
    """The handler's time comes without a message; timers move with their task."""
    said, far = Said(), datetime(2100, 1, 1, tzinfo=UTC)
    run = fleet(with_timers(said, lambda n: timedelta(0) if n < 3 else far - timedelta(n)), STREAMS)
    put(run, "numbers", *range(6), partition=0)
    run.start("Watch-0", "Watch-1")
    run.until(lambda: len(rows(run, "seen")) == 9)
    assert seen(run) == {**{("set", n): 1 for n in range(6)}, **{("fired", n): 1 for n in range(3)}}
    run.move("Watch-0")
    run.drain()
    assert said.drains == 2
    assert last_rows(run, "Watch-0") == [("fired", 5), ("fired", 4), ("fired", 3)], "in the order of their times"
    assert last_kind(run, "Watch-0") is Kind.DRAINED
    assert seen(run) == {(what, n): 1 for what in ("set", "fired") for n in range(6)}


def test_a_timer_that_sets_itself_fires_again_and_again_and_once_in_a_drain(fleet: MakeFleet) -> None:
    """Samza's `window`: something to do at intervals. It must neither keep out messages nor the end of a drain."""
    said = Said()
    application = Application()

    @application.task("numbers", output="seen", tasks=1)
    class Watch:
        def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
            said.messages.append(envelope)
            coordinator.set_timer("window", timedelta(0))

        def on_timer(self, key: str, collector: Collector, coordinator: TaskCoordinator) -> None:
            said.in_flight += 1
            coordinator.set_timer(key, timedelta(0))
            collector.send({"what": key, "n": 1})

        def on_drain(self, collector: Collector, coordinator: TaskCoordinator) -> None:
            coordinator.delete_timer("window")
            collector.send({"what": "windows", "n": said.in_flight})

    run = fleet(application, STREAMS + "[task]\ncommit.ms = 100\n")
    put(run, "numbers", 1, partition=0)
    run.start("Watch-0")
    run.until(lambda: said.in_flight > 3)
    put(run, "numbers", *range(2, 50), partition=0)
    run.until(lambda: len(said.messages) == 49)
    run.drain()
    assert last_rows(run, "Watch-0") == [("window", 1), ("windows", said.in_flight)]
    assert seen(run)["window", 1] == said.in_flight


def die(run: Fleet, name: str) -> None:
    """What a process leaves that is gone: no append comes later, and nothing is released."""
    task = run.tasks[name]
    run.until(lambda: task.report.phase in (Phase.RUNNING, Phase.DRAINED))
    assert task._batches is not None or task.is_over
    if task._batches is not None:
        task._batches.closed.set()
    if task._writer is not None:
        task._writer.close()


@pytest.mark.parametrize(("seed", "most"), [(1, 1), (2, 8)])
def test_each_timer_fires_once_over_deaths_moves_and_drains(fleet: MakeFleet, seed: int, most: int) -> None:
    """Whatever happens: what was set has fired, once, and its row is there once."""
    dice, application = random.Random(seed), Application()

    @application.task("numbers", output="seen", tasks=1, max_concurrency=most)
    class Watch:
        def __init__(self) -> None:
            self.fired = 0

        async def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
            number = envelope.row["n"]
            for again in range(dice.choice([1, 1, 2])):  # the second one moves it
                coordinator.set_timer(str(number), timedelta(milliseconds=dice.choice([0, 5, 300, 1e9]) + again))
            if dice.random() < 0.2:
                coordinator.commit()
            if number % 10 == 9:
                coordinator.delete_timer(str(number - 1) if most == 1 else str(number))
            await asyncio.sleep(0.001)
            collector.send({"what": "set", "n": number})

        async def on_timer(self, key: str, collector: Collector, coordinator: TaskCoordinator) -> None:
            self.fired += 1
            collector.send({"what": "fired", "n": int(key)})

        def on_drain(self, collector: Collector) -> None:
            collector.send({"what": "in all", "n": self.fired})

        def snapshot(self) -> bytes:
            return str(self.fired).encode()

        def restore(self, state: bytes) -> None:
            self.fired = int(state)

    run = fleet(application, STREAMS + "[task]\ncommit.ms = 50\n")
    run.start("Watch-0")
    total = 0
    for _ in range(8):
        more = dice.choice([3, 40])
        put(run, "numbers", *range(total, total + more), partition=0)
        total += more
        until = time.monotonic() + dice.choice([0.0, 0.05, 0.2])
        run.until(lambda until=until: time.monotonic() > until)  # type: ignore[misc]
        if dice.random() < 0.5:
            die(run, "Watch-0")
            run.start("Watch-0", first=False)
        elif dice.random() < 0.5:
            run.move("Watch-0")
    run.until_all_is_read("numbers")
    run.flush(run.freeze())
    if dice.random() < 0.7:
        die(run, "Watch-0")
        run.start("Watch-0", first=False)
    run.until(run.is_drained)
    found = seen(run)
    assert {n for what, n in found if what == "set"} == set(range(total))
    fired = {n for what, n in found if what == "fired"}
    deleted = {n - (most == 1) for n in range(total) if n % 10 == 9}
    assert set(range(total)) - fired <= deleted
    assert found["in all", len(fired)] == 1
    assert set(found.values()) == {1}


def test_a_commit_that_is_asked_for_does_not_wait_for_its_period(fleet: MakeFleet) -> None:
    said = Said()
    application = Application()

    @application.task("numbers", output="seen")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
            said.messages.append(envelope)
            collector.send({"what": "at", "n": envelope.row["n"]})
            if envelope.row["n"] % 4 == 3:
                coordinator.commit()

    run = fleet(application, STREAMS + LONG)
    put(run, "numbers", *range(10), partition=0)
    run.start("Watch-0")
    run.until(lambda: len(rows(run, "seen")) == 10)
    assert batches(run, "Watch-0") == [4, 4, 2]


def test_a_task_that_asks_for_its_shutdown_ends_for_the_run(fleet: MakeFleet) -> None:
    """What it has read is processed, timers fire, and the stage behind it sees the end of time."""
    from pyspark.sql import functions as F

    said = Said()
    application = Application()

    @application.task("numbers", output="times")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
            said.messages.append(envelope)
            coordinator.set_timer("last", timedelta(days=1))
            if envelope.row["n"] == 5:
                coordinator.shutdown()

        def on_timer(self, key: str, collector: Collector) -> None:
            collector.send({"ts": NOON})

        def on_drain(self, collector: Collector) -> None:
            said.drains += 1
            collector.send({"ts": NOON})

    @application.stage("times", output="daily", tasks=1)
    def daily(times: DataFrame) -> DataFrame:
        return times.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day")).count()

    numbers = '[streams.numbers]\npartitions = 2\nschema = "n int, at timestamp"\nevent_time = "at"\n'
    times = '[streams.times]\nschema = "ts timestamp"\nevent_time = "ts"\nfrontier_lag = "1 day"\n'
    run = fleet(application, numbers + times)
    writer = run.writer("numbers", 2, flush_rows=10_000, event_time="at")

    def put_times(*found: int, partition: int) -> None:
        writer._next_partition = partition
        writer.write(pa.table({"n": pa.array(found, pa.int32()), "at": pa.array([NOON] * len(found), TIMESTAMP)}))
        writer.flush()

    put_times(*range(8), partition=0)
    put_times(5, partition=1)
    run.start("Watch-0", "Watch-1", "daily-0")
    run.until(lambda: all(run.tasks[f"Watch-{n}"].report.phase is Phase.DRAINED for n in (0, 1)))
    put_times(100, partition=0)
    assert (sorted(said.numbers(0)), said.drains) == ([*range(8)], 2)
    read = {name: end for n in (0, 1) for name, end in (run.tasks[f"Watch-{n}"].report.read or {}).items()}
    run.until(lambda: len(rows(run, "daily")) == 1)
    run.start("Watch-0", first=False)
    run.until(lambda: run.tasks["Watch-0"].report.phase is Phase.DRAINED)
    assert run.tasks["Watch-0"].report.read == {"numbers/0": read["numbers/0"]}, "the next owner knows where it ended"
    assert LogReader(run.account.blobs(), "streams/numbers/0").scan(read["numbers/0"]).rows == 1
    run.flush(read)
    run.until(run.is_drained)
    assert [row["count"] for row in rows(run, "daily")] == [4], "two timers and two last rows"
    assert said.drains == 2


def test_what_a_handler_asks_for_in_vain() -> None:
    def failure(ask: Callable[[TaskCoordinator], object], on_timer: bool = True) -> str:
        class Watch:
            def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
                ask(coordinator)

        if on_timer:
            Watch.on_timer = lambda self, key, collector: None  # type: ignore[attr-defined]
        calls = calls_of(Watch)
        try:
            calls.process(messages(1), lambda: False)
            calls.wishes()
        except SamzaAzureError as error:
            return str(error)
        else:
            raise AssertionError("nothing was refused")
        finally:
            calls.close()

    hour = timedelta(hours=1)
    assert "Write def on_timer(self, key, collector):" in failure(lambda it: it.set_timer("a", hour), on_timer=False)
    assert "The key of a timer is 5. Use a text." in failure(lambda it: it.set_timer(5, hour))  # type: ignore[arg-type]
    for no_time in (5, pd.NaT):
        said = failure(lambda it, no_time=no_time: it.set_timer("a", no_time))  # type: ignore[misc]
        assert f"'a' is set for {no_time}. Use a datetime or a timedelta. Where there is no time, set no timer." in said
    many = failure(lambda it: [it.set_timer(f"{n:01000}", hour) for n in range(1050)])
    assert "its 1050 timers take" in many and "1048576 are possible" in many
    kept: list[TaskCoordinator] = []
    calls = calls_of(type("Watch", (), {"process": lambda self, e, c, coordinator: kept.append(coordinator)}))
    calls.process(messages(1), lambda: False)
    with pytest.raises(SamzaAzureError, match="shutdown was called after process of message 1 of numbers/0 had ended"):
        kept[0].shutdown()
    calls.close()


def test_timers_of_a_handler_that_has_lost_on_timer_are_not_forgotten(fleet: MakeFleet) -> None:
    application, keeps = with_timers(Said(), lambda n: timedelta(days=n)), [True]
    (stage,) = application.stages
    made = stage.function

    class Forgets:
        def process(self, envelope: Envelope, collector: Collector) -> None: ...

    application.stages[0] = replace(stage, function=lambda: made() if keeps[-1] else Forgets())
    run = fleet(application, STREAMS)
    put(run, "numbers", 1, 2, partition=0)
    run.start("Watch-0")
    run.until(lambda: len(rows(run, "seen")) == 2)
    run.release("Watch-0")
    keeps.append(False)
    run.start("Watch-0", first=False)
    message = failure_of(run, "Watch-0")
    assert message.startswith(
        "Watch-0: the log has 2 timers of this handler, which has no on_timer. Write def on_timer"
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9) | st.none(), st.integers(0, 9)), max_size=20))
def test_timers_are_those_that_a_plain_dict_would_have(story: list[tuple[str, int | None, int]]) -> None:
    """Set (None: delete), then fire what is due; over restarts, too."""
    wishes, plain_ones = Wishes(), dict[str, int]()
    for key, at, now in story:
        wishes.delete(key) if at is None else wishes.set(key, at)
        plain_ones.pop(key, None)
        if at is not None:
            plain_ones[key] = at
        if now % 3 == 0:
            wishes = Wishes(wishes.to_bytes())
        due = {key: at for key, at in plain_ones.items() if at <= now}
        assert wishes.is_due(now) == bool(due)
        fired = list(wishes.due(now))
        assert (set(fired), [due[key] for key in fired]) == (set(due), sorted(due.values()))
        plain_ones = {key: at for key, at in plain_ones.items() if at > now}
        assert len(wishes) == len(plain_ones)


def test_a_timer_that_is_moved_with_each_message_takes_no_more_memory() -> None:
    wishes = Wishes()
    for number in range(10_000):
        wishes.set("session", number)
        wishes.set(f"short {number}", number)
        wishes.delete(f"short {number}")
    assert len(wishes._queue) < 100
    assert list(wishes.due(10_000)) == ["session"]


def test_timers_that_set_move_and_delete_others() -> None:
    """In a drain, too: all keys that have a timer fire once, also if it is moved, but not if it is deleted."""
    fired: list[str] = []

    class Watch:
        def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
            for number, key in enumerate(["first", "deleted", "moved", "last"]):
                coordinator.set_timer(key, timedelta(days=number + 1))

        def on_timer(self, key: str, collector: Collector, coordinator: TaskCoordinator) -> None:
            fired.append(key)
            coordinator.set_timer("first", timedelta(days=-2))  # always the earliest that is due
            coordinator.delete_timer("deleted")
            if key == "first":
                coordinator.set_timer("moved", timedelta(days=9))

    drained = calls_of(Watch)
    drained.process(messages(0), lambda: False)
    drained.end()
    drained.close()
    assert fired == ["first", "moved", "last"]

    fired.clear()
    wishes = Wishes()
    for key in ("again", "other"):
        wishes.set(key, 5)
    for key in wishes.due(10):
        fired.append(key)
        wishes.set("again", 1)
    assert fired == ["again", "other"], "one that is always the earliest keeps no other from firing"


def test_a_timer_that_sets_itself_and_commits_does_not_keep_out_messages() -> None:
    """It was due again in front of each message, after its own commit."""

    class Watch:
        def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
            coordinator.set_timer("again", timedelta(0))

        def on_timer(self, key: str, collector: Collector, coordinator: TaskCoordinator) -> None:
            coordinator.set_timer(key, timedelta(0))
            coordinator.commit()

    calls = calls_of(Watch)
    given = calls.with_timers(messages(1, 2, 3))
    assert [calls.process(given, lambda: True) for _ in range(6)] == [1, 0, 1, 0, 1, 0]
    calls.close()


# Time and failures.


def failing(said: Said, process: Callable[[Envelope], Any], on_drain: Callable[[], Any] = lambda: None) -> Application:
    application = Application()

    @application.task("numbers", output="seen")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> Any:
            said.messages.append(envelope)
            return process(envelope)

        def on_drain(self, collector: Collector) -> Any:
            said.drains += 1
            return on_drain()

    return application


def failure_of(run: Fleet, task: str) -> str:
    """Why it has failed."""
    deadline = time.monotonic() + PATIENCE_S
    while run.tasks[task].report.phase is not Phase.FAILED:
        run.look()
        assert time.monotonic() < deadline, run.tasks[task].report
        time.sleep(0.02)  # the pace of looking
    error = run.tasks[task].report.error
    assert error is not None
    return error.message


async def never() -> None:
    await asyncio.Event().wait()


def test_a_message_that_takes_too_long_fails_its_task_and_is_named(fleet: MakeFleet) -> None:
    said = Said()
    run = fleet(failing(said, lambda envelope: never()), STREAMS + "[task]\ncallback.timeout.ms = 200\n")
    put(run, "numbers", 5, partition=1)
    run.start("Watch-1")
    message = failure_of(run, "Watch-1")
    assert message.startswith("Watch-1: process of message 1:0:")
    assert "of numbers/1 has not ended within 200 ms" in message and "task.callback.timeout.ms longer" in message


def test_a_call_that_hangs_is_given_up(fleet: MakeFleet) -> None:
    """It is no coroutine and cannot be ended; the task fails all the same, and what it sends later is refused."""
    said, gate = Said(), threading.Event()
    run = fleet(
        failing(said, lambda envelope: gate.wait(PATIENCE_S) and None), STREAMS + "[task]\ncallback.timeout.ms = 200\n"
    )
    put(run, "numbers", 5, partition=0)
    run.start("Watch-0")
    try:
        assert "has not ended within 200 ms" in failure_of(run, "Watch-0")
    finally:
        gate.set()
    assert seen(run) == {}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ("callback.drain.timeout.ms = 200", True),  # alone, without a timeout of callbacks
        ("callback.timeout.ms = 200", True),  # unset: the former
        ("callback.timeout.ms = 200\ncallback.drain.timeout.ms = 60000", False),
    ],
)
def test_the_time_of_on_drain(fleet: MakeFleet, spark: SparkSession, keys: str, named: bool) -> None:
    said, slow = Said(), Slow()
    run = fleet(failing(said, lambda envelope: None, slow.opened), f"[task]\n{keys}\n{STREAMS}")
    run.start("Watch-0", "Watch-1")
    run.flush(run.freeze())
    run.look()
    if named:
        message = failure_of(run, "Watch-0")
        assert message.startswith("Watch-0: on_drain has not ended within 200 ms")
        assert "task.callback.drain.timeout.ms longer" in message
        slow.gate.set()
    else:
        run.until(lambda: said.drains == 2)
        waited = time.monotonic() + 0.5  # more than the other timeout
        run.until(lambda: time.monotonic() > waited)
        slow.gate.set()
        run.until(run.is_drained)


def test_an_on_drain_that_raises_fails_its_task_and_is_called_again(fleet: MakeFleet) -> None:
    """Once under each owner that comes so far. What it sent before it raised is not emitted, and nothing is lost."""
    said = Said()
    application = Application()

    @application.task("numbers", output="seen")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            said.messages.append(envelope)
            collector.send({"what": "at", "n": envelope.row["n"]})

        def on_drain(self, collector: Collector) -> None:
            said.drains += 1
            collector.send({"what": "drained", "n": said.drains})
            if said.drains < 3:
                raise ValueError(f"not at try {said.drains}")

    run = fleet(application, STREAMS + "[task]\ncount = 1\n")
    put(run, "numbers", 1, 2, 3, partition=0)
    run.start("Watch-0")
    run.until(lambda: len(said.messages) == 3)
    run.flush(run.freeze())
    for tries in (1, 2):
        assert failure_of(run, "Watch-0") == f"Watch-0: on_drain failed: ValueError: not at try {tries}"
        assert said.drains == tries and last_kind(run, "Watch-0") is not Kind.DRAINED
        run.start("Watch-0", first=False)
    run.until(run.is_drained)
    assert (said.drains, said.numbers()) == (3, [1, 2, 3])
    assert seen(run) == {("at", 1): 1, ("at", 2): 1, ("at", 3): 1, ("drained", 3): 1}


def test_a_message_that_raises_is_named_and_its_rows_are_not_put_out(fleet: MakeFleet) -> None:
    said = Said()
    application = Application()

    @application.task("numbers", output="seen")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            said.messages.append(envelope)
            collector.send({"what": "at", "n": envelope.row["n"]})
            if envelope.row["n"] == 2:
                raise ValueError("two is too much")

    run = fleet(application, STREAMS)
    put(run, "numbers", 1, 2, 3, partition=0)
    run.start("Watch-0")
    message = failure_of(run, "Watch-0")
    assert message.startswith("Watch-0: process of message 0:0:")
    assert message.endswith(":1 of numbers/0 failed: ValueError: two is too much")
    error = run.tasks["Watch-0"].report.error
    assert error is not None and "two is too much" in error.traceback and "test_handlers.py" in error.traceback
    assert seen(run) == {}
    assert said.numbers() == [1, 2]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"what": "x"}, "The row has the columns what, and the stream has what, n"),
        ({"what": "x", "n": "many"}, "of numbers/0 has sent 'many' as n, whose type is int. Send a whole number"),
        ({"what": None, "n": 1}, "of numbers/0 has sent None as what, which is the stream's event time, or NOT NULL"),
    ],
)
def test_rows_that_do_not_fit(fleet: MakeFleet, row: dict[str, Any], message: str) -> None:
    application = Application()

    @application.task("numbers", output="seen")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            collector.send(row)

    run = fleet(application, STREAMS.replace("what string", "what string NOT NULL"))
    put(run, "numbers", 1, partition=0)
    run.start("Watch-0")
    assert message in failure_of(run, "Watch-0")


# Downstream, and checks at the start.


def test_rows_go_by_key_to_a_stage_behind_with_its_event_time(fleet: MakeFleet) -> None:
    """What a handler emits is a stream like any other: partitioned, with event time, and drained into windows."""
    from pyspark.sql import functions as F

    application = Application()

    @application.task("orders", output="prices", partition_by="id")
    class Price:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            row = envelope.row
            collector.send({"id": row["id"], "ts": row["ts"], "cents": round(row["amount"] * 100)})

    @application.stage("prices", output="daily")
    def daily(prices: DataFrame) -> DataFrame:
        return (
            prices.withWatermark("ts", "1 hour")
            .groupBy(F.window("ts", "1 day"), "id")
            .agg(F.sum("cents").alias("cents"))
        )

    run = fleet(
        application,
        """
[streams.orders]
partitions = 2
schema = "id string, ts timestamp, amount double"
event_time = "ts"
[streams.prices]
partitions = 3
schema = "id string, ts timestamp, cents bigint"
event_time = "ts"
frontier_lag = "0 s"
""",
    )
    assert [stage.at_once for stage in run.pipeline.plan.stages] == [1, 0]
    writer = run.writer("orders", 2, flush_rows=7)
    day = 86_400_000_000
    times = pa.array([number * day // 10 for number in range(60)], pa.timestamp("us", "UTC"))
    ids, amounts = [f"id-{n % 5}" for n in range(60)], [n / 4 for n in range(60)]
    writer.write(pa.table({"id": ids, "ts": times, "amount": amounts}))
    writer.close()
    run.start(*run.pipeline.plan.tasks())
    run.until_all_is_read("orders")
    run.until(lambda: rows(run, "daily") != [])
    run.drain()
    expected = Counter((n // 10, f"id-{n % 5}") for n in range(60))
    found = {(row["window"]["start"].day - 1, row["id"]): row["cents"] for row in rows(run, "daily")}
    assert found == {key: sum(25 * n for n in range(60) if (n // 10, f"id-{n % 5}") == key) for key in expected}
    assert run.late == 0


def analysed(spark: SparkSession, directory: Path, application: Application, streams: str = STREAMS) -> Pipeline:
    return analyse_pipeline(spark, application, config_of(directory, streams), directory)


def mistakes() -> Iterator[Any]:
    class Needs:
        def __init__(self, url: str) -> None: ...

        def process(self, envelope: Envelope, collector: Collector) -> None: ...

    class Nothing: ...

    class Plain:
        def process(self, envelope: Envelope, collector: Collector) -> None: ...

    class Forgets(Plain):
        def snapshot(self) -> bytes:
            return b""

    class Alone(Plain):
        def process(self, envelope: Envelope) -> None:  # type: ignore[override]
            pass

    class Draining(Plain):
        def on_drain(self) -> None:
            pass

    time = '[streams.seen]\nschema = "ts timestamp"\nevent_time = "ts"\n'
    yield Needs, {}, STREAMS, r"its handler by calling Needs\(\) without arguments.*decorate a function that returns it"
    yield Nothing, {}, STREAMS, "has no method process. Write: def process"
    yield Alone, {}, STREAMS, "process of task Alone cannot be called: too many.*Write: def process"
    yield Draining, {}, STREAMS, r"on_drain of task Draining cannot be called.*Write: def on_drain\(self, collector\):"
    yield Plain, {"max_concurrency": 2}, STREAMS, "its process is not a coroutine function.*Write: async def process"
    yield Plain, {"max_concurrency": 0}, STREAMS, "Use a whole number of at least 1"
    yield Plain, {}, f"[task]\nmax.concurrency = 3\n{STREAMS}", "may have 3 messages in flight.*or max_concurrency=1"
    yield Forgets, {}, STREAMS, "has snapshot and no restore.*Write: def restore"
    yield Plain, {"output": "seem"}, STREAMS, r"does not declare its columns. Add \[streams.seem\] there, with its"
    yield (
        Plain,
        {"partition_by": "nn"},
        STREAMS,
        "has partition_by 'nn', but streams.seen.schema has the columns what, n",
    )
    yield Plain, {}, STREAMS.replace('[streams.seen]\nschema = "what string, n int"', time), 'frontier_lag = "1 hour"'
    lag = f'{time}frontier_lag = "1 s"\n'
    yield (
        Plain,
        {},
        STREAMS.replace('[streams.seen]\nschema = "what string, n int"', lag),
        "none of its inputs has an event",
    )


@pytest.mark.parametrize(("handler", "options", "streams", "message"), list(mistakes()))
def test_mistakes(
    spark: SparkSession, tmp_path: Path, handler: Any, options: dict[str, Any], streams: str, message: str
) -> None:
    def begin() -> None:
        application = Application()
        application.task("numbers", **{"output": "seen", **options})(handler)
        analysed(spark, tmp_path, application, streams)

    with pytest.raises(PipelineRefused, match=message):
        begin()


def test_one_stream_twice_and_none() -> None:
    application = Application()
    with pytest.raises(PipelineRefused, match="reads numbers twice"):
        application.task("numbers", "numbers", output="seen")(type("A", (), {"process": print}))
    with pytest.raises(PipelineRefused, match=r"reads no stream. Name one as the first argument of @app.task"):
        application.task(output="seen")(type("B", (), {"process": print}))


def test_a_task_without_output_puts_nothing_out(fleet: MakeFleet) -> None:
    """It is there for its side effects; a row is refused, since no stream could hold it."""
    said = Said()
    application = Application()

    @application.task("numbers")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            said.messages.append(envelope)
            if envelope.row["n"] == 9:
                collector.send({"n": 9})

    run = fleet(application, STREAMS)
    put(run, "numbers", 1, 2, partition=1)
    put(run, "numbers", 9, partition=0)
    run.start("Watch-1")
    run.until(lambda: said.numbers() == [1, 2])
    run.start("Watch-0")
    assert "A row was sent, and this task has no stream to put it into" in failure_of(run, "Watch-0")


def test_a_handler_is_seen_as_a_stage(spark: SparkSession, tmp_path: Path) -> None:
    from samza_azure.explain import pipeline_lines

    found = analysed(spark, tmp_path, concurrent(Said(), Slow(), 4))
    (stage,) = found.plan.stages
    assert (stage.name, stage.at_once, stage.tasks, stage.schema) == ("Watch", 4, 2, "what STRING,n INT")
    assert found.plan.described["stage Watch"]["runs"] == "a handler"
    assert "  calls   a handler, up to 4 messages in flight in each task" in pipeline_lines(found.plan, 1.0)


def test_a_task_that_is_released_in_mid_batch_begins_no_other_turn(fleet: MakeFleet) -> None:
    """It stands before messages that are done then, and its gate may be shut only a moment later."""
    said, held = Said(), threading.Event()
    application = Application()

    @application.task("numbers", output="seen")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            said.messages.append(envelope)
            if len(said.messages) == 8:
                held.wait(PATIENCE_S)
            collector.send({"what": "at", "n": envelope.row["n"]})

        def close(self) -> None:
            said.closed += 1

    run = fleet(application, STREAMS)
    put(run, "numbers", *range(20), partition=0)
    run.start("Watch-0", "Watch-1")
    run.until(lambda: len(said.messages) == 8)
    task = run.tasks["Watch-0"]
    assert isinstance(task, HandlerTask) and task._thread is not None
    task._releasing = True  # as the first line of `release` does
    held.set()
    task._thread.join(PATIENCE_S)
    assert said.numbers() == [*range(8)]
    run.release("Watch-0")
    assert said.closed == 1  # a task that is released has closed its handler
    run.start("Watch-0", first=False)
    run.drain()
    assert seen(run) == {("at", number): 1 for number in range(20)}


def test_messages_of_a_record_that_has_several_slices_have_offsets_of_their_own(
    fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of Spark's is laid out piece by piece; here the pieces are small."""
    monkeypatch.setattr(records, "LAID_OUT_BYTES", 64 << 10)
    said = Said()
    application = plain(said, "copied")

    @application.stage("others", output="copied", tasks=1)
    def copy(rows: DataFrame) -> DataFrame:
        return rows

    run = fleet(application, STREAMS)
    put(run, "others", *range(25_000), partition=0)
    run.start("Watch-0", "copy-0")
    run.until(lambda: len(said.messages) == 25_000)
    assert len({(each.partition, each.offset) for each in said.messages}) == 25_000


def test_a_time_that_python_cannot_hold_is_named_with_its_place(fleet: MakeFleet) -> None:
    said = Said()
    run = fleet(plain(said), STREAMS.replace("at string", "at timestamp", 1))
    writer = run.writer("numbers", 1, flush_rows=10_000, event_time=None)
    far = pa.array([300_000_000_000_000_000], pa.timestamp("us", "UTC"))
    writer.write(pa.table({"n": pa.array([1], pa.int32()), "at": far}))
    writer.flush()
    run.start("Watch-0")
    message = failure_of(run, "Watch-0")
    assert "numbers/0 at (0, " in message and "write it as a number" in message


def calls_of(handler: Callable[[], Any], at_once: int = 1, process_s: float | None = None) -> HandlerCalls:
    """The calls of a handler, without a task."""
    schema = pa.schema([("n", pa.int32()), ("seen", pa.list_(pa.int32()))])
    calls = HandlerCalls("Watch-0", handler, schema, at_once, TimeLimits(process_s, None))
    calls.begin(None)
    return calls


def messages(*numbers: int) -> list[Envelope]:
    return [Envelope("numbers", 0, f"{number}", {"n": number}) for number in numbers]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("at_once", [1, 4])
def test_a_base_exception_fails_the_task_too(error: BaseException, at_once: int) -> None:
    """SystemExit once ended the event loop, and no call was answered."""

    class Watch:
        async def process(self, envelope: Envelope, collector: Collector) -> None:
            raise error

    calls = calls_of(Watch, at_once)
    with pytest.raises(SamzaAzureError, match=f"process of message 1 of numbers/0 failed: {type(error).__name__}"):
        calls.process(messages(1), lambda: False)
    calls.close()


def test_a_row_is_as_it_was_when_it_was_sent() -> None:
    class Watch:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def process(self, envelope: Envelope, collector: Collector) -> None:
            self.seen.append(envelope.row["n"])
            collector.send({"n": envelope.row["n"], "seen": self.seen})

    calls = calls_of(Watch)
    assert calls.process(messages(1, 2, 3), lambda: False) == 3
    assert [row["seen"] for row in calls.take().to_pylist()] == [[1], [1, 2], [1, 2, 3]]
    calls.close()


STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
TWINS = pa.struct([("a", pa.int64()), ("b", pa.int64())])
MAP = pa.map_(pa.string(), pa.int64())
TIMESTAMP, TIMESTAMP_NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


class Swapped(NamedTuple):
    """A tuple with the fields of `STRUCT` in another order."""

    b: Any
    a: int


def held(kind: pa.DataType, *values: object) -> list[Any]:
    """What a column of this type holds of what a handler has sent."""

    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            for value in values:
                collector.send({"column": value, "n": 1})

    calls = HandlerCalls("Watch-0", Watch, pa.schema([("column", kind), ("n", pa.int64())]), 1, TimeLimits(None, None))
    calls.begin(None)
    try:
        calls.process(messages(7), lambda: False)
        return [row["column"] for row in calls.take().to_pylist()]
    finally:
        calls.close()


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (pa.int64(), 1.9, "1.9 as column, whose type is bigint. Send a whole number"),
        (pa.int64(), Decimal("2.5"), "Decimal('2.5') as column, whose type is bigint"),
        (pa.int64(), 1 << 63, "9223372036854775808 as column, whose type is bigint"),
        (pa.int8(), True, "True as column, whose type is tinyint"),
        (pa.float32(), 1e300, "1e+300 as column, whose type is float. Send a number within its range"),
        (pa.float64(), (1 << 53) + 1, "9007199254740993 as column, whose type is double"),
        (
            pa.float64(),
            Decimal("0.1"),
            r"whose type is double. Send a number within its range and precision: float(value)",
        ),
        (
            pa.decimal128(10, 2),
            Decimal("1.555"),
            r"whose type is decimal(10,2). Send an int or a Decimal with at most 10",
        ),
        (TIMESTAMP, 5, "5 as column, whose type is timestamp. Send a datetime"),
        (TIMESTAMP, date(2020, 1, 1), "whose type is timestamp. Send a datetime"),
        (TIMESTAMP, pd.Timestamp(5), "Timestamp('1970-01-01 00:00:00.000000005') as column, whose type is timestamp"),
        (
            TIMESTAMP_NTZ,
            datetime(2020, 1, 1, tzinfo=BERLIN),
            "whose type is timestamp_ntz. Send a datetime without a zone",
        ),
        (TIMESTAMP_NTZ, 5, "5 as column, whose type is timestamp_ntz"),
        (pa.date32(), NOON, "whose type is date. Send a date, value.date() of a datetime"),
        (pa.date32(), pd.NaT, "NaT as column, whose type is date"),
        (pa.date32(), 5, "5 as column, whose type is date"),
        (pa.duration("us"), 5, "5 as column, whose type is interval day to second. Send a timedelta"),
        (pa.string(), 5, "5 as column, whose type is string. Send a text"),
        (pa.string(), "\ud800", "whose type is string. Send a text that UTF-8 can represent"),
        (pa.bool_(), 1, "whose type is boolean. Send True or False: bool(value)"),
        (pa.binary(), [1], "[1] as column, whose type is binary. Send bytes"),
        (pa.list_(pa.string()), "abc", "'abc' as column, whose type is array<string>. Send a list"),
        (pa.list_(pa.int8()), b"abc", "b'abc' as column, whose type is array<tinyint>. Send a list"),
        (pa.list_(pa.int64()), [1, 1.5], "1.5 as column.element, whose type is bigint"),
        (STRUCT, {"a": 1.5}, "1.5 as column.a, whose type is bigint"),
        (STRUCT, (1.5, "x"), "1.5 as column.a, whose type is bigint"),
        (STRUCT, {"a": 1, "c": 2}, "2 as column.c, which the schema does not have. Leave it out"),
        (STRUCT, {"a": 1, 2: 3}, "3 as column.2, which the schema does not have"),
        (STRUCT, 5, "5 as column, whose type is struct<a:bigint,b:string>. Send a dict with the fields a, b"),
        (STRUCT, (1, "x", 2), "whose type is struct<a:bigint,b:string>. Send a dict"),
        (
            STRUCT,
            Swapped("x", 1),
            "Swapped(b='x', a=1) as column, whose type is struct<a:bigint,b:string>. Send a dict",
        ),
        (TWINS, Row(b=1, a=2), "Row(b=1, a=2) as column, whose type is struct<a:bigint,b:bigint>. Send a dict"),
        (pa.list_(pa.int64()), np.ma.array([1, 2], mask=[0, 1]), "whose type is array<bigint>. Send a list"),
        (pa.list_(pa.int64()), pd.Series([10, 20], [1, 0]), "whose type is array<bigint>. Send a list"),
        (MAP, {"a": 1.5}, "1.5 as column.value, whose type is bigint"),
        (MAP, [None], "[None] as column, whose type is map<string,bigint>. Send a dict"),
        (MAP, {None: 1}, "{None: 1} as column, whose type is map<string,bigint>. Send a dict without None as a key"),
        (pa.list_(STRUCT), [{"a": 1}, {"b": "x", "B": "y"}], "'y' as column.element.B, which the schema does not"),
        (
            pa.map_(pa.string(), pa.list_(pa.date32())),
            {"x": [NOON]},
            "as column.value.element, whose type is date",
        ),
    ],
    ids=repr,
)
def test_a_value_that_its_column_does_not_hold_fails_the_task(kind: pa.DataType, value: object, message: str) -> None:
    """Arrow converts what it can: 1.9 became 1, an int a time, "abc" a list of letters, an unknown field nothing."""
    with pytest.raises(SamzaAzureError) as found:
        held(kind, None, value)
    assert str(found.value).startswith("Watch-0: process of message 7 of numbers/0 has sent ")
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), 2.0, 2),
        (pa.int64(), Decimal(2), 2),
        (pa.int64(), np.int64(3), 3),
        (pa.float64(), 1, 1.0),
        (pa.float64(), float("inf"), float("inf")),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.float32(), float("-inf"), float("-inf")),
        (pa.float32(), 1e-40, float(np.float32(1e-40))),
        (pa.float32(), 1e-60, 0.0),
        (pa.decimal128(10, 2), Decimal("1.5"), Decimal("1.50")),
        (pa.decimal128(10, 2), 1, Decimal(1)),
        (TIMESTAMP, NOON, NOON),
        (TIMESTAMP, NOON.replace(tzinfo=None), NOON),
        (TIMESTAMP, datetime(2020, 1, 1, 13, tzinfo=BERLIN), NOON),
        (TIMESTAMP, datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), datetime(2020, 10, 25, 1, 30, tzinfo=UTC)),
        (TIMESTAMP, pd.Timestamp(NOON), NOON),
        (TIMESTAMP_NTZ, NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
        (pa.date32(), date(2020, 1, 1), date(2020, 1, 1)),
        (pa.duration("us"), timedelta(1), timedelta(1)),
        (pa.string(), b"text", "text"),
        (pa.binary(), "text", b"text"),
        (pa.binary(), bytearray(b"text"), b"text"),
        (pa.list_(pa.string()), ("a", None), ["a", None]),
        (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
        (pa.list_(pa.float32()), np.array([0.1, 2], "float32"), [float(np.float32(0.1)), 2.0]),
        (pa.list_(pa.float64()), [], []),
        (STRUCT, {"b": "x", "a": 1}, {"a": 1, "b": "x"}),
        (STRUCT, {"a": 1}, {"a": 1, "b": None}),
        (STRUCT, (1, "x"), {"a": 1, "b": "x"}),
        (TWINS, Row(a=1, b=2), {"a": 1, "b": 2}),
        (STRUCT, [("a", 1), ("b", "x")], {"a": 1, "b": "x"}),
        (MAP, {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        (MAP, [("a", 1)], [("a", 1)]),
        (pa.list_(STRUCT), [{"a": 1.0}, None], [{"a": 1, "b": None}, None]),
    ],
    ids=repr,
)
def test_a_value_that_its_column_holds_is_converted(kind: pa.DataType, value: object, expected: object) -> None:
    assert held(kind, value, None) == [expected, None]


def test_a_number_that_is_none_is_held() -> None:
    for kind in (pa.float32(), pa.float64()):
        assert [math.isnan(each) for each in held(kind, float("nan"), np.float32("nan"))] == [True, True]


def test_no_value_of_any_type_comes_back_changed_from_a_column_that_takes_it() -> None:
    """Whatever Arrow makes of it: a release of Arrow that converts more shows here."""
    day, zoned = date(2020, 1, 1), NOON.astimezone(BERLIN)
    values = [0, 1, 300, -1.5, 2.0, 0.1, 1e300, True, Decimal("1.5"), Decimal("NaN"), np.int64(3), np.float32(0.1)]
    values += [
        "",
        "a",
        "1",
        b"",
        b"a",
        bytearray(b"\xff"),
        memoryview(b"a"),
        day,
        NOON,
        zoned,
        NOON.replace(tzinfo=None),
    ]
    values += [NOON.time(), pd.Timestamp(NOON), pd.Timestamp(5), pd.NaT, pd.NA, timedelta(1), pd.Timedelta(5)]
    values += [np.datetime64("2020-01-01"), np.timedelta64(1, "us"), np.longdouble("0.1"), object(), 1j, None]
    values += [wrap(value) for value in values for wrap in (lambda it: [it], lambda it: (it,), lambda it: {"a": it})]
    values += [
        {"a"},
        [("a", 1)],
        np.array([1.5]),
        np.array([1]),
        pd.Series([1, 2], [1, 0]),
        Swapped(2, 1),
        [],
        (),
        {},
        {"a": 1, "b": 2},
        {"b": 2},
        {1: "a"},
        range(2),
    ]
    kinds = [
        pa.int8(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(3, 1),
        pa.bool_(),
        pa.string(),
        pa.binary(),
    ]
    kinds += [TIMESTAMP, TIMESTAMP_NTZ, pa.date32(), pa.duration("us")]
    kinds += [wrap for kind in kinds for wrap in (pa.list_(kind), pa.struct([("a", kind)]), pa.map_(pa.string(), kind))]
    taken = 0
    for kind, value in itertools.product(kinds, values):
        with suppress(NotHeld):
            (row,) = table_of([{"column": value}], pa.schema([("column", kind)])).to_pylist()
            taken += 1
            assert is_alike(row["column"], value), f"{value!r} became {row['column']!r} in {kind}"
            table_of([row], pa.schema([("column", kind)]))  # what a handler passes on
    assert taken > 400


def is_alike(back: Any, sent: Any) -> bool:
    """Whether a value that a column has returned says what was sent, in whatever form it was written."""
    match back:
        case dict():
            fields = dict(zip(back, sent, strict=True)) if isinstance(sent, tuple) else dict(sent)
            return all(is_alike(back.get(name), fields.get(name)) for name in {**back, **fields})
        case list():
            entries = list(sent.items()) if isinstance(sent, dict) else list(sent)
            is_list = not isinstance(sent, str | bytes | bytearray | memoryview)
            return is_list and len(back) == len(entries) and all(map(is_alike, back, entries))
        case tuple():
            return all(map(is_alike, back, sent))
        case str() | bytes():
            return (back.encode() if isinstance(back, str) else back) in (
                sent,
                sent.encode() if isinstance(sent, str) else "",
            )
        case datetime() if back.tzinfo is not None and isinstance(sent, datetime) and sent.tzinfo is None:
            return bool(back.replace(tzinfo=None) == sent)
        case float():
            return type(sent) is not str and math.isclose(back, sent, rel_tol=1e-7)
    return bool(back == sent) if sent is not None else back is None


def test_after_a_timeout_no_message_is_begun() -> None:
    begun = []

    class Watch:
        async def process(self, envelope: Envelope, collector: Collector) -> None:
            begun.append(envelope.row["n"])
            await asyncio.sleep(0.5)

    calls = calls_of(Watch, process_s=0.1)
    with pytest.raises(SamzaAzureError, match="has not ended within 100 ms"):
        calls.process(messages(1, 2, 3), lambda: False)
    calls.close()
    assert begun == [1]


def test_a_value_that_is_not_a_row_is_not_sent() -> None:
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            collector.send((1, []))  # type: ignore[arg-type]

    calls = calls_of(Watch)
    with pytest.raises(SamzaAzureError, match="is no row"):
        calls.process(messages(1), lambda: False)
    calls.close()


def test_a_row_without_columns_is_refused() -> None:
    """A task without a stream has nowhere to put any row."""

    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            collector.send({})

    calls = HandlerCalls("Watch-0", Watch, pa.schema([]), 1, TimeLimits(None, None))
    calls.begin(None)
    with pytest.raises(SamzaAzureError, match=r"no stream to put it into.*as the output of @app.task"):
        calls.process(messages(1), lambda: False)
    calls.close()


def test_a_handler_factory_must_not_be_async() -> None:
    application = Application()
    with pytest.raises(
        PipelineRefused, match=r"an async function returns a coroutine, not a handler\. Write def watch\(\)"
    ):

        @application.task("numbers")
        async def watch() -> Any: ...


def test_a_handler_that_yields_is_refused() -> None:
    application = Application()
    with pytest.raises(PipelineRefused, match=r"process of task Watch is a generator.*collector\.send"):

        @application.task("numbers")
        class Watch:
            def process(self, envelope: Envelope, collector: Collector) -> Iterator[int]:
                yield 1
