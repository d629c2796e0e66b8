"""Where another reader of a hub has stopped, by the checkpoints that Azure's SDKs and Functions keep in blobs.

For each partition a blob `NAMESPACE/HUB/GROUP/checkpoint/PARTITION`, in lower case, whose metadata has the sequence
number and the offset of the last event that was handled.
"""

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.eventhub import parse_connection_string
from azure.storage.blob import ContainerClient

from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.eventhubs.hub import EventHub
from samza_azure.storage.identity import NoToken, of_this_process, sign_in_failed

#: Of the account's answers, before the SDK gives up; it tries again by itself.
ANSWER_S = 10
#: By which it keeps us out; the last one where anonymous access is switched off.
_DENIED = (401, 403, 409)


def checkpoints(hub: EventHub, container: str) -> dict[int, int]:
    """The number behind the last event that was handled, for each partition that has a checkpoint.

    `container` is its URL; a signature behind it lets us in, otherwise the identity of this machine or user.
    """
    said = hub.connect() if hub.connect is not None else ""
    try:
        namespace = parse_connection_string(said).fully_qualified_namespace if said else hub.namespace
    except ValueError as error:
        raise ConfigError(
            f"The connection string of the hub {hub.name!r} cannot be used: {error}. Correct options.connect."
        ) from error
    prefix = f"{namespace}/{hub.name}/{hub.group}/checkpoint/".lower()
    shown = container.partition("?")[0]
    try:
        with ContainerClient.from_container_url(
            container,
            None if "?" in container else of_this_process(),
            connection_timeout=ANSWER_S,
            retry_total=1,
            initial_backoff=1,
        ) as blobs:
            found = {each.name: each.metadata or {} for each in blobs.list_blobs(prefix, include=["metadata"])}
    except (ValueError, ResourceNotFoundError) as error:
        raise ConfigError(
            f"There is no container of blobs at {shown}. Give its URL, like "
            "https://ACCOUNT.blob.core.windows.net/CONTAINER; that of Functions is azure-webjobs-eventhub."
        ) from error
    except HttpResponseError as error:
        if error.status_code is not None and error.status_code not in _DENIED:
            raise StorageUnavailable(
                f"{shown} answers {error.status_code}, which says nothing of its blobs. Ask again later, or correct "
                "the URL."
            ) from error
        raise AccessDenied(
            f"{shown} may not be read: {getattr(error, 'error_code', None) or 'no right'}. Give this user or "
            "identity the role Storage Blob Data Reader there, or put a signature behind the URL."
        ) from error
    except NoToken as error:
        raise sign_in_failed(shown, error) from error
    except AzureError as error:
        raise StorageUnavailable(f"{shown} does not answer: {type(error).__name__}.") from error
    if not found:
        raise ConfigError(
            f"{shown} has no checkpoints below {prefix}. See that options.name is the hub, that the namespace is the "
            "one that was read, and name the consumer group in which it was: --group."
        )
    return {_partition(name): _number(name, said) + 1 for name, said in found.items()}


def _partition(name: str) -> int:
    number = name.rpartition("/")[2]
    if not (number.isascii() and number.isdecimal()):
        raise ConfigError(
            f"The blob {name} lies among the checkpoints, and its name ends in no number of a partition. Move it away "
            "if no reader needs it, or write the numbers yourself: options.start."
        )
    return int(number)


def _number(name: str, metadata: dict[str, str]) -> int:
    said = {key.lower(): value for key, value in metadata.items()}.get("sequencenumber", "")
    if not said.isdecimal():
        raise ConfigError(
            f"The checkpoint {name} has no sequence number, only an offset, which says nothing of how many events lie "
            "before it. Write the numbers yourself: options.start."
        )
    return int(said)
