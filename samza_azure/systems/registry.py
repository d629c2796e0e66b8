"""Which factory `streams.<id>.system` means: one of ours (`config/systems.py`), or another one."""

from importlib import import_module

from samza_azure.config.systems import BUILT_IN
from samza_azure.errors import ConfigError
from samza_azure.systems.api import SystemFactory


def factory_of(system: str, stream: str) -> SystemFactory:
    """Make the factory that a stream names. Raise ConfigError if there is none."""
    module, _, name = BUILT_IN.get(system, system).partition(":")
    try:
        factory = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"streams.{stream}.system is {system!r}, and that cannot be imported: {error}. Write log, "
            f"{', '.join(BUILT_IN)}, or the factory of a connector as package.module:Factory; its module lies beside "
            "the job file, or is installed on each machine."
        ) from error
    made: SystemFactory = factory()
    return made
