"""What all tasks of a container share."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from samza_azure.config import Config
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.storage.interface import Blobs, NamedRows
from samza_azure.tasks.hint_board import HintBoard
from samza_azure.tasks.replicas import Replicas

#: The number of tasks of a container that take over and restore at the same time.
RESTORES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerContext:
    """What all tasks of a container share."""

    config: Config
    pipeline: Pipeline
    blobs: Blobs
    positions: NamedRows
    hints: HintBoard
    directory: Path
    may_append: Callable[[], bool]
    clean: Callable[[str], str]  # takes secrets out of a message
    changed: Callable[[], None]  # a task has something to report at once
    replicas: Replicas = field(default_factory=Replicas)
    restores: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(RESTORES))
