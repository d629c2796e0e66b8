"""The options of a stream that is a hub, whether it is read or written: the way to it."""

from samza_azure.errors import ConfigError
from samza_azure.eventhubs.hub import EventHub
from samza_azure.storage.identity import of_this_process
from samza_azure.systems.api import SystemStream
from samza_azure.systems.options import secret

#: One of these says where the hub is.
WAYS = ("connect", "connect.file", "namespace")


def hub_of(stream: SystemStream) -> EventHub:
    """The hub that the options name, and the way to it."""
    options = stream.options
    key = f"streams.{stream.name}.options"
    ways = [name for name in WAYS if name in options]
    if len(ways) != 1 or "name" not in options:
        raise ConfigError(
            f"{key} should name the hub, and one way to it. Write under [streams.{stream.name}]: options.name = "
            '"hub", and options.connect = "${EVENTHUBS}", options.connect.file = "path", or options.namespace = '
            '"name.servicebus.windows.net" for an identity.'
        )
    name, group, sends = options["name"], options.get("consumer_group", "$Default"), stream.is_output
    if ways == ["namespace"]:
        return EventHub(name, group, namespace=options["namespace"], credential=of_this_process(), sends=sends)
    is_fixed = ways == ["connect"]
    return EventHub(name, group, connect=secret(stream, "connect"), sends=sends, is_fixed=is_fixed)
