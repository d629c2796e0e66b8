"""`samza-azure azurite`: the storage emulator on this machine."""

import signal
from typing import Annotated

import typer

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.terminal import say


def command(
    port: Annotated[
        int, typer.Option(min=0, max=65534, help="The port for blobs; tables use this plus 2. 0: any free ports.")
    ] = 10000,
) -> None:
    """Run only the storage emulator, in memory, until Ctrl-C.

    Example: samza-azure azurite
    """
    ends = {signal.SIGINT, signal.SIGTERM}
    with Azurite(say=say).start(port, port + 2 if port else 0) as emulator:
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # one that comes before it is waited for is not lost
        print(f"export AZURE_STORAGE_CONNECTION_STRING='{emulator.connection_string}'", flush=True)
        say("Run the line above in the terminal of the other commands. Ctrl-C ends the emulator and deletes its data.")
        signal.sigwait(ends)
