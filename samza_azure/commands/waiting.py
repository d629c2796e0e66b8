"""Waiting for a request: until a run is drained, a drain is cancelled, or a group has left."""

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from samza_azure.commands.ask import Asked, final_since
from samza_azure.commands.backlog import ends_of, rows_before
from samza_azure.commands.reach import PATIENCE_S, POLL_S, Looks, answered, look
from samza_azure.commands.show import DrainDisplay, drain_in_words
from samza_azure.commands.terminal import say
from samza_azure.config import Config
from samza_azure.errors import ConfigError, JobFailed, SamzaAzureError, StorageUnavailable, TimedOut
from samza_azure.group.age import Age, observed
from samza_azure.group.control import Control, Member, RunPhase
from samza_azure.group.requests import ALREADY_DRAINING, CANCELLED
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.timing import ROWS_PER_S
from samza_azure.host.status import document
from samza_azure.logs.names import source_log
from samza_azure.logs.position import Position
from samza_azure.messages import DrainPhase
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs
from samza_azure.storage.log import LogReader

#: A drain takes seconds, so it is polled more often than other things.
LOOK_S = 0.2
#: How many unfinished tasks are named after a timeout.
NAMED = 20


def wait_for_drain(config: Config, account: Account, asked: Asked, timeout: float | None) -> str:
    """Show the progress of a drain until it is over. Raise `TimedOut`, `JobFailed` or `ConfigError` if it does not end,
    `SamzaAzureError` if it is cancelled.
    """
    begun, run_id, drains = time.monotonic(), asked.run_id, asked.already == ALREADY_DRAINING
    ages, said, left, estimate = Ages(config), "", RowsLeft(account.blobs()), Estimate()
    hint, where, pause = "", "The account has not answered.", LOOK_S
    with DrainDisplay(sys.stderr) as display, Looks(account) as looks:
        while True:
            try:
                control, rows = looks.look()
                answer = "" if drains else looks.answered(asked)
            except StorageUnavailable:
                hint = "The account does not answer. The drain goes on when it does."
            else:
                pause = max(LOOK_S, len(rows) / ROWS_PER_S)
                shown, silent_rows = document(config.app.name, control, rows), ages.silent(rows)
                if control is not None:
                    run_id = run_id or (control.run_id if control.phase is not RunPhase.NONE else "")
                    rows_left = left.of(shown)
                    where = where_all_are(shown, rows_left)
                    display.update(shown, rows_left, estimate.of(rows_left, time.monotonic()))
                    if is_over(control, run_id, rows, silent_rows):
                        took = time.monotonic() - begun
                        later = (
                            [] if control.cleaned else ["Its logs are not deleted yet: the next start deletes them."]
                        )
                        return "\n".join([f"Run {run_id} is drained after {took:.1f} s.", *_how(shown, run_id), *later])
                    is_current = control.run_id == run_id
                    if is_current and control.failure is not None and has_failed(control, rows, silent_rows):
                        raise JobFailed(
                            f"Run {run_id} failed in task {control.failure.task}: {control.failure.message}"
                        )
                    before, drains = drains, control.drain is not None and is_current
                    if (before and not drains and is_current) or (not drains and answer == CANCELLED):
                        stops = control.stop is not None
                        how = " by a stop. The next start resumes the run." if stops else ". The run goes on."
                        raise SamzaAzureError(f"The drain of run {run_id} was cancelled{how}")
                    drains = (
                        drains or answer == ALREADY_DRAINING
                    )  # it began after this look, or is over: the next tells
                if why := nobody_is_left(rows):
                    raise ConfigError(f"{why} The request stays: the drain begins when a fitting processor starts.")
                hint = _waits_for(control, run_id, rows, silent_rows)
            if hint and hint != said:
                display.say(hint)
            said = hint
            if timeout is not None and time.monotonic() - begun > timeout:
                raise TimedOut(f"The drain is not over after {timeout:g} s. It goes on, and nothing is lost. {where}")
            time.sleep(pause)


def _waits_for(
    control: Control | None, run_id: str, rows: Sequence[ProcessorRow], silent: Sequence[ProcessorRow]
) -> str:
    """What a drain waits for that only people can bring about; empty if it goes on by itself."""
    if not any(row.alive for row in rows):
        has_begun = control is not None and control.run_id == run_id and control.drain is not None
        return f"No processor runs. The drain {'goes on' if has_begun else 'begins'} when one starts."
    if all(row in silent for row in rows if row.alive):
        return "No processor has sent a heartbeat lately. The drain goes on when one starts."
    if control is not None and run_id != control.run_id and has_failed(control, rows, silent):
        return f"Run {control.run_id} failed. The drain of run {run_id} begins when that run is resumed and has ended."
    return ""


def wait_until_read(config: Config, account: Account, timeout: float | None) -> None:
    """Wait until the run has read all rows that its sources hold now; rows that are added meanwhile do not count.

    Raise `ConfigError` if the run is over or nobody is left to read, `TimedOut` if it takes too long.
    """
    begun, blobs, said, ages = time.monotonic(), account.blobs(), "", Ages(config)
    ends: dict[str, Position] | None = None
    while True:
        control, rows = look(config, account)
        shown = document(config.app.name, control, rows)
        silent_rows, now = ages.silent(rows), ""
        has_ended = control is not None and has_failed(control, rows, silent_rows)
        if has_ended or shown["phase"] == "DRAINED":
            raise ConfigError(f"Run {shown['run_id']} is {shown['phase']}: it no longer reads.")
        if why := nobody_is_left(rows):
            raise ConfigError(f"{why} No drain was requested: nobody reads the rows that are left.")
        if shown["phase"] in ("RUNNING", "DRAINING"):
            ends = ends_of(blobs, shown["read"]) if ends is None else ends
            if (left := rows_before(blobs, shown, ends)) == 0:
                return
            now = f"{left} rows left to read."
            if shown["phase"] == "DRAINING":
                now += f" Run {shown['run_id']} drains already: it may end before it has read them."
        if not any(row.alive for row in rows):
            now = "No processor runs. The rows are read when one starts."
        elif all(row in silent_rows for row in rows if row.alive):
            now = "No processor has sent a heartbeat lately. The rows are read when one starts."
        elif shown["phase"] == "STARTING":
            now = "No run is in progress yet. Waiting for it to begin."
        elif shown["phase"] == "FAILED":
            now = f"Run {shown['run_id']} failed. Waiting for a processor to resume it."
        if now != said:
            say(now)
            said = now
        if timeout is not None and time.monotonic() - begun > timeout:
            raise TimedOut(f"Not all rows are read after {timeout:g} s. No drain was requested; the run goes on.")
        time.sleep(POLL_S)


def wait_for_cancel(config: Config, account: Account, asked: Asked, anybody: bool, timeout: float | None) -> str:
    """Wait for the answer to a cancellation. Raise `ConfigError` if it came too late, `TimedOut` without an answer."""
    run = f"run {asked.run_id}" if asked.run_id else "the next run"
    if asked.already:
        return f"{run[0].upper()}{run[1:]} is not draining."
    if not anybody:
        return f"No processor runs. The next one to start cancels the drain of {run} before it begins."
    until = time.monotonic() + (PATIENCE_S if timeout is None else timeout)
    while not (said := answered(account, asked)):
        if time.monotonic() > until:
            raise TimedOut("No leader has answered. The request stays: the next one obeys it, unless the run flushes.")
        time.sleep(POLL_S)
    if said != CANCELLED:
        control, _ = look(config, account)
        since = final_since(control, asked.run_id) if control is not None else ""
        raise ConfigError(f"The drain of {run} cannot be cancelled: {said}{since}.")
    return f"The drain of {run} is cancelled; the run goes on."


def wait_for_stop(config: Config, account: Account, asked: Asked, lives: set[str]) -> str:
    """Wait until each of the incarnations has left, is dead, or has been silent for so long that it must be."""
    begun, ages = time.monotonic(), Ages(config)
    while True:
        _, rows = look(config, account)
        silent_rows = ages.silent(rows)
        left = [row for row in rows if row.alive and row.incarnation in lives]
        if all(row in silent_rows for row in left):
            run = f"Run {asked.run_id}" if asked.run_id else "The group"
            silent = f" {', '.join(row.processor for row in left)} did not answer." if left else ""
            return f"{run} is stopped after {time.monotonic() - begun:.1f} s.{silent}"
        if (said := answered(account, asked)).startswith("refused"):
            raise ConfigError(f"Run {asked.run_id} cannot be stopped: {said}.")
        time.sleep(POLL_S)


def is_over(control: Control, run_id: str, rows: Sequence[ProcessorRow], silent: Sequence[ProcessorRow]) -> bool:
    """Whether a drain is over: the run is drained, and nothing is left to delete, or nobody to delete it.

    `silent` are those of `rows` that seem to be dead. When all others have left, nobody marks the last one as dead.
    """
    is_drained = bool(run_id) and run_id in control.past
    return is_drained and (control.cleaned or all(row in silent for row in rows if row.alive))


def has_failed(control: Control, rows: Sequence[ProcessorRow], silent: Sequence[ProcessorRow]) -> bool:
    """Whether the run is FAILED, and no live processor can resume it: one that has not taken part in it yet does.

    `silent` are those of `rows` that seem to be dead. Without a fingerprint a processor still analyses its pipeline.
    """
    return control.phase is RunPhase.FAILED and not any(
        row.alive
        and row not in silent
        and not row.too_old_for
        and row.fingerprint in ("", control.fingerprint)
        and Member(row.processor, row.incarnation) not in control.members
        for row in rows
    )


def where_all_are(shown: dict[str, Any], left: Mapping[str, int]) -> str:
    """The phase, owner and unread rows of each unfinished task, for the message after a timeout."""
    if not shown["tasks"]:
        return "No task has started."
    done = {DrainPhase.COMMITTED, DrainPhase.DRAINED}
    waiting = [
        f"{task['name']} {task['phase']}"
        + (f" on {task['owner']}" if task["owner"] else " without an owner")
        + (f", {left[task['name']]} rows to read" if left.get(task["name"]) else "")
        for task in shown["tasks"]
        if task["phase"] not in done
    ]
    more = f"; and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
    counted = f"{len(shown['tasks']) - len(waiting)} of {len(shown['tasks'])} tasks are done"
    return f"{counted}. " + "; ".join(waiting[:NAMED]) + more + ("." if waiting else "")


def _how(shown: dict[str, Any], run_id: str) -> list[str]:
    """A line on how the drain of a run went, if the control blob still has it."""
    drains = [*shown["drains"], *([shown["drain"]] if shown["drain"] else [])]
    return [drain_in_words(each) for each in drains if each["run_id"] == run_id][-1:]


def nobody_is_left(rows: Sequence[ProcessorRow]) -> str:
    """Why no processor is left, if all have ended and some of them with an error; else empty.

    A row does not say when its processor ended. So if several ended with an error, the first row stands for them.
    """
    gone = [(row.processor, *row.failure) for row in rows if row.failure is not None]
    if any(row.alive for row in rows) or not gone:
        return ""
    who, code, why = gone[0]
    if len(gone) == 1:
        return f"No processor is alive. {who} ended with {code}: {why}"
    return f"No processor is alive. {len(gone)} ended with an error, among them {who} with {code}: {why}"


class Ages:
    """The silence of processors, measured here: when none is alive, no leader marks them as dead."""

    def __init__(self, config: Config) -> None:
        self._timeout_s = config.coordinator.timing.heartbeat_timeout_s
        self._ages: dict[str, Age] = {}

    def silent(self, rows: Sequence[ProcessorRow]) -> list[ProcessorRow]:
        """The rows that say they are alive, but have been silent for longer than the heartbeat timeout."""
        now = time.monotonic()
        self._ages = {row.incarnation: observed(self._ages.get(row.incarnation), row.etag, now, POLL_S) for row in rows}
        return [row for row in rows if row.alive and self._ages[row.incarnation].silent(self._timeout_s)]


class Estimate:
    """Estimates the seconds until the rows that are left are read, by the pace so far."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._known: frozenset[str] = frozenset()

    def of(self, left: Mapping[str, int], now: float) -> float | None:
        """The estimate for these rows, by task, at `now` seconds of any clock; None while nothing is left, or has been
        read. It begins anew when what a task has left is no longer known: that was not read.
        """
        rows, known, self._known = sum(left.values()), self._known, frozenset(left)
        if rows and (self._first is None or rows > self._first[1] or not known <= left.keys()):
            self._first = now, rows
        if not rows or self._first is None or rows == self._first[1]:
            return None
        begun, most = self._first
        return rows * (now - begun) / (most - rows)


class RowsLeft:
    """How many rows tasks still have to process before they flush, as far as these rows exist.

    Rows of source streams are counted, once the ends are decided. Rows between stages are estimated from what the tasks
    report. Rows that a stage has yet to put out are unknown.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._known: dict[tuple[str, Position, Position], int] = {}

    def of(self, shown: dict[str, Any]) -> dict[str, int]:
        """The rows left, by task; nothing for a task without anything to read that is known."""
        drain = shown["drain"]
        if drain is None:
            return {}
        ends: dict[str, list[int]] = drain["ends"] if drain["step"] == "FLUSH" else {}
        between = {
            task["name"]: rows
            for task in shown["tasks"]
            if (rows := rows_between_stages(task, shown["read"])) is not None
        }
        sources = {
            task["name"]: sum(
                self._between(partition, (at[0], at[1]), (ends[partition][0], ends[partition][1]))
                for partition, at in task["read"].items()
                if partition in ends
            )
            for task in shown["tasks"]
            if ends and task["read"]
        }
        return {name: sources.get(name, 0) + between.get(name, 0) for name in {**sources, **between}}

    def _between(self, partition: str, start: Position, end: Position) -> int:
        place = (partition, start, end)
        if place not in self._known:
            try:
                scans = LogReader(self._blobs, source_log(partition)).scans(start, end)
                self._known[place] = sum(found.rows for found in scans)
            except SamzaAzureError:
                return 0  # it is only displayed
        return self._known[place]


def rows_between_stages(task: Mapping[str, Any], sources: Collection[str]) -> int | None:
    """About how many rows of other stages' logs wait for a task; None if it has not read any yet, or reads none.

    The bytes are those that the task reports, and the mean size of a row is that of the rows it has read in this
    attempt. `sources` are the partitions of the source streams.
    """
    progress: dict[str, Any] = task["progress"] or {}
    streams = {partition.rpartition("/")[0] for partition in sources}
    sizes: list[int] = [size for stream, size in progress.get("behind", {}).items() if stream not in streams]
    if not sizes or not progress["size"]:
        return None
    if task["phase"] in (DrainPhase.COMMITTED, DrainPhase.DRAINED):
        return 0  # its last figures may be from before its last batch
    rows: int = round(sum(sizes) * progress["rows"] / progress["size"])
    return rows
