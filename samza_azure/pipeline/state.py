"""Where the state of a running stage is kept: on the JVM's heap or in RocksDB.

In memory, Spark keeps two versions of each store as Java objects. RocksDB keeps state on disk, and all stores of a
container share one block cache of a fixed size. Their file formats differ, so a run keeps the one that it began with.
"""

from collections.abc import Iterable

from samza_azure.errors import ConfigError, PipelineRefused
from samza_azure.logs.restart_files import state_kind

_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {
    "memory": f"{_PROVIDERS}HDFSBackedStateStoreProvider",
    "rocksdb": f"{_PROVIDERS}RocksDBStateStoreProvider",
}


def kind_of_state(chosen: str, *, needs_rocksdb: bool) -> str:
    """`memory` or `rocksdb`. `chosen` is `task.state`; `auto` means memory unless the plan needs RocksDB."""
    if chosen != "auto":
        return chosen
    return "rocksdb" if needs_rocksdb else "memory"


def check_chosen(stage: str, chosen: str, *, needs_rocksdb: bool) -> None:
    """Raise PipelineRefused if the stage cannot keep its state there."""
    if needs_rocksdb and chosen == "memory":
        raise PipelineRefused(
            f'task.state is "memory", but stage {stage} uses transformWithState, which Spark runs on RocksDB only. '
            'Write task.state = "rocksdb", or remove the line.'
        )


def check_unchanged(task: str, kind: str, files: Iterable[str]) -> None:
    """Raise ConfigError if the log holds state of the other kind."""
    held = state_kind(files)
    if held is not None and held != kind:
        raise ConfigError(
            f'The log of {task} holds state written with task.state = "{held}", but the job file now says "{kind}", '
            f'which cannot read it. Write task.state = "{held}" for this run; to change it, drain the run first.'
        )


def check_partitions(task: str, stage: str, partitions: int, held: int) -> None:
    """Raise ConfigError if the log holds state of another number of partitions."""
    if held != partitions:
        raise ConfigError(
            f"The log of {task} holds state in {held} partition{'s' * (held != 1)}, but the job file now says "
            f"{partitions}; which of them a key is in follows from their number. Write stages.{stage}.partitions = "
            f"{held} for this run; to change it, drain the run first."
        )
