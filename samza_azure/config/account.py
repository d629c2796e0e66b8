"""What Azure Storage accepts: connection strings, account URLs, names of containers and tables.

Messages about a mistake do not show the value, because it may be a secret.
"""

import base64
import binascii
import hashlib
import re
from urllib.parse import urlsplit

from samza_azure.account import Secret, is_this_machine, parts_of

__all__ = [
    "application_of",
    "default_container",
    "default_table",
    "valid_account",
    "valid_connect",
    "valid_container",
    "valid_table",
]

_SETTINGS = {
    "defaultendpointsprotocol",
    "usedevelopmentstorage",
    "accountname",
    "accountkey",
    "sharedaccesssignature",
    "endpointsuffix",
    *(f"{service}endpoint" for service in ("blob", "table", "queue", "file")),
    *(f"{service}secondaryendpoint" for service in ("blob", "table", "queue", "file")),
}
_HASH_DIGITS = 12
_SHORT = 9  # an id, or a table's digits, up to this length is never mistaken for a hash


def valid_connect(value: object) -> Secret:
    """Check that a connection string names an account and a credential, and https or an address of this machine."""
    secret = Secret(str(value))
    settings = dict(parts_of(secret.value))
    if not settings:
        raise ValueError("is empty")
    if re.fullmatch(r"\$\w+", secret.value):
        raise ValueError(f'needs braces around the name of a variable: "${{{secret.value[1:]}}}"')
    if secret.value.startswith(("http://", "https://")):
        raise ValueError(
            "is a URL, which belongs into azure.storage.account if an identity signs in. With a shared access "
            "signature write 'BlobEndpoint=…;TableEndpoint=…;SharedAccessSignature=…'"
        )
    if not settings.keys() <= _SETTINGS:
        raise ValueError(
            "is not a connection string. It should be 'UseDevelopmentStorage=true' or "
            "'DefaultEndpointsProtocol=https;AccountName=…;AccountKey=…;EndpointSuffix=…'"
        )
    if len(settings) == 1 and "usedevelopmentstorage" not in settings:
        raise ValueError(
            "has only its first part: without quotes a shell cuts it at the first semicolon. "
            "Write: export AZURE_STORAGE_CONNECTION_STRING="
            "'DefaultEndpointsProtocol=https;AccountName=…;AccountKey=…;EndpointSuffix=…'"
        )
    endpoints = [settings[name] for name in ("blobendpoint", "tableendpoint") if name in settings]
    for service in ("blob", "table"):
        if f"{service}endpoint" in settings:
            _check_url(settings[f"{service}endpoint"])
            _check_service(settings[f"{service}endpoint"], service)
    _check_one_account(settings)
    if settings.get("usedevelopmentstorage", "").lower() == "true":
        return secret
    if len(endpoints) < 2:
        _needs(settings, "accountname", "AccountName, or both BlobEndpoint and TableEndpoint")
        if settings.get("defaultendpointsprotocol", "https").lower() != "https":
            raise ValueError("has DefaultEndpointsProtocol=http, and others can read plain http. Write https")
    if "sharedaccesssignature" not in settings:
        _needs(settings, "accountkey", "AccountKey or SharedAccessSignature. Copy the whole connection string")
        _needs(settings, "accountname", "AccountName")
        _check_key(settings["accountkey"])
    return secret


def _needs(settings: dict[str, str], name: str, wanted: str) -> None:
    if not settings.get(name):
        raise ValueError(f"has no {wanted}")


def _check_key(key: str) -> None:
    try:
        base64.b64decode(key, validate=True)
    except binascii.Error:
        wrong = True
    else:
        wrong = False
    if wrong:
        raise ValueError("has an AccountKey that is not base64. Copy it again, including the equals signs at its end")


def valid_account(url: str | None) -> str | None:
    """Check that the URL of an account holds no secret. The identity comes from azure-identity."""
    if url is None:
        return None
    _check_url(url)
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username:
        raise ValueError(
            "should be only the account's URL. A shared access signature goes into azure.storage.connect, "
            "as 'BlobEndpoint=…;TableEndpoint=…;SharedAccessSignature=…'"
        )
    if ".blob." not in parts.netloc:
        _check_service(url, "blob")
        raise ValueError("should be the URL of the account's blobs, like 'https://NAME.blob.core.windows.net'")
    _check_service(url, "blob")
    if parts.path.strip("/") and not is_this_machine(parts.hostname or ""):
        raise ValueError(
            "should end after the host: what follows it is a container or a blob. Write the container into "
            "azure.storage.container"
        )
    return url.rstrip("/")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, scheme = parts.hostname, parts.scheme
    except ValueError:
        host, scheme = None, ""
    if not host or scheme not in ("http", "https"):
        name = url if re.fullmatch(r"[a-z0-9]{3,24}", url) else "NAME"
        raise ValueError(f"should be a URL, like 'https://{name}.blob.core.windows.net'")
    if scheme == "http" and not is_this_machine(host):
        raise ValueError(f"goes to {host} over plain http, which others can read. Write https")


def _check_service(url: str, service: str) -> None:
    """Refuse the addresses of other services and of copies: their first refused call would say less."""
    host = (urlsplit(url).hostname or "").lower()
    first, *labels = host.split(".")
    if "cosmos" in labels:
        raise ValueError(
            "names Azure Cosmos DB. Its tables are another service, without the account's blobs and their "
            "leases; take a storage account of the kind StorageV2"
        )
    if "dfs" in labels:
        raise ValueError(f"names the endpoint of Data Lake (.dfs.). Write .{service}. instead")
    if first.endswith("-secondary"):
        raise ValueError("names the account's copy in another region, which is read-only. Write it without -secondary")
    others = {"blob", "table", "queue", "file", "web"} - {service}
    if wrong := sorted(others & set(labels[:2])):
        raise ValueError(f"names the endpoint of another service (.{wrong[0]}.) where that of .{service}. belongs")


def _check_one_account(settings: dict[str, str]) -> None:
    """Blobs and rows of one job are in one account: an endpoint's first label is the account's name."""
    named = {
        settings[f"{service}endpoint"]: first
        for service in ("blob", "table")
        if f"{service}endpoint" in settings
        and (labels := (urlsplit(settings[f"{service}endpoint"]).hostname or "").lower().split("."))
        and service in labels[1:3]
        and (first := labels[0])
    }
    names = set(named.values())
    if len(names) > 1:
        raise ValueError("has a BlobEndpoint and a TableEndpoint of two accounts. A job is in one account")
    own = settings.get("accountname", "").lower()
    if names and own and names != {own}:
        raise ValueError("has an AccountName and an endpoint of two accounts. A job is in one account")


def valid_container(name: str | None) -> str | None:
    """Check that Azure accepts the name for a blob container."""
    if name is not None and not (3 <= len(name) <= 63 and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)):
        raise ValueError(
            "is not a valid name for a blob container. Azure accepts 3 to 63 lower-case letters, digits and single "
            "hyphens, with a letter or digit first and last"
        )
    return name


def valid_table(name: str | None) -> str | None:
    """Check that Azure accepts the name for a table."""
    if name is not None and (not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{2,62}", name) or name.lower() == "tables"):
        raise ValueError(
            "is not a valid name for a table. Azure accepts 3 to 63 letters and digits, a letter first, but not "
            "'tables'"
        )
    return name


# Default names. Two applications never share one, nor an application and a group of one: if the parts could not be read
# back from the name, their hash is added.


def application_of(app_name: str, app_id: str, *group: str) -> str:
    """Who a container and a table belong to: "flights/1". No part contains a "/", so no two have the same text."""
    return "/".join((app_name, app_id, *group))


def default_container(app_name: str, app_id: str, *group: str) -> str:
    """The container of an application: "flights-1"; or of a group of it, whose name always has a hash."""
    plain = "-".join((app_name, app_id, *group))
    # The last hyphen separates name and id: the id has none.
    is_read_back = re.fullmatch(rf"(?=.{{3,63}}$)([a-z0-9]+-)+[a-z0-9]{{1,{_SHORT}}}", plain) and app_id.isalnum()
    if is_read_back and not group:
        return plain
    readable = re.sub(r"[^a-z0-9]+", "-", plain.lower())[: 62 - _HASH_DIGITS].strip("-")
    return f"{readable}-{_hash(app_name, app_id, *group)}"


def default_table(app_name: str, app_id: str, *group: str) -> str:
    """The table of an application: "flights1"; or of a group of it, whose name always has a hash."""
    # The name ends where the digits begin.
    if re.fullmatch(r"[a-z]{2,50}", app_name) and re.fullmatch(rf"[0-9]{{1,{_SHORT}}}", app_id) and not group:
        return f"{app_name}{app_id}"
    readable = re.sub(r"[^a-z0-9]+", "", "".join((app_name, app_id, *group)).lower())[: 62 - _HASH_DIGITS]
    first = "a" if readable[0].isdigit() else ""
    return f"{first}{readable}{_hash(app_name, app_id, *group)}"


def _hash(*parts: str) -> str:
    # Digits only: a table's letters stay readable.
    digest = hashlib.sha256(application_of(*parts).encode()).digest()
    return f"{int.from_bytes(digest) % 10**_HASH_DIGITS:0{_HASH_DIGITS}}"
