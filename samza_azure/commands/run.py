"""`samza-azure run`: one processor, in the foreground."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, NoReturn

import typer

from samza_azure.commands.job import Job, factory_of, is_seen, load, refuse_hiding
from samza_azure.commands.logs import (
    FileOption,
    FormatOption,
    LevelOption,
    LogFormat,
    LogLevel,
    configure,
    name_the_run,
)
from samza_azure.config import Config
from samza_azure.coordinator import JobCoordinator
from samza_azure.errors import Ending
from samza_azure.group.timing import SELF_STOP
from samza_azure.host.bells import add_bell, address_for_others
from samza_azure.host.decommission import add_decommission, app_of
from samza_azure.host.endpoint import Endpoint
from samza_azure.host.health import Health, patience
from samza_azure.host.notify import VARIABLE
from samza_azure.host.scheduled_events import Watch
from samza_azure.host.slot import Slot, take_slot
from samza_azure.host.supervisor import Supervisor
from samza_azure.machine.memory import Memory, memory
from samza_azure.metrics.prometheus import on_scrape, serve
from samza_azure.pipeline.quick_check import has_spark, mentions_spark, no_spark
from samza_azure.planning import quick_check

log = logging.getLogger(__name__)


def command(
    job: Job,
    processor_id: Annotated[
        str | None, typer.Option("--id", help="This processor's id, instead of the host's name and a slot.")
    ] = None,
    new_run: Annotated[bool, typer.Option("--new-run", help="Begin the next run after a drained one.")] = False,
    wait_for_upgrade: Annotated[
        bool,
        typer.Option(
            "--wait-for-upgrade",
            help="Stay after a drain until a changed pipeline begins the next run. "
            "The default for a restart within a minute after the drain.",
        ),
    ] = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = LogLevel.INFO,
    log_file: FileOption = None,
) -> None:
    """Run one processor, in the foreground.

    SIGTERM, SIGPWR and Ctrl-C hand over its tasks and end it; a second Ctrl-C kills it.

    Example: samza-azure run job.toml
    """
    config = load(job, {"processor.id": processor_id} if processor_id is not None else None)
    refuse_hiding(config)
    _check_packages(config)
    slot = take_slot(config.processor.dir / config.storage.container, config.processor.id)
    configure(slot.processor_id, config.app.name, as_json=log_format == "json", level=log_level, file=log_file)
    serve_metrics(config)
    coordinator: JobCoordinator = factory_of(config).get_job_coordinator(slot.processor_id, config)
    name_the_run(lambda: "" if (model := coordinator.job_model) is None else model.run_id)
    restarted = not new_run and slot.is_restarted_after_a_drain(time.time())
    if restarted and not wait_for_upgrade:
        log.info(
            "the run of this processor was drained just now: unless its pipeline has changed, it waits for an upgrade, "
            "or for --new-run elsewhere"
        )
    coordinator.ask(new_run=new_run, wait_for_upgrade=wait_for_upgrade, restarted=restarted, only_holder=True)
    level, room = said_of_memory(config, memory())
    log.log(level, "pid %d, directory %s; %s", os.getpid(), slot.directory, room)
    task = config.task
    supervisor = Supervisor(
        coordinator,
        config.path,
        slot.directory,
        death_limit=task.restart_limit,
        silence_s=task.shutdown_ms / 1000,
        commit_s=task.commit_ms / 1000,
    )
    watch_notices(config, coordinator)
    answer_probes(
        config,
        coordinator,
        steps=lambda: supervisor.steps,
        wake=supervisor.wake,
        container=lambda: supervisor.has_container,
        leaving=lambda: supervisor.is_leaving,
    )
    exit_with(supervisor.run(), slot)


def exit_with(ending: Ending, slot: Slot) -> NoReturn:
    """Note a drain in the slot, say why this process ends, and exit."""
    if ending.drained:
        slot.note_drained()
    if ending.message:
        log.log(logging.ERROR if ending.code else logging.INFO, "%s", ending.message)
    raise typer.Exit(ending.code)


def said_of_memory(config: Config, there: Memory) -> tuple[int, str]:
    """What to log of the memory for Java's heap, and at which level. A job without a query starts no Java."""
    if not (has_spark() and mentions_spark(config)):
        return logging.INFO, f"{there.limit >> 20} MiB of memory"
    if chosen := config.spark.get("spark.driver.memory"):
        return logging.INFO, f"Java's heap of at most {chosen}, as spark.driver.memory says"
    return logging.WARNING if there.is_short else logging.INFO, str(there)


def _check_packages(config: Config) -> None:
    """Refuse a pipeline that lacks pyspark, before there is a processor."""
    if not has_spark() and quick_check(config).has_query:
        raise no_spark(config.app.main)


def serve_metrics(config: Config) -> None:
    """Serve metrics alone, if the job file has a port for them. Call it before the coordinator is made."""
    if config.metrics_prometheus_port is not None:
        log.info("metrics on port %d", serve(config.metrics_prometheus_port, config.processor.host))


def watch_notices(config: Config, coordinator: JobCoordinator) -> None:
    """Watch for the end of this machine, if the job file says who tells of it."""
    if config.host.notices == "azure":
        patience_s = SELF_STOP * config.coordinator.timing.heartbeat_timeout_s
        Watch(coordinator, config.host.metadata, patience_s).start()


def answer_probes(
    config: Config,
    coordinator: JobCoordinator,
    *,
    steps: Callable[[], int],
    wake: Callable[[], None],
    container: Callable[[], bool],
    leaving: Callable[[], bool],
) -> None:
    """Answer health probes, with metrics and page, if the job file has a port for them, and notify systemd."""
    host, port = config.processor.host, config.processor.port
    if port is None and VARIABLE not in os.environ:
        return
    beats = patience(config.coordinator.timing.heartbeat_s)
    health = Health(coordinator, steps=steps, wake=wake, container=container, leaving=leaving, patience=beats)
    routes = page_of(config, coordinator)

    def more(app: Any) -> None:
        routes(app)
        add_decommission(app, coordinator, app_of(config))
        if config.processor.bells:
            add_bell(app, coordinator)

    endpoint = Endpoint(health, *(() if port is None else (on_scrape(), more)))
    listens_on = endpoint.start(host, port)
    if listens_on is not None:
        log.info("health on %s, port %d", host, listens_on)
        if config.processor.bells:
            hang_bell(coordinator, host, listens_on)


def hang_bell(coordinator: JobCoordinator, host: str, port: int) -> None:
    """Let other processors connect to this port, if it is at an address of a private network."""
    if (address := address_for_others(host)) is None:
        log.warning(
            "processor.bells is on, but %s is no address of a private network: this processor has no bell", host
        )
    else:
        coordinator.listens(address, port)


def page_of(config: Config, coordinator: JobCoordinator) -> Callable[[Any], None]:
    """The status page, for this machine only; others use `samza-azure ui`. It reads the account while it is open.

    Its curves are drawn all the time, from what the coordinator knows. Nothing if the group is not in the account.
    """
    if not is_seen(config):
        return lambda app: None
    from samza_azure.page.server import Access, add_page  # imported only if there is a port to serve it on
    from samza_azure.page.watch import Watcher, lines_of, note

    watchers: list[Watcher] = []
    lines = lines_of(config)

    def watcher() -> Watcher:
        watchers[:] = watchers or [Watcher(config, lines=lines)]
        return watchers[0]

    async def draw(app: Any) -> AsyncIterator[None]:
        drawing = asyncio.create_task(note(lines, lambda: getattr(coordinator, "view", None)))
        yield
        drawing.cancel()
        for each in watchers:
            await each.close()

    def add(app: Any) -> None:
        add_page(app, watcher, Access())
        app.cleanup_ctx.append(draw)

    return add
