"""All tasks of a container at once."""

import queue
import socket
import threading
from collections.abc import Callable

from pyspark.sql import DataFrame

from samza_azure.application import Application
from samza_azure.machine import boot_time
from samza_azure.messages import Exit, Permit, Phase, ReleaseTask, StartTask, TaskReport, decode
from samza_azure.spark.task.channel import Channel
from samza_azure.spark.task.tasks import Tasks

from .fleet import Fleet

MANY = 40
STREAMS = f"""
[streams.crowded]
partitions = {MANY}
schema = "n int"
"""


def test_a_hand_over_does_not_wait_for_tasks_that_start(fleet: Callable[[Application, str], Fleet]) -> None:
    """More tasks than there are threads wait for their turn to start a query, and one that runs is released."""
    application = Application()

    @application.stage("crowded", output="copied")
    def copy(rows: DataFrame) -> DataFrame:
        return rows

    run = fleet(application, STREAMS)
    ours, theirs = socket.socketpair()
    tasks = Tasks(Channel(theirs.detach()), run._around, run.permit)
    said: queue.Queue[bytes] = queue.Queue()

    def listen() -> None:  # without a pause: a report that nobody takes holds up the container
        for line in ours.makefile("rb"):
            said.put(line)

    def until(task: str, phase: Phase) -> None:
        while True:
            report = decode(said.get(timeout=60))
            assert getattr(report, "error", None) is None, report
            if isinstance(report, TaskReport) and report.task == task and report.phase is phase:
                return

    threading.Thread(target=listen, daemon=True).start()
    container = threading.Thread(target=tasks.run, daemon=True)
    container.start()
    commands = tasks._channel.commands
    commands.put(Permit(boot_time() + 3600))
    start = [StartTask(f"copy-{number}", 1, 1, True, run.run_id, run.group_id) for number in range(MANY)]
    commands.put(start[0])
    until("copy-0", Phase.RUNNING)
    with run._around.starting:
        for each in start[1:]:
            commands.put(each)
        commands.put(ReleaseTask("copy-0"))
        until("copy-0", Phase.RELEASED)
    commands.put(Exit())
    container.join(60)
    assert not container.is_alive()
