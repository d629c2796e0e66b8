"""Azure, as far as an identity sees it: the metadata service that gives tokens, and an account that accepts them.

Both are local servers. azure-identity finds the first one by the variable that it has for that; the clients find the
second one through the https proxy that the environment names. Behind it is an emulator, to which requests with a valid
token go on with a signature instead.
"""

import contextlib
import datetime as dt
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.message import Message
from enum import Enum
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.storage.address import EMULATOR_NAME
from tests.storage.proxy import Front, Reply, Request, Server
from tests.storage.test_secrets import signature_of

HOST = f"{EMULATOR_NAME}.blob.core.windows.net"
ACCOUNT = f"https://{HOST}"
#: How long a token lasts. The cache of azure-identity keeps none that ends within five minutes.
TOKEN_S = 200


class Says(Enum):
    """What the metadata service says."""

    TOKEN = 200
    NO_IDENTITY = 400
    BUSY = 429
    BROKEN = 500
    NO_JSON = 0
    NO_TOKEN_IN_IT = 1
    NOTHING = 2  # until the end of the test
    SECRET_IN_IT = 3  # an answer that is cut off within the token


class Metadata(Server):
    """The metadata service of a machine (IMDS)."""

    def __init__(self) -> None:
        self.says = Says.TOKEN
        self.given: list[str] = []
        self.asked = 0
        self.ended = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked += 1
                status, body = service.answer()
                with contextlib.suppress(OSError):  # nobody waits any more
                    self.send_response_only(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.send_header("retry-after-ms", "1")  # azure-identity would pause for 24 s
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)

    def heal(self) -> None:
        """It gives tokens from now on."""
        self.ended.set()
        self.ended = threading.Event()
        self.says = Says.TOKEN
        self.asked = 0

    def answer(self) -> tuple[int, bytes]:
        """Status and body for one request."""
        match self.says:
            case Says.TOKEN | Says.SECRET_IN_IT:
                token = f"eyJhbGciOiJub25lIn0.eyJqdGkiOiI{len(self.given)}In0.c2lnbmF0dXJl"
                self.given.append(token)
                good = {"access_token": token, "expires_in": str(TOKEN_S), "resource": "r", "token_type": "Bearer"}
                text = json.dumps(good)
                return 200, (text if self.says is Says.TOKEN else text[:90]).encode()
            case Says.NO_JSON:
                return 200, b"<html>a page for people</html>"
            case Says.NO_TOKEN_IN_IT:
                return 200, b'{"expires_in": "200"}'
            case Says.NOTHING:
                self.ended.wait(60)
                return 500, b"{}"
            case Says.NO_IDENTITY:
                return 400, b'{"error": "invalid_request", "error_description": "Identity not found"}'
            case _:
                return self.says.value, b'{"error": "busy", "error_description": "Temporarily too busy"}'

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        super().__exit__(None, None, None)


class Door(Front):
    """A way to the account: by https for an identity, or by http to one of the emulator's services."""

    def __init__(self, azure: "Azure", target: int = 0) -> None:
        self._azure, self._target = azure, target
        self.certificate = azure.certificate
        super().__init__()

    def instead(self, request: Request) -> Reply | None:
        return self._azure.instead(request)

    def passed_on(self, request: Request) -> tuple[int, Request]:
        return self._azure.passed_on(request, self._target)


class Azure:
    """The account, the metadata service, and the environment of a machine that has both.

    `refuses` answers requests instead of the account. Without `checks` a key is not checked, as if it were valid.
    """

    def __init__(self, azurite: Azurite, certificate: ssl.SSLContext) -> None:
        self.certificate = certificate
        self._azurite, self._signature = azurite, signature_of(azurite)
        self.has_shared = False  # whether a container and a table for several tests are made
        self.refuses: Callable[[Request], Reply | None]
        self.with_stack = contextlib.ExitStack()
        self.metadata = self.with_stack.enter_context(Metadata())
        self.by_https = self.with_stack.enter_context(Door(self))
        self.blobs = self.with_stack.enter_context(Door(self, azurite.blob_port))
        self.tables = self.with_stack.enter_context(Door(self, azurite.table_port))
        self.heal()

    def heal(self) -> None:
        """All is well from now on."""
        self.refuses = lambda request: None
        self.checks = True
        self.refused = self.passed = 0
        self.metadata.heal()

    def connect(self, opened_by: str) -> str:
        """The connection string by way of the doors, with `AccountKey=…` or `SharedAccessSignature=…`."""
        return (
            f"AccountName={EMULATOR_NAME};{opened_by};BlobEndpoint=http://127.0.0.1:{self.blobs.port}/{EMULATOR_NAME};"
            f"TableEndpoint=http://127.0.0.1:{self.tables.port}/{EMULATOR_NAME}"
        )

    def instead(self, request: Request) -> Reply | None:
        """What is answered instead of the emulator, if anything."""
        try:
            reply = self.refuses(request)
        except ConnectionError:
            self.refused += 1
            raise
        kind, _, token = (request.headers.get("Authorization") or "").partition(" ")
        if reply is None and kind == "Bearer" and token not in self.metadata.given:
            reply = Reply(401, "InvalidAuthenticationInfo")
        self.refused += reply is not None
        return reply

    def passed_on(self, request: Request, target: int) -> tuple[int, Request]:
        """The request as the emulator understands it, and the port of the service that it is for."""
        self.passed += 1
        port = target or (self._azurite.table_port if ".table." in request.headers["Host"] else self._azurite.blob_port)
        here, there = f"https://{EMULATOR_NAME}.table.core.windows.net/", f"http://127.0.0.1:{port}/{EMULATOR_NAME}/"
        body = request.body.replace(here.encode(), there.encode())  # a transaction has URLs in it
        path = request.path if target else f"/{EMULATOR_NAME}{request.path}"
        headers = Message()
        for name, value in request.headers.items():
            if name.lower() not in ("host", "content-length"):
                headers[name] = value
        if not target or not self.checks:
            del headers["Authorization"]
            path += ("&" if "?" in path else "?") + self._signature
        headers["Content-Length"] = str(len(body))
        return port, replace(request, path=path, headers=headers, body=body)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A certificate for the account's hosts, and the file of the authority that issued it, which is itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(f"*.{kind}.core.windows.net") for kind in ("blob", "table")]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificates")
    file, both = folder / "authority.pem", folder / "both.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both.write_bytes(private + file.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context, file


def environment(azure: Azure, authority: Path) -> dict[str, str]:
    """The environment of a machine with this metadata service, behind a proxy."""
    return {
        "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://127.0.0.1:{azure.metadata.port}",
        "HTTPS_PROXY": f"http://127.0.0.1:{azure.by_https.port}",
        "REQUESTS_CA_BUNDLE": str(authority),
        "SSL_CERT_FILE": str(authority),
    }


@contextlib.contextmanager
def as_on_azure(azure: Azure, authority: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is on such a machine."""
    for name, value in environment(azure, authority).items():
        patch.setenv(name, value)
    # aiohttp reads SSL_CERT_FILE when it is imported, which was long ago.
    patch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", ssl.create_default_context(cafile=str(authority)))
    yield
