"""The commands; the only place where everything meets.

Progress goes to stderr, results to stdout. Exit codes: 0 done, 1 the job failed, 2 wrong usage or configuration,
3 storage unreachable, 4 timed out, 5 access lost. Each command imports what it needs when it runs: `run` must stay
small and beat within a second of its start.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from samza_azure.errors import ConfigError, JobFailed, SamzaAzureError, StorageUnavailable, TimedOut

if TYPE_CHECKING:
    from samza_azure.commands.ask import Asked
    from samza_azure.config import Config
    from samza_azure.group.control import Control
    from samza_azure.group.rows import ProcessorRow
    from samza_azure.storage.connection import Account

app = typer.Typer(
    name="samza-azure",
    help="Stateful PySpark streaming jobs as a fleet of equal processors, coordinated by one Azure Storage account.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Job = Annotated[Path, typer.Argument(help="The job file, for example job.toml.", show_default=False)]
T = TypeVar("T")

#: A command gives the account so long to answer.
PATIENCE_S = 30.0
POLL_S = 0.5


def main() -> NoReturn:
    """The entry point: run a command, and turn our errors into their exit codes and one message."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("azure").setLevel(logging.ERROR)
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:  # it may have been closed
            sys.stdout.flush()
    except SamzaAzureError as error:
        say(f"samza-azure: {error}")
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = 1
    except OSError as error:  # a disk that is full, a folder that may not be written, a reader that has gone
        if not isinstance(error, BrokenPipeError):
            say(f"samza-azure: {str(error) or type(error).__name__}")
        code = 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is not written yet is not tried again
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None or not hasattr(error, "format_message"):
            raise
        error.show()  # type: ignore[attr-defined]
    sys.exit(code if isinstance(code, int) else 0)


@app.command()
def run(
    job: Job,
    processor_id: Annotated[
        str | None, typer.Option("--id", help="This processor's id, instead of the host's name and a slot.")
    ] = None,
    new_run: Annotated[bool, typer.Option("--new-run", help="Begin the next run after a drained one.")] = False,
    wait_for_upgrade: Annotated[
        bool,
        typer.Option("--wait-for-upgrade", help="Stay after a drain until a changed pipeline begins the next run."),
    ] = False,
) -> None:
    """Run one processor, in the foreground.

    SIGTERM and Ctrl-C hand its tasks over and end it; a second Ctrl-C kills.

    Example: samza-azure run job.toml
    """
    from samza_azure.coordinator import load_factory
    from samza_azure.host.slot import take_slot
    from samza_azure.host.supervisor import Supervisor

    config = load(job, {"processor.id": processor_id} if processor_id is not None else None)
    slot = take_slot(config.processor.dir / config.storage.container, config.processor.id)
    sys.path.insert(0, str(config.path.parent))  # a factory of one's own stands next to the job file, or is installed
    begun = time.monotonic()

    def report(text: str) -> None:
        say(f"{time.monotonic() - begun:7.1f} s  {slot.processor_id}  {text}")

    if config.metrics_prometheus_port is not None:
        from samza_azure.metrics import serve

        report(f"metrics on port {serve(config.metrics_prometheus_port)}")
    coordinator = load_factory(config.coordinator.factory).get_job_coordinator(slot.processor_id, config)
    coordinator.ask(new_run=new_run, wait_for_upgrade=wait_for_upgrade, only_holder=True)
    report(f"pid {os.getpid()}, directory {slot.directory}")
    task = config.task
    supervisor = Supervisor(
        coordinator,
        config.path,
        slot.directory,
        report,
        death_limit=task.restart_limit,
        silence_s=task.shutdown_ms / 1000,
        commit_s=task.commit_ms / 1000,
    )
    ending = supervisor.run()
    if ending.message:
        report(ending.message)
    raise typer.Exit(ending.code)


@app.command()
def dev(
    job: Job,
    processors: Annotated[int, typer.Option(min=1, max=64, help="How many to start.")] = 2,
) -> None:
    """Azurite and some processors on this machine, in one live view. Ctrl-C ends them in order.

    Example: samza-azure dev job.toml --processors 3
    """
    from samza_azure.commands.dev import develop

    raise typer.Exit(develop(job, processors, say))


@app.command()
def azurite(
    port: Annotated[
        int, typer.Option(min=0, max=65534, help="Blobs here, tables two further on; 0: any free.")
    ] = 10000,
) -> None:
    """The storage emulator alone, in memory, until Ctrl-C.

    Example: samza-azure azurite
    """
    import signal

    from samza_azure.commands.azurite.emulator import Azurite

    ends = {signal.SIGINT, signal.SIGTERM}
    with Azurite(say=say).start(port, port + 2 if port else 0) as emulator:
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # one that comes before it is waited for is not lost
        print(emulator.connection_string, flush=True)
        say("Set AZURE_STORAGE_CONNECTION_STRING to the line above. Ctrl-C ends the emulator and forgets its data.")
        signal.sigwait(ends)


@app.command()
def produce(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A source stream of the job file.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="Parquet, CSV or JSON lines.", show_default=False)],
    key: Annotated[str | None, typer.Option(help="The column that decides the partition; without it: in turn.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=1e9, help="Rows per second; without it: as fast as it goes.")
    ] = None,
) -> None:
    """Put the rows of a file into a source stream, in file order.

    Example: samza-azure produce job.toml flights flights.parquet --key dest
    """
    from samza_azure.commands.produce import produce as put

    config = load(job)
    account = reach(config)
    rows = put(config, account, stream, file, key=key, rate=rate, progress=Progress(f"produce {stream}"), say=say)
    print(f"{rows} rows into {stream}")


@app.command()
def export(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A stream of the pipeline, or a source.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The Parquet file to write.", show_default=False)],
) -> None:
    """Write the committed rows of a stream to a Parquet file.

    Example: samza-azure export job.toml daily-delays --to daily.parquet
    """
    from samza_azure.commands.export import export as take

    config = load(job)
    account = reach(config)
    control, _ = look(config, account)
    rows = take(account, control, stream, to, progress=Progress(f"export {stream}"))
    print(f"{rows} rows to {to}")


@app.command()
def status(job: Job, as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False) -> None:
    """Who leads, who is alive, who runs what, where each task stands.

    Example: samza-azure status job.toml --json
    """
    from samza_azure.host.status import document

    config = load(job)
    control, rows = look(config, reach(config))
    shown = document(config.app.name, control, rows)
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    from rich.console import Console

    from samza_azure.commands.show import status_view

    Console().print(status_view(shown))


@app.command()
def drain(
    job: Job,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the run is drained, and show each task.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait; then exit 4. The drain goes on.")
    ] = None,
    run_id: Annotated[str, typer.Option(help="The run to drain; without it the one in progress, or the next.")] = "",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Let the run go on instead, if it has not begun to flush. Waits.")
    ] = False,
) -> None:
    """End the run for good: read no more, fire every window, commit, exit everywhere, clean up.

    Example: samza-azure drain job.toml --wait --timeout 300
    """
    from samza_azure.commands.ask import ask_cancel, ask_drain

    config = load(job, {"app.run.id": run_id} if run_id else None)
    account = reach(config)
    control, rows = look(config, account)
    if cancel:
        asked = with_rows(account, lambda blob, table: ask_cancel(control, table, run_id))
        print(wait_for_cancel(account, asked, any(row.alive for row in rows), timeout))
        return
    asked = with_rows(account, lambda blob, table: ask_drain(control, table, run_id))
    if asked.already == "already drained":
        print(f"Run {asked.run_id} is already drained.")
        return
    say(f"Drain of {'run ' + asked.run_id if asked.run_id else 'the next run'} {asked.already or 'requested'}.")
    if not any(row.alive for row in rows):
        say("Nobody runs. The drain begins when a processor starts.")
    if wait:
        print(wait_for_drain(config, account, asked, timeout))


@app.command()
def stop(
    job: Job,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until all have left.")] = False,
) -> None:
    """All processors commit and exit; nothing is fired, and the next start resumes the run.

    Example: samza-azure stop job.toml --wait
    """
    from samza_azure.commands.ask import ask_stop

    config = load(job)
    account = reach(config)
    control, rows = look(config, account)
    asked = with_rows(account, lambda blob, table: ask_stop(control, rows, table))
    if asked.already:
        print("Nobody runs.")
        return
    say(f"Stop of {'run ' + asked.run_id if asked.run_id else 'the group'} requested.")
    if wait:
        print(wait_for_stop(config, account, asked, {row.incarnation for row in rows if row.alive}))


@app.command()
def explain(
    job: Job,
    processors: Annotated[int, typer.Option(min=1, help="How many there are to be.")] = 3,
) -> None:
    """The stages with their streams, keys and state; what the timings cost and promise. Asks Spark, and no storage.

    Example: samza-azure explain job.toml --processors 5
    """
    from samza_azure import explain as arithmetic
    from samza_azure.host.processor import call_timeout_s
    from samza_azure.spark.pipeline.plan import plan_of

    config = load(job)
    say("Asking Spark for the plan; this takes some seconds.")
    plan = plan_of(config)
    for warning in plan.warnings:
        say(f"warning: {warning}")
    timing = config.coordinator.timing
    commit_s = config.task.commit_ms / 1000
    flows = arithmetic.flows_of(plan)
    shown = [*arithmetic.pipeline_lines(plan, commit_s), ""]
    print("\n".join(shown + arithmetic.lines(timing, flows, processors, commit_s, call_timeout_s(timing))))


def wait_for_drain(config: "Config", account: "Account", asked: "Asked", timeout: float | None) -> str:
    """Show how the drain goes until it is over; raise `TimedOut` or `JobFailed` if it does not get there."""
    from samza_azure.commands.show import DrainDisplay
    from samza_azure.group.control import RunPhase
    from samza_azure.group.requests import CANCELLED
    from samza_azure.host.status import document, phase

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


def wait_for_cancel(account: "Account", asked: "Asked", anybody: bool, timeout: float | None) -> str:
    """What became of a cancellation; raise `ConfigError` if it came too late, `TimedOut` if nobody says."""
    from samza_azure.group.requests import CANCELLED

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


def wait_for_stop(config: "Config", account: "Account", asked: "Asked", lives: set[str]) -> str:
    """Until all who were there have left, are dead, or have been silent for so long that they must be."""
    from samza_azure.group.age import Age, observed

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


def answered(account: "Account", asked: "Asked") -> str:
    """What the leader has said to a request so far; nothing if nothing was asked."""
    from samza_azure.commands.ask import answer_to

    return with_rows(account, lambda blob, table: answer_to(table, asked.key)) if asked.key else ""


def load(job: Path, overrides: "dict[str, Any] | None" = None) -> "Config":
    """The checked configuration."""
    from samza_azure.config import Config

    return Config.load(job, overrides=overrides)


def reach(config: "Config") -> "Account":
    """The account, its container and table made sure of. Waits `PATIENCE_S` for one that does not answer."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    from samza_azure.storage.connection import Account

    account = Account.from_config(config.storage)
    again = Retrying(
        retry=retry_if_exception_type(StorageUnavailable),
        stop=stop_after_delay(PATIENCE_S),
        wait=wait_fixed(1),
        reraise=True,
        before_sleep=lambda state: (
            say("The storage account does not answer; trying again.") if state.attempt_number == 1 else None
        ),
    )
    again(account.ensure_created)
    return account


@app.command()
def simulate(
    seed: Annotated[int | None, typer.Option(help="Replays one history; a fresh seed without it.")] = None,
    processors: Annotated[int | None, typer.Option(min=1, max=1000, help="How many; without it the seed says.")] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.001, max=1000, help="Of the fleet's time with faults; without it minutes.")
    ] = None,
) -> None:
    """Run a fleet under faults, in memory, from one seed, and print what happened.

    Example: samza-azure simulate --seed 57 --processors 5
    """
    from samza_azure.sim.simulate import simulate as play

    if not play(print, seed=seed, processors=processors, hours=hours):
        raise typer.Exit(1)


def look(config: "Config", account: "Account") -> "tuple[Control | None, list[ProcessorRow]]":
    """The control blob and the processors' rows, read now."""
    from samza_azure.host.status import read

    return with_rows(account, read)


def with_rows(account: "Account", ask: Callable[[Any, Any], Coroutine[Any, Any, T]]) -> T:
    """Run one asynchronous exchange with the control blob and the table, tried again while nothing was reached."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    async def once() -> T:
        try:
            return await ask(account.control_blob(), account.rows())
        finally:
            await account.aclose()

    again = Retrying(
        retry=retry_if_exception_type(StorageUnavailable),
        stop=stop_after_delay(PATIENCE_S),
        wait=wait_fixed(1),
        reraise=True,
    )
    return again(lambda: asyncio.run(once()))


class Progress:
    """Counts rows on stderr: in place on a terminal, a plain line every five seconds elsewhere."""

    EVERY_S = 5.0

    def __init__(self, what: str) -> None:
        self._what, self._begun, self._shown = what, time.monotonic(), time.monotonic()

    def __call__(self, rows: int, total: int | None = None) -> None:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if now < self._shown + (0.2 if terminal else self.EVERY_S) and rows != total:
            return
        self._shown = now
        of = f" of {total}" if total else ""
        text = f"{self._what}: {rows}{of} rows, {rows / max(now - self._begun, 1e-3):,.0f} rows/s"
        with suppress(OSError):  # as in `say`
            print(f"\r{text}  " if terminal else text, end="" if terminal and rows != total else "\n", file=sys.stderr)


def say(text: str) -> None:
    """A line of progress. That nobody reads it, or that the disk with it is full, ends no processor."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


__all__ = ["app", "main"]
