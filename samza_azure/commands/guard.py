"""`samza-azure guard`: any command, on one machine of several at a time."""

import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from samza_azure.commands.job import factory_of, guarded, load
from samza_azure.commands.logs import (
    FileOption,
    FormatOption,
    LevelOption,
    LogFormat,
    LogLevel,
    configure,
    name_the_run,
)
from samza_azure.commands.run import answer_probes, exit_with, serve_metrics, watch_notices
from samza_azure.commands.terminal import tell
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.host.slot import take_slot
from samza_azure.library.fencing import check_token
from samza_azure.library.guard import Guard, with_time_to_end
from samza_azure.library.threaded import ThreadedCoordinator

log = logging.getLogger(__name__)


def command(
    name: Annotated[
        str | None,
        typer.Argument(help="The guard's name, or a job file. Guards of one name are a group.", show_default=False),
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The command, behind --.", show_default=False)
    ] = None,
    processor_id: Annotated[
        str | None, typer.Option("--id", help="This guard's id, instead of the host's name and a slot.")
    ] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="Before each start, check the token in this folder. May be repeated.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option("--check-token", metavar="FOLDER", help="Within a command: check its token in a folder, no more."),
    ] = None,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="Run a command again that has ended with 0, or was drained.")
    ] = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = LogLevel.INFO,
    log_file: FileOption = None,
) -> None:
    """Run any command on one of several machines at a time; the others stand by and take over.

    SIGTERM, SIGPWR and Ctrl-C are passed on, and hand over; a second Ctrl-C kills the command.

    Example: samza-azure guard nightly -- spark-submit job.py
    """
    if check is not None:
        tell(str(check_token(check)))
        return
    if name is None or not words:
        raise ConfigError("A guard needs a name and a command: samza-azure guard nightly -- spark-submit job.py")
    _refuse_command(words)
    overrides = {"processor.id": processor_id} if processor_id is not None else None
    config = load(Path(name), overrides) if name.endswith(".toml") else guarded(name, overrides)
    slot = take_slot(config.processor.dir / config.storage.container, config.processor.id)
    configure(slot.processor_id, config.app.name, as_json=log_format == "json", level=log_level, file=log_file)
    serve_metrics(config)
    coordinator = _coordinator(config, slot.processor_id)
    name_the_run(lambda: "" if (model := coordinator.job_model) is None else model.run_id)
    restarted = not new_run and slot.is_restarted_after_a_drain(time.time())
    if restarted:
        log.info("the run of this guard was over just now, so this one only stands by, or for --new-run elsewhere")
    coordinator.ask(new_run=new_run, wait_for_upgrade=False, restarted=restarted, only_holder=True)
    log.info("pid %d, directory %s", os.getpid(), slot.directory)
    guard = Guard(
        coordinator,
        words,
        slot.directory,
        timing=config.coordinator.timing,
        patience_s=config.task.shutdown_ms / 1000,
        checkpoints=checkpoint or (),
    )
    watch_notices(config, coordinator)
    answer_probes(
        config,
        coordinator,
        steps=lambda: guard.steps,
        wake=guard.wake,
        container=lambda: True,
        leaving=lambda: guard.is_leaving,
    )
    exit_with(guard.run(), slot)


def _refuse_command(words: Sequence[str]) -> None:
    """Raise `ConfigError` for a command that cannot be guarded."""
    if shutil.which(words[0]) is None:
        raise ConfigError(f"There is no command {words[0]!r} on this machine. Install it, or give its path.")
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if (word, following) == ("--deploy-mode", "cluster") or word == "--deploy-mode=cluster":
            raise ConfigError(
                "With --deploy-mode cluster the driver runs on another machine, where a guard cannot end it. Leave it "
                "out: a guarded driver runs here, and its executors may be elsewhere."
            )


def _coordinator(config: Config, processor_id: str) -> ThreadedCoordinator:
    found = factory_of(config).get_job_coordinator(processor_id, with_time_to_end(config))
    if not isinstance(found, ThreadedCoordinator):
        raise ConfigError(
            f"{config.coordinator.factory} makes a coordinator of your own, and a guard needs one of samza_azure. "
            "Leave job.coordinator.factory out of the job file."
        )
    return found
