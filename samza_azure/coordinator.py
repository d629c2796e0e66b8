"""The coordinator as a library: who is in the group, who leads, who runs what, and when it changes.

`job.coordinator.factory` names a factory by its dotted path: `samza_azure.AzureJobCoordinatorFactory`,
`samza_azure.PassthroughJobCoordinatorFactory`, or your own. A coordinator calls its listener on a thread of its own;
a listener must not block it.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from samza_azure.errors import ConfigError, Ending
from samza_azure.group.notification import DrainNotification
from samza_azure.messages import Command, Report


@dataclass(frozen=True, slots=True)
class JobModel:
    """One version of who runs what."""

    version: int
    epoch: int
    run_id: str
    processors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # processor -> its tasks


class JobCoordinatorListener:
    """What a coordinator tells. Override what you need; the rest does nothing."""

    def on_job_model_expired(self) -> None:
        """A task of this processor is to move away."""

    def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
        """A version was adopted."""

    def on_leadership(self, leads: bool, epoch: int) -> None:
        """This processor leads now, or leads no more. The epoch is higher with each leadership: a fencing token."""

    def on_drain(self, notification: DrainNotification) -> None:
        """The run is being drained. Called once per step, with the step in `notification.reached`: FREEZE, FLUSH,
        DRAINED. Who was not there for one of them hears of the last alone.
        """

    def on_coordinator_stop(self) -> None:
        """The coordinator has ended; nothing follows."""

    def on_coordinator_failure(self, error: Exception) -> None:
        """The coordinator has ended for a reason that the user should see; nothing follows."""

    def on_command(self, command: Command) -> None:
        """What this processor's container is to do next. Who hosts tasks overrides it and answers with `report`."""


class JobCoordinator(ABC):
    """A processor's membership of its group."""

    #: How it ended, set before the listener hears of it; None while it lives.
    ending: Ending | None = None

    @abstractmethod
    def set_listener(self, listener: JobCoordinatorListener) -> None:
        """Whom to tell. Call it before `start`."""

    def ask(self, *, new_run: bool, wait_for_upgrade: bool, only_holder: bool = False) -> None:
        """What to do about a drained run: begin the next one, or wait for an upgrade. Call it before `start`.

        `only_holder` says that a lock on this machine keeps others from the processor's id, so that a row which an
        earlier life left is certainly a dead one's.
        """
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
    def is_leader(self) -> bool:
        """Does this processor lead? Another may have deposed it just now; what it does must carry the epoch."""

    @property
    @abstractmethod
    def job_model(self) -> JobModel | None:
        """The version adopted last."""

    @property
    def turns(self) -> int | None:
        """How often it has gone round since it started, for those who ask whether it lives; None: it does not count."""
        return None

    @abstractmethod
    def report(self, *reports: Report) -> None:
        """What this processor's container says of itself and its tasks, at once if it is much. Any thread."""

    @abstractmethod
    def container_lost(self, reason: str) -> None:
        """The container is gone, and every task in it with it. Any thread."""

    def container_uses(self, size: int) -> None:  # noqa: B027  # who measures nothing need not override it
        """The container and its processes use so many bytes of memory, for whoever measures it. Any thread."""


class JobCoordinatorFactory(Protocol):
    """Makes coordinators from the configuration."""

    def get_job_coordinator(self, processor_id: str, config: Any, metrics: Any = None) -> JobCoordinator:
        """A coordinator that has not started."""


class Lock(ABC):
    """At most one holder in the whole group. Each grant has a token that is higher than all before."""

    @abstractmethod
    def lock(self, timeout: float | None = None) -> int | None:
        """Wait until it is ours, for ever or so many seconds; the token, or None if the time is over."""

    def try_lock(self) -> int | None:
        """The token if it is ours at once, otherwise None."""
        return self.lock(timeout=0.0)

    @abstractmethod
    def unlock(self) -> None:
        """Give it back. Idempotent; a lock that was lost is given back too."""

    @property
    @abstractmethod
    def token(self) -> int | None:
        """The token while it is held, otherwise None."""

    @property
    @abstractmethod
    def held(self) -> bool:
        """Is it ours still? False before anybody else can have it."""

    @property
    @abstractmethod
    def lost(self) -> str | None:
        """Why it is not ours any more although we did not give it back."""

    def __enter__(self) -> int:
        token = self.lock()
        if token is None:
            raise RuntimeError("Another thread unlocked this lock while it was waited for.")
        return token

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.unlock()


class LeaderElectorListener:
    """What an elector tells, on a thread of its own; it must not be blocked."""

    def on_becoming_leader(self, epoch: int) -> None:
        """We lead. Whatever we do as leader carries the epoch, which is higher with each leadership."""

    def on_losing_leadership(self) -> None:
        """We lead no more."""


class LeaderElector(ABC):
    """One leader among those who ask to be."""

    @abstractmethod
    def set_listener(self, listener: LeaderElectorListener) -> None:
        """Whom to tell. Call it before `try_become_leader`."""

    @abstractmethod
    def try_become_leader(self) -> None:
        """Stand as a candidate from now on. Returns at once. Idempotent."""

    @abstractmethod
    def resign_leadership(self) -> None:
        """Lead no more and be no candidate; somebody else takes over at once. Idempotent."""

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Do we lead? Another may have deposed us just now; what we do must carry the epoch."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Of the present leadership, as far as we know."""


class ClusterMembership(ABC):
    """Who is in the group."""

    @abstractmethod
    def register_processor(self) -> None:
        """Be a member from now on. Returns at once. Idempotent."""

    @abstractmethod
    def unregister_processor(self) -> None:
        """Leave. Idempotent."""

    @abstractmethod
    def processors(self) -> tuple[str, ...]:
        """The ids of all live members, read now. Asks the storage: not for a tight loop."""

    def number_of_processors(self) -> int:
        """How many live members there are, read now."""
        return len(self.processors())


class CoordinationUtils(ABC):
    """An elector, locks and the membership of one group, for programs that share no tasks."""

    @property
    @abstractmethod
    def leader_elector(self) -> LeaderElector:
        """The group's elector; always the same one."""

    @property
    @abstractmethod
    def cluster_membership(self) -> ClusterMembership:
        """The group's membership; always the same one."""

    @abstractmethod
    def get_lock(self, name: str) -> Lock:
        """A lock of this group."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group and wait until that is done. Locks are given back by their holders. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class CoordinationUtilsFactory(Protocol):
    """Makes them from the configuration."""

    def get_coordination_utils(self, group: str, processor_id: str, config: Any) -> CoordinationUtils:
        """The tools of a group, which has nothing to do with the job's own."""


def load_factory(path: str) -> JobCoordinatorFactory:
    """An instance of the class that a dotted path names; `ConfigError` says what is wrong with the path."""
    made: JobCoordinatorFactory = _load(path, "get_job_coordinator")
    return made


def load_utils_factory(path: str) -> CoordinationUtilsFactory:
    """The same for the tools: `load_utils_factory(config.coordinator.factory)`."""
    made: CoordinationUtilsFactory = _load(path, "get_coordination_utils")
    return made


def _load(path: str, method: str) -> Any:
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"job.coordinator.factory = {path!r} cannot be loaded: {error}. "
            "Name a class by its dotted path, for example samza_azure.AzureJobCoordinatorFactory."
        ) from error
    if not callable(getattr(found, method, None)):
        raise ConfigError(f"job.coordinator.factory = {path!r} has no method {method}.")
    return found() if isinstance(found, type) else found
