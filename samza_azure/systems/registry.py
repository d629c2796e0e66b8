"""Which factory `streams.<id>.system` means: a built-in (`config/systems.py`) or another one; and what it needs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import ClassVar, Generic, TypeVar

from samza_azure.config.systems import BUILT_IN
from samza_azure.errors import ConfigError
from samza_azure.extras import to_install
from samza_azure.systems.api import SystemFactory, SystemProducer, SystemStream

In = TypeVar("In")
Out = TypeVar("Out")


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


def producer_of(factory: SystemFactory, stream: SystemStream) -> SystemProducer:
    """A producer of a stream for one task. Raise ConfigError if the system has none."""
    if (get := getattr(factory, "get_producer", None)) is None:
        raise ConfigError(
            f"streams.{stream.name}.system names a connector that only reads, and a stage writes this stream. Name one "
            "whose factory has get_producer, or remove the line."
        )
    made: SystemProducer = get(stream)
    return made


def check_written(system: str, stream: SystemStream) -> None:
    """Raise ConfigError if the system cannot be written, or an option of the stream is wrong."""
    factory = factory_of(system, stream.name)
    if not hasattr(factory, "get_producer"):
        producer_of(factory, stream)
    factory.get_admin(stream)


class PackagedFactory(ABC, Generic[In, Out]):
    """Makes the consumer of a stream that is read, and the producer of one that is written; each is its admin, too.

    Their modules need packages that may not be installed, so a factory imports them when it makes one.
    """

    system: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    @abstractmethod
    def consumer(self) -> Callable[[SystemStream], In]:
        """Import the class of the consumer."""

    @abstractmethod
    def producer(self) -> Callable[[SystemStream], Out]:
        """Import the class of the producer."""

    def get_admin(self, stream: SystemStream) -> In | Out:
        return self.get_producer(stream) if stream.is_output else self.get_consumer(stream)

    def get_consumer(self, stream: SystemStream) -> In:
        with installed(f"streams.{stream.name}.system", self.system, self.packages):
            made = self.consumer()
        return made(stream)

    def get_producer(self, stream: SystemStream) -> Out:
        with installed(f"streams.{stream.name}.system", self.system, self.packages):
            made = self.producer()
        return made(stream)


@contextmanager
def installed(key: str, value: str, packages: tuple[str, ...]) -> Iterator[None]:
    """Say what to install if an import in here fails, which the value of a key needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{packages[0]} is not installed, and {key} is {value!r}. Run: {to_install(packages)}."
        ) from error
