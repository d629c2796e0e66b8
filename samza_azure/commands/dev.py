"""`samza-azure dev`: the emulator and a few processors on this machine, in one live view."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.live import Live

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.fleet import Fleet
from samza_azure.commands.job import Job
from samza_azure.commands.show import status_view
from samza_azure.commands.terminal import console, say
from samza_azure.config import Config
from samza_azure.errors import ConfigError, SamzaAzureError, StorageUnavailable

VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
REFRESH_S = 1.0


def develop(job: Path, processors: int, say: Callable[[str], None]) -> int:
    """Run until Ctrl-C, or until all processors have ended; the worst of their exit codes."""
    with Azurite(say=say).start() as emulator:
        os.environ[VARIABLE] = emulator.connection_string
        say(f"For other commands in another terminal:\n  export {VARIABLE}='{emulator.connection_string}'")
        directory = Path(tempfile.mkdtemp(prefix="samza-azure-dev-"))
        fleet = Fleet(job, directory)
        _refuse_other_storage(fleet.config, emulator)
        for number in range(processors):
            fleet.start(f"dev-{number}")
        say(f"{processors} processors started; what they say is in {directory}. Ctrl-C ends them in order.")
        try:
            return _watch(fleet)
        finally:
            fleet.stop()


def _refuse_other_storage(config: Config, emulator: Azurite) -> None:
    """What is tried out on this machine must not reach the account that a job file happens to name."""
    connect = config.storage.connect
    if connect is None or connect.get_secret_value() != emulator.connection_string:
        raise ConfigError(
            f"{config.path} names a storage account of its own, and dev brings an emulator. Take the account from the "
            f'environment: azure.storage.connect = "${{{VARIABLE}}}". Or start processors with: samza-azure run.'
        )


def _watch(fleet: Fleet) -> int:
    ends = 0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ends
        ends += 1
        for name in fleet.alive():
            fleet.send(name, signal.SIGTERM if ends == 1 else signal.SIGKILL)

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    with Live(console=console(sys.stderr), auto_refresh=False) as live:
        while fleet.alive():
            try:
                shown = fleet.status()
                if sys.stderr.isatty():
                    live.update(status_view(shown), refresh=True)
            except StorageUnavailable as error:
                say(str(error))
            except SamzaAzureError as error:
                say(str(error))
                return error.exit_code
            time.sleep(REFRESH_S)
    codes = fleet.exit_codes(0.0)
    for name, code in codes.items():
        if code:
            say(f"{name} exited with {code}: {_last_line(fleet.log_file(name))}")
    return max((code if code >= 0 else 1 for code in codes.values()), default=0)  # below 0: killed by a signal


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def command(
    job: Job,
    processors: Annotated[int, typer.Option(min=1, max=64, help="How many to start.")] = 2,
) -> None:
    """Azurite and some processors on this machine, in one live view. Ctrl-C ends them in order.

    Example: samza-azure dev job.toml --processors 3
    """
    raise typer.Exit(develop(job, processors, say))
