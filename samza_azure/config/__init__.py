"""job.toml in, one frozen and checked `Config` out.

Promised: a processor can start with what `Config.load` returns. Every key is known, every value is valid, the timings
fit each other, Azure accepts the names, and plain http goes to this machine only. All mistakes are reported at once,
each with what to write instead. No `repr`, message or dump of a `Config` shows a secret.

Not promised: that the pipeline can be imported or that the account answers. This package reads only the file, the
environment and the file of a connection string. Importing it is cheap: the supervisor must send a heartbeat within a
second of its start.

Start reading at `check.Config`; `sections` has the keys with their defaults.
"""

from samza_azure.account import Storage
from samza_azure.config.check import NO_ACCOUNT, Config, JobFileRefused
from samza_azure.config.files import Files, files_of
from samza_azure.config.outside import Outside, outside_of
from samza_azure.config.sections import (
    AZURE_FACTORY,
    LOG,
    App,
    Coordinator,
    ProcessorSettings,
    StageSettings,
    Stream,
    TaskSettings,
)
from samza_azure.config.tables import TableSettings, table_of
from samza_azure.config.timing import check_timing, doubtful_timing

__all__ = [
    "AZURE_FACTORY",
    "LOG",
    "NO_ACCOUNT",
    "App",
    "Config",
    "Coordinator",
    "Files",
    "JobFileRefused",
    "Outside",
    "ProcessorSettings",
    "StageSettings",
    "Storage",
    "Stream",
    "TableSettings",
    "TaskSettings",
    "check_timing",
    "doubtful_timing",
    "files_of",
    "outside_of",
    "table_of",
]
