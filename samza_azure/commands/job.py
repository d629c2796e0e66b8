"""The job file as an argument of every command."""

import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import samza_azure
from samza_azure.config import Config
from samza_azure.config.jobfile import place_in, read
from samza_azure.errors import ConfigError, in_full
from samza_azure.names import APP

#: The packages that the processes of a job import after its folder has become the first in which Python looks.
IMPORTED = ("azure", "numpy", "opentelemetry", "pandas", "py4j", "pyarrow", "pydantic", "pyspark", "samza_azure")

Job = Annotated[Path, typer.Argument(help="The job file, for example job.toml.", show_default=False)]

#: Before a guard's name it stands for a job file: `status guard:nightly`.
GUARD = "guard:"
#: That job file.
GUARD_JOB = """
app = {{ name = "{name}", id = "guard", main = "guard:command" }}
azure.storage.connect = "${{AZURE_STORAGE_CONNECTION_STRING}}"
"""


def load(job: Path, overrides: dict[str, Any] | None = None, *, reaches_storage: bool = True) -> Config:
    """Load and check the job file."""
    return Config.load(job, overrides=overrides, reaches_storage=reaches_storage)


def in_shell(config: Config) -> str:
    """The job file's name as a shell reads it, for commands to paste."""
    return shlex.quote(config.path.name)


def note_line(error: ConfigError, job: Path) -> None:
    """Add the line of the job file that an error is about, if it names a key and no line yet."""
    with suppress(ConfigError):  # the file itself cannot be read, as the error says
        place = place_in(read(job), str(error))
        if place and not re.search(r"\bline \d", in_full(error)):
            error.add_note(f"{job}, {place}")


def load_seen(job: Path, overrides: dict[str, Any] | None = None) -> Config:
    """Load the job file for a command that looks for the group in the account, or asks it for something there."""
    name = str(job)
    config = guarded(name.removeprefix(GUARD), overrides) if name.startswith(GUARD) else load(job, overrides)
    refuse_unseen(config)
    return config


def guarded(name: str, overrides: dict[str, Any] | None = None) -> Config:
    """The configuration of guards that have a name and no job file."""
    return Config.parse(
        GUARD_JOB.format(name=APP.checked(name)), path=Path(f"{GUARD}{name}").absolute(), overrides=overrides
    )


def refuse_unseen(config: Config) -> None:
    """Raise `ConfigError` if the user's own coordinator keeps the group elsewhere than in the account: a command would
    say that no processor runs.
    """
    if not is_seen(config):
        raise ConfigError(
            f"{config.coordinator.factory} coordinates this job, and keeps its group elsewhere than in the account, "
            "where this command looks: it would see no processor, and no processor would see its requests. Ask that "
            "coordinator itself. If it is made by a factory of samza_azure after all, say so in the class: "
            "group_in_account = True."
        )


def refuse_hiding(config: Config) -> None:
    """Raise `ConfigError` if a file beside the job file has the name of a package that the job's processes import."""
    folder = config.path.absolute().parent
    hiding = [file for name in IMPORTED for file in (folder / f"{name}.py", folder / name / "__init__.py")]
    own = Path(samza_azure.__file__)  # of a job file in our own source tree
    if found := [file for file in hiding if file.exists() and not file.samefile(own)]:
        file = found[0]
        named = file if file.parent == folder else file.parent
        raise ConfigError(
            f"{named} hides the package {named.stem}: Spark's processes would import it instead of that. Rename it, "
            "and what imports it."
        )


def is_seen(config: Config) -> bool:
    """Whether the group is in the account: with the factories of this package, and with others that say so."""
    return config.coordinator.is_ours or getattr(factory_of(config), "group_in_account", False) is True


def factory_of(config: Config) -> Any:
    """The factory that the job file names; a user's is beside the job file, or installed. Raise `ConfigError` if it
    cannot be loaded.
    """
    from samza_azure.coordinator import load_factory  # most commands of most jobs need none

    sys.path.insert(0, str(config.path.parent))
    return load_factory(config.coordinator.factory)


def processors_of(config: Config, asked: int | None, usual: int) -> int:
    """How many processors a command is about. Raise `ConfigError` if several are asked for in a group of one."""
    if not config.coordinator.is_alone:
        return asked or usual
    if asked is not None and asked > 1:
        raise ConfigError(
            f"--processors is {asked}, and with {config.coordinator.factory} a job has one processor. For several set "
            "job.coordinator.factory to samza_azure.AzureJobCoordinatorFactory, or leave it out."
        )
    return 1
