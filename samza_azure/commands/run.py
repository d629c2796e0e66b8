"""`samza-azure run`: one processor, in the foreground."""

import os
import sys
import time
from typing import Annotated

import typer

from samza_azure.commands.job import Job, load
from samza_azure.commands.terminal import say
from samza_azure.coordinator import load_factory
from samza_azure.host.endpoint import Endpoint
from samza_azure.host.health import Health, patience
from samza_azure.host.notify import VARIABLE
from samza_azure.host.slot import take_slot
from samza_azure.host.supervisor import Supervisor
from samza_azure.machine import memory
from samza_azure.metrics import prometheus, serve


def command(
    job: Job,
    processor_id: Annotated[
        str | None, typer.Option("--id", help="This processor's id, instead of the host's name and a slot.")
    ] = None,
    new_run: Annotated[bool, typer.Option("--new-run", help="Begin the next run after a drained one.")] = False,
    wait_for_upgrade: Annotated[
        bool,
        typer.Option("--wait-for-upgrade", help="Stay after a drain until a changed pipeline begins the next run."),
    ] = False,
) -> None:
    """Run one processor, in the foreground.

    SIGTERM and Ctrl-C hand its tasks over and end it; a second Ctrl-C kills.

    Example: samza-azure run job.toml
    """
    config = load(job, {"processor.id": processor_id} if processor_id is not None else None)
    slot = take_slot(config.processor.dir / config.storage.container, config.processor.id)
    sys.path.insert(0, str(config.path.parent))  # a factory of one's own stands next to the job file, or is installed
    begun = time.monotonic()

    def report(text: str) -> None:
        say(f"{time.monotonic() - begun:7.1f} s  {slot.processor_id}  {text}")

    host, port = config.processor.host, config.processor.port
    if config.metrics_prometheus_port is not None:
        report(f"metrics on port {serve(config.metrics_prometheus_port, host)}")
    coordinator = load_factory(config.coordinator.factory).get_job_coordinator(slot.processor_id, config)
    coordinator.ask(new_run=new_run, wait_for_upgrade=wait_for_upgrade, only_holder=True)
    chosen = config.spark.get("spark.driver.memory")
    heap = f"Java's heap of at most {chosen}, as spark.driver.memory says" if chosen else str(memory())
    report(f"pid {os.getpid()}, directory {slot.directory}; {heap}")
    task = config.task
    supervisor = Supervisor(
        coordinator,
        config.path,
        slot.directory,
        report,
        death_limit=task.restart_limit,
        silence_s=task.shutdown_ms / 1000,
        commit_s=task.commit_ms / 1000,
    )
    if port is not None or VARIABLE in os.environ:
        health = Health(
            coordinator,
            steps=lambda: supervisor.steps,
            wake=supervisor.wake,
            container=lambda: supervisor.has_container,
            leaving=lambda: supervisor.is_leaving,
            patience=patience(config.coordinator.timing.heartbeat_s),
        )
        listens_on = Endpoint(health, prometheus() if port is not None else lambda: None).start(host, port)
        if listens_on is not None:
            report(f"health on {host}, port {listens_on}")
    ending = supervisor.run()
    if ending.message:
        report(ending.message)
    raise typer.Exit(ending.code)
