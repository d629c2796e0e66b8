"""Which storage account a job uses: its settings, and what is in a connection string.

Promised: neither `repr` nor `asdict` shows a secret. Importing this is cheap: Spark's planning processes do it, too.
Not promised: that the settings can work. `config` checks those of a job file; `storage/address.py` makes endpoints.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path


class Secret:
    """A text that only `value` shows. It is no dataclass, since `asdict` would show it, too."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return "Secret('**********')"


@dataclass(frozen=True, slots=True)
class Storage:
    """The account, by connection string or by URL and identity, and the application's container and table in it.

    `application` is who they belong to, as `app.name/app.id`; empty for settings that were made without a job file.
    """

    connect: Secret | None
    account: str | None
    container: str
    table: str
    connect_file: Path | None = None  # the file that `connect` was read from, absolute
    application: str = ""


def parts_of(connect: str) -> list[tuple[str, str]]:
    """The settings in a connection string, with their names in lower case. A part without "=" has the name ""."""
    parts = []
    for part in filter(str.strip, connect.split(";")):
        name, equals, value = part.partition("=")
        parts.append((name.strip().lower(), value.strip()) if equals else ("", part))
    return parts


def is_this_machine(host: str) -> bool:
    """Whether a host is this machine, which may be reached without encryption."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


REDACTED = "**********"
_LOOKS_SECRET = re.compile(
    r"(sig=|AccountKey=|SharedAccess(Key|Signature)=|Bearer |SharedKey [^:\s]+:|_token[\"']?\s*[:=]\s*[\"']?)"
    r"[^\s&;,\"'}]+",
    re.IGNORECASE,
)
#: A token of Entra: three parts, of which the first two are JSON objects.
_TOKEN = re.compile(r"\beyJ[\w-]+\.eyJ[\w-]+(\.[\w-]*)?")


def without_secrets(text: str) -> str:
    """The text of an error without what looks like a key, a signature or a token."""
    return _TOKEN.sub(REDACTED, _LOOKS_SECRET.sub(lambda match: match[1] + REDACTED, text))


__all__ = ["REDACTED", "Secret", "Storage", "is_this_machine", "parts_of", "without_secrets"]
