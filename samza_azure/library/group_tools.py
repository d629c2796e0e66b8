"""Elector, membership and locks of one group, for programs that share no tasks: `CoordinationUtils`.

Candidates and members are two groups, so that a member need not be a candidate. Each is coordinated like a job, in its
own container and table, named after the application and the group; the locks are in the container of the members.
Joining starts a thread; nothing runs before.
"""

from collections.abc import Callable
from dataclasses import replace

from samza_azure.config import Config
from samza_azure.config.account import application_of, default_container, default_table
from samza_azure.coordinator import (
    ClusterMembership,
    CoordinationUtils,
    JobCoordinatorListener,
    LeaderElector,
    LeaderElectorListener,
    Lock,
)
from samza_azure.group.rows import MEMBERS, processor_row
from samza_azure.library.threaded import ThreadedCoordinator
from samza_azure.names import GROUP
from samza_azure.storage.interface import Rows

#: The name of the group of candidates.
CANDIDATES = "candidates"
#: The timeout of a query to the table, in seconds.
ASK_S = 5.0


def config_of_group(config: Config, group: str, who: str = MEMBERS) -> Config:
    """The same account, with the container and the table of a group's members, or of its candidates."""
    parts = config.app.name, config.app.id, GROUP.checked(group), who
    storage = replace(
        config.storage,
        container=default_container(*parts),
        table=default_table(*parts),
        application=application_of(*parts),
    )
    return replace(config, storage=storage)


class CoordinatorLife:
    """This process's membership of a group: a coordinator from `begin` to `end`."""

    def __init__(self, make: Callable[[], ThreadedCoordinator]) -> None:
        self._make = make
        self.listener = JobCoordinatorListener()
        self.coordinator: ThreadedCoordinator | None = None

    def begin(self) -> None:
        """Join, also again after a membership that has ended by itself, as when the account was away. Idempotent."""
        if self.coordinator is None or self.coordinator.ending is not None:
            self.coordinator = self._make()
            self.coordinator.set_listener(self.listener)
            self.coordinator.start()

    def end(self) -> None:
        """Leave, and wait until that is done. Idempotent."""
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            coordinator.stop()
            coordinator.wait()


class GroupElector(LeaderElector):
    """The elected leader is the one that leads the coordination of the candidates' group."""

    def __init__(self, life: CoordinatorLife) -> None:
        self._life = life

    def set_listener(self, listener: LeaderElectorListener) -> None:
        self._life.listener = _Told(listener)

    def try_become_leader(self) -> None:
        self._life.begin()

    def resign_leadership(self) -> None:
        self._life.end()

    @property
    def is_leader(self) -> bool:
        coordinator = self._life.coordinator
        return coordinator is not None and coordinator.is_leader

    @property
    def epoch(self) -> int:
        coordinator = self._life.coordinator
        return coordinator.epoch if coordinator is not None else 0


class _Told(JobCoordinatorListener):
    def __init__(self, listener: LeaderElectorListener) -> None:
        self._listener = listener

    def on_leadership(self, leads: bool, epoch: int) -> None:
        if leads:
            self._listener.on_becoming_leader(epoch)
        else:
            self._listener.on_losing_leadership()


class GroupMembership(ClusterMembership):
    """The members are those whose rows are neither dead nor left."""

    def __init__(self, life: CoordinatorLife) -> None:
        self._life = life

    def register_processor(self) -> None:
        self._life.begin()

    def unregister_processor(self) -> None:
        self._life.end()

    def processors(self) -> tuple[str, ...]:
        coordinator = self._life.coordinator
        return () if coordinator is None else coordinator.ask_storage(_alive, ASK_S)


async def _alive(table: Rows) -> tuple[str, ...]:
    rows = await table.query(MEMBERS, timeout=ASK_S)
    return tuple(row.key for row in rows if processor_row(row.key, row.etag, row.values).alive)


class GroupUtils(CoordinationUtils):
    """The tools of one group. `make` takes the name of the group to join: candidates or members."""

    def __init__(self, make: Callable[[str], ThreadedCoordinator], lock: Callable[[str], Lock]) -> None:
        self._stands, self._is_member = (
            CoordinatorLife(lambda: make(CANDIDATES)),
            CoordinatorLife(lambda: make(MEMBERS)),
        )
        self._elector, self._membership = GroupElector(self._stands), GroupMembership(self._is_member)
        self._lock = lock

    @property
    def leader_elector(self) -> LeaderElector:
        return self._elector

    @property
    def cluster_membership(self) -> ClusterMembership:
        return self._membership

    def get_lock(self, name: str) -> Lock:
        return self._lock(name)

    def close(self) -> None:
        self._stands.end()
        self._is_member.end()
