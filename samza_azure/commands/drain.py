"""`samza-azure drain`: the end of a run for good, or its cancellation."""

from typing import Annotated

import typer

from samza_azure.commands.ask import ask_cancel, ask_drain
from samza_azure.commands.backlog import behind, unread
from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import look, reach, with_rows
from samza_azure.commands.terminal import say
from samza_azure.commands.waiting import wait_for_cancel, wait_for_drain, wait_until_read
from samza_azure.host.status import document


def command(
    job: Job,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the run is drained, and show each task.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait; then exit 4. The drain goes on.")
    ] = None,
    run_id: Annotated[str, typer.Option(help="The run to drain; without it the one in progress, or the next.")] = "",
    when_caught_up: Annotated[
        bool, typer.Option("--when-caught-up", help="First wait until all rows are read that are there now.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Let the run go on instead, if it has not begun to flush. Waits.")
    ] = False,
) -> None:
    """End the run for good: read no more, fire every window, commit, exit everywhere, clean up.

    Example: samza-azure drain job.toml --when-caught-up --wait
    """
    config = load(job, {"app.run.id": run_id} if run_id else None)
    account = reach(config)
    control, rows = look(config, account)
    if cancel:
        asked = with_rows(account, lambda blob, table: ask_cancel(control, table, run_id))
        print(wait_for_cancel(account, asked, any(row.alive for row in rows), timeout))
        return
    if when_caught_up:
        wait_until_read(config, account, timeout)
        control, rows = look(config, account)
    asked = with_rows(account, lambda blob, table: ask_drain(control, table, run_id))
    if asked.already == "already drained":
        print(f"Run {asked.run_id} is already drained.")
        return
    say(f"Drain of {'run ' + asked.run_id if asked.run_id else 'the next run'} {asked.already or 'requested'}.")
    if not any(row.alive for row in rows):
        say("Nobody runs. The drain begins when a processor starts.")
    if wait:
        print(wait_for_drain(config, account, asked, timeout))
        control, rows = look(config, account)
        if left := unread(behind(account.blobs(), document(config.app.name, control, rows))):
            say(f"Not read: {left}. The next run begins with them.")
