"""Elector, membership and locks of one group, for programs that share no tasks: `CoordinationUtils`.

A group is coordinated as a job is, in a container and a table of its own that are named after application and group;
the locks lie in the application's container. Whoever is a member is a candidate: the elector and the membership join
the same group. Joining starts a thread; without it nothing runs.
"""

from collections.abc import Callable
from dataclasses import replace

from samza_azure.config import Config
from samza_azure.config.account import default_container, default_table
from samza_azure.coordinator import (
    ClusterMembership,
    CoordinationUtils,
    JobCoordinatorListener,
    LeaderElector,
    LeaderElectorListener,
    Lock,
)
from samza_azure.host.factory import ThreadedCoordinator
from samza_azure.protocol.rows import MEMBERS, processor_row
from samza_azure.storage.interface import Rows

#: A question to the table waits no longer than this.
ASK_S = 5.0


def config_of_group(config: Config, group: str) -> Config:
    """The same account, with the container and the table of a group."""
    name, instance = config.app.name, f"{config.app.id}-{group}"
    storage = replace(config.storage, container=default_container(name, instance), table=default_table(name, instance))
    return replace(config, storage=storage)


class Group:
    """This process's life in the group: a coordinator while anybody wants one."""

    def __init__(self, make: Callable[[], ThreadedCoordinator]) -> None:
        self._make = make
        self.listener = JobCoordinatorListener()
        self.wanted_by: set[str] = set()
        self.coordinator: ThreadedCoordinator | None = None

    def join(self, who: str) -> None:
        """Be a member for the sake of `who`."""
        self.wanted_by.add(who)
        if self.coordinator is None:
            self.coordinator = self._make()
            self.coordinator.set_listener(self.listener)
            self.coordinator.start()

    def leave(self, who: str) -> None:
        """Leave. If others still want to be in it, come back as somebody who has just joined."""
        if who not in self.wanted_by:
            return
        self.wanted_by.discard(who)
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            coordinator.stop()
            coordinator.wait()
        for other in tuple(self.wanted_by):
            self.join(other)


class GroupElector(LeaderElector):
    """The leader of the group is the leader of its coordination."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def set_listener(self, listener: LeaderElectorListener) -> None:
        self._group.listener = _Told(listener)

    def try_become_leader(self) -> None:
        self._group.join("elector")

    def resign_leadership(self) -> None:
        self._group.leave("elector")

    @property
    def is_leader(self) -> bool:
        coordinator = self._group.coordinator
        return coordinator is not None and "elector" in self._group.wanted_by and coordinator.is_leader

    @property
    def epoch(self) -> int:
        coordinator = self._group.coordinator
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
    """The members are the rows that are neither dead nor left."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def register_processor(self) -> None:
        self._group.join("membership")

    def unregister_processor(self) -> None:
        self._group.leave("membership")

    def processors(self) -> tuple[str, ...]:
        coordinator = self._group.coordinator
        return () if coordinator is None else coordinator.ask_storage(_alive, ASK_S)


async def _alive(table: Rows) -> tuple[str, ...]:
    rows = await table.query(MEMBERS, timeout=ASK_S)
    return tuple(row.key for row in rows if processor_row(row.key, row.etag, row.values).alive)


class GroupUtils(CoordinationUtils):
    """The tools of one group."""

    def __init__(self, make: Callable[[], ThreadedCoordinator], lock: Callable[[str], Lock]) -> None:
        self._group, self._lock = Group(make), lock
        self._elector, self._membership = GroupElector(self._group), GroupMembership(self._group)

    @property
    def leader_elector(self) -> LeaderElector:
        return self._elector

    @property
    def cluster_membership(self) -> ClusterMembership:
        return self._membership

    def get_lock(self, name: str) -> Lock:
        return self._lock(name)

    def close(self) -> None:
        for who in tuple(self._group.wanted_by):
            self._group.leave(who)
