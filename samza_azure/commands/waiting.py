"""Waiting for a request: until a run is drained, a drain is cancelled, or a group has left."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from samza_azure.commands.backlog import ends_of, rows_before
from samza_azure.commands.connect import PATIENCE_S, POLL_S, Looks, answered, look
from samza_azure.commands.requests import Asked, final_since
from samza_azure.commands.show import drain_in_words
from samza_azure.commands.show_drain import DrainDisplay
from samza_azure.commands.terminal import say
from samza_azure.commands.wait_limit import WaitLimit
from samza_azure.config import Config
from samza_azure.errors import ConfigError, JobFailed, SamzaAzureError, StorageUnavailable, TimedOut
from samza_azure.group.age import Age, observed
from samza_azure.group.control import Control, Member, RunPhase
from samza_azure.group.requests import ACCEPTED, ALREADY_DRAINED, ALREADY_DRAINING, CANCELLED
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.timing import ROWS_PER_S
from samza_azure.host.status import SeenSilent, document, held_up
from samza_azure.logs.position import Position
from samza_azure.messages import DrainPhase
from samza_azure.storage.connection import Account

#: A drain takes seconds, so it is polled more often than other things.
LOOK_S = 0.2
#: How many unfinished tasks are named after a timeout.
NAMED = 20


def wait_for_drain(config: Config, account: Account, asked: Asked, limit: WaitLimit, *, waited_s: float = 0.0) -> str:
    """Show the progress of a drain until it is over. Raise `TimedOut`, `JobFailed` or `ConfigError` if it does not end,
    `SamzaAzureError` if it is cancelled. `waited_s`: how long the command had waited before its request.
    """
    watch, said = DrainWatch(config, asked), ""
    with DrainDisplay(sys.stderr) as display, Looks(account) as looks:
        while True:
            try:
                control, rows = looks.look()
                answer = looks.answered(asked) if watch.awaits_answer else ""
            except StorageUnavailable:
                watch.missed()
            else:
                watch.saw(control, rows)
                if watch.shown["tasks"]:
                    display.update(watch.shown, watch.rows_left, watch.seconds_left)
                if end := watch.end_of(control, rows, answer, limit.passed_s - waited_s):
                    return end
            if watch.hint and watch.hint != said:
                display.say(watch.hint)
            said = watch.hint
            if limit.is_over:
                raise TimedOut(f"The drain is not over after {limit.seconds:g} s. {watch.in_short()}")
            time.sleep(watch.pause)


class DrainWatch:
    """What is known of the drain that a command waits for."""

    def __init__(self, config: Config, asked: Asked) -> None:
        self.run_id = asked.run_id
        self.shown: dict[str, Any] = {}  # the last status document
        self.rows_left: dict[str, int] = {}  # by task
        self.seconds_left: float | None = None
        self.hint = ""  # what it waits for that only people can do
        self.pause = LOOK_S
        self._app, self._ages, self._estimate = config.app.name, Ages(config), Estimate()
        self._drains = asked.already == ALREADY_DRAINING
        self._misses, self._nobody = 0, ""
        self._silent: list[ProcessorRow] = []

    @property
    def awaits_answer(self) -> bool:
        """Whether, as far as is known, the leader has not begun the drain yet."""
        return not self._drains

    def missed(self) -> None:
        """Note that the account did not answer. The first time is not shown."""
        self._misses += 1
        if self._misses > 1:
            self.hint = "The account does not answer. The drain goes on when it does."

    def saw(self, control: Control | None, rows: Sequence[ProcessorRow]) -> None:
        """Note what a read of the group has shown."""
        self._misses, self.pause = 0, max(LOOK_S, len(rows) / ROWS_PER_S)
        self._silent = self._ages.silent(rows)
        self.shown = document(self._app, control, rows, silent={row.processor for row in self._silent})
        if control is not None:
            self.run_id = self.run_id or (control.run_id if control.phase is not RunPhase.NONE else "")
        left = {task["name"]: task["rows_to_drain"] for task in self.shown["tasks"]}
        self.rows_left = {name: count for name, count in left.items() if count is not None}
        self.seconds_left = self._estimate.of(self.rows_left, time.monotonic())
        self.hint = _waits_for(control, self.run_id, rows, self._silent) or self._held_up()

    def _held_up(self) -> str:
        """What keeps tasks from draining, if it is a processor's silence, its container or a failure."""
        reasons = held_up(self.shown["tasks"]) if self.shown["phase"] == "DRAINING" else {}
        return " ".join(f"{tasks[0]['name']} and all that wait for the same: {why}" for why, tasks in reasons.items())

    def end_of(self, control: Control | None, rows: Sequence[ProcessorRow], answer: str, took_s: float) -> str:
        """The last message once the drain is over, after `took_s` seconds; empty before. Raise if it ends otherwise."""
        if control is not None:
            if is_over(control, self.run_id, rows, self._silent):
                return self._drained(control, took_s)
            self._look_for_its_end(control, rows, answer)
        # The rows are read after the control blob, so a single read may show the end of a fleet that has drained.
        before, self._nobody = self._nobody, nobody_is_left(rows)
        if self._nobody and self._nobody == before:
            raise ConfigError(f"{self._nobody} The request stays: the drain begins when a fitting processor starts.")
        return ""

    def _drained(self, control: Control, took_s: float) -> str:
        later = [] if control.cleaned else ["Its logs are not deleted yet: the next start deletes them."]
        return "\n".join(
            [f"Run {self.run_id} is drained after {took_s:.1f} s.", *_how(self.shown, self.run_id), *later]
        )

    def _look_for_its_end(self, control: Control, rows: Sequence[ProcessorRow], answer: str) -> None:
        is_current = control.run_id == self.run_id
        if is_current and control.failure is not None and has_failed(control, rows, self._silent):
            raise JobFailed(f"Run {self.run_id} failed in task {control.failure.task}: {control.failure.message}")
        before, self._drains = self._drains, control.drain is not None and is_current
        if (before and not self._drains and is_current) or (not self._drains and answer == CANCELLED):
            how = " by a stop. The next start resumes the run." if control.stop is not None else ". The run goes on."
            raise SamzaAzureError(f"The drain of run {self.run_id} was cancelled{how}")
        # If the answer says that the run drains, the drain began after this read, or is over: the next read shows it.
        self._drains = self._drains or answer in (ACCEPTED, ALREADY_DRAINING)

    def in_short(self) -> str:
        """The state of the drain and what is left, for the message after a timeout."""
        if not self.shown:
            return "The account has not answered."
        if self.awaits_answer:
            return f"No leader has begun it yet; the request stays. {self.hint}".rstrip()
        return f"It goes on, and nothing is lost. {where_all_are(self.shown, self.rows_left)}"


def _waits_for(
    control: Control | None, run_id: str, rows: Sequence[ProcessorRow], silent: Sequence[ProcessorRow]
) -> str:
    """What a drain waits for that only people can do; empty if it goes on by itself."""
    if not any(row.alive for row in rows):
        has_begun = control is not None and control.run_id == run_id and control.drain is not None
        return f"No processor runs. The drain {'goes on' if has_begun else 'begins'} when one starts."
    if all(row in silent for row in rows if row.alive):
        return "No processor has sent a heartbeat lately. The drain goes on when one starts."
    if control is not None and run_id != control.run_id and has_failed(control, rows, silent):
        return f"Run {control.run_id} failed. The drain of run {run_id} begins when that run is resumed and has ended."
    if control is not None and control.phase is RunPhase.RUNNING and run_id not in ("", control.run_id):
        return f"Run {control.run_id} is in progress. The drain is for a run {run_id}, which has not begun."
    return ""


def wait_until_read(config: Config, account: Account, limit: WaitLimit) -> None:
    """Wait until the run has read all rows that its sources hold now; rows that are added meanwhile do not count.

    Raise `ConfigError` if the run is over or no processor is left to read, `TimedOut` if it takes too long.
    """
    blobs, said, ages = account.blobs(), "", Ages(config)
    ends: dict[str, Position] | None = None
    run_id = ""
    with Looks(account) as looks:
        while True:
            now = "The account does not answer. The rows are read when it does."
            with suppress(StorageUnavailable):
                control, rows = looks.look()
                shown, silent_rows = document(config.app.name, control, rows), ages.silent(rows)
                if shown["phase"] == "DRAINED" or (control is not None and has_failed(control, rows, silent_rows)):
                    raise ConfigError(f"Run {shown['run_id']} is {shown['phase']}: it no longer reads.")
                if why := nobody_is_left(rows):
                    raise ConfigError(f"{why} No drain was requested: no processor reads the rows that are left.")
                if run_id not in ("", shown["run_id"]):
                    raise ConfigError(
                        f"Run {run_id} has ended, and run {shown['run_id']} has begun. No drain was requested."
                    )
                left = None
                if shown["phase"] in ("RUNNING", "DRAINING"):
                    run_id = shown["run_id"]
                    ends = ends_of(blobs, shown["read"]) if ends is None else ends
                    if (left := rows_before(blobs, shown, ends)) == 0:
                        return
                now = _reading_in_words(shown, rows, silent_rows, left)
            if now and now != said:
                say(now)
            said = now
            if limit.is_over:
                raise TimedOut(
                    f"Not all rows are read after {limit.seconds:g} s. No drain was requested; the run goes on."
                )
            time.sleep(POLL_S)


def _reading_in_words(
    shown: dict[str, Any], rows: Sequence[ProcessorRow], silent: Sequence[ProcessorRow], left: int | None
) -> str:
    """The state of the wait for unread rows, in words. `left`: at least how many there are; None: unknown."""
    if not any(row.alive for row in rows):
        return "No processor runs. The rows are read when one starts."
    if all(row in silent for row in rows if row.alive):
        return "No processor has sent a heartbeat lately. The rows are read when one starts."
    match shown["phase"]:
        case "STARTING":
            return "No run is in progress yet. Waiting for it to begin."
        case "FAILED":
            return f"Run {shown['run_id']} failed. Waiting for a processor to resume it."
        case "DRAINING":
            end = f" Run {shown['run_id']} drains already: it may end before it has read them."
            return f"{left} rows left to read.{end}"
    return "" if left is None else f"{left} rows left to read."


def wait_for_cancel(config: Config, account: Account, asked: Asked, timeout: float | None) -> str:
    """Wait for the answer to a cancellation. Raise `ConfigError` if it came too late, `TimedOut` without an answer."""
    run = f"run {asked.run_id}" if asked.run_id else "the next run"
    if asked.already:
        return f"{run[0].upper()}{run[1:]} is not draining."
    limit, ages = WaitLimit(PATIENCE_S if timeout is None else timeout), Ages(config)
    while not (said := answered(account, asked)):
        if said is None:  # the clean-up of a drained run has deleted the request, with its answer
            said = ALREADY_DRAINED
            break
        _, rows = look(config, account)
        silent_rows = ages.silent(rows)
        if all(row in silent_rows for row in rows if row.alive):
            return f"No processor runs. The next one to start cancels the drain of {run}."
        if limit.is_over:
            raise TimedOut("No leader has answered. The request stays: the next one obeys it, unless the run flushes.")
        time.sleep(POLL_S)
    if said != CANCELLED:
        control, _ = look(config, account)
        since = final_since(control, asked.run_id) if control is not None else ""
        raise ConfigError(f"The drain of {run} cannot be cancelled: {said}{since}.")
    return f"The drain of {run} is cancelled; the run goes on."


def wait_for_stop(config: Config, account: Account, asked: Asked, lives: set[str]) -> str:
    """Wait until each of the incarnations has left, is marked dead, or has been silent for the heartbeat timeout."""
    begun, ages = time.monotonic(), Ages(config)
    while True:
        _, rows = look(config, account)
        silent_rows = ages.silent(rows)
        left = [row for row in rows if row.alive and row.incarnation in lives]
        if all(row in silent_rows for row in left):
            run = f"Run {asked.run_id}" if asked.run_id else "The group"
            silent = f" {', '.join(row.processor for row in left)} did not answer." if left else ""
            return f"{run} is stopped after {time.monotonic() - begun:.1f} s.{silent}"
        if (said := answered(account, asked) or "").startswith("refused"):
            raise ConfigError(f"Run {asked.run_id} cannot be stopped: {said}.")
        time.sleep(POLL_S)


def is_over(control: Control, run_id: str, rows: Sequence[ProcessorRow], silent: Sequence[ProcessorRow]) -> bool:
    """Whether a drain is over: the run is drained, and its logs are deleted, or no processor is left to delete them.

    `silent` are those of `rows` that seem to be dead. When all others have left, none marks the last one as dead.
    """
    is_drained = bool(run_id) and run_id in control.past
    return is_drained and (control.cleaned or all(row in silent for row in rows if row.alive))


def has_failed(control: Control, rows: Sequence[ProcessorRow], silent: Sequence[ProcessorRow]) -> bool:
    """Whether the run is FAILED, and no live processor can resume it: only one that has not taken part in it
    yet does.

    `silent` are those of `rows` that seem to be dead. A processor without a fingerprint still analyses its pipeline.
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
    """Measures how long processors have been silent: when none is alive, no leader marks them as dead. By our reads or,
    for those that fell silent before, by the clock of the service.
    """

    def __init__(self, config: Config) -> None:
        self._timeout_s = config.coordinator.timing.heartbeat_timeout_s
        self._ages: dict[str, Age] = {}
        self._seen = SeenSilent(config.coordinator.timing.heartbeat_s)

    def silent(self, rows: Sequence[ProcessorRow]) -> list[ProcessorRow]:
        """The rows that say they are alive, but have been silent for longer than the heartbeat timeout."""
        now = time.monotonic()
        self._ages = {row.incarnation: observed(self._ages.get(row.incarnation), row.etag, now, POLL_S) for row in rows}
        silent = {name for name, each in self._seen.note(rows, now).items() if each.gone(self._timeout_s)}
        return [
            row
            for row in rows
            if row.alive and (row.processor in silent or self._ages[row.incarnation].silent(self._timeout_s))
        ]


class Estimate:
    """Estimates the seconds until the rows that are left are read, by the pace so far."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._known: frozenset[str] = frozenset()

    def of(self, left: Mapping[str, int], now: float) -> float | None:
        """The estimate for these rows, by task, at `now` seconds of any clock; None while nothing is left, or has been
        read. It begins anew when a task's rows are no longer known: they were not read.
        """
        rows, known, self._known = sum(left.values()), self._known, frozenset(left)
        if rows and (self._first is None or rows > self._first[1] or not known <= left.keys()):
            self._first = now, rows
        if not rows or self._first is None or rows == self._first[1]:
            return None
        begun, most = self._first
        return rows * (now - begun) / (most - rows)
