"""samza_azure: stateful PySpark streaming jobs as a fleet of equal processors, coordinated by one storage account.

The public names. Each is loaded on first access, so `import samza_azure` is cheap: it imports neither Azure's SDK nor
pyspark.
"""

from typing import TYPE_CHECKING

from samza_azure.lazy import attributes

if TYPE_CHECKING:
    from samza_azure.application import Application, Collector, Envelope, Handler, TaskCoordinator
    from samza_azure.config import Config
    from samza_azure.coordinator import (
        ClusterMembership,
        CoordinationUtils,
        JobCoordinator,
        JobCoordinatorListener,
        JobModel,
        LeaderElector,
        LeaderElectorListener,
        Lock,
    )
    from samza_azure.errors import (
        AccessDenied,
        ConfigError,
        CorruptState,
        JobFailed,
        LeftOpen,
        PermitExpired,
        PipelineRefused,
        RowsGone,
        SamzaAzureError,
        SignInFailed,
        StateLost,
        StorageUnavailable,
        Superseded,
        TimedOut,
        Unsettled,
    )
    from samza_azure.group.notification import DrainMode, DrainNotification
    from samza_azure.library.drain import DrainMonitor, DrainNotifications
    from samza_azure.library.drain_states import DrainMessage, DrainStates
    from samza_azure.library.factory import AzureJobCoordinatorFactory, PassthroughJobCoordinatorFactory
    from samza_azure.library.fencing import check_token
    from samza_azure.library.lease_lock import AzureLock
    from samza_azure.library.shared_tasks import SharedTasks
    from samza_azure.stream_io.reader import Reader
    from samza_azure.stream_io.source_stream import SourceWriter
    from samza_azure.systems.api import (
        RefusedRow,
        SystemAdmin,
        SystemConsumer,
        SystemFactory,
        SystemLag,
        SystemProducer,
        SystemRows,
        SystemStream,
        SystemWriter,
    )
    from samza_azure.systems.once import EventHubsOnce

__all__ = [
    "AccessDenied",
    "Application",
    "AzureJobCoordinatorFactory",
    "AzureLock",
    "ClusterMembership",
    "Collector",
    "Config",
    "ConfigError",
    "CoordinationUtils",
    "CorruptState",
    "DrainMessage",
    "DrainMode",
    "DrainMonitor",
    "DrainNotification",
    "DrainNotifications",
    "DrainStates",
    "Envelope",
    "EventHubsOnce",
    "Handler",
    "JobCoordinator",
    "JobCoordinatorListener",
    "JobFailed",
    "JobModel",
    "LeaderElector",
    "LeaderElectorListener",
    "LeftOpen",
    "Lock",
    "PassthroughJobCoordinatorFactory",
    "PermitExpired",
    "PipelineRefused",
    "Reader",
    "RefusedRow",
    "RowsGone",
    "SamzaAzureError",
    "SharedTasks",
    "SignInFailed",
    "SourceWriter",
    "StateLost",
    "StorageUnavailable",
    "Superseded",
    "SystemAdmin",
    "SystemConsumer",
    "SystemFactory",
    "SystemLag",
    "SystemProducer",
    "SystemRows",
    "SystemStream",
    "SystemWriter",
    "TaskCoordinator",
    "TimedOut",
    "Unsettled",
    "check_token",
]

#: The modules of the names; the others are errors.
_HOMES = {
    "Application": "application",
    "AzureJobCoordinatorFactory": "library.factory",
    "AzureLock": "library.lease_lock",
    "ClusterMembership": "coordinator",
    "Collector": "application",
    "Config": "config",
    "CoordinationUtils": "coordinator",
    "DrainMessage": "library.drain_states",
    "DrainMode": "group.notification",
    "DrainMonitor": "library.drain",
    "DrainNotification": "group.notification",
    "DrainNotifications": "library.drain",
    "DrainStates": "library.drain_states",
    "Envelope": "application",
    "EventHubsOnce": "systems.once",
    "Handler": "application",
    "JobCoordinator": "coordinator",
    "JobCoordinatorListener": "coordinator",
    "JobModel": "coordinator",
    "LeaderElector": "coordinator",
    "LeaderElectorListener": "coordinator",
    "Lock": "coordinator",
    "PassthroughJobCoordinatorFactory": "library.factory",
    "Reader": "stream_io.reader",
    "RefusedRow": "systems.api",
    "SharedTasks": "library.shared_tasks",
    "SourceWriter": "stream_io.source_stream",
    "SystemAdmin": "systems.api",
    "SystemConsumer": "systems.api",
    "SystemFactory": "systems.api",
    "SystemLag": "systems.api",
    "SystemProducer": "systems.api",
    "SystemRows": "systems.api",
    "SystemStream": "systems.api",
    "SystemWriter": "systems.api",
    "TaskCoordinator": "application",
    "check_token": "library.fencing",
}


__getattr__ = attributes(__name__, dict.fromkeys(__all__, "errors") | _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
