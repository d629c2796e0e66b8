"""What Azure Storage takes: connection strings, account URLs, names of containers and tables.

A mistake is told without the value: whatever stands where a secret may stand is treated as one.
"""

import base64
import binascii
import hashlib
import ipaddress
import re
from urllib.parse import urlsplit

from pydantic import SecretStr

__all__ = [
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
_SHORT = 9  # an id, or a table's digits, up to this length is never taken for a hash


def valid_connect(secret: SecretStr | None) -> SecretStr | None:
    """A connection string that names an account and a way in, over https or on this machine."""
    if secret is None:
        return None
    text = secret.get_secret_value()
    if not text.strip(" ;"):
        raise ValueError("is empty")
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    settings = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if not settings.keys() <= _SETTINGS or not all(equals for _, equals, _ in pairs):
        raise ValueError(
            "is not a connection string. It should be 'UseDevelopmentStorage=true' or "
            "'DefaultEndpointsProtocol=https;AccountName=…;AccountKey=…;EndpointSuffix=…'"
        )
    endpoints = [settings[name] for name in ("blobendpoint", "tableendpoint") if name in settings]
    for endpoint in endpoints:
        _check_url(endpoint)
    if settings.get("usedevelopmentstorage", "").lower() == "true":
        return secret
    if len(endpoints) < 2:
        _needs(settings, "accountname", "AccountName, or both BlobEndpoint and TableEndpoint")
        if settings.get("defaultendpointsprotocol", "https").lower() != "https":
            raise ValueError("has DefaultEndpointsProtocol=http. The key's signatures go over https only: write https")
    if "sharedaccesssignature" not in settings:
        _needs(settings, "accountkey", "AccountKey or SharedAccessSignature")
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
        raise ValueError("has an AccountKey that is not base64. Copy it again, with the equals signs at its end")


def valid_account(url: str | None) -> str | None:
    """The URL of an account, without a secret in it. The identity comes from azure-identity."""
    if url is None:
        return None
    _check_url(url)
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username:
        raise ValueError(
            "should be the account's URL alone. A shared access signature goes into azure.storage.connect, "
            "as 'BlobEndpoint=…;TableEndpoint=…;SharedAccessSignature=…'"
        )
    if ".blob." not in parts.netloc:
        raise ValueError("should be the URL of the account's blobs, like 'https://NAME.blob.core.windows.net'")
    return url.rstrip("/")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, scheme = parts.hostname, parts.scheme
    except ValueError:
        host, scheme = None, ""
    if not host or scheme not in ("http", "https"):
        raise ValueError("should be a URL, like 'https://NAME.blob.core.windows.net'")
    if scheme == "http" and not _is_this_machine(host):
        raise ValueError(f"goes to {host} over plain http, where others can read along. Write https")


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def valid_container(name: str | None) -> str | None:
    """A name that Azure takes for a blob container."""
    if name is not None and not (3 <= len(name) <= 63 and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)):
        raise ValueError(
            "is no name for a blob container. Azure takes 3 to 63 lower-case letters, digits and single hyphens, "
            "a letter or digit first and last"
        )
    return name


def valid_table(name: str | None) -> str | None:
    """A name that Azure takes for a table."""
    if name is not None and (not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{2,62}", name) or name.lower() == "tables"):
        raise ValueError(
            "is no name for a table. Azure takes 3 to 63 letters and digits, a letter first, and not 'tables'"
        )
    return name


# Defaults. Two applications never share one: where the pair could not be read back from a name, a hash of it is added.


def default_container(app_name: str, app_id: str) -> str:
    """The container of an application: "flights-1"."""
    plain = f"{app_name}-{app_id}"
    # The last hyphen is the seam: the id has none.
    if re.fullmatch(rf"(?=.{{3,63}}$)([a-z0-9]+-)+[a-z0-9]{{1,{_SHORT}}}", plain) and app_id.isalnum():
        return plain
    readable = re.sub(r"[^a-z0-9]+", "-", plain.lower())[: 62 - _HASH_DIGITS].strip("-")
    return f"{readable}-{_hash(app_name, app_id)}"


def default_table(app_name: str, app_id: str) -> str:
    """The table of an application: "flights1"."""
    # The seam is where letters become digits.
    if re.fullmatch(r"[a-z]{2,50}", app_name) and re.fullmatch(rf"[0-9]{{1,{_SHORT}}}", app_id):
        return f"{app_name}{app_id}"
    readable = re.sub(r"[^a-z0-9]+", "", f"{app_name}{app_id}".lower())[: 62 - _HASH_DIGITS]
    first = "a" if readable[0].isdigit() else ""
    return f"{first}{readable}{_hash(app_name, app_id)}"


def _hash(app_name: str, app_id: str) -> str:
    # Neither may hold a "/", so no two pairs look the same. Digits only: a table's letters stay readable.
    digest = hashlib.sha256(f"{app_name}/{app_id}".encode()).digest()
    return f"{int.from_bytes(digest) % 10**_HASH_DIGITS:0{_HASH_DIGITS}}"
