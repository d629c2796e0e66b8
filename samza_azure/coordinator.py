"""The coordinator as a library: who is in the group, who leads, who runs what, and when that changes.

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
from samza_azure.group.notice import PORT, Going
from samza_azure.group.notification import DrainNotification
from samza_azure.messages import Command, Report, Use


@dataclass(frozen=True, slots=True)
class JobModel:
    """One version of the assignment of tasks to processors.

    Example:
        def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
            print(job_model.version, job_model.processors[processor_id])
    """

    version: int
    epoch: int
    run_id: str
    processors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # processor -> its tasks


class JobCoordinatorListener:
    """The callbacks of a coordinator. Override those you need; the defaults do nothing.

    Example:
        class Listener(JobCoordinatorListener):
            def on_leadership(self, leads: bool, epoch: int) -> None:
                print("leads" if leads else "follows", epoch)

            def on_job_model_expired(self) -> None:
                print("a task is about to move")

            def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
                print(job_model.processors.get(processor_id, ()))

            def on_drain(self, notification: DrainNotification) -> None:
                print(notification.reached)

            def on_coordinator_stop(self) -> None:
                print("has left")

            def on_coordinator_failure(self, error: Exception) -> None:
                print(f"has ended: {error}")

        coordinator = AzureJobCoordinatorFactory().get_job_coordinator("one", Config.load("job.toml"))
        coordinator.set_listener(Listener())
        coordinator.start()
        coordinator.stop()
    """

    def on_job_model_expired(self) -> None:
        """A task of this processor is about to move to another one."""

    def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
        """This processor has adopted a version of the job model."""

    def on_leadership(self, leads: bool, epoch: int) -> None:
        """This processor leads now, or no longer leads. The epoch, a fencing token, never falls, and has risen if
        anybody else has led meanwhile. If nobody has, as after an outage of the storage for all, it is the same.
        """

    def on_drain(self, notification: DrainNotification) -> None:
        """The run is being drained. Called once per step, with the step in `notification.reached`: FREEZE, FLUSH,
        DRAINED. A processor that missed steps is called for the last one only.
        """

    def on_coordinator_stop(self) -> None:
        """The coordinator has ended. No further call follows."""

    def on_coordinator_failure(self, error: Exception) -> None:
        """The coordinator has ended for a reason that the user should see. No further call follows."""


class TaskHost(JobCoordinatorListener):
    """A listener that runs this processor's tasks. What it is told of them is ours, and may change with any release."""

    def on_command(self, command: Command) -> None:
        """What is to be done next. It is answered with `report`."""


class JobCoordinator(ABC):
    """A processor's membership of its group.

    Example:
        coordinator = AzureJobCoordinatorFactory().get_job_coordinator("one", Config.load("job.toml"))
        coordinator.set_listener(JobCoordinatorListener())
        coordinator.start()
        if coordinator.is_leader:
            print(coordinator.job_model)
        coordinator.stop()
    """

    #: How the coordinator ended, set before the listener is called; None while it runs.
    ending: Ending | None = None

    @abstractmethod
    def set_listener(self, listener: JobCoordinatorListener) -> None:
        """Set the object whose methods are called. Call it before `start`."""

    def ask(self, *, new_run: bool, wait_for_upgrade: bool, restarted: bool = False, only_holder: bool = False) -> None:
        """Say what to do about a drained run: begin the next one, or wait for an upgrade. Call it before `start`.

        `restarted` says that the run of the former life was drained just now: an orchestrator starts whatever ends, so
        the processor waits, too, unless its code is upgraded.
        `only_holder` says that a lock on this machine keeps others from using the processor's id, so that a row left by
        an earlier incarnation here certainly belongs to a dead one.

        Raises:
            ConfigError: this coordinator supports neither.

        Example:
            coordinator.ask(new_run=False, wait_for_upgrade=True)
        """
        if new_run or wait_for_upgrade:
            raise ConfigError(f"{type(self).__name__} supports neither --new-run nor --wait-for-upgrade.")

    @abstractmethod
    def start(self) -> None:
        """Join the group, in the background. Idempotent."""

    @abstractmethod
    def stop(self) -> None:
        """Hand over the tasks, leave the group, and end. Returns at once; `on_coordinator_stop` follows. Idempotent."""

    def give_up(self, reason: str) -> None:
        """Like `stop`, because the host of the tasks cannot go on. A coordinator that can tell the group the reason
        overrides this, and ends with `on_coordinator_failure`.

        Example:
            coordinator.give_up("the disk is full")
        """
        self.stop()

    def decommission(self, why: str, *, by: float | None = None, source: str = PORT) -> None:
        """This processor will go: hand over the tasks, but stay, because the notice may be withdrawn. Returns at once.

        `why` is for people; `by` is when it goes, in seconds of CLOCK_BOOTTIME, or None if that is not known. Notices
        of several sources may hold at once; a second one of the same source changes nothing. A coordinator that cannot
        stay without tasks leaves for good.

        Example:
            coordinator.decommission("maintenance at noon", by=boot_time() + 30)
        """
        self.stop()

    def recommission(self, source: str = PORT) -> None:  # noqa: B027  # a coordinator that leaves for good cannot
        """The notice of this source is withdrawn: unless there is another one, the processor gets tasks again.

        Example:
            coordinator.recommission()
        """

    @property
    def going(self) -> Going | None:
        """What it has handed over since a notice, or since it was asked to leave; None if there was neither.

        Example:
            if (going := coordinator.going) is not None:
                print(going.state)
        """
        return None

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Whether this processor leads. It ends with the permit, and before another one says so, unless a clock jumps.
        A process may be paused right after it has asked, so all that it does as leader must carry the epoch.
        """

    @property
    @abstractmethod
    def job_model(self) -> JobModel | None:
        """The version adopted last; None before the first."""

    @property
    def turns(self) -> int | None:
        """How many turns its loop has made since `start`, for a health check; None if it does not count them.

        Example:
            is_alive = coordinator.turns != turns_a_minute_ago
        """
        return None

    @abstractmethod
    def report(self, *reports: Report) -> None:
        """Take reports of the container on itself and its tasks, several in one call. Call it from any thread.

        Example:
            coordinator.report(Ready(plan))
        """

    @abstractmethod
    def container_lost(self, reason: str) -> None:
        """The container has ended, and all its tasks with it. Call it from any thread.

        Example:
            coordinator.container_lost("it was killed")
        """

    def container_silent(self, seconds: float) -> None:  # noqa: B027  # a coordinator that moves no task need not
        """The container has sent nothing for so many seconds, and perhaps hangs; 0: it has just sent something. Call it
        from any thread. The coordinator may answer with the command `Kill`.

        Example:
            coordinator.container_silent(3.5)
        """

    def container_uses(self, size: int) -> None:  # noqa: B027  # a coordinator without metrics need not override it
        """The container and its processes use `size` bytes of memory. Call it from any thread.

        Example:
            coordinator.container_uses(512 << 20)
        """

    def listens(self, host: str, port: int) -> None:  # noqa: B027  # a coordinator without doorbells need not
        """Others may connect to this processor at this address and port. Call it before `start`.

        Example:
            coordinator.listens("10.0.0.4", 8080)
        """

    def rung(self) -> None:  # noqa: B027  # as above
        """Another processor says that there is something to read in the storage. Call it from any thread.

        Example:
            coordinator.rung()
        """

    def measured(self, use: Use) -> None:
        """The container and its processes use so much of the machine. Call it from any thread.

        Example:
            coordinator.measured(use)
        """
        self.container_uses(use.memory)


class JobCoordinatorFactory(Protocol):
    """Makes coordinators from the configuration.

    A factory whose coordinators are ours, or keep the group in the account as ours do, has the attribute
    `group_in_account = True`. Without it the commands that look for the group there, or ask it for something, are
    refused: they would find nobody.
    """

    def get_job_coordinator(self, processor_id: str, config: Any, metrics: Any = None) -> JobCoordinator:
        """Return a coordinator that has not started."""


class Lock(ABC):
    """A lock with at most one holder in the whole group. Each grant has a higher token than all grants before.

    Example:
        lock = utils.get_lock("nightly-report")
        with lock as token:
            write_report(token)  # what stores the report refuses a lower token
        if lock.try_lock() is not None or lock.lock(timeout=10) is not None:
            if lock.held:
                write_report(lock.token)
            else:
                print(lock.lost)
            lock.unlock()
    """

    @abstractmethod
    def lock(self, timeout: float | None = None) -> int | None:
        """Wait for the lock, for `timeout` seconds or without a limit. Return the token, or None after the timeout.

        Raises:
            RuntimeError: this object holds the lock or waits for it already.
            AccessDenied: the account refuses a call.
            StorageUnavailable: the account did not answer until the timeout.
        """

    def try_lock(self) -> int | None:
        """Return the token if the lock is granted at once, otherwise None."""
        return self.lock(timeout=0.0)

    @abstractmethod
    def unlock(self) -> None:
        """Release the lock. Idempotent; a lock that was lost is released, too."""

    @property
    @abstractmethod
    def token(self) -> int | None:
        """The token while the lock is held, otherwise None."""

    @property
    @abstractmethod
    def held(self) -> bool:
        """Whether the lock is still held. It turns false before another holder can be granted the lock."""

    @property
    @abstractmethod
    def lost(self) -> str | None:
        """Why the lock was lost without `unlock`; None if it was not."""

    def __enter__(self) -> int:
        token = self.lock()
        if token is None:
            raise RuntimeError("Another thread unlocked this lock while this one waited for it.")
        return token

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.unlock()


class LeaderElectorListener:
    """The callbacks of an elector, on a thread of its own. They must not block it.

    Example:
        class Listener(LeaderElectorListener):
            def on_becoming_leader(self, epoch: int) -> None:
                print("leads with epoch", epoch)

            def on_losing_leadership(self) -> None:
                print("follows")
    """

    def on_becoming_leader(self, epoch: int) -> None:
        """This processor leads. All it does as leader must carry the epoch, which has risen if anybody else has led."""

    def on_losing_leadership(self) -> None:
        """This processor no longer leads."""


class LeaderElector(ABC):
    """Elects one leader among its candidates.

    Example:
        with AzureJobCoordinatorFactory().get_coordination_utils("reports", "one", config) as utils:
            elector = utils.leader_elector
            elector.set_listener(LeaderElectorListener())
            elector.try_become_leader()
            if elector.is_leader:
                write_report(elector.epoch)
            elector.resign_leadership()
    """

    @abstractmethod
    def set_listener(self, listener: LeaderElectorListener) -> None:
        """Set the object whose methods are called. Call it before `try_become_leader`."""

    @abstractmethod
    def try_become_leader(self) -> None:
        """Become a candidate. Returns at once. Idempotent."""

    @abstractmethod
    def resign_leadership(self) -> None:
        """Give up the leadership and the candidacy; another candidate takes over at once. Idempotent."""

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Whether this processor leads. It ends with the permit, and before another one says so, unless a clock jumps.
        A process may be paused right after it has asked, so all that it does as leader must carry the epoch.
        """

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The epoch of the present leadership, as far as this processor knows."""


class ClusterMembership(ABC):
    """Who is in the group.

    Example:
        with AzureJobCoordinatorFactory().get_coordination_utils("reports", "one", config) as utils:
            membership = utils.cluster_membership
            membership.register_processor()
            while True:
                try:
                    print(membership.number_of_processors(), membership.processors())
                    break
                except StorageUnavailable:  # it has not joined yet
                    time.sleep(0.5)
            membership.unregister_processor()
    """

    @abstractmethod
    def register_processor(self) -> None:
        """Join the group. Returns at once. Idempotent."""

    @abstractmethod
    def unregister_processor(self) -> None:
        """Leave the group. Idempotent."""

    @abstractmethod
    def processors(self) -> tuple[str, ...]:
        """The ids of all live members. Each call reads the storage: not for a tight loop.

        Raises:
            StorageUnavailable: the account does not answer, or this processor has not joined yet.
            AccessDenied: the account refuses the call.
        """

    def number_of_processors(self) -> int:
        """The number of live members. Each call reads the storage.

        Raises:
            StorageUnavailable, AccessDenied: as `processors`.
        """
        return len(self.processors())


class CoordinationUtils(ABC):
    """An elector, locks and the membership of one group, for programs that share no tasks.

    Example:
        utils = AzureJobCoordinatorFactory().get_coordination_utils("reports", "one", config)
        utils.leader_elector.try_become_leader()
        utils.cluster_membership.register_processor()
        with utils.get_lock("nightly") as token:
            write_report(token)
        utils.close()  # as leaving it as a context manager does
    """

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
        """A lock of this group.

        Raises:
            ConfigError: the name is not that of a lock; the message has the rule.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave the group, and wait until that is done. Locks are not released by this. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class CoordinationUtilsFactory(Protocol):
    """Makes coordination tools from the configuration."""

    def get_coordination_utils(self, group: str, processor_id: str, config: Any) -> CoordinationUtils:
        """Return the tools of a group, which is independent of the job's own group."""


def load_factory(path: str) -> JobCoordinatorFactory:
    """Load the factory that a dotted path names, and make one of a class. Raise `ConfigError` if that fails."""
    made: JobCoordinatorFactory = _load(path, "get_job_coordinator")
    return made


def load_utils_factory(path: str) -> CoordinationUtilsFactory:
    """Like `load_factory`, for the tools: `load_utils_factory(config.coordinator.factory)`."""
    made: CoordinationUtilsFactory = _load(path, "get_coordination_utils")
    return made


def _load(path: str, method: str) -> Any:
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # an import runs the user's code
        raise ConfigError(
            f"job.coordinator.factory = {path!r} cannot be loaded: {type(error).__name__}: {error}. "
            "Name a class by its dotted path, for example samza_azure.AzureJobCoordinatorFactory."
        ) from error
    if not callable(getattr(found, method, None)):
        raise ConfigError(f"job.coordinator.factory = {path!r} has no method {method}.")
    return found() if isinstance(found, type) else found
