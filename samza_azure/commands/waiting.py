"""Waiting for what was asked: until a run is drained, a drain is cancelled, a group has left."""

import sys
import time

from samza_azure.commands.ask import Asked
from samza_azure.commands.backlog import ends_of, rows_before
from samza_azure.commands.reach import PATIENCE_S, POLL_S, answered, look
from samza_azure.commands.show import DrainDisplay
from samza_azure.commands.terminal import say
from samza_azure.config import Config
from samza_azure.errors import ConfigError, JobFailed, SamzaAzureError, TimedOut
from samza_azure.group.age import Age, observed
from samza_azure.group.control import RunPhase
from samza_azure.group.requests import CANCELLED
from samza_azure.host.status import document, phase
from samza_azure.logs.position import Position
from samza_azure.storage.connection import Account


def wait_for_drain(config: Config, account: Account, asked: Asked, timeout: float | None) -> str:
    """Show how the drain goes until it is over; raise `TimedOut` or `JobFailed` if it does not get there."""
    begun, run_id, drains = time.monotonic(), asked.run_id, False
    with DrainDisplay(sys.stderr) as display:
        while True:
            control, rows = look(config, account)
            if control is not None:
                run_id = run_id or (control.run_id if control.phase is not RunPhase.NONE else "")
                shown = document(config.app.name, control, rows)
                display.update(shown)
                if run_id and run_id in control.past and (control.cleaned or not any(row.alive for row in rows)):
                    return f"Run {run_id} is drained after {time.monotonic() - begun:.1f} s."
                if phase(control, rows) == "FAILED" and control.failure is not None:
                    raise JobFailed(f"Run {run_id} failed in task {control.failure.task}: {control.failure.message}")
                ended = drains and control.drain is None and control.run_id == run_id
                if ended or answered(account, asked) == CANCELLED:
                    raise SamzaAzureError(f"The drain of run {run_id} was cancelled. The run goes on.")
                drains = control.drain is not None and control.run_id == run_id
            if timeout is not None and time.monotonic() - begun > timeout:
                tasks = document(config.app.name, control, rows)["tasks"]
                where = ", ".join(f"{task['name']} {task['phase']}" for task in tasks) or "no task has started"
                raise TimedOut(f"The drain is not over after {timeout:g} s; nothing is lost and it goes on. {where}.")
            time.sleep(POLL_S)


def wait_until_read(config: Config, account: Account, timeout: float | None) -> None:
    """Until the run has read all rows that its sources hold now. Rows that come meanwhile are not waited for."""
    begun, blobs, said = time.monotonic(), account.blobs(), -1
    ends: dict[str, Position] | None = None
    while True:
        control, rows = look(config, account)
        shown = document(config.app.name, control, rows)
        if shown["phase"] in ("RUNNING", "DRAINING"):
            ends = ends_of(blobs, shown["read"]) if ends is None else ends
            if (left := rows_before(blobs, shown, ends)) == 0:
                return
            if left != said:
                say(f"{left} rows are left to read.")
                said = left
        elif shown["phase"] in ("DRAINED", "FAILED"):
            raise ConfigError(f"Run {shown['run_id']} is {shown['phase']}: it reads nothing any more.")
        if timeout is not None and time.monotonic() - begun > timeout:
            raise TimedOut(f"Not all is read after {timeout:g} s. No drain was requested; the run goes on.")
        time.sleep(POLL_S)


def wait_for_cancel(account: Account, asked: Asked, anybody: bool, timeout: float | None) -> str:
    """What became of a cancellation; raise `ConfigError` if it came too late, `TimedOut` if nobody says."""
    run = f"run {asked.run_id}" if asked.run_id else "the next run"
    if asked.already:
        return f"{run[0].upper()}{run[1:]} is not draining."
    if not anybody:
        return f"Nobody runs. Whoever starts next cancels the drain of {run} before it begins."
    until = time.monotonic() + (PATIENCE_S if timeout is None else timeout)
    while not (said := answered(account, asked)):
        if time.monotonic() > until:
            raise TimedOut("Nobody has answered. The request stays: the next leader obeys it, unless the run flushes.")
        time.sleep(POLL_S)
    if said != CANCELLED:
        raise ConfigError(f"The drain of {run} cannot be cancelled: {said}.")
    return f"The drain of {run} is cancelled; the run goes on."


def wait_for_stop(config: Config, account: Account, asked: Asked, lives: set[str]) -> str:
    """Until all who were there have left, are dead, or have been silent for so long that they must be."""
    begun, timeout_s = time.monotonic(), config.coordinator.timing.heartbeat_timeout_s
    ages: dict[str, Age] = {}
    while True:
        _, rows = look(config, account)
        now = time.monotonic()
        ages = {row.incarnation: observed(ages.get(row.incarnation), row.etag, now, POLL_S) for row in rows}
        left = [row for row in rows if row.alive and row.incarnation in lives]
        if all(ages[row.incarnation].silent(timeout_s) for row in left):
            run = f"Run {asked.run_id}" if asked.run_id else "The group"
            silent = f" {', '.join(row.processor for row in left)} did not answer." if left else ""
            return f"{run} is stopped after {now - begun:.1f} s.{silent}"
        if (said := answered(account, asked)).startswith("refused"):
            raise ConfigError(f"Run {asked.run_id} cannot be stopped: {said}.")
        time.sleep(POLL_S)
