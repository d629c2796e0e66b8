"""The storage account's address and credential: `azure.storage.connect`, its file, or `azure.storage.account`.

Nothing here calls the account. `samza_azure.config` has checked the settings; only what must hold even without that is
checked again: nothing goes unencrypted over a network. Keys and signatures are kept out of `repr` and of messages.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from samza_azure.account import Storage, is_this_machine, parts_of
from samza_azure.errors import ConfigError

# The emulator's account. Both are published by Microsoft and open nothing but an emulator.
EMULATOR_NAME = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_EMULATOR = {
    "accountname": EMULATOR_NAME,
    "accountkey": _EMULATOR_KEY,
    "blobendpoint": f"http://127.0.0.1:10000/{EMULATOR_NAME}",
    "tableendpoint": f"http://127.0.0.1:10002/{EMULATOR_NAME}",
}


@dataclass(frozen=True, slots=True)
class Address:
    """The two endpoints of an account and their credential: a key, a signature or, if both are None, an identity."""

    blob_url: str
    table_url: str
    name: str
    setting: str  # the setting to correct when the account refuses us
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    file: Path | None = None  # the file to read the secret from again when the account refuses us

    @property
    def host(self) -> str:
        """The host and port of the blob endpoint, for messages."""
        return urlsplit(self.blob_url).netloc

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, as an emulator is."""
        return is_this_machine(urlsplit(self.blob_url).hostname or "")

    @property
    def by_identity(self) -> bool:
        """Whether the identity of this machine or user opens the account."""
        return self.key is None and self.signature is None


def address(storage: Storage) -> Address:
    """The configured address. Raise `ConfigError` if there is none, or if it is unsafe."""
    if storage.connect is not None:
        found = from_connection_string(storage.connect.value)
        if storage.connect_file is not None:
            found = replace(found, setting="azure.storage.connect.file", file=storage.connect_file)
    elif storage.account is not None:
        found = from_account_url(storage.account)
    else:
        raise ConfigError("No storage account. Set azure.storage.connect or azure.storage.account.")
    for endpoint in map(urlsplit, (found.blob_url, found.table_url)):
        if endpoint.query:
            raise ConfigError(
                f"{found.setting} has an endpoint with a '?'. Write what follows it as SharedAccessSignature."
            )
        if endpoint.scheme != "https" and not is_this_machine(endpoint.hostname or ""):
            raise ConfigError(
                f"{found.setting} connects to {endpoint.hostname} unencrypted. "
                "Use https; plain http is for an emulator on this machine only."
            )
    return found


def from_connection_string(text: str) -> Address:
    """Read a connection string as the Azure portal shows it. `UseDevelopmentStorage=true` is the emulator on its
    default ports; endpoints beside it give other ports."""
    parts = dict(parts_of(text))
    if "" in parts:
        raise ConfigError("azure.storage.connect is not a connection string: a part of it is not NAME=VALUE.")
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        parts = _EMULATOR | parts
    if "accountkey" not in parts and "sharedaccesssignature" not in parts:
        raise ConfigError("azure.storage.connect has neither AccountKey nor SharedAccessSignature.")
    return Address(
        blob_url=_endpoint(parts, "blob"),
        table_url=_endpoint(parts, "table"),
        name=parts.get("accountname") or urlsplit(_endpoint(parts, "blob")).netloc.partition(".")[0],
        setting="azure.storage.connect",
        key=parts.get("accountkey"),
        signature=parts.get("sharedaccesssignature", "").lstrip("?") or None,
    )


def from_account_url(url: str) -> Address:
    """The account behind https://NAME.blob.core.windows.net (or another cloud's suffix), opened by an identity."""
    host = urlsplit(url).netloc
    if ".blob." not in host:
        raise ConfigError("azure.storage.account is not a blob endpoint. Write https://NAME.blob.core.windows.net.")
    return Address(
        blob_url=url.rstrip("/"),
        table_url=url.rstrip("/").replace(".blob.", ".table.", 1),
        name=host.partition(".")[0],
        setting="azure.storage.account",
    )


def _endpoint(parts: dict[str, str], service: str) -> str:
    if given := parts.get(f"{service}endpoint"):
        return given.rstrip("/")
    if not parts.get("accountname"):
        raise ConfigError(f"azure.storage.connect names neither AccountName nor {service.title()}Endpoint.")
    protocol = parts.get("defaultendpointsprotocol", "https")
    suffix = parts.get("endpointsuffix", "core.windows.net")
    return f"{protocol}://{parts['accountname']}.{service}.{suffix}"
