"""What stands before a broker without TLS and passwords, and has both: a proxy that ends TLS and asks who comes.

It knows as much of the protocol as that takes: the frames, and the two requests by which a client says who it is.
"""

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_OFFSETS, _DESCRIBE_GROUPS, _LIST_GROUPS, _HANDSHAKE, _AUTHENTICATE = 2, 15, 16, 17, 36
_REFUSED = 58
_ROUNDS = 4096


@dataclass(eq=False)
class Front:
    """Passes on to a port of this machine. `password` is that of the user, `token` one that is let in."""

    target: int
    certificate: Path | None = None  # with its key
    mechanism: str = ""
    user: str = "me"
    password: str = ""
    token: str = ""
    refused: int = 0
    breaks: bool = False  # whether a connection ends where it is to be said who comes
    lose: set[int] = field(default_factory=set)  # requests, by their numbers in the protocol, that are never answered
    lost: int = 0
    #: The timestamps of the messages of each partition. With them offsets are found by time, which tansu cannot.
    times: dict[int, list[int]] = field(default_factory=dict)
    #: The group and who has joined it, by client and host, which tansu does not say.
    members: tuple[str, list[tuple[str, str]]] | None = None
    _sockets: list[socket.socket] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._tls: ssl.SSLContext | None = None
        if self.certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(self.certificate)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        _end(self._listener)

    def cut(self) -> None:
        """Break all connections."""
        while self._sockets:
            _end(self._sockets.pop())

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket()
        try:
            server.connect(("127.0.0.1", self.target))
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            self._sockets += [client, server]
            threading.Thread(target=self._answers, args=[server, client], daemon=True).start()
            is_known, talk = not self.mechanism, [""]
            while (request := _frame(client)) is not None:
                key, version, number = struct.unpack_from(">hhi", request)
                if key == _HANDSHAKE and self.breaks:
                    break
                if key == _HANDSHAKE and self.mechanism:
                    name = request[10 + max(0, struct.unpack_from(">h", request, 8)[0]) :]
                    asked = name[2 : 2 + struct.unpack_from(">h", name)[0]].decode()
                    code = 0 if asked == self.mechanism else 33
                    _answer(client, number, struct.pack(">hih", code, 1, len(self.mechanism)) + self.mechanism.encode())
                elif key == _AUTHENTICATE and self.mechanism:
                    assert version < 2
                    sent = request[10 + max(0, struct.unpack_from(">h", request, 8)[0]) :][4:]
                    said, is_known = self._look_at(sent.decode(), talk)
                    if said is None:
                        self.refused += 1
                        text = b"They are not known here."
                        end = struct.pack(">hh", _REFUSED, len(text)) + text + struct.pack(">i", 0)
                    else:
                        end = struct.pack(">hhi", 0, -1, len(said)) + said.encode()
                    _answer(client, number, end + (struct.pack(">q", 0) if version else b""))
                elif key == _OFFSETS and self.times and (found := self._found(request, version)) is not None:
                    _answer(client, number, found)
                elif key in (_LIST_GROUPS, _DESCRIBE_GROUPS) and self.members is not None:
                    _answer(client, number, _groups(version, *self.members, describes=key == _DESCRIBE_GROUPS))
                elif key in self.lose:
                    server.sendall(struct.pack(">i", len(request)) + request)
                    self.lost += 1
                    break
                elif is_known or key == 18:
                    server.sendall(struct.pack(">i", len(request)) + request)
                else:
                    break
        except (OSError, struct.error):
            pass
        _end(client)
        _end(server)  # behind what it was sent

    def _look_at(self, sent: str, talk: list[str]) -> tuple[str | None, bool]:
        """What is answered, None if it is refused; and whether the client is known now."""
        if self.mechanism == "PLAIN":
            known = sent == f"\0{self.user}\0{self.password}"
            return ("" if known else None), known
        if self.mechanism == "OAUTHBEARER":
            known = f"auth=Bearer {self.token}\x01" in sent
            return ("" if known else None), known
        if not talk[0]:  # the first of two turns of SCRAM-SHA-256
            bare = sent.split(",", 2)[2]
            nonce = dict(each.split("=", 1) for each in bare.split(","))["r"] + secrets.token_hex(8)
            first = f"r={nonce},s={base64.b64encode(b'salt').decode()},i={_ROUNDS}"
            talk[0] = f"{bare},{first}"
            return first, False
        without, _, proof = sent.rpartition(",p=")
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), b"salt", _ROUNDS)
        key = hmac.digest(salted, b"Client Key", "sha256")
        message = f"{talk[0]},{without}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
        if bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) != key:
            return None, False
        own = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
        return f"v={base64.b64encode(own).decode()}", True

    def _found(self, request: bytes, version: int) -> bytes | None:
        """The answer of Kafka's documents to a question for offsets by time; None if it is for ends. In versions from
        6 on each length is a byte of one more, and each part ends with the byte 0.
        """
        assert version >= 6
        at = 10 + max(0, struct.unpack_from(">h", request, 8)[0]) + 1 + 4 + 1  # behind header, replica and isolation
        assert request[at] == 2, "one topic"
        name = request[at + 1 : at + 1 + request[at + 1]]
        at += 1 + len(name)
        said, count = b"", request[at] - 1
        for entry in range(at + 1, at + 1 + 17 * count, 17):
            partition, _, wanted = struct.unpack_from(">iiq", request, entry)
            if wanted < 0:
                return None
            times = self.times[partition]
            first = next((offset for offset, time in enumerate(times) if time >= wanted), -1)
            said += struct.pack(">ihqqi", partition, 0, times[first] if first >= 0 else -1, first, -1) + b"\0"
        return struct.pack(">xi", 0) + b"\2" + name + bytes([count + 1]) + said + b"\0\0"

    @staticmethod
    def _answers(server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
        except OSError:
            pass
        _end(client)


def _frame(client: socket.socket) -> bytes | None:
    head = _exactly(client, 4)
    return None if head is None else _exactly(client, struct.unpack(">i", head)[0])


def _exactly(client: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            return None
        data += more
    return data


def _answer(client: socket.socket, number: int, body: bytes) -> None:
    client.sendall(struct.pack(">ii", 4 + len(body), number) + body)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _groups(version: int, group: str, members: list[tuple[str, str]], *, describes: bool) -> bytes:
    """The answer of Kafka's documents to a question for all groups, and for the members of one."""

    def texts(*values: str) -> bytes:
        return b"".join(struct.pack(">h", len(each)) + each.encode() for each in values)

    assert version == 0
    if not describes:
        return struct.pack(">hi", 0, 1) + texts(group, "consumer")
    answer = struct.pack(">ih", 1, 0) + texts(group, "Stable", "consumer", "range") + struct.pack(">i", len(members))
    for client, host in members:
        answer += texts(f"{client}-1", client, host) + struct.pack(">ii", 0, 0)
    return answer
