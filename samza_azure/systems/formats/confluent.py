"""A schema registry that speaks Confluent's interface (Confluent, Karapace, Apicurio, Redpanda), and its framing.

It is asked two things, a schema by its id and one that another refers to, over the standard library: Confluent's own
client needs librdkafka, also for streams of Event Hubs, and five packages more; and it repeats its calls by itself,
so that a registry which is away would look like one that is slow.

What is not a registry's own answer to the question refuses no message: it is waited for.
"""

import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.machine.clock import boot_time
from samza_azure.systems.formats.read import bodies_of
from samza_azure.systems.patience import Barred

#: How long an answer may take, and how large it may be.
ANSWER_S, MOST_BYTES = 5.0, 4 << 20
#: How long to wait once it does not let us in any more.
BARRED_S = 5.0
#: How many schemas one may refer to, with those that these refer to.
MOST_REFERRED = 200
#: The codes by which a registry says that it knows no such schema, subject or version: from this one on. A smaller one
#: is of the server: there is nothing at this address.
_UNKNOWN = 40_000


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema of a registry."""

    kind: str  # AVRO, PROTOBUF or JSON
    text: str
    referred: Mapping[str, str]  # what it refers to, by the names that it uses, each behind those that it uses itself


class Confluent:
    """Messages that begin with a zero byte and the id of their schema in four."""

    needs: Sequence[str] = ()

    def split(self, messages: pa.Table) -> Sequence[tuple[Hashable, bytes]]:
        found = []
        for body in bodies_of(messages):
            if len(body) < 5 or body[0]:
                raise ConfigError(
                    f"It begins with {body[:5].hex(' ') or 'nothing'}, and should with 00 and the id of a schema in "
                    "four bytes, as the serializers of a registry write it."
                )
            found.append((int.from_bytes(body[1:5], "big"), body[5:]))
        return found


class ConfluentRegistry:
    """Asks a registry."""

    def __init__(
        self,
        key: str,
        url: str,
        user: str = "",
        password: Callable[[], str] | None = None,
        ca: Path | None = None,
        *,
        is_renewed: bool = False,
    ) -> None:
        """`key` is that of the options, for messages. `is_renewed`: the password may be another one later. Raise
        ConfigError for an address that is none.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ConfigError(
                f'{key}.registry.url is no address of a registry. Write "https://host" or "http://host:8081".'
            )
        if user and parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ConfigError(
                f"{key}.registry.url begins with http, and everybody on the way could read the password. Write https."
            )
        if bool(user) != (password is not None):
            raise ConfigError(
                f"{key}.registry has {'a user' if user else 'a password'} alone. Write registry.user, and "
                'registry.password = "${NAME}" or registry.password.file = "path".'
            )
        self._key, self._host, self._port, self._path = key, parts.hostname, port, parts.path.rstrip("/")
        self._user, self._password, self._ca = user, password, ca
        self._is_renewed, self._was_let_in = is_renewed, False
        self._is_tls = parts.scheme == "https"
        self.named = f"the schema registry {parts.scheme}://{parts.hostname}" + (f":{port}" if port else "")

    def schema(self, number: int, *, serialized: bool = False) -> Registered:
        """A schema by its id; of protobuf as the bytes of its descriptor, in base64, if `serialized`.

        Raises:
            ConfigError: the registry has none of this id, or it says what no registry does.
            AccessDenied: the registry does not let us in, and never has.
            StorageUnavailable: it does not answer, or does not let us in any more.

        """
        query = "?format=serialized" if serialized else ""
        found = self._asked(f"/schemas/ids/{number}{query}", f"the schema {number}")
        referred: dict[str, str] = {}
        self._refer(found, query, referred, set())
        return Registered(_text(found.get("schemaType"), "AVRO"), _text(found.get("schema")), referred)

    def look(self) -> str:
        """What a try to reach the registry has found. Raise an error that says what to do."""
        types = self._ask("/schemas/types", is_of=list)
        return f"{self.named} knows schemas of {', '.join(map(str, types))[:80]}"

    def _refer(self, found: Mapping[str, Any], query: str, referred: dict[str, str], seen: set[str]) -> None:
        """Gather what a schema refers to, first what that refers to itself."""
        references = found.get("references") or []
        if not isinstance(references, list) or not all(isinstance(each, dict) for each in references):
            raise ConfigError("Its schema refers to what is no schema.")
        for each in references:
            name, subject, version = _text(each.get("name")), _text(each.get("subject")), each.get("version")
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            if type(version) is not int or path in seen:
                continue
            seen.add(path)
            if len(seen) > MOST_REFERRED:
                raise ConfigError(f"Its schema refers to more than {MOST_REFERRED} others.")
            inner = self._asked(path + query, f"a schema that refers to version {version} of {subject!r:.80}")
            self._refer(inner, query, referred, seen)
            referred[name] = _text(inner.get("schema"))

    def _asked(self, path: str, what: str) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self._ask(path, is_of=dict)
        except LookupError:
            raise ConfigError(f"It names {what}, which {self.named} has not.") from None
        return found

    def _ask(self, path: str, *, is_of: type) -> Any:
        """The answer to a question. Raise LookupError if the registry knows none."""
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._password is not None:
            headers["Authorization"] = f"Basic {b64encode(f'{self._user}:{self._password()}'.encode()).decode()}"
        try:
            status, data = self._answer(path, headers)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                said = (
                    f"{self.named} has a certificate that this machine does not trust: {error.verify_message}. "
                    f"Write {self._key}.registry.ca.file, a file with the certificate of who has signed it."
                )
                raise self._refused(said, may_pass=False) from error
            why = str(error) or type(error).__name__
            raise StorageUnavailable(f"{self.named} does not answer: {why}.") from error
        if status in (401, 403):
            said = (
                f"{self.named} does not let us in ({status}). Correct {self._key}.registry.user and its password, or "
                "give this user the right to read schemas."
            )
            raise self._refused(said, may_pass=status == 403 or self._is_renewed)
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        code = found.get("error_code") if isinstance(found, dict) else None
        if status in (404, 422) and type(code) is int and code >= _UNKNOWN:
            self._was_let_in = True
            raise LookupError
        if status != 200 or not isinstance(found, is_of):
            raise StorageUnavailable(
                f"{self.named} answers {status} to {self._path}{path}, which is no answer of a schema registry. See to "
                f"it, or correct {self._key}.registry.url."
            )
        self._was_let_in = True  # by the registry, and not by a proxy that has an error of its own
        return found

    def _refused(self, said: str, *, may_pass: bool) -> Barred | AccessDenied:
        return Barred(said, after_s=BARRED_S) if self._was_let_in else AccessDenied(said, may_pass=may_pass)

    def _answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and content of an answer. Nobody is followed elsewhere: the password is for this host alone."""
        until = boot_time() + ANSWER_S
        if self._is_tls:
            context = ssl.create_default_context(cafile=self._ca)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=ANSWER_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        try:
            connection.request("GET", self._path + path, headers=dict(headers))
            answer, parts = connection.getresponse(), [b""]
            while part := answer.read1(1 << 16):
                parts.append(part)
                if boot_time() > until:
                    raise TimeoutError("the answer takes too long")
                if sum(map(len, parts)) > MOST_BYTES:
                    raise http.client.HTTPException(f"the answer has more than {MOST_BYTES} bytes")
            return answer.status, b"".join(parts)
        finally:
            connection.close()


def _text(value: Any, otherwise: str | None = None) -> str:
    if value is None and otherwise is not None:
        return otherwise
    if not isinstance(value, str):
        raise ConfigError(f"Its schema registry says {value!r:.40} where a text should be.")
    return value
