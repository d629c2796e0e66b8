"""The job file as an argument of every command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from samza_azure.config import Config

Job = Annotated[Path, typer.Argument(help="The job file, for example job.toml.", show_default=False)]


def load(job: Path, overrides: dict[str, Any] | None = None, *, reaches_storage: bool = True) -> Config:
    """Load and check the job file."""
    return Config.load(job, overrides=overrides, reaches_storage=reaches_storage)
