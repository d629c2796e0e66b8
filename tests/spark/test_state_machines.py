"""Functions with state and event-time timers: moved between writers, drained, and compared with plain Python."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from samza_azure.application import Application
from samza_azure.errors import StorageUnavailable
from samza_azure.logs.record import Kind

from .task_driver import Fleet

MakeFleet = Callable[[Application, str], Fleet]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as `load` does it for a pipeline's module

START = datetime(2013, 1, 1, tzinfo=UTC)
GAP_MS = 45 * 60 * 1000
SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
OUTPUT = "key string, first long, last long, n long"
STATE = "first long, last long, n long"
STREAMS = """
[streams.%s]
partitions = 2
schema = "key string, ts timestamp"
key = "key"
event_time = "ts"
[task]
commit.ms = 0
batch.bytes = "1 KiB"
"""
#: First and last time in milliseconds, and the number of rows.
Session = tuple[int, int, int]


def advanced(session: Session | None, times_ms: Iterable[int]) -> tuple[list[Session], Session | None]:
    """The sessions that end with these rows, and the one that goes on."""
    ended = []
    for time_ms in sorted(times_ms):
        if session is not None and time_ms > session[1] + GAP_MS:
            ended.append(session)
            session = None
        first, _, n = session or (time_ms, time_ms, 0)
        session = (first, time_ms, n + 1)
    return ended, session


class Sessions(StatefulProcessor):
    """Rows of one key that follow each other within the gap, counted. A timer ends the last of them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", STATE)

    def advance(self, times_ms: Iterable[int]) -> list[Session]:
        """What ends; the timer is moved to the end of what goes on."""
        before: Any = self._session.get() if self._session.exists() else None
        ended, session = advanced(before, times_ms)
        assert session is not None
        if before is not None:
            self._handle.deleteTimer(before[1] + GAP_MS)
        self._session.update(session)
        self._handle.registerTimer(session[1] + GAP_MS)
        return ended

    def expire(self) -> Session:
        """The session whose timer has fired."""
        session: Any = self._session.get()
        self._session.clear()
        return (session[0], session[1], session[2])


class RowSessions(Sessions):
    """Through the row form."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        for session in self.advance(round(row.ts.timestamp() * 1000) for row in rows):
            yield Row(key=key[0], first=session[0], last=session[1], n=session[2])

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        first, last, n = self.expire()
        assert expiredTimerInfo.getExpiryTimeInMs() == last + GAP_MS
        yield Row(key=key[0], first=first, last=last, n=n)


class PandasSessions(Sessions):
    """Through the pandas form."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        times = [time for frame in rows for time in milliseconds(frame)]
        yield framed(key[0], self.advance(times))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        yield framed(key[0], [self.expire()])


def with_group_state(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The same through `applyInPandasWithState`."""
    before: Any = state.get if state.exists else None
    if state.hasTimedOut:
        state.remove()
        yield framed(key[0], [before])
        return
    ended, session = advanced(before, [time for frame in frames for time in milliseconds(frame)])
    assert session is not None
    state.update(session)
    state.setTimeoutTimestamp(session[1] + GAP_MS)
    yield framed(key[0], ended)


def milliseconds(frame: pd.DataFrame) -> list[int]:
    """Its times, which Spark hands over without a zone, in the session's, which is UTC."""
    return [round(time.tz_localize("UTC").timestamp() * 1000) for time in frame["ts"]]


def framed(key: str, sessions: list[Session]) -> pd.DataFrame:
    return pd.DataFrame([(key, *session) for session in sessions], columns=["key", "first", "last", "n"])


def by_rows(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(RowSessions(), OUTPUT, "Append", "EventTime")


def by_pandas(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithStateInPandas(PandasSessions(), OUTPUT, "Append", "EventTime")


def by_group_state(rows: DataFrame) -> DataFrame:
    timeout = GroupStateTimeout.EventTimeTimeout
    return rows.groupBy("key").applyInPandasWithState(with_group_state, OUTPUT, STATE, "append", timeout)


def in_one_go(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The sessions of all rows."""
    times: dict[str, list[int]] = {}
    for row in rows:
        times.setdefault(row["key"], []).append(round(row["ts"].timestamp() * 1000))
    found = []
    for key, of_key in times.items():
        ended, last = advanced(None, of_key)
        found += [(key, *session) for session in [*ended, last] if session]
    return sorted(found)


def put_out(run: Fleet) -> list[tuple[Any, ...]]:
    return sorted((row["key"], row["first"], row["last"], row["n"]) for row in run.rows("sessions"))


@pytest.mark.long  # one timer of each kind is below
@pytest.mark.parametrize("form", [by_rows, by_pandas, by_group_state])
def test_timers_fire_once_for_each_session_through_hand_overs_and_a_drain(
    fleet: MakeFleet, form: Callable[[DataFrame], DataFrame]
) -> None:
    """State and timers are restored from the log alone; the drain fires the timers that are left."""
    application = Application()

    @application.stage(form.__name__, output="sessions")
    def sessions(rows: DataFrame) -> DataFrame:
        return form(rows.withWatermark("ts", "10 minutes"))

    run = fleet(application, STREAMS % form.__name__)
    rows = [
        {"key": f"{number * number % 23 % 7}", "ts": START + timedelta(minutes=9 * number)} for number in range(400)
    ]
    writer = run.writer(form.__name__, 2, flush_rows=40)
    writer.write(pa.Table.from_pylist(rows[:200], schema=SCHEMA), "key")
    writer.flush()
    run.start("sessions-0", "sessions-1")
    run.until(lambda: all(task.report.batch >= 2 for task in run.tasks.values()))
    run.move("sessions-0")
    run.until_all_is_read(form.__name__)
    run.move("sessions-1")
    writer.write(pa.Table.from_pylist(rows[200:], schema=SCHEMA), "key")
    writer.close()
    run.until(lambda: len(put_out(run)) > len(in_one_go(rows)) // 2)  # timers fire while it runs, too
    run.move("sessions-0")
    run.until_all_is_read(form.__name__)
    run.flush(run.freeze())
    run.leave_between_two_steps("sessions-0")
    run.move("sessions-0")
    run.until(run.is_drained)

    assert put_out(run) == in_one_go(rows)
    assert run.late == 0


class NumberSessions(RowSessions):
    """Their times are numbers, so that no column says that they are an event time."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        for session in self.advance(row.ms for row in rows):
            yield Row(key=key[0], first=session[0], last=session[1], n=session[2])


def test_a_timer_at_the_frontier_waits_for_the_rows_of_that_time(fleet: MakeFleet) -> None:
    """A timer fires at the watermark itself, and a row at the frontier is not late."""
    application = Application()

    @application.stage("events", output="sessions")
    def sessions(rows: DataFrame) -> DataFrame:
        timed = rows.withWatermark("ts", "0 seconds").select("key", F.unix_millis("ts").alias("ms"))
        return timed.groupBy("key").transformWithState(NumberSessions(), OUTPUT, "Append", "EventTime")

    run = fleet(application, (STREAMS % "events").replace("partitions = 2", "partitions = 1"))
    turns = (("a", 0), ("b", 1), ("b", 1), ("a", 1))  # the third announces that all before the second is there
    rows = [{"key": key, "ts": START + number * timedelta(milliseconds=GAP_MS)} for key, number in turns]
    writer = run.writer("events", 1, flush_rows=40)
    run.start("sessions-0")
    task = run.tasks["sessions-0"]
    for row in rows[:3]:
        writer.write(pa.Table.from_pylist([row], schema=SCHEMA), "key")
        writer.flush()
        run.until_all_is_read("events")
    batch = task.report.batch
    run.until(lambda: task.report.batch > batch)  # at the new watermark
    writer.write(pa.Table.from_pylist(rows[3:], schema=SCHEMA), "key")
    writer.close()
    run.until_all_is_read("events")
    run.flush(run.freeze())
    run.until(run.is_drained)

    assert put_out(run) == in_one_go(rows)


class EndedSessions(RowSessions):
    """Their rows have an event time of their own: the end of the session."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        yield from map(ended, super().handleInputRows(key, rows, timerValues))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        yield from map(ended, super().handleExpiredTimer(key, timerValues, expiredTimerInfo))


def ended(session: Row) -> Row:
    return Row(key=session.key, ended=datetime.fromtimestamp((session.last + GAP_MS) / 1000, UTC), n=session.n)


@pytest.mark.long
def test_an_event_time_that_a_state_machine_gives_its_rows(fleet: MakeFleet) -> None:
    """An aggregation behind it in the same stage goes by that time, also in the flush of a drain."""
    application = Application()

    @application.stage("given", output="sessions", tasks=1)
    def sessions(rows: DataFrame) -> DataFrame:
        groups = rows.withWatermark("ts", "10 minutes").groupBy("key")
        found = groups.transformWithState(
            EndedSessions(), "key string, ended timestamp, n long", "Append", "EventTime", eventTimeColumnName="ended"
        )
        return found.groupBy(F.window("ended", "1 day").alias("day"), "key").agg(F.sum("n").alias("n"))

    run = fleet(application, STREAMS % "given")
    rows = [
        {"key": f"{number * number % 23 % 7}", "ts": START + timedelta(minutes=9 * number)} for number in range(400)
    ]
    writer = run.writer("given", 2, flush_rows=40)
    writer.write(pa.Table.from_pylist(rows, schema=SCHEMA), "key")
    writer.close()
    run.start("sessions-0")
    run.until_all_is_read("given")
    run.flush(run.freeze())
    run.until(run.is_drained)

    expected: dict[tuple[str, datetime], int] = {}
    for key, _, last, n in in_one_go(rows):
        day = datetime.fromtimestamp((last + GAP_MS) / 1000, UTC).replace(hour=0, minute=0)
        expected[key, day] = expected.get((key, day), 0) + n
    found: list[Any] = run.rows("sessions")
    assert sorted(((row["key"], row["day"]["start"]), row["n"]) for row in found) == sorted(expected.items())
    assert run.late == 0


class Waiting(StatefulProcessor):
    """Each key waits for as long as its row says, by the clock."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "n int")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        for row in rows:
            self._seen.update((1,))
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + row["wait"])
            yield Row(key=key[0], what="set")

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        assert self._seen.exists()
        assert datetime.fromtimestamp(timerValues.getCurrentProcessingTimeInMs() / 1000, UTC).year > 1970
        self._seen.clear()
        yield Row(key=key[0], what="fired")

    def close(self) -> None: ...


def wait_in_state(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The same with applyInPandasWithState."""
    if state.hasTimedOut:
        assert pd.to_datetime(state.getCurrentProcessingTimeMs(), unit="ms").year > 1970
        state.remove()
        yield pd.DataFrame({"key": key, "what": ["fired"]})
        return
    for frame in frames:
        state.update((1,))
        state.setTimeoutDuration(int(frame["wait"].iloc[0]))
        yield pd.DataFrame({"key": key, "what": ["set"]})


def by_waiting(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(Waiting(), "key string, what string", "append", "ProcessingTime")


def by_waiting_state(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").applyInPandasWithState(
        wait_in_state, "key string, what string", "n int", "append", GroupStateTimeout.ProcessingTimeTimeout
    )


@pytest.mark.parametrize("function", [by_waiting, pytest.param(by_waiting_state, marks=pytest.mark.long)])
def test_timers_by_the_clock_fire_once_over_deaths_moves_and_a_drain(
    fleet: MakeFleet, function: Callable[[DataFrame], DataFrame]
) -> None:
    """Some fire in a batch with later rows, the others in the last one, which is made again after a death in it."""
    application = Application()
    application.stage("waits", output="waited")(function)
    run = fleet(
        application,
        '[streams.waits]\npartitions = 1\nkey = "key"\nschema = "key string, wait long"\n[task]\ncommit.ms = 0\n',
    )
    name = f"{function.__name__}-0"
    assert [each for each in run.pipeline.plan.warnings if "processing time" in each] != []
    total = 0

    def put(count: int, wait: int) -> None:
        nonlocal total
        writer = run.writer("waits", 1, flush_rows=10_000, event_time=None)
        keys = [f"k{number}" for number in range(total, total + count)]
        writer.write(pa.table({"key": keys, "wait": pa.array([wait] * count, pa.int64())}))
        writer.close()
        total += count

    def seen() -> Counter[tuple[Any, ...]]:
        return Counter((row["what"], row["key"]) for row in (run.rows("waited") if total else []))

    def dies() -> None:
        task = run.tasks[name]
        assert task._batches is not None and task._writer is not None
        task._batches.closed.set()
        task._writer.close()
        run.release(name)
        run.start(name, first=False)

    put(5, 1)
    run.start(name)
    run.until_all_is_read("waits")
    put(5, 3_600_000)
    run.until(lambda: len(seen()) == 15)
    dies()
    put(5, 1)
    run.until_all_is_read("waits")
    run.move(name)
    put(5, 3_600_000)
    run.until(lambda: len(seen()) == 30)
    ends, first, fired = run.freeze(), run.tasks[name], threading.Event()
    assert first._writer is not None
    append = first._writer.append

    def lost(batch: int, **fields: Any) -> Any:
        if fields["kind"] is not Kind.DRAINED:
            return append(batch, **fields)
        fired.set()
        raise StorageUnavailable("It is gone.")

    first._writer.append = lost  # type: ignore[method-assign]
    run.flush(ends)
    run.until(fired.is_set)
    dies()
    run.until(run.is_drained)
    assert seen() == {(what, f"k{number}"): 1 for what in ("set", "fired") for number in range(20)}
