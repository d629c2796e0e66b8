"""The coordinator as a library: who is in the group, who leads, who runs what, and when it changes.

`job.coordinator.factory` names a factory by its dotted path: `samza_azure.AzureJobCoordinatorFactory`,
`samza_azure.PassthroughJobCoordinatorFactory`, or your own. A coordinator calls its listener on a thread of its own;
a listener must not block it.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from samza_azure.errors import ConfigError
from samza_azure.protocol.control import DrainNotification
from samza_azure.protocol.messages import Command, Report


@dataclass(frozen=True, slots=True)
class JobModel:
    """One version of who runs what."""

    version: int
    epoch: int
    run_id: str
    processors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # processor -> its tasks


@dataclass(frozen=True, slots=True)
class Ending:
    """How a coordinator ended: the exit code of the process, and a sentence for the user."""

    code: int
    message: str


class JobCoordinatorListener:
    """What a coordinator tells. Override what you need; the rest does nothing."""

    def on_job_model_expired(self) -> None:
        """A task of this processor is to move away."""

    def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
        """A version was adopted."""

    def on_drain(self, notification: DrainNotification) -> None:
        """The run is being drained; called once per step."""

    def on_coordinator_stop(self) -> None:
        """The coordinator has ended; nothing follows."""

    def on_coordinator_failure(self, error: Exception) -> None:
        """The coordinator has ended for a reason that the user should see; nothing follows."""

    def on_command(self, command: Command) -> None:
        """What this processor's container is to do next. Who hosts tasks overrides it and answers with `report`."""


class JobCoordinator(ABC):
    """A processor's membership of its group."""

    @abstractmethod
    def set_listener(self, listener: JobCoordinatorListener) -> None:
        """Whom to tell. Call it before `start`."""

    def ask(self, *, new_run: bool, wait_for_upgrade: bool) -> None:
        """What to do about a drained run: begin the next one, or wait for an upgrade. Call it before `start`."""
        if new_run or wait_for_upgrade:
            raise ConfigError(f"{type(self).__name__} knows neither --new-run nor --wait-for-upgrade.")

    @abstractmethod
    def start(self) -> None:
        """Join the group, in the background. Idempotent."""

    @abstractmethod
    def stop(self) -> None:
        """Hand over the tasks, leave the group, end. Returns at once; `on_coordinator_stop` follows. Idempotent."""

    @property
    @abstractmethod
    def job_model(self) -> JobModel | None:
        """The version adopted last."""

    @abstractmethod
    def report(self, report: Report) -> None:
        """What this processor's container says of itself and its tasks. Any thread."""

    @abstractmethod
    def container_lost(self, reason: str) -> None:
        """The container is gone, and every task in it with it. Any thread."""


class JobCoordinatorFactory(Protocol):
    """Makes coordinators from the configuration."""

    def get_job_coordinator(self, processor_id: str, config: Any, metrics: Any = None) -> JobCoordinator:
        """A coordinator that has not started."""


def load_factory(path: str) -> JobCoordinatorFactory:
    """An instance of the class that a dotted path names; `ConfigError` says what is wrong with the path."""
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"job.coordinator.factory = {path!r} cannot be loaded: {error}. "
            "Name a class by its dotted path, for example samza_azure.AzureJobCoordinatorFactory."
        ) from error
    factory = found() if isinstance(found, type) else found
    if not callable(getattr(factory, "get_job_coordinator", None)):
        raise ConfigError(f"job.coordinator.factory = {path!r} has no method get_job_coordinator.")
    made: JobCoordinatorFactory = factory
    return made
