"""`samza-azure status`: who leads, who is alive, who runs what."""

import json
import sys
from typing import Annotated

import typer

from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import look, reach
from samza_azure.commands.show import status_view
from samza_azure.commands.terminal import console
from samza_azure.host.status import document


def command(job: Job, as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False) -> None:
    """Who leads, who is alive, who runs what, where each task stands.

    Example: samza-azure status job.toml --json
    """
    config = load(job)
    control, rows = look(config, reach(config))
    shown = document(config.app.name, control, rows)
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    console(sys.stdout).print(status_view(shown))
