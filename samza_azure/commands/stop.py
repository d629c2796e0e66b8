"""`samza-azure stop`: all processors leave, and the next start resumes."""

from typing import Annotated

import typer

from samza_azure.commands.backlog import rows_are_optional, say_unread
from samza_azure.commands.connect import connect, look, sure_look, with_rows
from samza_azure.commands.job import Job, load_seen
from samza_azure.commands.requests import ask_stop
from samza_azure.commands.terminal import if_interrupted, say, tell
from samza_azure.commands.waiting import wait_for_stop
from samza_azure.host.status import document


def command(
    job: Job,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all have left.")] = False,
) -> None:
    """Make all processors commit and exit; no window is fired, and the next start resumes the run.

    Example: samza-azure stop job.toml --wait
    """
    config = load_seen(job)
    account = connect(config, create=False)
    control, rows, gone = sure_look(config, account)
    alive = [row for row in rows if row.alive and row.processor not in gone]
    asked = with_rows(account, lambda blob, table: ask_stop(control, alive, table))
    if asked.already:
        tell("No processor runs." + (f" None has sent a heartbeat lately: {', '.join(sorted(gone))}." if gone else ""))
        return
    say(f"Stop of {'run ' + asked.run_id if asked.run_id else 'the group'} requested.")
    if wait:
        with if_interrupted("The stop goes on without this command. `status` shows it."):
            tell(wait_for_stop(config, account, asked, {row.incarnation for row in alive}))
    with rows_are_optional():
        shown = document(config.app.name, *(look(config, account) if wait else (control, rows)))
        so_far, rest = ("", "them") if wait else (" so far", "those that are still unread then")
        say_unread(account, config, shown, f"Not read{so_far}: {{left}}. The next start goes on with {rest}.")
