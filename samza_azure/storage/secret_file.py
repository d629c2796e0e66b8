"""A connection string in a file that others write, such as a secret that Kubernetes mounts.

After a refusal the file is read again, and all clients of the account use a new key or signature from the next call on.
The rest cannot change while a process runs: the account, and whether it is a key or a signature. If the file is just
being written, or missing for a moment, it is read again after the next refusal.

How secrets stay out of texts: `docs/secrets.md`, and `tasks/secrets.py` for what a container says.
"""

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from samza_azure.errors import ConfigError
from samza_azure.storage.address import Address, from_connection_string

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient
    from azure.storage.blob.aio import ContainerClient as AsyncContainerClient

log = logging.getLogger(__name__)


class SecretFile:
    """The account's credential and the file that it comes from. Thread-safe."""

    def __init__(self, path: Path, where: Address, credential: AzureNamedKeyCredential | AzureSasCredential) -> None:
        self._path = path
        self._where = where
        self._credential = credential
        self._containers: list[ContainerClient | AsyncContainerClient] = []
        self.version = 0  # rises with each secret that is found
        self._lock = threading.Lock()

    def serve(self, container: "ContainerClient | AsyncContainerClient") -> None:
        """Keep this client's key up to date, too: clients of blobs copy it when they are made."""
        with self._lock:
            self._containers.append(container)
            self._give()

    def read_again(self) -> int:
        """Read the file after a refusal, and use its secret from now on. Return the version of the secret in use."""
        with self._lock:
            found = self._found()
            if found is None or found == self._where:
                return self.version
            if replace(found, key=None, signature=None) != replace(self._where, key=None, signature=None) or (
                (found.key is None) != (self._where.key is None)
            ):
                log.warning(
                    "The file of %s names another account, or a signature instead of a key or the reverse. Running "
                    "processes go on with the old one: start them again.",
                    self._where.setting,
                )
                return self.version
            self._where = found
            self.version += 1
            self._give()
            log.info("The account %s is used with the new secret in the file from now on.", self._where.host)
            return self.version

    def _found(self) -> Address | None:
        try:
            found = from_connection_string(self._path.read_text())
        except (OSError, ValueError, ConfigError):
            return None
        return replace(found, setting=self._where.setting, file=self._path)

    def _give(self) -> None:
        if isinstance(self._credential, AzureSasCredential):
            assert self._where.signature is not None
            self._credential.update(self._where.signature)
            return
        assert self._where.key is not None
        self._credential.update(self._where.name, self._where.key)
        for container in self._containers:
            container.credential.account_key = self._where.key
