"""Installs the emulator: `python -m samza_azure.commands.azurite`."""

import sys

from samza_azure.commands.azurite.emulator import install
from samza_azure.errors import SamzaAzureError

if __name__ == "__main__":
    try:
        install(lambda line: print(line, file=sys.stderr, flush=True))
    except SamzaAzureError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
