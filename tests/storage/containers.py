"""What a container gives its tasks, where a test drives these on a storage in memory."""

from pathlib import Path
from typing import Any

from samza_azure.config import Config
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.hint_board import HintBoard


def container_context(account: Any, directory: Path, config: Config, pipeline: Pipeline) -> ContainerContext:
    """One whose permit never ends."""
    return ContainerContext(
        config=config,
        pipeline=pipeline,
        blobs=account.blobs(),
        positions=account.readers(),
        hints=HintBoard(account.hints(), directory / "hints"),
        directory=directory,
        may_append=lambda: True,
        clean=str,
        changed=lambda: None,
    )
