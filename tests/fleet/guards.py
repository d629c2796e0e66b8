"""Guards of one group, each with its own way to the account, and what their commands have noted."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from samza_azure.commands.azurite.emulator import Azurite
from tests.storage.proxy import Mode, Proxy

JOB = """
app = {{ name = "guarded", id = "{id}", main = "guard:command" }}
azure.storage.connect = "${{CONNECT}}"
job.coordinator.profile = "{profile}"
task.shutdown.ms = {shutdown_ms}
{more}
"""
PATIENCE_S = 60.0
WITNESS = Path(__file__).with_name("witness.py")


@dataclass(slots=True)
class Guarding:
    """A guard's process, and the proxies between it and the account."""

    name: str
    process: subprocess.Popen[bytes]
    proxies: tuple[Proxy, Proxy]

    def cut_off(self) -> None:
        """Nothing reaches the account."""
        for proxy in self.proxies:
            proxy.mode = Mode.LOSE_REQUESTS

    def join(self) -> None:
        """Everything does."""
        for proxy in self.proxies:
            proxy.mode = Mode.PASS

    @property
    def keeper(self) -> int:
        """The process between it and its command."""
        (found,) = psutil.Process(self.process.pid).children()
        return found.pid


class Guards:
    """A group of guards on an emulator."""

    def __init__(
        self,
        emulator: Azurite,
        folder: Path,
        *,
        profile: str = "fast",
        shutdown_ms: int = 2000,
        more: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.emulator, self.folder, self.notes, self.patience_s = emulator, folder, folder / "notes", patience_s
        self.job = folder / "guarded.toml"
        self.job.write_text(JOB.format(id=uuid.uuid4().hex[:8], profile=profile, shutdown_ms=shutdown_ms, more=more))
        self.guards: dict[str, Guarding] = {}
        self._stack = ExitStack()

    def close(self) -> None:
        """Kill everything that is ours, by process id."""
        for guard in self.guards.values():
            guard.process.send_signal(signal.SIGCONT)
            guard.process.kill()
            guard.process.wait()
        self._stack.close()

    def witness(self, how: str = "serve") -> Sequence[str]:
        """The command that notes what happens to it."""
        return [sys.executable, str(WITNESS), str(self.notes), how]

    def start(self, name: str, command: Sequence[str], *options: str, **variables: str) -> Guarding:
        """Start a guard, whose proxies stay if it is started again, with these variables in its environment."""
        emulator, before = self.emulator, self.guards.get(name)
        proxies = before.proxies if before is not None else self._proxies()
        blobs, tables = (f"http://127.0.0.1:{each.port}/devstoreaccount1" for each in proxies)
        account = emulator.connection_string.split("BlobEndpoint")[0]
        connect = f"{account}BlobEndpoint={blobs};TableEndpoint={tables};"
        words = ["guard", str(self.job), "--id", name, *options, "--", *command]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "samza_azure", *words],
                env={**os.environ, "CONNECT": connect, "GUARD": name, **variables},
                stderr=log,
            )
        self.guards[name] = Guarding(name, process, proxies)
        return self.guards[name]

    def _proxies(self) -> tuple[Proxy, Proxy]:
        enter = self._stack.enter_context
        return enter(Proxy(self.emulator.blob_port)), enter(Proxy(self.emulator.table_port))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command, about the group."""
        name, *rest = arguments
        return subprocess.run(
            [sys.executable, "-m", "samza_azure", name, str(self.job), *rest],
            env={**os.environ, "CONNECT": self.emulator.connection_string},
            capture_output=True,
            text=True,
            timeout=self.patience_s,
            check=False,
        )

    def noted(self, what: str = "start") -> list[tuple[int, str]]:
        """The tokens and guards of all notes of a kind, in order."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        found = [line.split(" ", 2) for line in lines]
        assert "two at once" not in [said for _, _, said in found], lines
        return [(int(token), name) for token, name, said in found if said == what]

    def owner(self) -> Guarding:
        """The guard that started the command last."""
        return self.guards[self.noted()[-1][1]]

    def starts(self, count: int) -> str:
        """Wait for so many starts, whose tokens rise. Return the guard of the last one."""
        self.until(f"{count} starts", lambda: len(self.noted()) >= count)
        tokens = [token for token, _ in self.noted()]
        assert tokens == sorted(set(tokens))
        return self.noted()[-1][1]

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until it holds."""
        deadline = time.monotonic() + self.patience_s
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.said()}"
            time.sleep(0.02)  # the pace of asking

    def port(self, name: str) -> int:
        """Where a guard answers probes since its last start."""
        self.until(f"{name} listens", lambda: self._listens(name) != [])
        return int(self._listens(name)[-1])

    def _listens(self, name: str) -> list[str]:
        """The ports that a guard has had since its last start."""
        said = (self.folder / f"{name}.log").read_text()
        return re.findall(r"health on \S+, port (\d+)", said[said.rfind("directory ") :])

    def call(self, name: str, route: str, method: str = "GET", body: str | None = None) -> tuple[int, Any]:
        """Ask a guard over HTTP: the status, and the document that it answers with, if it is one."""
        data, headers = (body.encode() if body is not None else None), {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port(name)}{route}", data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                status, found = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, found = error.code, error.read().decode()
        return status, json.loads(found) if found.startswith("{") else found

    def is_ready(self, name: str) -> bool:
        """Does it say so?"""
        return self.call(name, "/readyz")[0] == 200

    def said(self) -> str:
        """The logs of all guards."""
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))
