"""The job file as an argument of every command."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from samza_azure.config import Config
from samza_azure.errors import ConfigError

Job = Annotated[Path, typer.Argument(help="The job file, for example job.toml.", show_default=False)]


def load(job: Path, overrides: dict[str, Any] | None = None, *, reaches_storage: bool = True) -> Config:
    """Load and check the job file."""
    return Config.load(job, overrides=overrides, reaches_storage=reaches_storage)


def load_seen(job: Path, overrides: dict[str, Any] | None = None) -> Config:
    """Load the job file for a command that looks for the group in the account, or asks it for something there."""
    config = load(job, overrides)
    refuse_unseen(config)
    return config


def refuse_unseen(config: Config) -> None:
    """Raise `ConfigError` if the user's own coordinator keeps the group elsewhere than in the account: a command would
    say that no processor runs.
    """
    if not is_seen(config):
        raise ConfigError(
            f"{config.coordinator.factory} coordinates this job, and keeps its group elsewhere than in the account, "
            "where this command looks: it would see no processor, and no processor would see its requests. Ask that "
            "coordinator itself. If it is made by a factory of samza_azure after all, say so in the class: "
            "group_in_account = True."
        )


def is_seen(config: Config) -> bool:
    """Whether the group is in the account: with the factories of this package, and with others that say so."""
    return config.coordinator.is_ours or getattr(factory_of(config), "group_in_account", False) is True


def factory_of(config: Config) -> Any:
    """The factory that the job file names; a user's is beside the job file, or installed. Raise `ConfigError` if it
    cannot be loaded.
    """
    from samza_azure.coordinator import load_factory  # most commands of most jobs need none

    sys.path.insert(0, str(config.path.parent))
    return load_factory(config.coordinator.factory)


def processors_of(config: Config, asked: int | None, usual: int) -> int:
    """How many processors a command is about. Raise `ConfigError` if several are asked for in a group of one."""
    if not config.coordinator.is_alone:
        return asked or usual
    if asked is not None and asked > 1:
        raise ConfigError(
            f"--processors is {asked}, and with {config.coordinator.factory} a job has one processor. For several set "
            "job.coordinator.factory to samza_azure.AzureJobCoordinatorFactory, or leave it out."
        )
    return 1
