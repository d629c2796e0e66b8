"""`samza-azure drain`: the end of a run for good, or its cancellation."""

from typing import Annotated

import typer

from samza_azure.commands.job import Job, load_seen
from samza_azure.commands.terminal import say
from samza_azure.commands.wait_limit import WaitLimit
from samza_azure.errors import ConfigError, StorageUnavailable
from samza_azure.host.asking import hint_drain_early, write_drain_early
from samza_azure.storage.connection import Account


def command(
    job: Job,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run is drained, and show each task.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait; then exit 4. The drain goes on.")
    ] = None,
    run_id: Annotated[
        str, typer.Option(help="The run to drain, also one that has not begun; by default the last one.")
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
    config = load_seen(job, {"app.run.id": run_id} if run_id else None)
    if cancel and (wait or when_caught_up):
        raise ConfigError("--cancel waits for its answer by itself. Leave --wait and --when-caught-up out.")
    if cancel:
        from samza_azure.commands.draining import cancel_drain

        cancel_drain(config, run_id, timeout)
        return
    account = Account.from_config(config.storage)
    account.sign_in()
    _await_own(account, limit)
    early = None if when_caught_up else write_drain_early(account, run_id)
    if early is not None:
        if early.is_written:
            say(f"Drain of run {early.run_id} requested.")
        hint_drain_early(account, early)

    from samza_azure.commands.draining import drain  # takes half of this command's start; the fleet drains meanwhile

    drain(config, account, run_id, early, limit, wait=wait, when_caught_up=when_caught_up)


def _await_own(account: Account, limit: WaitLimit) -> None:
    """Wait until the account answers that the table is the job's own. Raise `ConfigError` if it is not."""
    try:
        account.refuse_table()
    except StorageUnavailable:
        from samza_azure.commands.connect import FIRST_S, patient  # as below

        if (left_s := FIRST_S - limit.passed_s) <= 0:
            raise
        patient(tell=True, seconds=left_s)(account.refuse_table)
