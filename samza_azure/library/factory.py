"""The factories that `job.coordinator.factory` can name."""

import asyncio
import logging
import socket
from collections import defaultdict
from dataclasses import replace
from typing import Any

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from samza_azure.config import Config
from samza_azure.coordinator import CoordinationUtils, JobCoordinator
from samza_azure.errors import AccessDenied, StorageUnavailable
from samza_azure.group.timing import ROLE_S
from samza_azure.group.view import Settings
from samza_azure.host.processor import UNREACHABLE_S, WAITS_FOR_ROLE
from samza_azure.host.runs import RunLogs
from samza_azure.library import group_tools as tools
from samza_azure.library import lease_lock as lock
from samza_azure.library.threaded import Stores, ThreadedCoordinator
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.machine.folders import boot_place
from samza_azure.metrics.observer import Observer
from samza_azure.names import PROCESSOR_ID
from samza_azure.storage.connection import Account
from samza_azure.storage.memory import MemoryAccount

log = logging.getLogger(__name__)

#: The seconds between two tries to create container and table while the account does not answer.
KNOCK_S = 1.0
#: The same while the account refuses us for a reason that may pass.
ROLE_AGAIN_S = 2.0
#: What a processor does while the account does not answer, or while there is no token for it.
WAITS_FOR_ACCOUNT = f"It is tried again for {UNREACHABLE_S:.0f} s."


class AzureJobCoordinatorFactory:
    """Coordinates over the storage account that the job file names.

    Example:
        config = Config.load("job.toml")
        coordinator = AzureJobCoordinatorFactory().get_job_coordinator("one", config)
        with AzureJobCoordinatorFactory().get_coordination_utils("reports", "one", config) as utils:
            utils.leader_elector.try_become_leader()
    """

    #: The group is in the account, where commands look.
    group_in_account = True

    def get_job_coordinator(self, processor_id: str, config: Config, metrics: Any = None) -> JobCoordinator:
        """Return a coordinator that has not started. Sends nothing yet.

        Raises:
            ConfigError: the id is not that of a processor; the message has the rule.
        """
        return ThreadedCoordinator(
            settings(processor_id, config), lambda: _azure(config), Observer(processor_id, metrics)
        )

    def get_coordination_utils(self, group: str, processor_id: str, config: Config) -> CoordinationUtils:
        """Return the elector, the membership and the locks of a group. Sends nothing yet.

        Raises:
            ConfigError: the group cannot have that name. A wrong id of a processor is refused at the first use.
        """

        def join(who: str) -> ThreadedCoordinator:
            of_group = tools.config_of_group(config, group, who)
            return ThreadedCoordinator(
                settings(processor_id, of_group), lambda: _azure(of_group), Observer(processor_id)
            )

        of_locks = tools.config_of_group(config, group).storage
        return tools.GroupUtils(join, lambda name: lock.AzureLock(of_locks, name))


class PassthroughJobCoordinatorFactory:
    """A group of one: no other processor shares its tasks.

    The group is kept in the account, as with `AzureJobCoordinatorFactory`, so all commands see it, and the next start
    resumes its run, also with the other factory. A second processor of this factory ends with 2 as soon as it has seen
    that the first one lives. One of the other factory stands by, and takes over when the first one leaves or dies.

    Example:
        config = Config.load("job.toml")
        coordinator = PassthroughJobCoordinatorFactory().get_job_coordinator("one", config)
        with PassthroughJobCoordinatorFactory().get_coordination_utils("reports", "one", config) as utils:
            utils.leader_elector.try_become_leader()
    """

    #: The group is in the account, where commands look.
    group_in_account = True

    def get_job_coordinator(self, processor_id: str, config: Config, metrics: Any = None) -> JobCoordinator:
        """Return a coordinator that has not started. Sends nothing yet.

        Raises:
            ConfigError: the id is not that of a processor; the message has the rule.
        """
        alone = replace(settings(processor_id, config), alone=True)
        return ThreadedCoordinator(alone, lambda: _azure(config), Observer(processor_id, metrics))

    def get_coordination_utils(self, group: str, processor_id: str, config: Config) -> CoordinationUtils:
        """Return the tools of a group of one, in memory: its locks hold only between threads of this process."""

        def join(who: str) -> ThreadedCoordinator:
            return ThreadedCoordinator(
                settings(processor_id, config), lambda: _in_memory(accounts[who]), Observer(processor_id)
            )

        accounts = defaultdict[str, MemoryAccount](MemoryAccount)
        of_locks = MemoryAccount().storage
        return tools.GroupUtils(join, lambda name: lock.LeaseLock(name, lambda: MemoryAccount(of_locks)))


def settings(processor_id: str, config: Config) -> Settings:
    """The part of the configuration that the protocol needs."""
    import importlib.metadata  # takes long, and commands do not need it

    return Settings(
        processor=PROCESSOR_ID.checked(processor_id),
        timing=config.coordinator.timing,
        shutdown_s=config.task.shutdown_ms / 1000,
        restart_limit=config.task.restart_limit,
        replicas=config.standby_replicas,
        blob_limit=config.coordinator.blob_length,
        run_id=config.app.run_id or "",
        boot=boot_place(config.processor.dir),
        holds_directory=False,
        host=socket.gethostname(),
        release=importlib.metadata.version("samza-azure"),
    )


async def _azure(config: Config) -> Stores:
    """The account of the job file."""
    return await reached(Account.from_config(config.storage))


async def reached(account: Account) -> Stores:
    """Sign in, create and bind container and table if they are not yet, and return what a coordinator needs of the
    account.

    Tries again for `UNREACHABLE_S` while the account does not answer or there is no token, and for `ROLE_S` while it
    refuses us for a reason that may pass; then raises the last error.
    """
    rate_limit = LogRateLimit()

    def tell(state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        if rate_limit.is_due(type(error).__name__):
            log.warning("%s %s", error, WAITS_FOR_ROLE if isinstance(error, AccessDenied) else WAITS_FOR_ACCOUNT)

    answered = AsyncRetrying(
        retry=retry_if_exception_type(StorageUnavailable),
        stop=stop_after_delay(UNREACHABLE_S),
        wait=wait_fixed(KNOCK_S),
        before_sleep=tell,
        reraise=True,
    )
    let_in = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, AccessDenied) and error.may_pass),
        stop=stop_after_delay(ROLE_S),
        wait=wait_fixed(ROLE_AGAIN_S),
        before_sleep=tell,
        reraise=True,
    )
    await let_in(answered, asyncio.to_thread, account.ensure_created)
    blob, table = account.control_blob(), account.rows()
    return Stores(blob, table, RunLogs(account.blobs(), account.ensure_created), account.aclose)


async def _in_memory(account: MemoryAccount) -> Stores:
    """A group in memory without logs."""
    return Stores(account.control_blob(), account.rows(), RunLogs(account.blobs()), account.aclose)
