"""Where another reader of a hub has stopped, by the checkpoints that Azure's SDKs and Functions keep in blobs.

For each partition a blob `NAMESPACE/HUB/GROUP/checkpoint/PARTITION`, in lower case, whose metadata has the sequence
number and the offset of the last event that was handled.
"""

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.eventhub import parse_connection_string
from azure.identity import DefaultAzureCredential
from azure.storage.blob import ContainerClient

from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.eventhubs.hub import EventHub

#: Of the account's answers, before the SDK gives up; it tries again by itself.
ANSWER_S = 10


def checkpoints(hub: EventHub, container: str) -> dict[int, int]:
    """The number behind the last event that was handled, for each partition that has a checkpoint.

    `container` is its URL; a signature behind it lets us in, otherwise the identity of this machine or user.
    """
    said = hub.connect() if hub.connect is not None else ""
    namespace = parse_connection_string(said).fully_qualified_namespace if said else hub.namespace
    prefix = f"{namespace}/{hub.name}/{hub.group}/checkpoint/".lower()
    shown = container.partition("?")[0]
    try:
        with ContainerClient.from_container_url(
            container,
            None if "?" in container else DefaultAzureCredential(),
            connection_timeout=ANSWER_S,
            retry_total=1,
        ) as blobs:
            found = {each.name: each.metadata or {} for each in blobs.list_blobs(prefix, include=["metadata"])}
    except (ValueError, ResourceNotFoundError) as error:
        raise ConfigError(
            f"There is no container of blobs at {shown}. Give its URL, like "
            "https://ACCOUNT.blob.core.windows.net/CONTAINER; that of Functions is azure-webjobs-eventhub."
        ) from error
    except (ClientAuthenticationError, HttpResponseError) as error:
        raise AccessDenied(
            f"{shown} may not be read: {getattr(error, 'error_code', None) or 'no identity'}. Give this user or "
            "identity the role Storage Blob Data Reader there, or put a signature behind the URL."
        ) from error
    except AzureError as error:
        raise StorageUnavailable(f"{shown} does not answer: {type(error).__name__}.") from error
    if not found:
        raise ConfigError(
            f"{shown} has no checkpoints below {prefix}. See that options.name is the hub, that the namespace is the "
            "one that was read, and name the consumer group in which it was: --group."
        )
    return {int(name.removeprefix(prefix)): _number(name, said) + 1 for name, said in found.items()}


def _number(name: str, metadata: dict[str, str]) -> int:
    said = {key.lower(): value for key, value in metadata.items()}.get("sequencenumber", "")
    if not said.isdecimal():
        raise ConfigError(
            f"The checkpoint {name} has no sequence number, only an offset, which says nothing of how many events lie "
            "before it. Write the numbers yourself: options.start."
        )
    return int(said)
