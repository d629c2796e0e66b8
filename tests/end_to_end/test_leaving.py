"""A processor that is asked to leave while the storage does not answer ends in time, and reports what it left
behind."""

import re
import signal
import time

import psutil
import pytest

from samza_azure.errors import Verdict
from samza_azure.group.ending import FAREWELL_S
from samza_azure.group.tasks import SILENT_S
from samza_azure.host.supervisor import GOODBYE_S

from .real_processes import JobOnAzurite

#: The README's promise, and what it is made of.
LEAVES_WITHIN_S = 20.0
assert SILENT_S + FAREWELL_S + GOODBYE_S <= LEAVES_WITHIN_S


@pytest.mark.long  # the same without Spark is in test_life_and_death
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "gone"])
def test_sigterm_in_an_outage_ends_the_processor_and_its_tree_within_the_promised_time(
    world: JobOnAzurite, how: signal.Signals
) -> None:
    """Its JVM, too."""
    world.start("p0")
    leaves_in_an_outage(world, how)


def leaves_in_an_outage(world: JobOnAzurite, how: signal.Signals) -> None:
    """Batches are in flight, and no append is answered. The others learn of it by its silence, which it says."""
    run_id, before = world.fleet.status()["run_id"], world.fleet.log_file("p0").read_text()
    producer = world.producing(3_000, 500)
    tree = world.tree("p0")
    try:
        world.emulator_signal(how)
        begun = time.monotonic()
        world.fleet.send("p0", signal.SIGTERM)
        assert world.fleet.processes["p0"].wait(LEAVES_WITHIN_S) == Verdict.LEFT_OPEN
        took = time.monotonic() - begun
    finally:
        producer.kill()
        if how is signal.SIGSTOP:
            world.emulator_signal(signal.SIGCONT)
    said = world.fleet.log_file("p0").read_text()
    assert re.search(rf"Z INFO    p0 {re.escape(run_id)}  task \S+ RUNNING\n", said), said[-2000:]
    said = said.removeprefix(before)
    assert "could not write this to the storage" in said, said[-2000:]
    assert not re.search("its tasks were handed over|Left the group; ", said)
    assert "the others do not know; others get " in said
    assert not [each for each in tree if each.is_running() and each.status() != psutil.STATUS_ZOMBIE], took
