"""Three processes elect a leader and share 16 partitions; one after another leaves, and the rest take over what it had.

Run it: python examples/library/three.py
"""

import multiprocessing
import time
from multiprocessing.synchronize import Barrier

from samza_azure import AzureJobCoordinatorFactory, Config, SharedTasks
from samza_azure.commands.azurite.emulator import Azurite

JOB = """
app = { name = "three", main = "three:Mine" }
azure.storage.connect = "${CONNECT}"
job.coordinator.profile = "fast"
"""
#: Who leaves when, by the number of members that share the partitions then.
LEAVE = {"one": 3, "two": 2, "three": 1}


class Mine(SharedTasks):
    """Prints what it gets; a real one would begin to consume the partition."""

    def on_start(self, task: str, generation: int) -> None:
        print(f"{multiprocessing.current_process().name} takes {task}, generation {generation}", flush=True)


def share(name: str, mine: Mine, members: int) -> tuple[str, ...]:
    """What a process has as soon as so many share all partitions. The last one may have them before it leads."""
    while True:
        model, tasks = mine.coordinator.job_model, mine.tasks
        shares = model.processors if model is not None else {}
        is_shared = name in shares and len(shares) == members and set(tasks) == {*shares[name]}
        if is_shared and (members > 1 or mine.coordinator.is_leader):
            return tasks
        time.sleep(0.05)


def member(connect: str, together: Barrier) -> None:
    name = multiprocessing.current_process().name
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator(
        name, Config.parse(JOB, environment={"CONNECT": connect})
    )
    with Mine(coordinator, "partition", 16) as mine:
        share(name, mine, len(LEAVE))
        together.wait(60)
        tasks = share(name, mine, LEAVE[name])
        print(f"{name} {'leads' if coordinator.is_leader else 'follows'} with {len(tasks)} partitions", flush=True)


if __name__ == "__main__":
    with Azurite() as azurite:
        together = multiprocessing.Barrier(len(LEAVE))
        for name in LEAVE:
            multiprocessing.Process(target=member, name=name, args=(azurite.connection_string, together)).start()
        for process in multiprocessing.active_children():
            process.join()
