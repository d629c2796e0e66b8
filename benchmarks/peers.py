"""Other coordinators, to stand beside ours in the same run: ZooKeeper with kazoo, and etcd.

Each is one server on this machine, which is kinder to them than the three or five that people run. A peer that is not
installed is left out, and the run says what would bring it in.
"""

import base64
import importlib.util
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import scratch
from group import Say

from samza_azure.machine.processes import die_with_parent

ZOOKEEPER = Path("/usr/share/java/zookeeper.jar")
START_S = 30.0


def missing() -> list[str]:
    """What would have to be installed for the peers that are not here."""
    found = []
    if not ZOOKEEPER.exists():
        found.append("ZooKeeper is not measured: apt-get install --no-install-recommends zookeeper")
    elif importlib.util.find_spec("kazoo") is None:
        found.append("ZooKeeper is not measured: .venv/bin/python -m pip install --group bench")
    if shutil.which("etcd") is None:
        found.append("etcd is not measured: apt-get install --no-install-recommends etcd-server")
    return found


def has_zookeeper() -> bool:
    """The server and its Python client."""
    return ZOOKEEPER.exists() and importlib.util.find_spec("kazoo") is not None


def has_etcd() -> bool:
    """The server; it speaks HTTP, so it needs no client."""
    return shutil.which("etcd") is not None


@contextmanager
def zookeeper(tick_ms: int) -> Iterator[str]:
    """A server with this tick; where it listens. Sessions last two ticks at least."""
    with scratch() as directory:
        port = _free_port()
        settings = {
            "tickTime": tick_ms,
            "dataDir": directory / "data",
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
        }
        directory.joinpath("zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with _server(["java", "-Xmx256m", "-cp", str(ZOOKEEPER), main, "zoo.cfg"], directory, port):
            yield f"127.0.0.1:{port}"


@contextmanager
def etcd() -> Iterator[str]:
    """A server; its URL."""
    with scratch() as directory:
        port, peer = _free_port(), _free_port()
        urls = {"client": f"http://127.0.0.1:{port}", "peer": f"http://127.0.0.1:{peer}"}
        command = ["etcd", "--data-dir", "data", "--logger", "zap", "--log-level", "error"]
        command += ["--listen-client-urls", urls["client"], "--advertise-client-urls", urls["client"]]
        command += ["--listen-peer-urls", urls["peer"], "--initial-advertise-peer-urls", urls["peer"]]
        command += ["--initial-cluster", f"default={urls['peer']}"]
        with _server(command, directory, port):
            yield urls["client"]


@contextmanager
def _server(command: list[str], directory: Path, port: int) -> Iterator[None]:
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, preexec_fn=die_with_parent)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} does not start:\n{(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# Members, each the life of a process.


def kazoo_candidate(name: str, say: Say, hosts: str, session_s: float, of: str) -> None:
    """Stand for election with kazoo's recipe; the elected process writes at once."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts, timeout=session_s)
    client.start()
    client.ensure_path(f"/{of}/led")

    def lead() -> None:
        client.set(f"/{of}/led", name.encode())
        say("leads")
        signal.pause()

    election = client.Election(f"/{of}/election", name)
    say("joined")
    election.run(lead)


def kazoo_partitioner(
    name: str, say: Say, tasks: int, hosts: str, session_s: float, boundary_s: float, of: str
) -> None:
    """Share tasks with kazoo's SetPartitioner, as its documentation shows it."""
    from kazoo.client import KazooClient

    say("begins")
    client = KazooClient(hosts, timeout=session_s)
    client.start()
    names = [f"part-{number}" for number in range(tasks)]
    partitioner = client.SetPartitioner(f"/{of}/tasks", names, identifier=name, time_boundary=boundary_s)
    mine: list[str] = []
    while not partitioner.failed:
        if partitioner.release:
            say("runs", ())
            for task in mine:
                say("stops", task)
            mine = []
            partitioner.release_set()
        elif partitioner.acquired and not mine:
            mine = sorted(partitioner)
            for task in mine:
                say("starts", task)
            say("runs", tuple((task, 0) for task in mine))
        elif partitioner.acquired:
            time.sleep(0.005)
        elif partitioner.allocating:
            partitioner.wait_for_acquire()
    raise SystemExit("SetPartitioner has failed, which it calls final.")


def etcd_candidate(name: str, say: Say, url: str, ttl_s: int, of: str) -> None:
    """Stand for election as etcd's own recipe does: a key on a lease, made by the first that finds it absent."""
    lease = _ask(url, "lease/grant", {"TTL": ttl_s})["ID"]

    def keep_alive() -> None:
        while True:
            _ask(url, "lease/keepalive", {"ID": lease})
            time.sleep(ttl_s / 3)

    threading.Thread(target=keep_alive, daemon=True).start()
    say("joined")
    key, value = _text(f"{of}/leader"), _text(name)
    free = {"key": key, "target": "CREATE", "create_revision": "0"}
    take = {"requestPut": {"key": key, "value": value, "lease": lease}}
    look = {"requestRange": {"key": key}}
    while True:
        answer = _ask(url, "kv/txn", {"compare": [free], "success": [take], "failure": [look]})
        if answer.get("succeeded"):
            break
        _until_deleted(url, key, int(answer["header"]["revision"]) + 1)
    _ask(url, "kv/put", {"key": _text(f"{of}/led"), "value": value})
    say("leads")
    signal.pause()


def _ask(url: str, method: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/v3/{method}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


def _until_deleted(url: str, key: str, revision: int) -> None:
    """Watch a key from a revision on."""
    wanted = {"create_request": {"key": key, "start_revision": revision}}
    request = urllib.request.Request(f"{url}/v3/watch", json.dumps(wanted).encode())
    with urllib.request.urlopen(request) as events:
        for line in events:
            if any(event.get("type") == "DELETE" for event in json.loads(line)["result"].get("events", [])):
                return


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
