"""Two sinks and a compactor as processes: one is killed, one is stopped and wakes up. At length: `prove/tables.py`."""

import uuid

import pytest

from samza_azure.commands.azurite.emulator import Azurite

from .crowd import Crowd


@pytest.mark.long  # `test_datasource.py` orders every call of sinks and compactors that die
def test_processes_that_are_killed_and_stopped(azurite: Azurite) -> None:
    crowd = Crowd(azurite.connection_string, f"c{uuid.uuid4().hex[:12]}", 2, 1, seed=3)
    crowd.run(20.0, every=2.0)
    assert crowd.looks
    assert crowd.kills + crowd.stops >= 2
