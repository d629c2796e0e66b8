"""What `samza-azure drain` does after an early request, or without one."""

from samza_azure.commands.backlog import rows_are_optional, say_unread
from samza_azure.commands.connect import FIRST_S, absent, connect, control_of, look, patient, sure_look, with_rows
from samza_azure.commands.requests import Asked, ask_cancel, ask_drain
from samza_azure.commands.terminal import if_interrupted, say, tell
from samza_azure.commands.wait_limit import WaitLimit
from samza_azure.commands.waiting import wait_for_cancel, wait_for_drain, wait_until_read
from samza_azure.config import Config
from samza_azure.errors import ConfigError, StateLost
from samza_azure.group.requests import ALREADY_DRAINED
from samza_azure.host.asking import EarlyRequest
from samza_azure.host.status import document
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import ControlBlob, Rows


def cancel_drain(config: Config, run_id: str, timeout: float | None) -> None:
    """Request the cancellation of the drain, wait for the answer and print it."""
    account = connect(config, create=False)
    asked = with_rows(account, lambda blob, table: ask_cancel(account, run_id))
    tell(wait_for_cancel(config, account, asked, timeout))


def drain(
    config: Config,
    account: Account,
    run_id: str,
    early: EarlyRequest | None,
    limit: WaitLimit,
    *,
    wait: bool,
    when_caught_up: bool,
) -> None:
    """Request the drain unless the early request is for the run that is meant, and wait as long as the options say."""
    if early is None and not patient(tell=True, seconds=FIRST_S)(account.exists):
        if not run_id:
            raise ConfigError(absent(config))
        patient(tell=True)(lambda: account.ensure_created(binds=False))  # a request stores nothing of a job
    if when_caught_up:
        with if_interrupted("No drain was requested; the run goes on."):
            wait_until_read(config, account, limit)
    waited_s = limit.passed_s if when_caught_up else 0.0

    async def ask(blob: ControlBlob, table: Rows) -> Asked:
        """Write the request over the connection that has read the control blob."""
        try:
            control = await control_of(account)
        except StateLost:
            if early is not None:
                say(f"The request stays: run {early.run_id} drains once it goes on. `drain --cancel` withdraws it.")
            raise
        if control is None and early is not None:
            raise ConfigError(
                f"Run {early.run_id} was in progress a moment ago, and its control blob is gone: was the container "
                "deleted? Nothing else was asked to drain."
            )
        return await ask_drain(control, table, run_id, early)

    asked = with_rows(account, ask, tell=True)
    if asked.already == ALREADY_DRAINED:
        tell(f"Run {asked.run_id} is already drained.")
        return
    if early is None or not early.is_written or early.key != asked.key:
        say(f"Drain of {'run ' + asked.run_id if asked.run_id else 'the next run'} {asked.already or 'requested'}.")
    if not wait:
        with rows_are_optional():
            control, rows, gone = sure_look(config, account)
            nobody = not any(row.alive and row.processor not in gone for row in rows)
            if nobody and (control is None or asked.run_id not in control.past):
                say("No processor runs. The drain begins when one starts.")
            shown = document(config.app.name, control, rows)
            if asked.run_id == shown["run_id"]:
                text = "Not read so far: {left}. The next run begins with those that are still unread then."
                say_unread(account, config, shown, text)
        return
    with if_interrupted("The drain goes on without this command. `drain --wait` shows it again."):
        tell(wait_for_drain(config, account, asked, limit, waited_s=waited_s))
    with rows_are_optional():
        shown = document(config.app.name, *look(config, account))
        if shown["phase"] == "DRAINED":
            say_unread(account, config, shown, "Not read: {left}. The next run begins with them.")
