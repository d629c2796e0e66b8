"""`samza-azure drain`: the end of a run for good, or its cancellation."""

from contextlib import suppress
from typing import Annotated

import typer

from samza_azure.commands.ask import Asked, ask_cancel, ask_drain
from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import WaitLimit, control_of, look, opened, reach, with_rows
from samza_azure.commands.terminal import if_interrupted, printable, say
from samza_azure.config import Config
from samza_azure.errors import ConfigError, SamzaAzureError, StorageUnavailable
from samza_azure.group.requests import ALREADY_DRAINED
from samza_azure.host.status import document
from samza_azure.storage.connection import Account
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
    run_id: Annotated[
        str, typer.Option(help="The run to drain; by default the last one, or the first if none has begun.")
    ] = "",
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
    limit = WaitLimit(timeout)
    if timeout is not None and not (wait or when_caught_up or cancel):
        raise ConfigError("--timeout bounds a wait. Add --wait, --when-caught-up or --cancel, or leave it out.")
    config = load(job, {"app.run.id": run_id} if run_id else None)
    if cancel and (wait or when_caught_up):
        raise ConfigError("--cancel waits for its answer by itself. Leave --wait and --when-caught-up out.")
    if cancel:
        from samza_azure.commands.waiting import wait_for_cancel

        account = reach(config, create=False)
        _, rows = look(config, account)
        cancel_asked = with_rows(account, lambda blob, table: ask_cancel(blob, table, run_id))
        print(wait_for_cancel(config, account, cancel_asked, any(row.alive for row in rows), timeout))
        return
    account = opened(config)
    if when_caught_up:
        from samza_azure.commands.waiting import wait_until_read

        if with_rows(account, lambda blob, _: control_of(blob), tell=True) is None:
            account = reach(config)
        with if_interrupted("No drain was requested; the run goes on."):
            wait_until_read(config, account, limit)
    asked = with_rows(account, lambda blob, table: _ask(blob, table, run_id), tell=True)
    if asked is None:
        account = reach(config)
        asked = with_rows(account, lambda _, table: ask_drain(None, table, run_id))
    if asked.already == ALREADY_DRAINED:
        print(f"Run {asked.run_id} is already drained.")
        return
    say(f"Drain of {'run ' + asked.run_id if asked.run_id else 'the next run'} {asked.already or 'requested'}.")
    if not wait:
        with suppress(StorageUnavailable):  # it is requested
            _, rows = look(config, account)
            if not any(row.alive for row in rows):
                say("No processor runs. The drain begins when one starts.")
        return
    from samza_azure.commands.waiting import wait_for_drain  # imported here, while the fleet works on the request

    with if_interrupted("The drain goes on without this command. `drain --wait` shows it again."):
        print(printable(wait_for_drain(config, account, asked, limit)))
    _say_what_is_left(config, account)


def _say_what_is_left(config: Config, account: Account) -> None:
    """Say which rows are not read. The drain is over, so no error here is a failure of it."""
    from samza_azure.commands.backlog import behind, unread

    try:
        shown = document(config.app.name, *look(config, account))
        left = unread(behind(account.blobs(), shown)) if shown["phase"] == "DRAINED" else ""
    except SamzaAzureError as error:
        say(f"How many rows are not read is unknown: {error}")
    else:
        if left:
            say(f"Not read: {left}. The next run begins with them.")
