"""Three processes elect a leader and share 16 partitions; one leaves, the others take over what it had.

Run it: python examples/library/three.py
"""

import multiprocessing
import time

from samza_azure import AzureJobCoordinatorFactory, Config, SharedTasks
from samza_azure.commands.azurite.emulator import Azurite

JOB = """
app = { name = "three", main = "three:Mine" }
azure.storage.connect = "${CONNECT}"
job.coordinator.profile = "fast"
"""


class Mine(SharedTasks):
    """Prints what it gets; a real one would begin to consume the partition."""

    def on_start(self, task: str, generation: int) -> None:
        print(f"{multiprocessing.current_process().name} takes {task}, generation {generation}", flush=True)


def member(connect: str, seconds: float) -> None:
    name = multiprocessing.current_process().name
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator(
        name, Config.parse(JOB, environment={"CONNECT": connect})
    )
    with Mine(coordinator, "partition", 16) as mine:
        time.sleep(seconds)
        print(f"{name} {'leads' if coordinator.is_leader else 'follows'} with {len(mine.tasks)} partitions", flush=True)


if __name__ == "__main__":
    with Azurite() as azurite:
        for name, seconds in {"one": 6.0, "two": 9.0, "three": 12.0}.items():
            multiprocessing.Process(target=member, name=name, args=(azurite.connection_string, seconds)).start()
        for process in multiprocessing.active_children():
            process.join()
