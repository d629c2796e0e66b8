"""Azure Schema Registry, by its own client, and what its serializers write: an event whose content type names the id
of its schema.
"""

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from azure.core.exceptions import AzureError, HttpResponseError
from azure.schemaregistry import SchemaRegistryClient

from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.storage.identity import NoToken, of_this_process, sign_in_failed
from samza_azure.systems.formats.read import bodies_of
from samza_azure.systems.patience import Barred

#: How long a connection and an answer may take.
ANSWER_S = 5.0
#: How long to wait once it does not let us in any more.
BARRED_S = 5.0
#: Where events of Event Hubs say it, and messages of Kafka.
CONTENT_TYPE, HEADERS = "content_type", "headers"
_HEADER = "content-type"
_NAMES_ID = re.compile(r"avro/binary\+([0-9A-Fa-f-]{8,64})")
_NOBODY = "00000000000000000000000000000000"


class AzureContentType:
    """Messages whose content type is `avro/binary+<id of a schema>`."""

    def __init__(self, envelope: Sequence[str]) -> None:
        """`envelope` are the columns that messages have."""
        self.needs: Sequence[str] = [CONTENT_TYPE if CONTENT_TYPE in envelope else HEADERS]

    def split(self, messages: pa.Table) -> Sequence[tuple[Hashable, bytes]]:
        (column,) = self.needs
        said = messages[column].to_pylist()
        if column == HEADERS:
            said = [_content_type(headers or ()) for headers in said]
        found = []
        for text, body in zip(said, bodies_of(messages), strict=True):
            if (names := _NAMES_ID.fullmatch(text or "")) is None:
                raise ConfigError(
                    f"Its content type is {text!r:.80}, and should be 'avro/binary+' and the id of its schema, as the "
                    "serializers of Azure Schema Registry write it."
                )
            found.append((names[1].lower(), body))
        return found


class AzureRegistry:
    """Asks the registry of a namespace."""

    def __init__(self, key: str, namespace: str, ca: Path | None = None) -> None:
        """`key` is that of the options, for messages."""
        if not re.fullmatch(r"[\w.-]+(:\d+)?", namespace):
            raise ConfigError(f'{key}.registry.namespace is no namespace. Write "name.servicebus.windows.net".')
        self._key, self.named, self._was_let_in = key, f"the schema registry of {namespace}", False
        settings: dict[str, Any] = {"connection_verify": str(ca)} if ca else {}
        # What it is asked is asked again by the task, which says so.
        self._client = SchemaRegistryClient(
            namespace, of_this_process(), retry_total=0, permit_redirects=False,
            connection_timeout=ANSWER_S, read_timeout=ANSWER_S, **settings,
        )  # fmt: skip

    def schema(self, number: str) -> str:
        """The text of a schema of Avro.

        Raises:
            ConfigError: the registry has none of this id, or another kind.
            AccessDenied: it does not let us in, and never has.
            StorageUnavailable: it does not answer, or does not let us in any more.

        """
        try:
            found = self._client.get_schema(number)
        except NoToken as error:
            raise sign_in_failed(self.named, error) from error
        except HttpResponseError as error:
            if error.status_code in (401, 403):
                of_this_process().refused()
                raise self._denied(error) from error
            if error.status_code in (400, 404):
                raise ConfigError(f"It names the schema {number}, which {self.named} has not.") from error
            raise StorageUnavailable(f"{self.named} answers {error.status_code}: {_first(error)}") from error
        except AzureError as error:
            raise StorageUnavailable(f"{self.named} does not answer: {_first(error)}") from error
        self._was_let_in = True
        if str(getattr(found.properties.format, "value", found.properties.format)) != "Avro":
            raise ConfigError(f"Its schema {number} is of {found.properties.format!s:.40}, and not of Avro.")
        definition: str = found.definition
        return definition

    def look(self) -> str:
        """What a try to reach the registry has found. Raise an error that says what to do."""
        try:
            self.schema(_NOBODY)
        except AccessDenied:
            raise
        except ConfigError:  # it says that there is none, as it should
            pass
        return f"{self.named} may be read"

    def _denied(self, error: Exception) -> Barred | AccessDenied:
        said = f"{self.named} does not let this identity in: {_first(error)} Give it the role Schema Registry Reader."
        return Barred(said, after_s=BARRED_S) if self._was_let_in else AccessDenied(said, may_pass=True)


def _content_type(headers: Sequence[dict[str, Any]]) -> str | None:
    said = next((each["value"] for each in headers if each["key"].lower() == _HEADER), None)
    return None if said is None else said.decode(errors="replace")


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
