"""One emulator for all fleets; its two services are two processes, so that one can be stopped without the other."""

from collections.abc import Iterator

import pytest

from samza_azure.commands.azurite.emulator import Azurite

from .group_members import GroupOnAzurite


@pytest.fixture(scope="session")
def emulator() -> Iterator[Azurite]:
    """A real Azurite."""
    with Azurite(separate=True) as azurite:
        yield azurite


@pytest.fixture(scope="module")
def group(emulator: Azurite) -> Iterator[GroupOnAzurite]:
    """Three processors that share eight tasks, for the tests of one module in their order."""
    made = GroupOnAzurite(emulator, tasks=8)
    try:
        made.start("p0", "p1", "p2")
        yield made
    finally:
        made.close()
