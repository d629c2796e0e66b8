"""What the tests of several commands share."""

from collections.abc import Iterator

import pytest

from samza_azure.commands.azurite.emulator import Azurite


@pytest.fixture(scope="session")
def emulator() -> Iterator[Azurite]:
    """An account; each test has a container and a table of its own in it."""
    with Azurite().start() as azurite:
        yield azurite
