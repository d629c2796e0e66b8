"""`samza-azure drain`: the end of a run for good, or its cancellation."""

from typing import Annotated

import typer

from samza_azure.commands.ask import Asked, ask_cancel, ask_drain
from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import control_of, look, opened, reach, with_rows
from samza_azure.commands.terminal import printable, say
from samza_azure.host.status import document
from samza_azure.storage.interface import ControlBlob, Rows


async def _ask(blob: ControlBlob, table: Rows, run_id: str) -> Asked | None:
    """Request the drain over the connection that has read the control blob. None: nothing has run here yet, so the
    container and the table may be missing.
    """
    control = await control_of(blob)
    return None if control is None else await ask_drain(control, table, run_id)


def command(
    job: Job,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run is drained, and show each task.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait; then exit 4. The drain goes on.")
    ] = None,
    run_id: Annotated[str, typer.Option(help="The run to drain; by default the one in progress, or the next.")] = "",
    when_caught_up: Annotated[
        bool, typer.Option("--when-caught-up", help="First wait until all rows that exist now are read.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the drain, if it has not begun to flush. Waits.")
    ] = False,
) -> None:
    """End the run for good: read no more, fire every window, commit, exit everywhere, clean up.

    Example: samza-azure drain job.toml --when-caught-up --wait
    """
    config = load(job, {"app.run.id": run_id} if run_id else None)
    if cancel:
        from samza_azure.commands.waiting import wait_for_cancel

        account = reach(config, create=False)
        control, rows = look(config, account)
        cancel_asked = with_rows(account, lambda blob, table: ask_cancel(control, table, run_id))
        print(wait_for_cancel(config, account, cancel_asked, any(row.alive for row in rows), timeout))
        return
    account = opened(config)
    if when_caught_up:
        from samza_azure.commands.waiting import wait_until_read

        if with_rows(account, lambda blob, _: control_of(blob), tell=True) is None:
            account = reach(config)
        wait_until_read(config, account, timeout)
    asked = with_rows(account, lambda blob, table: _ask(blob, table, run_id), tell=True)
    if asked is None:
        account = reach(config)
        asked = with_rows(account, lambda _, table: ask_drain(None, table, run_id))
    if asked.already == "already drained":
        print(f"Run {asked.run_id} is already drained.")
        return
    say(f"Drain of {'run ' + asked.run_id if asked.run_id else 'the next run'} {asked.already or 'requested'}.")

    from samza_azure.commands.waiting import wait_for_drain  # imported here, while the fleet works on the request

    _, rows = look(config, account)
    if not wait and not any(row.alive for row in rows):  # with --wait, `wait_for_drain` says so
        say("No processor runs. The drain begins when one starts.")
    if wait:
        from samza_azure.commands.backlog import behind, unread

        print(printable(wait_for_drain(config, account, asked, timeout)))
        control, rows = look(config, account)
        if left := unread(behind(account.blobs(), document(config.app.name, control, rows))):
            say(f"Not read: {left}. The next run begins with them.")
