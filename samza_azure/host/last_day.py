"""The record of the last day, which the leader keeps for people: a point of the fleet's figures a minute, and failures.

It is one row of the table, written by its ETag, at most once in `EVERY_S` and when a leader ends that has seen failures
since, and read by a page when it opens. No decision depends on it. A row that is lost, foreign or damaged costs the
history alone, and so does an account that does not answer.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from samza_azure.errors import SamzaAzureError
from samza_azure.foreign import parsed
from samza_azure.group.control import Control
from samza_azure.group.reports import report_of
from samza_azure.group.rows import RECORD, ProcessorRow, joined, split_up
from samza_azure.group.view import View
from samza_azure.host.keeping_up import Point, reading
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.machine.clock import boot_time, wall_ms
from samza_azure.outcomes import Refused
from samza_azure.storage.interface import CALL_S, Rows

log = logging.getLogger(__name__)

#: The least seconds between two points, and so between two writes; and how far back the points go.
EVERY_S, DAY_MS = 60.0, 24 * 3600 * 1000
#: How often the leader looks for failures in what it knows. A failure stays there until its task appends again.
LOOK_S = 5.0
#: The longest that the last write of a leader that ends may take.
END_S = 2.0
#: How many failures are kept, the latest of them, and in characters the most of a message and of a trace.
FAILURES, MESSAGE_LIMIT, TRACE_LIMIT = 40, 1_000, 4_000
#: The columns of the row; what does not fit loses its oldest failures.
COLUMNS = 8
#: No clock is so far ahead of a reader's.
AHEAD_MS = 10 * 60 * 1000
_TEXTS = ("task", "processor", "host", "release", "code", "message", "trace")


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure of a task, or of a processor if `task` is empty: when first and last, how often, where and why."""

    task: str
    processor: str
    host: str
    release: str
    code: str
    message: str
    trace: str
    first_ms: int
    last_ms: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class LastDay:
    """Oldest first."""

    points: tuple[Point, ...] = ()
    failures: tuple[Failed, ...] = ()


def encoded(record: LastDay) -> dict[str, Any]:
    """The columns of the row."""
    text = json.dumps({"points": record.points, "failures": [asdict(each) for each in record.failures]})
    found = split_up(RECORD, text, COLUMNS)
    return found if found is not None else encoded(replace(record, failures=record.failures[1:]))


def decoded(values: Mapping[str, Any], now_ms: int) -> LastDay:
    """The record of a row, as far as it makes sense."""
    try:
        fields = parsed(joined(RECORD, values))
        points = [read for each in fields["points"] if (read := _point(each, now_ms)) is not None]
        failures = [failed for each in fields["failures"] if (failed := _failed(each, now_ms)) is not None]
    except (ValueError, KeyError, TypeError):
        return LastDay()
    return LastDay(tuple(sorted(points, key=lambda each: each[0])[-_POINTS:]), tuple(failures[-FAILURES:]))


_POINTS = DAY_MS // round(EVERY_S * 1000)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= float(str(value)) <= 1 << 53


def _point(point: Any, now_ms: int) -> Point | None:
    if not isinstance(point, list) or len(point) != 4:
        return None
    at_ms, *figures = point
    if type(at_ms) is not int or not now_ms - DAY_MS <= at_ms <= now_ms + AHEAD_MS:
        return None
    if not all(each is None or _is_number(each) for each in figures):
        return None
    return at_ms, *figures


def _failed(fields: Any, now_ms: int) -> Failed | None:
    if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in _TEXTS):
        return None
    numbers = [fields.get(name) for name in ("first_ms", "last_ms", "times")]
    first_ms, last_ms, times = (each if type(each) is int and 0 <= each <= 1 << 53 else -1 for each in numbers)
    if min(first_ms, last_ms, times) < 0 or last_ms > now_ms + AHEAD_MS:
        return None
    texts = {name: fields[name][: TRACE_LIMIT if name == "trace" else MESSAGE_LIMIT] for name in _TEXTS}
    return Failed(**texts, first_ms=first_ms, last_ms=last_ms, times=times)


@dataclass(slots=True)
class Failures:
    """The failures that a leader has seen since it leads, so that each try counts once.

    At its first look it finds those in the rows that its predecessor has counted; all that come later are new.
    """

    has_looked: bool = False
    seen: dict[str, tuple[object, ...]] = field(default_factory=dict)  # task or processor -> the last failure's marks
    counts: dict[str, int] = field(default_factory=dict)  # task -> tries that had failed in a row by then

    def noted(self, record: LastDay, view: View, now_ms: int) -> LastDay:
        """The record with what has failed since the last look."""
        control = view.control
        if not isinstance(control, Control) or (view.leads and not view.has_looked):
            return record
        is_first, self.has_looked = not self.has_looked, True
        rows: Mapping[str, ProcessorRow] = view.others.members
        if view.own.written is not None:
            rows = {**rows, view.me: view.own.written}
        for task, each in control.tasks.items():
            report = report_of(task, each.owner, rows)
            if report is None or each.owner is None:
                continue  # it moves; its next owner goes on counting the tries in a row
            if report.error is None:
                if not report.failures:
                    self.counts.pop(task, None)
                continue
            marks = (each.owner.incarnation, report.generation, report.attempt, report.failures, report.error.message)
            if self.seen.get(task) == marks:
                continue
            # One failure is seen twice: while it is over, and while the next try of it runs. If the run has failed, or
            # the processor that gave the task up is forgiven, the tries there count no longer as tries in a row.
            before, is_same = self.counts.get(task, 0), self.seen.get(task, ())[:3] == marks[:3]
            self.seen[task], self.counts[task] = marks, report.failures
            more = report.failures - before if before else max(report.failures, 1)
            if more < 0:
                more = 0 if is_same else 1
            row = rows[each.owner.processor]
            if more and not (is_first and _is_known(record, row, task, report.error.message)):
                record = _added(record, row, task, report.error.message, report.error.traceback, now_ms, more)
        for row in rows.values():
            if row.failure is not None and self.seen.get(row.incarnation) != (row.ending,):
                self.seen[row.incarnation] = (row.ending,)
                if not (is_first and _is_known(record, row, "", row.ending)):
                    record = _added(record, row, "", row.ending, "", now_ms, 1)
        return record


def _is_known(record: LastDay, row: ProcessorRow, task: str, message: str) -> bool:
    """Whether the record has a failure of this kind in this place."""
    known = {(each.task, each.processor, each.message) for each in record.failures}
    return (task, row.processor, message[:MESSAGE_LIMIT]) in known


def _added(record: LastDay, row: ProcessorRow, task: str, message: str, trace: str, now_ms: int, times: int) -> LastDay:
    """The record with a failure more, together with an earlier one of the same kind in the same place."""
    there = row.machine
    fresh = Failed(
        task,
        row.processor,
        there.host,
        there.release,
        there.code,
        message[:MESSAGE_LIMIT],
        trace[-TRACE_LIMIT:],
        now_ms,
        now_ms,
        times,
    )
    others = []
    for each in record.failures:
        if (each.task, each.processor, each.code, each.message) == (task, row.processor, there.code, fresh.message):
            fresh = replace(fresh, first_ms=each.first_ms, times=each.times + times)
        else:
            others.append(each)
    return replace(record, failures=(*others, fresh)[-FAILURES:])


def rows_read(view: View) -> dict[str, tuple[int, int, int]]:
    """How many rows each task has read in its attempt: its generation, the attempt and the number."""
    tasks = view.control.tasks.items() if isinstance(view.control, Control) else ()
    reports = ((name, report_of(name, each.owner, view.others.members)) for name, each in tasks)
    return {
        name: (report.generation, report.attempt, report.progress.rows)
        for name, report in reports
        if report is not None and report.progress is not None
    }


def _read_since(before: Mapping[str, tuple[int, int, int]], now: Mapping[str, tuple[int, int, int]]) -> int:
    """The rows that tasks have read between two looks. What an attempt read that ended meanwhile is not known."""
    found = 0
    for name, (*attempt, rows) in now.items():
        *former, less = before.get(name, (0, 0, 0))
        found += max(0, rows - less) if former == attempt else rows
    return found


async def read_record(table: Rows, now_ms: int) -> tuple[LastDay, str | None]:
    """The record, empty if there is nothing that makes sense, and the ETag of its row if there is one."""
    row = await table.get(RECORD, RECORD, timeout=CALL_S)
    return (decoded(row.values, now_ms), row.etag) if row is not None else (LastDay(), None)


class Recorder:
    """Keeps the record while its processor leads."""

    def __init__(self, view: View, table: Rows) -> None:
        self._view, self._table, self._rate_limit = view, table, LogRateLimit()
        self._record: LastDay | None = None  # as this leadership has read it, and added to it
        self._failures = Failures()
        self._written: tuple[Failed, ...] = ()  # the failures that the row has
        self._etag: str | None = None
        self._called_at = -1e9
        self._rows_read: dict[str, tuple[int, int, int]] = {}  # when it was called for the last time

    async def work(self) -> None:
        """Keep it, until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(boot_time(), wall_ms())
            except SamzaAzureError as error:
                if self._rate_limit.is_due("record"):
                    log.info("The record of the last day, for the page, has a gap: %s", error)
            except Exception:
                log.exception("The record of the last day, for the page, has a gap.")

    async def look(self, now: float, now_ms: int) -> None:
        """Note what has failed; once in `EVERY_S` also the figures, and write both."""
        if not self._view.leads:
            self._record, self._failures = None, Failures()
            return
        is_due = now >= self._called_at + EVERY_S
        if self._record is None:
            if not is_due:
                return
            self._called_at, self._rows_read = now, rows_read(self._view)
            self._record, self._etag = await read_record(self._table, now_ms)
            self._written = self._record.failures
            return
        self._record = self._failures.noted(self._record, self._view, now_ms)
        if not is_due:
            return
        before, seconds = self._rows_read, now - self._called_at
        self._called_at, self._rows_read = now, rows_read(self._view)
        if (point := reading(self._view, now_ms)) is not None:
            # Rows come in bursts: the pace of this moment would be that of most of the minute, or of none of it.
            point = (*point[:3], round(_read_since(before, self._rows_read) / seconds, 1))
            recent = [each for each in self._record.points if each[0] > now_ms - DAY_MS]
            self._record = replace(self._record, points=(*recent, point)[-_POINTS:])
        await self._write(self._record)

    async def end(self, now_ms: int) -> None:
        """Write at once what has failed since the last write: it may be why the run has failed, and this ends."""
        if self._record is None:
            return
        try:
            record = self._failures.noted(self._record, self._view, now_ms)
            if record.failures != self._written:
                await asyncio.wait_for(self._write_last(record, now_ms), END_S)
        except (SamzaAzureError, TimeoutError) as error:
            log.info("The record of the last day, for the page, lacks the last failures: %s", error)
        except Exception:
            log.exception("The record of the last day, for the page, lacks the last failures.")

    async def _write_last(self, record: LastDay, now_ms: int) -> None:
        """Write the record. If the row has changed, `work` may have written it: the call was cancelled with it."""
        await self._write(record)
        if self._record is None:
            found, self._etag = await read_record(self._table, now_ms)
            is_ours = found.points == record.points  # each write has a point with the time of its leader
            await self._write(record if is_ours else Failures().noted(found, self._view, now_ms))

    async def _write(self, record: LastDay) -> None:
        columns, etag = encoded(record), self._etag
        if etag is None:
            answer = await self._table.insert(RECORD, RECORD, columns, timeout=CALL_S)
        else:
            answer = await self._table.replace(RECORD, RECORD, columns, etag=etag, timeout=CALL_S)
        if isinstance(answer, Refused):
            self._record = None  # another leader has written since, or our last answer was lost: read it again
        else:
            self._etag, self._written = answer, record.failures
