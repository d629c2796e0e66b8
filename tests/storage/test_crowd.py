"""Two sinks and a compactor as processes: one is killed, one is stopped and wakes up. At length: `prove/tables.py`."""

import uuid

from samza_azure.commands.azurite.emulator import Azurite

from .crowd import Crowd


def test_processes_that_are_killed_and_stopped(azurite: Azurite) -> None:
    crowd = Crowd(azurite.connection_string, f"c{uuid.uuid4().hex[:12]}", 2, 1, seed=3)
    crowd.run(8.0, every=2.0)
    assert crowd.looks
    assert crowd.kills + crowd.stops >= 2
